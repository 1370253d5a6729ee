"""Column generation: trees packed into the links, and prices that prove how good any packing can
be.

Maximise the sum of the trees' rates under the links' bandwidths. The dual prices the links so that
every tree costs at least 1; the next column is the cheapest tree, and where none costs less than 1
the packing is optimal. Links of one class (see `PairGraph.classes`) share a row and a price first:
as averaging over a machine's symmetries keeps a packing as good as it is, this already gives the
optimal value where classes are orbits, with a handful of rows; and whatever they are, prices prove
what they prove. Prices are smoothed towards the best known (Wentges 1997).
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
# Seconds of a quiet core for a cheapest tree, and for each pair of devices in it.
_TREE_S, _TREE_PAIR_S = 7e-4, 2e-6


@dataclass(frozen=True)
class Columns:
    """Trees with their rates in GB/s (floats); the pairs' prices with the lowest `value`, an upper
    bound in GB/s on the rate of any packing; and `optimal`, whether the rates add up to that bound.
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
    """Pack trees into links by column generation, and return them with their rates and the best
    prices.

    Pair i of the graph counts in row `rows[i]`. Generation ends at the optimum, at `most` GB/s, or
    with the work that is allowed; `start` gives the columns and prices to go on from.
    """
    # Before any tree has a rate, each link costs the inverse of its bandwidth: wide links are
    # cheap.
    count = int(rows.max()) + 1
    capacity: Floats = np.bincount(rows, weights=graph.capacity, minlength=count).astype(np.float64)
    best = (
        (start.prices, start.value)
        if start is not None
        else (1.0 / graph.capacity / len(rows), np.inf)
    )
    trees = list(start.trees) if start is not None else []
    columns = [_count_rows(graph, tree, rows) for tree in trees]
    known_trees = dict.fromkeys(trees)
    rates, dual = np.zeros(len(trees)), best[0]
    if trees:
        rates, dual = _solve(columns, capacity, rows, effort)
    # Duals jump from one program to the next; prices between them and the best known settle sooner.
    smooth = _SMOOTH if trees else 0.0
    tree_s = _TREE_S + _TREE_PAIR_S * len(rows)
    while True:
        trial_prices = smooth * best[0] + (1 - smooth) * dual
        price, tree = graph.cheapest_tree(trial_prices)
        effort.spend(tree_s)
        # Any prices bound every packing: what all links cost, over what the cheapest tree costs.
        value = float(graph.capacity @ trial_prices) / price
        if value < best[1]:
            best = trial_prices / price, value
        reached = float(rates.sum()) >= min(best[1], most) * (1 - _TOLERANCE)
        if reached or (trees and effort.is_over("packing trees")):
            return Columns(tuple(trees), rates, best[0], best[1], reached)
        # Only a tree that is cheap under the duals themselves improves the program. Where smoothed
        # prices lead to none, smooth less; where the duals lead to none either, this is the
        # optimum.
        cheap = (
            not trees
            or sum(dual[i] * times for i, times in graph.uses(tree).items()) < 1 - _TOLERANCE
        )
        if tree in known_trees or not cheap:
            if smooth == 0.0:
                return Columns(tuple(trees), rates, best[0], best[1], optimal=True)
            smooth = smooth / 2 if smooth > 0.05 else 0.0
            continue
        # Several columns at once save solving the program for each.
        effort.spend(tree_s * _SIMILAR)
        for fresh in [tree, *_find_similar(graph, trial_prices, tree, rows)]:
            if fresh not in known_trees:
                known_trees[fresh] = None
                trees.append(fresh)
                columns.append(_count_rows(graph, fresh, rows))
        rates, dual = _solve(columns, capacity, rows, effort)
        smooth = _SMOOTH
        if progress is not None and len(trees) % 20 == 0:
            progress(
                f"packing: {len(trees)} trees, {rates.sum():.4g} of at most {best[1]:.4g} GB/s"
            )


def _find_similar(
    graph: PairGraph, prices: Floats, tree: Tree, rows: NDArray[np.int64]
) -> list[Tree]:
    """Return a few more trees that are nearly as cheap, each avoiding the links of those before
    it.
    """
    out = []
    earlier_uses = np.zeros(len(prices))
    for _ in range(_SIMILAR):
        for row, times in _count_rows(graph, tree, rows).items():
            earlier_uses[row] += times
        raised = prices * (
            1 + _RAISE * earlier_uses[rows] / np.bincount(rows, minlength=len(prices))[rows]
        )
        _, tree = graph.cheapest_tree(raised + _RAISE * float(prices.mean()) * 1e-3)
        out.append(tree)
    return out


def _solve(
    columns: list[Counter[int]], capacity: Floats, rows: NDArray[np.int64], effort: Effort
) -> tuple[Floats, Floats]:
    """Solve the program; return the rates of the columns and the price of each pair."""
    solved = pack(columns, capacity, effort)
    if solved is None:
        raise InfeasibleError(
            "the packing of trees has no optimum; are the bandwidths of very different sizes?"
        )
    return solved[0], solved[1][rows]


def _count_rows(graph: PairGraph, tree: Tree, rows: NDArray[np.int64]) -> Counter[int]:
    """Return how often a tree uses the links of each row."""
    used: Counter[int] = Counter()
    for pair, times in graph.uses(tree).items():
        used[int(rows[pair])] += times
    return used


def exact_prices(
    graph: PairGraph, prices: Floats, denominator: int
) -> dict[tuple[str, str], Fraction]:
    """Return the prices as fractions, scaled so that the cheapest link whose price is not zero
    costs 1.
    """
    least = float(prices[prices > 1e-9 * prices.max()].min())
    exact = {
        pair: Fraction(float(p) / least).limit_denominator(denominator)
        for pair, p in zip(graph.pairs, prices, strict=True)
    }
    return {pair: p for pair, p in exact.items() if p}
