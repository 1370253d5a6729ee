"""Find channels that are good at several sets of link rates at once.

A channel is an order of all ranks, as a ring or a chain. Sets of rates are, for example, those of
the topology and those that NCCL's sources assume.

The loads that channels put on links do not depend on the links' rates. So channels reach a target
at every set of rates exactly if no link is loaded more than its rate divided by the target allows,
at any of them: one search on a machine whose links have the least of these quotients finds them. A
link is known here by the pairs of ranks whose routes cross it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from ....topo.devices import Device, Link
from ....topo.graph import Topology
from ....topo.routes import Route, Router, route_links
from ...channels.channels import RING
from ...channels.rounding import Rounding, prepare
from ...ir.collective import Collective
from ...request import Request

Pair = tuple[int, int]
# GB/s of each link, by the pairs of ranks whose routes cross it.
LinkRates = Mapping[frozenset[Pair], Fraction]
# Work of a search in seconds of an idle core, and its share of the time limit.
_SEARCH_WORK_S, _SEARCH_CLOCK = 4.0, 0.2
# Rates are rounded to this, in GB/s, so that exact sums of them stay short.
_UNIT_GBps = Fraction(1, 1000)


def list_routes(router: Router) -> dict[Pair, Route]:
    """Return the route of each (source, destination) of ranks that has one."""
    ranks = range(len(router.topology.ranks))
    routes = (((a, b), router.route(a, b)) for a in ranks for b in ranks if a != b)
    return {pair: route for pair, route in routes if route is not None}


def list_link_rates(router: Router) -> LinkRates:
    """Return the rates of the links that routes between GPUs cross."""
    return collect(
        (pair, link, router.topology.capacity_GBps[link])
        for pair, route in list_routes(router).items()
        for link in route_links(route)
    )


def collect(crossings: Iterable[tuple[Pair, object, Fraction]]) -> LinkRates:
    """Return the rates of links by the set of pairs that cross each.

    `crossings` are (pair of ranks, link, its GB/s).
    """
    pairs: dict[object, set[Pair]] = {}
    rates: dict[object, Fraction] = {}
    for pair, link, rate in crossings:
        pairs.setdefault(link, set()).add(pair)
        rates[link] = rate
    return find_least_rates(
        ({frozenset(pairs[link]): rate}, Fraction(1)) for link, rate in rates.items()
    )


def find_least_rates(targets: Iterable[tuple[LinkRates, Fraction]]) -> LinkRates:
    """Return each link's least quotient of rate and target, over several (rates, target)."""
    least: dict[frozenset[Pair], Fraction] = {}
    for rates, target in targets:
        for pairs, rate in rates.items():
            least[pairs] = min(least.get(pairs, rate / target), rate / target)
    return least


def rebuild_request(request: Request, rates: LinkRates) -> Request:
    """Return the request on a machine that has just the links of `rates`, and no known bound.

    Its GPUs are those of the request's topology.
    """
    router = _build_router(request.topology, rates)
    return replace(request, topology=router.topology, router=router, bound=None)


def search_at(request: Request, rates: LinkRates, shape: str) -> Rounding:
    """Return a search for channels of a shape on a machine with these link rates.

    The shape is ring, or chain (for allreduce). The linear program of the search is solved at once,
    with work out of the request's effort: `optimum` of the result is the highest algbw in the unit
    of the rates. Raise InfeasibleError if there are no such channels.
    """
    effort = request.effort.grant(_SEARCH_WORK_S, _SEARCH_CLOCK)
    reducing = Collective("allreduce", request.collective.ranks)
    wanted = request if shape == RING else request.of(reducing)
    return prepare(replace(rebuild_request(wanted, rates), effort=effort), shape)


class _TableRouter(Router):
    """The router of one topology whose routes are given."""

    def __init__(self, topology: Topology, routes: Mapping[tuple[str, str], Route]) -> None:
        super().__init__(topology)
        self._table = routes

    def find_route(self, start: str, end: str) -> Route | None:
        """Return the given route."""
        return self._table.get((start, end))

    def on(self, topology: Topology) -> Router:
        """Return this router, which has routes of its own topology only."""
        assert topology == self.topology
        return self


def _build_router(topology: Topology, rates: LinkRates) -> Router:
    """Return the router of a machine in which routes pass through their links one after another.

    Each link joins two devices of its own. A connection between two links has the rate of one of
    them, and carries no more than that one does.
    """
    gpus = topology.ranks
    along: dict[Pair, list[str]] = {
        (a, b): [] for a in range(len(gpus)) for b in range(len(gpus)) if a != b
    }
    rate_of: dict[str, Fraction] = {}
    for number, (pairs, rate) in enumerate(rates.items()):
        ends = f"{number}:in", f"{number}:out"
        rate_of |= dict.fromkeys(ends, max(round(rate / _UNIT_GBps), 1) * _UNIT_GBps)
        for pair in pairs:
            along[pair] += ends
    routes = {(gpus[a], gpus[b]): (gpus[a], *via, gpus[b]) for (a, b), via in along.items() if via}
    hops = dict.fromkeys(hop for route in routes.values() for hop in route_links(route))
    machine = replace(
        topology,
        devices=(
            *(topology.by_id[gpu] for gpu in gpus),
            *(Device(end, "switch") for end in rate_of),
        ),
        links=tuple(Link(a, b, rate_of[b] if b in rate_of else rate_of[a]) for a, b in hops),
    )
    return _TableRouter(machine, routes)
