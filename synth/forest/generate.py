"""Column generation of undirected trees packed into links, and prices that bound any packing.

Maximise the sum of the trees' rates under the links' bandwidths. The duals price the links so that
every tree costs at least 1; the next column is the cheapest tree, and once none costs less than 1
the packing is optimal. At first, links of one class (see `PairGraph.classes`) share a row and a
price. Averaging over a machine's symmetries keeps a packing equally good, so this already gives the
optimal value if classes are orbits, with a handful of rows; and whatever the classes are, any
prices prove an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from ...topo.errors import InfeasibleError
from ..numeric.effort import Effort
from ..numeric.linear import SmoothedPrices, pack
from .machine.links import Floats, Ints
from .machine.pairs import PairGraph, Tree
from .machine.routes import Metric

# Relative gap to the bound at which a packing counts as optimal, and by which a tree must cost less
# than 1: above the rounding errors of sums over links.
_TOLERANCE = 1e-10
# Columns added along with the cheapest one, and the fraction by which each of them raises the
# prices of its links for the following ones: solving the program again costs more than a dozen
# trees.
_SIMILAR, _RAISE = 12, 0.2
# Seconds of an idle core per cheapest tree, and per pair of devices in it.
_TREE_S, _TREE_PAIR_S = 7e-4, 2e-6
# Above this, no shallow trees are grown: they need all distances between GPUs in every turn.
METRIC_RANKS = 256
# Maximum number of roots from which shallow trees are grown.
MAX_ROOTS = 64
# Shallow trees added per turn.
_FRESH_LOW = 8
# Seconds of an idle core to grow and count a shallow tree, and per rank in it.
_LOW_TREE_S, _LOW_TREE_RANK_S = 5e-4, 2e-5
# Rate in GB/s above which a tree counts as used (links have 1 GB/s and more).
_CARRIES = 1e-9


@dataclass(frozen=True)
class Columns:
    """Trees with their rates, and the prices that bound the rate of any packing.

    `rates` are floats in GB/s. `prices` are those of the pairs with the lowest `value`, an upper
    bound in GB/s on the rate of any packing. `optimal` means that the rates add up to that bound.
    """

    trees: tuple[Tree, ...]
    rates: Floats
    prices: Floats
    value: float
    optimal: bool

    @property
    def carrying(self) -> list[Tree]:
        """The trees with a rate above 0."""
        return _list_carrying(self.trees, self.rates)


def _list_carrying(trees: Sequence[Tree], rates: Floats) -> list[Tree]:
    return [tree for tree, rate in zip(trees, rates, strict=True) if rate > _CARRIES]


def generate(
    graph: PairGraph,
    rows: Ints,
    effort: Effort,
    progress: Callable[[str], None] | None = None,
    start: Columns | None = None,
    enough: float = np.inf,
) -> Columns:
    """Pack trees into links by column generation; return them with rates and the best prices.

    Pair i of the graph counts in row `rows[i]`. Generation ends at the optimum, at `enough` GB/s,
    or once the effort is spent. `start` gives columns and prices to continue from.
    """
    capacity: Floats = np.bincount(rows, weights=graph.capacity).astype(np.float64)
    columns: dict[Tree, Counter[int]] = {}

    def add(trees: Sequence[Tree]) -> tuple[Floats, Floats]:
        """Add columns and solve the program; return the rates of all and the price of each pair."""
        columns.update((tree, _count_rows(graph, tree, rows)) for tree in trees)
        solved = pack(list(columns.values()), capacity, effort)
        if solved is None:
            raise InfeasibleError(
                "the packing of trees has no optimum; are the bandwidths of very different sizes?"
            )
        return solved[0], solved[1][rows]

    # Before any tree has a rate, each link costs the inverse of its bandwidth: wide links are
    # cheap.
    smooth, value = SmoothedPrices(1.0 / graph.capacity / len(rows)), np.inf
    rates, dual = np.zeros(0), smooth.best
    if start is not None:
        smooth.best, value = start.prices, start.value
        rates, dual = add(start.trees)
        smooth.reset()
    tree_s = _TREE_S + _TREE_PAIR_S * len(rows)
    while True:
        trial = smooth.mix(dual)
        price, tree = graph.cheapest_tree(trial)
        effort.spend(tree_s)
        # Any prices bound every packing: the cost of all links over that of the cheapest tree.
        proved = float(graph.capacity @ trial) / price
        if proved < value:
            smooth.best, value = trial / price, proved
        reached = float(rates.sum()) >= min(value, enough) * (1 - _TOLERANCE)
        if reached or (columns and effort.is_over("packing trees")):
            return Columns(tuple(columns), rates, smooth.best, value, reached)
        # Only a tree that is cheap under the duals themselves improves the program. If smoothed
        # prices lead to none, smooth less; if the duals lead to none either, this is the optimum.
        cheap = not columns or graph.price(tree, dual) < 1 - _TOLERANCE
        if tree in columns or not cheap:
            if not smooth.back_off():
                return Columns(tuple(columns), rates, smooth.best, value, optimal=True)
            continue
        # Several columns at once save solving the program for each.
        effort.spend(tree_s * _SIMILAR)
        rates, dual = add([tree, *_find_similar(graph, trial, tree, rows)])
        smooth.reset()
        if progress is not None and len(columns) % 20 == 0:
            progress(
                f"packing: {len(columns)} trees, {rates.sum():.4g} of at most {value:.4g} GB/s"
            )


def _find_similar(graph: PairGraph, prices: Floats, tree: Tree, rows: Ints) -> list[Tree]:
    """Return more trees that are nearly as cheap, each avoiding the links of those before it."""
    out = []
    earlier_uses, sizes = np.zeros(len(prices)), np.bincount(rows, minlength=len(prices))
    for _ in range(_SIMILAR):
        for row, times in _count_rows(graph, tree, rows).items():
            earlier_uses[row] += times
        raised = prices * (1 + _RAISE * earlier_uses[rows] / sizes[rows])
        # Add a little to each link, so that links without a price are avoided too.
        _, tree = graph.cheapest_tree(raised + _RAISE * float(prices.mean()) * 1e-3)
        out.append(tree)
    return out


def _count_rows(graph: PairGraph, tree: Tree, rows: Ints) -> Counter[int]:
    used: Counter[int] = Counter()
    for pair, times in graph.uses(tree).items():
        used[int(rows[pair])] += times
    return used


def exact_prices(
    graph: PairGraph, prices: Floats, denominator: int
) -> dict[tuple[str, str], Fraction]:
    """Return the prices as fractions, scaled so that the cheapest non-zero price is 1.

    Denominators are at most `denominator`. Links without a price are left out.
    """
    least = float(prices[prices > 1e-9 * prices.max()].min())
    exact = {
        pair: Fraction(float(p) / least).limit_denominator(denominator)
        for pair, p in zip(graph.links, prices, strict=True)
    }
    return {pair: p for pair, p in exact.items() if p}


def grow_low_tree(
    metric: Metric, root: int, hop_price: float = 0.0, max_depth: int | None = None
) -> Tree | None:
    """Return a shallow tree (see Metric.grow_tree) with its routes.

    None if there is no tree within `max_depth`.
    """
    parents = metric.grow_tree(root, hop_price, max_depth)
    if parents is None:
        return None
    edges = (metric.route(parent, node) for node, parent in enumerate(parents) if parent >= 0)
    return Tree(tuple(edges))


def generate_low_trees(graph: PairGraph, max_depth: int | None, effort: Effort) -> list[Tree]:
    """Generate columns among shallow trees only, and return those with a rate above 0.

    The trees are grown by a heuristic, so the rate that they reach proves nothing. The result is
    empty if there are too many GPUs.
    """
    n = len(graph.gpus)
    if n > METRIC_RANKS:
        return []
    # Roots are sampled on large machines, to limit the time of a turn.
    roots = range(0, n, ceil(n / MAX_ROOTS))
    columns: dict[Tree, Counter[int]] = {}
    rates, dual = np.zeros(0), 1 / graph.capacity
    while not effort.is_over("low trees"):
        metric = Metric(graph, dual, both=True)
        effort.spend(2 * len(roots) * (_LOW_TREE_S + _LOW_TREE_RANK_S * n))
        fresh = []
        for root in roots:
            for hop_price in (0.0, 0.5):
                tree = grow_low_tree(metric, root, hop_price, max_depth)
                if tree is None or tree in columns:
                    continue
                # Under the duals, only a tree that costs less than 1 can improve the packing.
                price = graph.price(tree, dual)
                if not columns or price < 1 - 1e-9:
                    fresh.append((price, tree))
        if not fresh:
            break
        # Adding only the cheapest few per turn keeps the program small: duals change, and most
        # others would carry nothing.
        fresh.sort(key=lambda offer: offer[0])
        columns.update((tree, graph.uses(tree)) for _, tree in fresh[:_FRESH_LOW])
        solved = pack(list(columns.values()), graph.capacity, effort)
        if solved is None:
            break
        rates, dual = solved
    return _list_carrying(list(columns)[: len(rates)], rates)
