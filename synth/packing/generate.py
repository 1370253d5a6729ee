"""Column generation of undirected trees packed into links, and prices that bound any packing.

Maximise the sum of the trees' rates under the links' bandwidths. The duals price the links so that
every tree costs at least 1; the next column is the cheapest tree, and once none costs less than 1
the packing is optimal. At first, links of one class (see `PairGraph.classes`) share a row and a
price. Averaging over a machine's symmetries keeps a packing equally good, so this already gives the
optimal value if classes are orbits, with a handful of rows; and whatever the classes are, any
prices prove an upper bound.

A packing divides data among trees (the columns of a linear program) so that links (its rows) have
room; an image is what a symmetry maps a tree to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil

import numpy as np

from ...topo.errors import InfeasibleError
from ..machine.links import Floats, Ints
from ..machine.pairs import PairGraph, Tree
from ..machine.routes import Metric
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.linear import SMOOTH
from .packing import Packing

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


class TreePacking(Packing[Tree]):
    """Column generation of undirected trees under the bandwidths of pairs of devices.

    A column is a tree. Pair i of `graph` counts in row `rows[i]`. `shares` are the trees' rates in
    GB/s. The rates of no packing have a sum above 1 / `value`; those of this one have that sum if
    it is `finished`.
    """

    at_rates = True
    tolerance = _TOLERANCE

    def __init__(self, graph: PairGraph, rows: Ints, start: TreePacking | None = None) -> None:
        """Set up the packing; `start` gives columns, prices and a rate that is enough."""
        # Before any tree has a rate, each link costs the inverse of its bandwidth: wide links are
        # cheap.
        firsts = np.unique(rows, return_index=True)[1]
        prices = 1.0 / graph.capacity[firsts] / len(rows)
        capacity: Floats = np.bincount(rows, weights=graph.capacity).astype(np.float64)
        super().__init__(capacity, prices)
        self.graph, self.rows, self.start = graph, rows, start
        self.pricing_s = _TREE_S + _TREE_PAIR_S * len(rows)
        if start is not None:
            self.best, self.value, self.enough = start.pair_prices[firsts], start.value, start.value

    @property
    def pair_prices(self) -> Floats:
        """The price of each pair of devices; together they prove the bound."""
        return self.best[self.rows]

    @property
    def carrying(self) -> list[Tree]:
        """The trees with a rate above 0."""
        return [tree for tree, x in zip(self.columns, self.shares, strict=False) if x > _CARRIES]

    def run(self, effort: Effort, say: Callable[[str], None] | None = None) -> TreePacking:
        """Generate trees until they are optimal or the effort is spent; return the packing itself.

        A later call continues from the end of an earlier one. Raise InfeasibleError if the linear
        program has no optimum.
        """
        solved = True
        if self.start is not None and not self.columns:
            solved, self.smoothing = super().solve([*self.start.columns], effort), SMOOTH
        if not (solved and self.generate(effort, "packing trees", say)):
            raise InfeasibleError(
                "the packing of trees has no optimum; are the bandwidths of very different sizes?"
            )
        return self

    def count_uses(self, column: Tree) -> Counter[int]:
        """Return how often a tree uses each row."""
        used: Counter[int] = Counter()
        for pair, times in self.graph.uses(column).items():
            used[int(self.rows[pair])] += times
        return used

    def price_columns(self) -> list[Tree]:
        """Return the cheapest tree if it improves the program; store the bound of the prices."""
        price, tree = self.graph.cheapest_tree(self.prices[self.rows])
        # That is 0 where the trees so far share a link, which alone has a price, and others avoid
        # it.
        if price > 0:
            self.prices = self.prices / price  # like the duals, at which no tree costs less than 1
            self.raise_bound(1.0)
        return [tree] if self.improves(tree) else []

    def solve(self, fresh: Sequence[Tree], effort: Effort) -> bool:
        """Add the trees `fresh`, and similar ones, and solve; return False if there is no optimum.

        Adding several saves solving the program for each of them.
        """
        effort.spend(self.pricing_s * _SIMILAR)
        return super().solve([*fresh, *self._find_similar(fresh[0])], effort)

    def _describe(self) -> str:
        rate, most = 1 / self.reached, 1 / self.value if self.value else np.inf
        return f"packing: {len(self.columns)} trees, {rate:.4g} of at most {most:.4g} GB/s"

    def _find_similar(self, tree: Tree) -> list[Tree]:
        """Return more trees, nearly as cheap, each avoiding the links of those before it."""
        out = []
        prices = self.prices[self.rows]
        earlier_uses, sizes = np.zeros(len(self.rows)), np.bincount(self.rows)
        for _ in range(_SIMILAR):
            for row, times in self.count_uses(tree).items():
                earlier_uses[row] += times
            raised = prices * (1 + _RAISE * earlier_uses[self.rows] / sizes[self.rows])
            # Add a little to each link, so that links without a price are avoided too.
            _, tree = self.graph.cheapest_tree(raised + _RAISE * float(prices.mean()) * 1e-3)
            out.append(tree)
        return out


def exact_prices(
    graph: PairGraph, prices: Floats, denominator: int
) -> dict[tuple[str, str], Fraction]:
    """Return float prices of pairs as fractions, scaled so that the cheapest non-zero price is 1.

    Keys are (device, device), lower number first. Denominators are at most `denominator`. Pairs
    whose price is 0 are left out.
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
    """Return a cheap and shallow tree grown from rank `root`, as undirected routes.

    Each hop between a GPU and the root costs `hop_price` mean distances on top of its price. None
    if some GPU cannot be reached within `max_depth` hops.
    """
    parents = metric.grow_tree(root, hop_price, max_depth)
    if parents is None:
        return None
    edges = (metric.route(parent, node) for node, parent in enumerate(parents) if parent >= 0)
    return Tree(tuple(edges))


class LowTreePacking(TreePacking):
    """Column generation among trees of at most `max_depth` hops (None: any) in `graph`.

    The trees are grown by a heuristic, so the rate that they reach proves nothing.
    """

    smooths = False

    def __init__(self, graph: PairGraph, max_depth: int | None) -> None:
        super().__init__(graph, np.arange(len(graph.links)))
        self.dual = 1 / graph.capacity
        self.max_depth, n = max_depth, len(graph.gpus)
        # Roots are sampled on large machines, to limit the time of a turn.
        self.roots = range(0, n, ceil(n / MAX_ROOTS))
        self.pricing_s = 2 * len(self.roots) * (_LOW_TREE_S + _LOW_TREE_RANK_S * n)

    def price_columns(self) -> list[Tree]:
        """Return the cheapest of the shallow trees that cost less than 1; store no bound."""
        metric = Metric(self.graph, self.dual, both=True)
        fresh = []
        for root in self.roots:
            for hop_price in (0.0, 0.5):
                tree = grow_low_tree(metric, root, hop_price, self.max_depth)
                if tree is not None and self.improves(tree):
                    fresh.append(tree)
        # Adding only the cheapest few per turn keeps the program small: duals change, and most
        # others would carry nothing.
        return sorted(fresh, key=lambda tree: self.graph.price(tree, self.dual))[:_FRESH_LOW]

    def solve(self, fresh: Sequence[Tree], effort: Effort) -> bool:
        """Add exactly the trees `fresh` and solve; return False if the program has no optimum."""
        return Packing.solve(self, fresh, effort)
