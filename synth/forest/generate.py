"""Column generation: trees packed into the links, and prices that prove how good any packing can be.

Maximise the sum of the trees' rates under the links' bandwidths. The dual prices the links so that every tree costs at
least 1; the next column is the cheapest tree, and where none costs less than 1 the packing is optimal. Links of one
class (see `PairGraph.classes`) share a row and a price first: as averaging over a machine's symmetries keeps a packing
as good as it is, this already gives the optimal value where classes are orbits, with a handful of rows; and whatever
they are, prices prove what they prove. Prices are smoothed towards the best known (Wentges 1997).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import InfeasibleError
from ..effort import Effort
from ..numeric.linear import pack
from .machine.pairs import Floats, PairGraph, Tree

_TOLERANCE = 1e-10
_SMOOTH = 0.5
_SIMILAR = 12
_RAISE = 0.2
_TREE_S, _TREE_PAIR_S = 7e-4, 2e-6
"""Seconds of a quiet core for a cheapest tree, and for each pair of devices in it."""


@dataclass(frozen=True)
class Columns:
    """Trees with their rates in GB/s (floats), the prices of pairs with the least `value` (an upper bound of what any
    packing reaches, in GB/s), and whether the two meet.
    """

    trees: tuple[Tree, ...]
    rates: Floats
    prices: Floats
    value: float
    optimal: bool


def generate(
    graph: PairGraph,
    rows: NDArray[np.int64],
    effort: Effort,
    progress: Callable[[str], None] | None = None,
    start: Columns | None = None,
    most: float = np.inf,
) -> Columns:
    """Pack trees, pair i counting in row `rows[i]`, until nothing better is left, `most` GB/s are reached, or the work
    that is allowed is done. `start` brings columns and prices along.
    """
    count = int(rows.max()) + 1
    capacity: Floats = np.bincount(rows, weights=graph.capacity, minlength=count).astype(np.float64)
    best = (start.prices, start.value) if start is not None else (1.0 / graph.capacity / len(rows), np.inf)
    trees = list(start.trees) if start is not None else []
    columns = [_count_rows(graph, tree, rows) for tree in trees]
    known = dict.fromkeys(trees)
    rates, dual = np.zeros(len(trees)), best[0]
    if trees:
        rates, dual = _solve(columns, capacity, rows, effort)
    smooth = _SMOOTH if trees else 0.0
    tree_s = _TREE_S + _TREE_PAIR_S * len(rows)
    while True:
        trial_prices = smooth * best[0] + (1 - smooth) * dual
        price, tree = graph.cheapest_tree(trial_prices)
        effort.spend(tree_s)
        value = float(graph.capacity @ trial_prices) / price
        if value < best[1]:
            best = trial_prices / price, value
        reached = float(rates.sum()) >= min(best[1], most) * (1 - _TOLERANCE)
        if reached or (trees and effort.is_over("packing trees")):
            return Columns(tuple(trees), rates, best[0], best[1], reached)
        cheap = not trees or sum(dual[i] * times for i, times in graph.uses(tree).items()) < 1 - _TOLERANCE
        if tree in known or not cheap:
            if smooth == 0.0:
                return Columns(tuple(trees), rates, best[0], best[1], optimal=True)
            smooth = smooth / 2 if smooth > 0.05 else 0.0
            continue
        effort.spend(tree_s * _SIMILAR)
        for fresh in [tree, *_find_similar(graph, trial_prices, tree, rows)]:
            if fresh not in known:
                known[fresh] = None
                trees.append(fresh)
                columns.append(_count_rows(graph, fresh, rows))
        rates, dual = _solve(columns, capacity, rows, effort)
        smooth = _SMOOTH
        if progress is not None and len(trees) % 20 == 0:
            progress(f"packing: {len(trees)} trees, {rates.sum():.4g} of at most {best[1]:.4g} GB/s")


def _find_similar(graph: PairGraph, prices: Floats, tree: Tree, rows: NDArray[np.int64]) -> list[Tree]:
    """A few more trees that are nearly as cheap, each shunning the links of those before."""
    out = []
    earlier_uses = np.zeros(len(prices))
    for _ in range(_SIMILAR):
        for row, times in _count_rows(graph, tree, rows).items():
            earlier_uses[row] += times
        raised = prices * (1 + _RAISE * earlier_uses[rows] / np.bincount(rows, minlength=len(prices))[rows])
        _, tree = graph.cheapest_tree(raised + _RAISE * float(prices.mean()) * 1e-3)
        out.append(tree)
    return out


def _solve(
    columns: list[Counter[int]], capacity: Floats, rows: NDArray[np.int64], effort: Effort
) -> tuple[Floats, Floats]:
    """Rates of the columns and the price of each pair."""
    solved = pack(columns, capacity, effort)
    if solved is None:
        raise InfeasibleError("the packing of trees has no optimum; are the bandwidths of very different sizes?")
    return solved[0], solved[1][rows]


def _count_rows(graph: PairGraph, tree: Tree, rows: NDArray[np.int64]) -> Counter[int]:
    used: Counter[int] = Counter()
    for pair, times in graph.uses(tree).items():
        used[int(rows[pair])] += times
    return used


def exact_prices(graph: PairGraph, prices: Floats, denominator: int) -> dict[tuple[str, str], Fraction]:
    """Fractions near the prices, on the scale where the cheapest link of all that cost anything costs 1."""
    least = float(prices[prices > 1e-9 * prices.max()].min())
    exact = {
        pair: Fraction(float(p) / least).limit_denominator(denominator)
        for pair, p in zip(graph.pairs, prices, strict=True)
    }
    return {pair: p for pair, p in exact.items() if p}
