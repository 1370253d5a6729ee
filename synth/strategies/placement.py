"""Assign ranks to the positions 0..n-1 of an abstract schedule.

Such a schedule says which positions send to each other, as in a tree or by recursive doubling; its
rate depends on which ranks take them. The search is hill climbing by swaps from a few starting
orders. An order is judged by the exact cost of the schedule built for it. Every order that leaves
two partners without a route is worse than every order in which all partners have one.
"""

import random
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from itertools import combinations

from ...topo.errors import InfeasibleError
from ..cost.affine import cost
from ..ir.schedule import Schedule
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..request import Request

# Sizes for which strategies place ranks: latency dominates at the small one, bandwidth at the large
# one.
SMALL_BYTES, LARGE_BYTES = 1 << 16, 1 << 26
# With more ranks, starting orders are not improved: one pass would judge n^2 / 2 swaps.
_CLIMB_RANKS = 64
# Most starting orders: the given one, then random ones while work is left.
_STARTS = 8
_SEARCH = "placement of ranks"
# Work allowed for one strategy's placement, in seconds of an idle core: usually, and if the request
# is for quick searches.
_WORK_S, _QUICK_WORK_S = 1.0, 0.1
# Work in seconds of an idle core: to build and judge the schedule of an order, the same for each of
# its transfers, and to find the route of two partners.
_ORDER_S, _TRANSFER_S, _ROUTE_S = 1e-3, 6e-6, 4e-6


def place(
    request: Request,
    draw: Callable[[Sequence[int]], Schedule],
    pairs: Callable[[Sequence[int]], Collection[tuple[int, int]]],
    size_bytes: int,
) -> Schedule:
    """Return the schedule with the shortest time at `size_bytes` over the orders tried.

    `draw(order)` builds the schedule in which rank order[i] takes position i, and `pairs(order)`
    returns the (source, destination) pairs of ranks that need a route in it. Raise InfeasibleError
    if no order is found in which all of them have one.
    """
    effort = request.effort.grant(_QUICK_WORK_S if request.quick else _WORK_S)

    def count_missing(order: Sequence[int]) -> int:
        partners = pairs(order)
        effort.spend(_ROUTE_S * len(partners))
        return sum(request.router.route(a, b) is None for a, b in partners)

    # Starts come upon each other's orders, often so on few ranks. Such an order spends what it did
    # before, so that the search ends where it would if it was judged anew.
    known: dict[tuple[int, ...], tuple[Fraction, float]] = {}

    def price(order: Sequence[int]) -> Fraction:
        key = tuple(order)
        if key not in known:
            schedule = draw(order)
            affine = cost(schedule, request.topology)
            time_s = affine.alpha_us / 10**6 + affine.beta_s_per_GB * size_bytes / 10**9
            known[key] = time_s, _ORDER_S + _TRANSFER_S * len(schedule.transfers)
        time_s, work_s = known[key]
        effort.spend(work_s)
        return time_s

    # Swaps get stuck in local optima, so there are several starts: the given order, then random
    # ones, with a fixed seed so that plans are reproducible.
    random_order = random.Random(0)
    best: tuple[Fraction, list[int]] | None = None
    for start in range(_STARTS):
        order = list(range(request.collective.ranks))
        if start:
            random_order.shuffle(order)
        # First minimize the number of missing routes, which is quick to judge; then the time, over
        # orders without missing routes.
        order = _climb(order, lambda o: Fraction(count_missing(o)), effort, stop=Fraction(0))
        if not count_missing(order):
            order = _climb(order, lambda o: None if count_missing(o) else price(o), effort)
            now = price(order)
            if best is None or now < best[0]:
                best = now, order
        if effort.is_over(_SEARCH):
            break
    if best is None:
        raise InfeasibleError("no order of the ranks was found in which all partners have a route")
    return draw(best[1])


def _climb(
    order: list[int],
    judge: Callable[[Sequence[int]], Fraction | None],
    effort: Effort,
    stop: Fraction | None = None,
) -> list[int]:
    """Swap positions while that lowers `judge`, or until it returns `stop`; return the order.

    Each swap that helps is accepted at once. `judge` returns None for orders that are not allowed.
    """
    now = judge(order)
    improved = len(order) <= _CLIMB_RANKS
    while improved and now != stop and not effort.is_over(_SEARCH):
        improved = False
        for i, j in combinations(range(len(order)), 2):
            order[i], order[j] = order[j], order[i]
            value = judge(order)
            if value is not None and now is not None and value < now:
                now, improved = value, True
            else:
                order[i], order[j] = order[j], order[i]
            if effort.is_over(_SEARCH):
                break
    return order
