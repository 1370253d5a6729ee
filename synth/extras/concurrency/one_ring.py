"""One ring whose slowest hop is as fast as can be: each GPU sends to one other, and hears from one.

Strategies pack several rings, since links are faster together; under limits on the transfers at a
time (limits.py) one may be faster.
"""

from __future__ import annotations

from fractions import Fraction

from ....topo.errors import InfeasibleError
from ...channels.channels import Order, schedule_rings
from ...ir.schedule import Schedule
from ...request import Request

_COLLECTIVES = ("allreduce", "allgather", "reduce-scatter")
# With more ranks no cycle is searched for; ranks visited in a search for one of a rate: a second.
_MAX_RANKS, _MAX_VISITS = 64, 50_000


def build_one_ring(request: Request) -> list[Schedule]:
    """Return the schedule of one ring over the fastest hops found.

    Raise InfeasibleError if there is none, or no collective that rings carry out.
    """
    if request.collective.name not in _COLLECTIVES:
        raise InfeasibleError(f"one ring: it has no {request.collective.name}")
    order = find_order(_find_rates(request))
    if order is None:
        raise InfeasibleError("one ring: no cycle of routes through all ranks was found")
    return [schedule_rings(request, [(order, Fraction(1))], "ring")]


def _find_rates(request: Request) -> list[dict[int, Fraction]]:
    """Return, by the sending rank, the rate of the route to each rank that it reaches."""
    router, ranks = request.router, range(request.collective.ranks)
    return [
        {
            dst: router.bandwidth_GBps(route)
            for dst in ranks
            if dst != src and (route := router.route(src, dst)) is not None
        }
        for src in ranks
    ]


def find_order(rates: list[dict[int, Fraction]]) -> Order | None:
    """Return a cycle through all ranks whose slowest hop is as fast as was found; None: no cycle.

    `rates[a]` maps each rank to which rank a has a route to its rate in GB/s. Of the hops of one
    rate, near ranks come first.
    """
    if len(rates) > _MAX_RANKS:
        return None
    for least in sorted({rate for row in rates for rate in row.values()}, reverse=True):
        nexts = [
            sorted(
                (b for b, rate in row.items() if rate >= least), key=lambda b: (b - a) % len(rates)
            )
            for a, row in enumerate(rates)
        ]
        if order := _close(nexts):
            return order
    return None


def _close(nexts: list[list[int]]) -> Order | None:
    """Return a cycle through all ranks along these hops, or None if a search finds none."""
    path, left = [0], [iter(nexts[0])]
    used = {0}
    for _ in range(_MAX_VISITS):
        if len(path) == len(nexts) and 0 in nexts[path[-1]]:
            return tuple(path)
        following = next((b for b in left[-1] if b not in used), None)
        if following is None:
            left.pop()
            used.remove(path.pop())
            if not path:
                return None
            continue
        path.append(following)
        used.add(following)
        left.append(iter(nexts[following]))
    return None
