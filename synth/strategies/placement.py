"""Assign ranks to the positions 0..n-1 of an abstract schedule.

Hill climbing by swaps from a few starting orders, judged by the exact cost of the schedule that an order gives. Orders
under which two partners have no route are worse than all orders without such a pair.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations

from ...topo.errors import InfeasibleError
from ..cost.affine import cost
from ..ir.schedule import Schedule
from .base import Request

Pairs = Iterable[tuple[int, int]]
_CLIMB_RANKS = 64
_SECONDS, _QUICK_SECONDS = 1.0, 0.1


def place(
    request: Request,
    draw: Callable[[Sequence[int]], Schedule],
    pairs: Callable[[Sequence[int]], Pairs],
    size_bytes: int,
) -> Schedule:
    """Return the best schedule found among `draw(order)`, position i being played by rank order[i].

    `pairs(order)` are the ordered pairs of ranks that must have a route. Raises InfeasibleError where no order is found
    under which they all have one.
    """
    seconds = _QUICK_SECONDS if request.quick else _SECONDS
    deadline = min(time.monotonic() + seconds, request.deadline)
    n = request.collective.ranks

    def count_missing(order: Sequence[int]) -> int:
        return sum(request.router.route(a, b) is None for a, b in pairs(order))

    def price(order: Sequence[int]) -> Fraction:
        affine = cost(draw(order), request.topology)
        return affine.alpha_us / 10**6 + affine.beta_s_per_GB * size_bytes / 10**9

    # Swaps get stuck in local optima, so there are several starts: the given order, then random ones, always the same.
    random_order = random.Random(0)
    best: tuple[Fraction, list[int]] | None = None
    for start in range(8):
        order = list(range(n))
        if start:
            random_order.shuffle(order)
        # First only routes count, which is quick to judge; then time, over orders that have all routes.
        order = _climb(order, lambda o: Fraction(count_missing(o)), deadline, stop=Fraction(0))
        if count_missing(order):
            if time.monotonic() > deadline:
                break
            continue

        def judge(o: Sequence[int]) -> Fraction | None:
            return None if count_missing(o) else price(o)

        order = _climb(order, judge, deadline)
        now = price(order)
        if best is None or now < best[0]:
            best = now, order
        if time.monotonic() > deadline:
            break
    if best is None:
        raise InfeasibleError("no order of the ranks was found in which all partners have a route")
    return draw(best[1])


def _climb(
    order: list[int],
    judge: Callable[[Sequence[int]], Fraction | None],
    deadline: float,
    stop: Fraction | None = None,
) -> list[int]:
    """Swap positions as long as that lowers `judge` (None: not allowed); each swap that helps is taken at once."""
    now = judge(order)
    improved = len(order) <= _CLIMB_RANKS
    while improved and now != stop and time.monotonic() < deadline:
        improved = False
        for i, j in combinations(range(len(order)), 2):
            order[i], order[j] = order[j], order[i]
            value = judge(order)
            if value is not None and now is not None and value < now:
                now, improved = value, True
            else:
                order[i], order[j] = order[j], order[i]
            if time.monotonic() > deadline:
                break
    return order
