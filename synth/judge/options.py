"""What else could be had on a machine: a graph file for NCCL, one ring in the best order of ranks,
a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ...topo.errors import InfeasibleError, TopoplanError
from ...topo.graph import Topology
from ...topo.routes import Router
from ..channels.channels import CHAIN, RING, Channels
from ..channels.search import find_channels
from ..effort import Effort
from ..ir.collective import Collective
from ..place.job import WHOLE
from ..place.placing import place
from ..plan import Plan
from ..request import Request
from ..synthesize import synthesize
from .places import count_hosts
from .rates import rate_rings, rate_trees

_TIME_LIMIT_S = 20.0
_MOST_CHANNEL_RANKS, _MOST_CHANNELS = 16, 32
_MOST_PLACED_RANKS, _MOST_NAMED = 64, 16
_MOST_PLAN_RANKS = 64
# Collectives that NCCL runs over rings (and, of allreduce, trees).
_SHAPED = ("allreduce", "allgather", "reduce-scatter")

GRAPH_FILE, RANK_ORDER, PLAN = "graph-file", "rank-order", "plan"


@dataclass(frozen=True)
class Option:
    """Something that could be done: its name, what it reaches at large sizes, and in words what it
    is.
    """

    name: str
    algbw_GBps: Fraction
    what: str


@dataclass(frozen=True)
class Options:
    """All that could be done for a collective, the plan among it, and why anything is missing."""

    options: tuple[Option, ...]
    plan: Plan | None
    missing: tuple[str, ...]

    def best(self, name: str) -> Option | None:
        """Return the option of a name that reaches most."""
        return max(
            (o for o in self.options if o.name == name), key=lambda o: o.algbw_GBps, default=None
        )


def find_options(collective: Collective, router: Router) -> Options:
    """Return what could be had on a machine; what is not found is said."""
    topology = router.topology
    options: list[Option] = []
    missing: list[str] = []
    if collective.name in _SHAPED:
        for shape in (CHAIN, RING):
            if shape == CHAIN and collective.name != "allreduce":
                continue
            if count_hosts(topology) > 1:
                missing.append(
                    "graph files say what happens inside a node; give the topology of one to see "
                    "what they would do"
                )
                continue
            if collective.ranks > _MOST_CHANNEL_RANKS:
                missing.append(
                    f"rings and chains are sought for at most {_MOST_CHANNEL_RANKS} GPUs"
                )
                continue
            try:
                options.append(_find_channels(collective, router, shape))
            except TopoplanError as error:
                missing.append(f"{shape}s: {error}")
        if collective.ranks > _MOST_PLACED_RANKS:
            missing.append(
                f"orders of ranks are sought here for at most {_MOST_PLACED_RANKS} GPUs "
                "(topo-place finds them for more)"
            )
        else:
            try:
                options.append(_place_ring(collective, router))
            except TopoplanError as error:
                missing.append(f"rank order: {error}")
    plan = None
    if collective.ranks > _MOST_PLAN_RANKS:
        missing.append(
            f"plans are made here for at most {_MOST_PLAN_RANKS} GPUs (topo-synth makes them for "
            "more)"
        )
    else:
        try:
            plan = synthesize(collective, topology, "packing", _TIME_LIMIT_S, router=router).plan
            limits = [
                limit for entry in plan.entries if (limit := plan.limit_GBps(entry)) is not None
            ]
            if limits:
                options.append(
                    Option(PLAN, max(limits), "a plan of topoplan's (topo-synth, topo-run)")
                )
        except TopoplanError as error:
            missing.append(f"plan: {error}")
    return Options(tuple(options), plan, tuple(dict.fromkeys(missing)))


def _find_channels(collective: Collective, router: Router, shape: str) -> Option:
    """Return what the best channels of a shape reach."""
    request = Request(collective, router.topology, Effort(_TIME_LIMIT_S), quick=True, router=router)
    channels = find_channels(request, shape, _MOST_CHANNELS)
    algbw = rate_channels(collective.name, channels, router.topology, router)
    count = len(channels.orders)
    return Option(GRAPH_FILE, algbw, f"{count} {shape}{'' if count == 1 else 's'} through all GPUs")


def _place_ring(collective: Collective, router: Router) -> Option:
    """Return what one ring in the best order of ranks reaches, as topo-place finds it."""
    traffic = f"{WHOLE}={collective.name}:1G"
    placed = place(router.topology, traffic=traffic, time_limit_s=_TIME_LIMIT_S)
    try:
        algbw = rate_rings(collective.name, [placed.order], router.topology, router).algbw_GBps
    except InfeasibleError:
        raise InfeasibleError(
            "every ring through all GPUs has neighbours that only other GPUs join"
        ) from None
    gpus = (
        f"the order {', '.join(placed.gpus)}"
        if len(placed.gpus) <= _MOST_NAMED
        else "the best order of ranks"
    )
    return Option(RANK_ORDER, algbw, f"one ring in {gpus}")


def rate_channels(
    collective: str, channels: Channels, topology: Topology, router: Router
) -> Fraction:
    """Return the algbw that channels reach."""
    if channels.shape == RING:
        return rate_rings(collective, channels.orders, topology, router).algbw_GBps
    trees = []
    for order in channels.orders:
        parents = [-1] * len(order)
        for above, rank in pairwise(order):
            parents[rank] = above
        trees.append(tuple(parents))
    return rate_trees(trees, topology, router).algbw_GBps
