"""Rings over the best Hamiltonian cycles of the topology, in both directions, weighted.

The cycles do not follow rank order. A cycle of weight w carries w's share of the buffer (Baidu's
and Horovod's ring). synth/channels/columns.py finds the cycles and their weights. Messages of
different sizes do not get their shares of a link, so where this costs time, equal cycles are
offered too.

A request is a collective on a topology, with limits and an allowance of work; the planner verifies
and costs the schedules that `build` returns for it.
"""

from collections import Counter
from fractions import Fraction

from ..channels.channels import RING, Order, schedule_rings
from ..channels.columns import OrderPacking, find_exact_rates, pack_orders
from ..channels.orders import Orders
from ..channels.rounding import Rounding
from ..cost.affine import bandwidth_s_per_GB, shared_s_per_GB
from ..ir.schedule import Schedule
from ..machine.routes import OwnRoutes
from ..request import MAX_TRANSFERS, Request, check_size

# Rings of unequal shares that take this many times as long as their most loaded links have equal
# rings beside them.
_LOSS = Fraction(102, 100)
# The largest number of equal rings, and the work for finding them, in seconds of an idle core.
_MAX_EQUAL, _EQUAL_WORK_S = 16, 1.0


def build(request: Request) -> list[Schedule]:
    """Return a schedule of rings for a request, and one of equal rings where that may be faster.

    Raise InfeasibleError if no ring visits all GPUs, or none was found with that effort.
    """
    n = request.collective.ranks
    check_size("ring", n, 2 * n * (n - 1))
    orders = Orders(OwnRoutes(request.router), request.collective)
    packed = pack_orders(request, [RING], orders)
    rates = find_exact_rates(packed, request.effort)
    # If there are more rings than can be planned, the heaviest carry the whole buffer.
    max_rings = MAX_TRANSFERS // (2 * n * (n - 1))
    heaviest = sorted(rates.items(), key=lambda item: -item[1])[:max_rings]
    total = sum((rate for _, rate in heaviest), Fraction(0))
    rings = [(order, rate / total) for (_, order), rate in heaviest]
    schedule = schedule_rings(request, rings, "ring")
    enough = bandwidth_s_per_GB(schedule, request.topology) * _LOSS
    if shared_s_per_GB(schedule, request.topology) <= enough:
        return [schedule]
    return [schedule, _build_equal(request, orders, packed, min(_MAX_EQUAL, max_rings), enough)]


def _build_equal(
    request: Request, orders: Orders, packed: OrderPacking, limit: int, enough: Fraction
) -> Schedule:
    """Return the fewest equal rings that take at most `enough` seconds per GB.

    If there are none, return the fastest ones of at most `limit`.
    """
    rounding = Rounding(orders, packed, request.effort.grant(_EQUAL_WORK_S))
    found: list[tuple[Fraction, Schedule]] = []
    for count in range(1, limit + 1):
        times = Counter(rounding.listed[number] for number in rounding.round(count).tolist())
        rings: list[tuple[Order, Fraction]] = [
            (order, Fraction(k, count)) for (_, order), k in times.items()
        ]
        schedule = schedule_rings(request, rings, "ring")
        found.append((shared_s_per_GB(schedule, request.topology), schedule))
        if found[-1][0] <= enough:
            break
    return min(found, key=lambda item: item[0])[1]
