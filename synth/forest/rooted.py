"""Trees where directions count: out-trees for broadcast and allgather, pairs of an in- and an
out-tree for allreduce.

Column generation with directed prices. A root's column is the cheapest out-tree over cheapest
routes (Edmonds 1967); for allreduce the cheapest in-tree to the same rank goes with it. Equal
shards (allgather) are a group a root: each root sends as much. Reduce and reduce-scatter are these
on the reversed topology, reversed. The dual prices, priced exactly, are the certificate of kind
"tree-prices".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ..effort import Effort
from ..numeric.arborescence import cheapest_out_tree
from .machine.links import Floats, Ints, LinkArrays
from .machine.routes import Metric, OwnRoutes, RoutedMetric
from .machine.symmetry import find_transitive_group
from .trees import RootedTree, levels
from .weigh import TOLERANCE, PackedShares, SharePacking

# Prices of a hop, in mean distances, of the shallow trees that are offered beside the cheapest.
_HOP_PRICES = (0.0, 0.1, 1.0)
# With more GPUs, Edmonds' algorithm takes too long for every turn: only shallow trees are tried.
_EXACT_RANKS = 320
# Trees that come in at once for a single root, and how much dearer each makes its edges.
_SIMILAR, _RAISE = 8, 0.05
# Pairs of trees for allreduce that come in at once.
_FRESH_PAIRS = 4
# Seconds of a quiet core: to price routes for a rank, for an out-tree, and for each two ranks in
# it.
_METRIC_S, _TREE_S, _TREE_ENTRY_S = 1e-3, 5e-4, 1.7e-6


class RootedPacking(SharePacking[RootedTree]):
    """Column generation for one of broadcast (`roots` holds one rank), allgather (all ranks),
    allreduce (`both`).
    """

    def __init__(
        self,
        topology: Topology,
        roots: Sequence[int],
        both: bool,
        turns: list[Ints] | None = None,
        max_depth: int | None = None,
        routes: OwnRoutes | None = None,
    ) -> None:
        """`routes`: ranks send to each other on these only; the turns must keep them."""
        self.routes, self.both, self.max_depth = routes, both, max_depth
        # Where shifts take rank 0 to every rank, one root stands for all, and links of an orbit are
        # one row.
        gpus = LinkArrays(topology).gpus
        several = turns if len(roots) > 1 else None
        images = find_transitive_group(several, gpus, once=False)
        super().__init__(topology, images)
        self.roots = list(roots) if images is None else [0]
        self.times = 1 if both or images is None else len(gpus)
        self.row_prices = self.row_prices / len(self.row_capacity)

    def group_of(self, column: RootedTree) -> Hashable:
        """Return the root; for allreduce all trees are one group."""
        return 0 if self.both else column.root

    def count_uses(self, column: RootedTree) -> Counter[int]:
        """Return how often a tree uses each row, all its images together."""
        return self.count_rows((*column.up, *column.down), self.times)

    def run(
        self,
        effort: Effort,
        enough: float = 0.0,
        say: Callable[[str], None] | None = None,
        start: Sequence[RootedTree] = (),
    ) -> PackedShares[RootedTree]:
        """Generate trees until they are optimal, the time for a part is down to `enough`, or the
        work that is allowed is done; return them. `start` are trees to begin with, some from each
        root.
        """
        if start:
            self.solve(start, effort)
        if not self.generate(effort, "packing rooted trees", say, enough):
            raise InfeasibleError(
                "the packing of trees has no optimum; are the bandwidths of very different sizes?"
            )
        if not self.packed.columns:
            raise InfeasibleError(
                "no trees reach all GPUs from everywhere within the depth that is allowed"
            )
        return self.packed

    @property
    def pricing_s(self) -> float:
        """Work of pricing trees from all roots once, in seconds of a quiet core."""
        n, single = len(self.gpus), len(self.roots) == 1
        trees = len(self.roots) * (2 if self.both else 1) + (_SIMILAR if single else 0)
        return _METRIC_S + trees * (_TREE_S + _TREE_ENTRY_S * n * n)

    def price_columns(self) -> list[RootedTree]:
        """Return trees that cost less than their root's dual; store prices that raise the bound."""
        by_link = self.row_prices[self.row]
        metric = Metric(self, by_link) if not self.routes else RoutedMetric(self.routes, by_link)
        cheapest: dict[int, float] = {}
        fresh: list[tuple[float, RootedTree]] = []
        # Edmonds' algorithm takes dense graphs: a pair without a route costs more than all others
        # together.
        finite = np.isfinite(metric.distance)
        forward = np.where(finite, metric.distance, float(metric.distance[finite].sum()) + 1)
        exact = len(forward) <= _EXACT_RANKS
        for root in self.roots:
            # A column improves the program where its reduced cost is negative. Costs are of one
            # image.
            limit = self._limit(root)
            for down, up, is_cheapest in self._offer_trees(metric, forward, root):
                tree = self._route_tree(metric, root, down, up)
                cost = self.cost_of(tree) / self.times
                # The cheapest tree counts for the bound also where it is too deep to be sent along.
                if is_cheapest:
                    cheapest[root] = cost
                    depth = max(max(levels(t)[0]) for t in (down, up) if t is not None)
                    if self.max_depth is not None and depth > self.max_depth:
                        continue
                if root not in self.duals and not any(tree.root == root for _, tree in fresh):
                    cost = 0.0  # without a tree from each root, the program has no solution
                if tree not in self.uses and cost < limit:
                    fresh.append((cost, tree))
        # A single root gives one column a turn: similar trees beside it save many turns.
        single = len(self.roots) == 1 and not self.both
        if exact and single and self.uses and self.max_depth is None:
            fresh += self._find_similar(metric, forward)
        # Weak duality: no schedule is faster than what all roots' cheapest trees cost, over what
        # all links cost.
        if cheapest:
            costs = list(cheapest.values())
            least = min(costs) if self.both else sum(costs) * self.times
            self.raise_bound(least / float(self.row_capacity @ self.row_prices))
        # The cheapest few a turn keep the program small: prices change, and most of the others
        # would never carry any.
        fresh.sort(key=lambda offer: offer[0])
        count = max(_FRESH_PAIRS if self.both else len(self.roots), 1 + _SIMILAR)
        return list(dict.fromkeys(tree for _, tree in fresh))[:count]

    def _limit(self, root: int) -> float:
        dual = self.duals.get(0 if self.both else root, np.inf)
        return dual / self.times * (1 - TOLERANCE)

    def _offer_trees(
        self, metric: Metric, forward: Floats, root: int
    ) -> list[tuple[list[int], list[int] | None, bool]]:
        """Return the parents in out-trees and, for allreduce, in-trees of a root, and whether they
        are the cheapest.
        """
        exact = len(forward) <= _EXACT_RANKS
        # An in-tree is an out-tree on the transposed distances.
        up = cheapest_out_tree(forward.T, root) if exact and self.both else None
        offers = [(cheapest_out_tree(forward, root), up, True)] if exact else []
        # Shallow trees are only worth their time where the cheapest is not known, or too deep, or
        # there are no trees yet.
        if not exact or not self.uses or self.max_depth is not None:
            for hop_price in _HOP_PRICES:
                low = metric.grow_tree(root, hop_price, self.max_depth)
                if low is None:
                    continue
                has_routes_back = self.both and all(
                    p < 0 or np.isfinite(metric.distance[v, p]) for v, p in enumerate(low)
                )
                offers.append((low, low if has_routes_back else up, False))
        return [offer for offer in offers if not self.both or offer[1] is not None]

    def _find_similar(self, metric: Metric, forward: Floats) -> list[tuple[float, RootedTree]]:
        """Return a few more out-trees of the only root, with their costs, each avoiding the edges
        of those before it.
        """
        root = self.roots[0]
        out: dict[RootedTree, float] = {}
        raised = forward.copy()
        usual = float(np.mean(forward[np.isfinite(metric.distance)]))
        for _ in range(_SIMILAR):
            parents = cheapest_out_tree(raised, root)
            tree = self._route_tree(metric, root, parents, None)
            cost = self.cost_of(tree) / self.times
            if tree not in self.uses and cost < self._limit(root):
                out.setdefault(tree, cost)
            for node, parent in enumerate(parents):
                if parent >= 0:
                    raised[parent, node] += _RAISE * (usual + raised[parent, node])
        return [(cost, tree) for tree, cost in out.items()]

    def _route_tree(
        self, metric: Metric, root: int, down: Sequence[int], up: Sequence[int] | None
    ) -> RootedTree:
        """Return the tree with its routes, from the parents of each rank in the out-tree and the
        in-tree.
        """
        below = tuple(None if p < 0 else metric.route(p, v) for v, p in enumerate(down))
        above = (None if p < 0 else metric.route(v, p) for v, p in enumerate(up or ()))
        return RootedTree(root, tuple(above) if self.both else (), below)
