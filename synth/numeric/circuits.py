"""Circuits through all nodes of a dense directed graph: the cheapest, or cheap ones.

The cheapest is found by dynamic programming over subsets for few nodes (Bellman 1962; Held, Karp
1962) and by CP-SAT's circuit constraint for more. Cheap ones without proof come from cheapest
insertion (Rosenkrantz, Stearns, Lewis 1977), improved by reversing or moving consecutive nodes
(2-opt and Or-opt) until no move helps.

A circuit is the order of nodes 1, 2, ... in which it visits them from node 0 and back. A missing
edge has an infinite price.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from .cp_sat import solve
from .effort import Effort  # an allowance of work and time for searches
from .linear import Floats

Ints = NDArray[np.int64]
Circuit = tuple[int, ...]
# Largest graphs, in nodes, for the dynamic program.
MAX_NODES = 17
# CP-SAT takes integers: prices are rounded to a billionth of the highest.
_PRICE_SCALE = 10**9
# Seconds of an idle core to extend one path by one node.
_STATE_S = 4e-9
# Most consecutive nodes that are moved together.
_LONGEST = 24
# Seconds of an idle core for each move that is judged, and for each round of moves.
_ENTRY_S, _CALL_S = 2e-8, 1e-3
# Gain, as a fraction of the price, from which a move counts: above rounding errors.
_BETTER = 1e-9


@lru_cache(maxsize=4)
def _list_subsets(others: int) -> list[Ints]:
    """Return the subsets of `others` nodes, as bits, grouped by their number of nodes."""
    every = np.arange(1 << others, dtype=np.int64)
    sizes = sum((every >> i) & 1 for i in range(others)) + np.zeros_like(every)
    return [every[sizes == k] for k in range(others + 1)]


def _extend_paths(price: Floats, count: int) -> Floats:
    """Return the prices of the cheapest paths from node 0 through small subsets of other nodes.

    Row s, column v is for the path through subset s (of at most `count` nodes) that ends at its
    node v; other entries are infinite.
    """
    others = len(price) - 1
    within = np.ascontiguousarray(price[1:, 1:])
    best = np.full((1 << others, others), np.inf)
    best[1 << np.arange(others), np.arange(others)] = price[0, 1:]
    for subsets in _list_subsets(others)[2 : count + 1]:
        for last in range(others):
            ending = subsets[(subsets >> last) & 1 == 1]
            best[ending, last] = (best[ending ^ (1 << last)] + within[:, last]).min(axis=1)
    return best


def _walk_back(price: Floats, best: Floats, subset: int, last: int) -> list[int]:
    """Return the nodes of the cheapest path through a subset, from `last` back to node 0.

    Node 0 itself is not included.
    """
    path = [last]
    while subset := subset ^ (1 << last):
        last = int(np.argmin(best[subset] + price[1:, last + 1]))
        path.append(last)
    return [node + 1 for node in path]


def cheapest_circuits(price: Floats, count: int, effort: Effort) -> list[tuple[float, Circuit]]:
    """Return up to `count` different cheap circuits with their prices, the cheapest of all first.

    `price[u, v]` is the price of the edge u -> v, infinite if missing. A circuit is the order of
    the other nodes between leaving node 0 and coming back. The list is empty if there are none.
    Each is the cheapest of those that visit one set of half the nodes first. The graph may have at
    most MAX_NODES nodes.
    """
    others = len(price) - 1
    effort.spend(_STATE_S * others**2 * 2**others + 2e-4)
    if others == 1:
        there_and_back = float(price[0, 1] + price[1, 0])
        return [(there_and_back, (1,))] if there_and_back < np.inf else []
    first = (others + 1) // 2
    rest = others - first + 1
    there = _extend_paths(price, max(first, rest))
    back = there if np.array_equal(price, price.T) else _extend_paths(price.T, rest)
    # The two halves of a circuit share the node at which they meet.
    halves = _list_subsets(others)[first]
    bits = 1 << np.arange(others, dtype=np.int64)
    remaining = ((1 << others) - 1) ^ halves
    meeting = there[halves] + back[remaining[:, None] | bits[None, :], np.arange(others)[None, :]]
    where = meeting.argmin(axis=1)
    least = meeting[np.arange(len(halves)), where]
    out: dict[Circuit, float] = {}
    for i in np.argsort(least, kind="stable")[: 2 * count].tolist():
        if not least[i] < np.inf or len(out) == count:
            break
        meet = int(where[i])
        head = _walk_back(price, there, int(halves[i]), meet)
        tail = _walk_back(price.T, back, int(remaining[i]) | 1 << meet, meet)
        out.setdefault((*head[::-1], *tail[1:]), float(least[i]))
    return [(value, circuit) for circuit, value in out.items()]


def search_circuit(price: Floats, effort: Effort, search: str) -> tuple[Circuit | None, bool]:
    """Return a cheap circuit, by CP-SAT, and whether it is proved to be the cheapest.

    `price[u, v]` is the price of the edge u -> v, infinite if missing; a circuit is the order of
    the other nodes between leaving node 0 and coming back. It is None if none was found with that
    effort, or, with True, if it is proved that none exists. `search` is the name to record in
    `effort.cut_short` if the clock stops it.
    """
    edges = np.isfinite(price) & ~np.eye(len(price), dtype=bool)
    if not (edges.any(axis=0).all() and edges.any(axis=1).all()):
        return None, True  # CP-SAT's circuits omit nodes without edges
    model = cp_model.CpModel()
    arcs = {(int(u), int(v)): model.new_bool_var("") for u, v in np.argwhere(edges)}
    model.add_circuit([(u, v, arc) for (u, v), arc in arcs.items()])
    top = max((float(price[edge]) for edge in arcs), default=0.0) or 1.0
    model.minimize(sum(int(price[edge] / top * _PRICE_SCALE) * arc for edge, arc in arcs.items()))
    solver, status = solve(model, effort, search)
    if status == cp_model.INFEASIBLE:
        return None, True
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, False
    after = {u: v for (u, v), arc in arcs.items() if solver.boolean_value(arc)}
    out = [after[0]]
    while after[out[-1]] != 0:
        out.append(after[out[-1]])
    return tuple(out), status == cp_model.OPTIMAL


def near_circuits(
    price: Floats, begun: Iterable[Circuit], starts: int, effort: Effort
) -> list[tuple[float, Circuit]]:
    """Return different cheap circuits with their prices, cheapest first.

    `price[u, v]` is the price of the edge u -> v, infinite if missing; a circuit is the order of
    the other nodes between leaving node 0 and coming back. They are those in `begun`, and ones that
    grow from `starts` different nodes, each improved until no move helps. None of them has a
    missing edge, so the list may be empty even if circuits exist.
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
    """Return a tour that grows from a node by always inserting at the least additional cost."""
    tour, left = [start], [node for node in range(len(price)) if node != start]
    while left:
        after = np.roll(tour, -1).tolist()
        more = price[np.ix_(tour, left)] + price[np.ix_(left, after)].T
        if len(tour) > 1:
            more = more - price[tour, after][:, None]
        place, which = divmod(int(more.argmin()), len(left))
        tour.insert(place + 1, left.pop(which))
    return tour


def _improve(price: Floats, tour: list[int], effort: Effort) -> list[int]:
    """Return the tour, beginning at node 0, after making the best of all moves until none helps."""
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
    """Return the least price change from visiting nodes i .. j of the tour backwards, and (i, j).

    Node 0 stays first. A negative change is a gain.
    """
    there = price[tour, np.roll(tour, -1)]
    inside = np.concatenate([[0.0], np.cumsum(price[np.roll(tour, -1), tour] - there)])
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
    """Return the least price change from swapping two adjacent runs of nodes, and (a, b, c).

    The runs are nodes a .. b - 1 and b .. c - 1 of the tour; node 0 stays first. A negative change
    is a gain.
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
