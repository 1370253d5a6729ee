"""Find lost links from the pairs of ranks that do not reach each other, and plan without them."""

from collections.abc import Collection, Mapping, Sequence, Set
from itertools import pairwise, permutations

from ...synth.plan import Plan
from ...synth.planner.synthesize import synthesize
from ...topo.derived.degrade import Change, degrade
from ...topo.graph import Topology
from ...topo.routes import Route, Router
from ..ranks.faults import Call
from .agreement import RankStatus

# Allowance of work for the new plan, in seconds, and more for each rank: all of them wait for it.
_PLAN_S, _PLAN_S_PER_RANK = 0.4, 0.02

Pair = tuple[int, int]


def list_unreached(parts: Mapping[int, RankStatus]) -> list[Pair]:
    """Return the pairs of ranks, the lower first, of which one does not reach the other.

    `parts` are what ranks have reported, by rank.
    """
    return sorted(
        {
            (min(rank, other), max(rank, other))
            for rank, part in parts.items()
            for other in part.unreached
        }
    )


def find_lost_links(topology: Topology, unreached: Collection[Pair]) -> list[tuple[str, str]]:
    """Return the links, by their devices, that only pairs that do not reach each other use.

    One or several of them are lost; which ones, the pairs do not show, so none should be used.
    """
    find_route = Call("", 0, 0.0, topology).find_route

    def list_links(pair: Pair) -> set[tuple[str, str]]:
        # A failure of either direction stops a connection.
        routes = (find_route(*pair), find_route(*pair[::-1]))
        return {(min(link), max(link)) for route in routes for link in pairwise(route or ())}

    lost: set[tuple[str, str]] = set().union(*map(list_links, unreached))
    ranks = range(len(topology.ranks))
    for pair in ((a, b) for a in ranks for b in ranks if a < b):
        if lost and pair not in unreached:
            lost -= list_links(pair)
    return sorted(lost)


def plan_without(plan: Plan, links: Sequence[tuple[str, str]], unreached: Set[Pair]) -> Plan:
    """Return a plan for the topology of `plan` without some links, and without pairs of ranks.

    Raise InfeasibleError if there is none.
    """
    if not unreached:
        return plan
    topology = plan.topology
    if links:
        topology = degrade(topology, Change(without_links=tuple(f"{a}:{b}" for a, b in links)))
    router = ReachedRouter(topology, unreached)
    return synthesize(
        plan.collective,
        topology,
        time_limit_s=_PLAN_S + _PLAN_S_PER_RANK * plan.collective.ranks,
        router=router,
        reproducible=plan.bracketing is not None,
    ).plan


class ReachedRouter(Router):
    """The hardware's routes, except between pairs of ranks, the lower first, that are `unreached`.

    Sockets keep the routes that they had: where another path is left, they do not find it.
    """

    def __init__(self, topology: Topology, unreached: Set[Pair]) -> None:
        super().__init__(topology)
        self._unreached = unreached
        gpus = topology.ranks
        self._closed = {pair for a, b in unreached for pair in permutations((gpus[a], gpus[b]))}

    def find_route(self, start: str, end: str) -> Route | None:
        """Return the hardware's route, None between two ranks that do not reach each other."""
        return None if (start, end) in self._closed else super().find_route(start, end)

    def before_each(self, start: str) -> Mapping[str, str]:
        """Return, by device id, the device before it on its route from `start`."""
        before = super().before_each(start)
        return {x: near for x, near in before.items() if (start, x) not in self._closed}

    def on(self, topology: Topology) -> Router:
        """Return the router of another topology that lacks the same pairs of ranks."""
        return self if topology == self.topology else ReachedRouter(topology, self._unreached)
