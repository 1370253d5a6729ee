"""Cheap circuits through all nodes of a dense directed graph: quick, and without proof.

By cheapest insertion (Rosenkrantz, Stearns, Lewis 1977), improved by reversing or moving nodes in a
row (2-opt and Or-opt) until no move helps.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..effort import Effort
from .circuits import Circuit
from .linear import Floats

# Nodes in a row that are moved together, at most.
_LONGEST = 24
# Seconds of a quiet core for each move that is judged, and for each round of moves.
_ENTRY_S, _CALL_S = 2e-8, 1e-3
# Gain, as a part of the price, from which a move counts: more than rounding errors.
_BETTER = 1e-9


def near_circuits(
    price: Floats, begun: Iterable[Circuit], starts: int, effort: Effort
) -> list[tuple[float, Circuit]]:
    """Return different cheap circuits with their prices, cheapest first: those `begun`, and
    insertions from `starts` nodes, each improved until no move helps. None has a missing edge;
    where exchanges find none without, there is none here.
    """
    n = len(price)
    finite = np.isfinite(price)
    np.fill_diagonal(finite, False)
    far = float(price[finite].sum()) + 1.0
    dense = np.where(finite, price, far)
    tours = [[0, *circuit] for circuit in begun]
    tours += [_insert_nodes(dense, start) for start in range(0, n, max(1, n // max(1, starts)))]
    out: dict[Circuit, float] = {}
    for tour in tours:
        improved = _improve(dense, tour, effort)
        value = _price_of(dense, improved)
        if value < far:
            out.setdefault(tuple(improved[1:]), value)
    return [(value, circuit) for circuit, value in sorted(out.items(), key=lambda item: item[1])]


def _price_of(price: Floats, tour: list[int]) -> float:
    return float(price[tour, np.roll(tour, -1)].sum())


def _insert_nodes(price: Floats, start: int) -> list[int]:
    """Return a tour that grows from a node by inserting, each time, the node and place that cost
    least more.
    """
    n = len(price)
    tour, left = [start], [node for node in range(n) if node != start]
    while left:
        after = np.roll(tour, -1).tolist()
        more = price[np.ix_(tour, left)] + price[np.ix_(left, after)].T
        if len(tour) > 1:
            more = more - price[tour, after][:, None]
        place, which = divmod(int(more.argmin()), len(left))
        tour.insert(place + 1, left.pop(which))
    return tour


def _improve(price: Floats, tour: list[int], effort: Effort) -> list[int]:
    """Return the tour, beginning at node 0, after the best of all moves was made again and again,
    until none helps.
    """
    n = len(price)
    while n > 2:
        effort.spend(_CALL_S + _ENTRY_S * n**2 * min(n, _LONGEST))
        zero = tour.index(0)
        tour = tour[zero:] + tour[:zero]
        turned, (i, j) = _best_turn(price, tour)
        moved, (a, b, c) = _best_move(price, tour)
        if min(turned, moved) >= -_BETTER * _price_of(price, tour):
            break
        tour = (
            tour[:i] + tour[i : j + 1][::-1] + tour[j + 1 :]
            if turned <= moved
            else tour[:a] + tour[b:c] + tour[a:b] + tour[c:]
        )
    zero = tour.index(0)
    return tour[zero:] + tour[:zero]


def _best_turn(price: Floats, tour: list[int]) -> tuple[float, tuple[int, int]]:
    """Return how much dearer the tour gets, at least, when its nodes i .. j (not the first) are
    visited backwards.
    """
    there = price[tour, np.roll(tour, -1)]
    back = price[np.roll(tour, -1), tour]
    inside = np.concatenate([[0.0], np.cumsum(back - there)])
    n = len(tour)
    ends = [*tour, tour[0]]
    # Row i - 1, column j - 1 for nodes i .. j of the tour, 1 <= i < j <= n - 1.
    change = (
        price[np.ix_(ends[: n - 1], ends[1:n])]
        + price[np.ix_(ends[1:n], ends[2:])]
        - there[: n - 1, None]
        - there[None, 1:]
        + inside[None, 1:n]
        - inside[1:n, None]
    )
    change[np.tril_indices(n - 1)] = np.inf
    i, j = divmod(int(change.argmin()), n - 1)
    return float(change[i, j]), (i + 1, j + 1)


def _best_move(price: Floats, tour: list[int]) -> tuple[float, tuple[int, int, int]]:
    """Return how much dearer the tour gets, at least, when its nodes a .. b - 1 and b .. c - 1 (not
    the first) swap.
    """
    n = len(tour)
    ends = np.array([*tour, tour[0]])
    step = price[ends[:-1], ends[1:]]
    best, where = np.inf, (1, 1, 1)
    for length in range(1, min(n - 2, _LONGEST) + 1):
        a = np.arange(1, n - length)
        b = a + length
        c = np.arange(3, n + 1)
        change = (
            price[np.ix_(ends[b - 1], ends[c])]
            + (price[ends[a - 1], ends[b]] - step[a - 1] - step[b - 1])[:, None]
            + price[np.ix_(ends[c - 1], ends[a])].T
            - step[c - 1][None, :]
        )
        change[c[None, :] <= b[:, None]] = np.inf
        i, k = divmod(int(change.argmin()), len(c))
        if change[i, k] < best:
            best, where = float(change[i, k]), (int(a[i]), int(b[i]), int(c[k]))
    return best, where
