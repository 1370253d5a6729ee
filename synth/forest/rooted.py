"""Trees where directions count: out-trees for broadcast and allgather, pairs of an in- and an
out-tree for allreduce.

Column generation with directed prices. A root's column is the cheapest out-tree over cheapest
routes (Edmonds 1967); for allreduce the cheapest in-tree to the same rank goes with it. Equal
shards (allgather) are a row a root: what each root sends is as much. Reduce and reduce-scatter are
these on the reversed topology, turned round. The dual prices, priced exactly, are the certificate
of kind "tree-prices".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ..effort import Effort
from ..numeric.arborescence import cheapest_out_tree
from .machine.metric import Floats, Link, Metric
from .machine.own_routes import OwnRoutes, RoutedMetric
from .machine.symmetry import group
from .trees import RootedTree, levels
from .weigh import Division, divide, orbits

Say = Callable[[str], None] | None
_TOLERANCE = 1e-9
_HOP_PRICES = (0.0, 0.1, 1.0)
_EXACT_RANKS = 320
_SIMILAR, _RAISE = 8, 0.05
# Seconds of a quiet core: to price routes for a rank, for an out-tree, and for each two ranks in
# it.
_METRIC_S, _TREE_S, _TREE_ENTRY_S = 1e-3, 5e-4, 1.7e-6


@dataclass
class Branches:
    """Rooted trees, each with its share (a float) of its root's part, and prices of links.

    Times are in units of one root's part over 1 GB/s: `value` is the lower bound that the prices
    prove, `reached` the time that the shares take.
    """

    trees: list[RootedTree] = field(default_factory=list)
    shares: Floats = field(default_factory=lambda: np.zeros(0))
    prices: dict[Link, float] = field(default_factory=dict)
    value: float = 0.0
    reached: float = np.inf
    images: NDArray[np.int64] | None = None


class RootedPacking:
    """Column generation for one of broadcast (`roots` holds one rank), allgather (all ranks),
    allreduce (`both`).
    """

    def __init__(
        self,
        topology: Topology,
        roots: Sequence[int],
        both: bool,
        turns: list[NDArray[np.int64]] | None = None,
        most_depth: int | None = None,
        routes: OwnRoutes | None = None,
    ) -> None:
        """`routes`: ranks send to each other on these only; the turns must keep them."""
        self.routes = routes
        self.topology, self.both, self.most_depth = topology, both, most_depth
        self.links = list(topology.capacity_GBps)
        self.roots = list(roots)
        self.parts = 1 if both else len(self.roots)
        # Where shifts take rank 0 to every rank, one root stands for all, and links of an orbit are
        # one row.
        images = group(turns, 4096) if turns and len(self.roots) > 1 else None
        n = len(topology.ranks)
        index = {d.id: i for i, d in enumerate(topology.devices)}
        self.images = None
        self.times = 1
        rows = np.arange(len(self.links))
        if (
            images is not None
            and len({int(image[index[topology.ranks[0]]]) for image in images}) == n
        ):
            self.images, self.roots = images, [0]
            self.times = 1 if both else n
            rows = orbits(topology, self.links, images)
        _, compact = np.unique(rows, return_inverse=True)
        self.row = compact.reshape(-1)
        capacity = np.array([float(topology.capacity_GBps[link]) for link in self.links])
        self.capacity: Floats = np.bincount(self.row, weights=capacity).astype(np.float64)
        self.number = {link: i for i, link in enumerate(self.links)}
        self.uses: dict[RootedTree, Counter[int]] = {}
        self.branches = Branches(images=self.images)

    def exact_capacity(self) -> list[Fraction]:
        """Return the bandwidth of each row in GB/s."""
        out = [Fraction(0)] * len(self.capacity)
        for i, link in enumerate(self.links):
            out[int(self.row[i])] += self.topology.capacity_GBps[link]
        return out

    def run(
        self, effort: Effort, enough: float = 0.0, say: Say = None, start: Sequence[RootedTree] = ()
    ) -> Branches:
        """Generate trees until they are optimal, the time for a part is down to `enough`, or the
        work that is allowed is done; return them. `start` are trees to begin with, some from each
        root.
        """
        out = self.branches
        # Before any tree has a share, wide links are cheap; without duals each root's first trees
        # come in at any cost.
        prices = 1 / self.capacity / len(self.capacity)
        duals: Mapping[Hashable, float] = {}
        for tree in start:
            self.uses[tree] = self._count_uses(tree)
        if start and (solved := self._solve(effort)) is not None:
            out.shares, out.reached, prices, duals = (
                solved.shares,
                solved.time,
                solved.prices,
                solved.duals,
            )
            out.trees = list(self.uses)
        while True:
            fresh = self._price(prices, duals, out)
            effort.spend(self._pricing_s)
            if not fresh or (self.uses and effort.is_over("packing rooted trees")):
                break
            for tree in fresh:
                self.uses[tree] = self._count_uses(tree)
            solved = self._solve(effort)
            if solved is None:
                raise InfeasibleError(
                    "the packing of trees has no optimum; are the bandwidths of very different "
                    "sizes?"
                )
            out.shares, out.reached, prices, duals = (
                solved.shares,
                solved.time,
                solved.prices,
                solved.duals,
            )
            out.trees = list(self.uses)
            if out.reached <= max(out.value, enough) * (1 + _TOLERANCE):
                break
            if say is not None:
                say(f"packing: {len(self.uses)} trees, {self.parts / out.reached:.4g} GB/s")
        if not out.trees:
            raise InfeasibleError(
                "no trees reach all GPUs from everywhere within the depth that is allowed"
            )
        return out

    @property
    def _pricing_s(self) -> float:
        """Work of a call of `_price`, in seconds of a quiet core."""
        n = len(self.topology.ranks)
        trees = len(self.roots) * (2 if self.both else 1) + (
            _SIMILAR if len(self.roots) == 1 else 0
        )
        return _METRIC_S + trees * (_TREE_S + _TREE_ENTRY_S * n * n)

    def _price(
        self, prices: Floats, duals: Mapping[Hashable, float], out: Branches
    ) -> list[RootedTree]:
        """Return trees that cost less than their root's dual under the rows' prices; store prices
        that raise the bound.
        """
        by_link = prices[self.row]
        metric = (
            Metric(self.topology, self.links, by_link)
            if self.routes is None
            else RoutedMetric(self.routes, by_link)
        )
        cheapest: dict[int, float] = {}
        fresh: list[tuple[float, RootedTree]] = []
        top = float(metric.distance[np.isfinite(metric.distance)].sum()) + 1
        # Edmonds' algorithm takes dense graphs: a pair without a route costs more than all others
        # together.
        forward = np.where(np.isfinite(metric.distance), metric.distance, top)
        exact = len(forward) <= _EXACT_RANKS
        for root in self.roots:
            # An in-tree is an out-tree on the transposed distances.
            down = cheapest_out_tree(forward, root) if exact else None
            up = cheapest_out_tree(forward.T, root) if exact and self.both else None
            offers = [(down, up)] if down is not None else []
            # Low trees are only worth their time where the cheapest is not known, or too deep, or
            # there are no trees yet.
            if not exact or not self.uses or self.most_depth is not None:
                for hop_price in _HOP_PRICES:
                    low = metric.grow_tree(root, hop_price, self.most_depth)
                    if low is not None:
                        offers.append(
                            (low, low if self.both and self._runs_both_ways(metric, low) else up)
                        )
            for tree_down, tree_up in offers:
                if tree_down is None or (self.both and tree_up is None):
                    continue
                tree = self._route_tree(metric, root, tree_down, tree_up)
                cost = (
                    sum(float(prices[i]) * times for i, times in self._count_uses(tree).items())
                    / self.times
                )
                # A column improves the program where its reduced cost is negative. Costs are of one
                # image.
                limit = duals.get(0 if self.both else root, np.inf) / self.times
                # The cheapest tree counts for the bound also where it is too deep to be sent along.
                if tree_down is down and exact:
                    cheapest[root] = cost
                    if (
                        self.most_depth is not None
                        and self._find_depth(tree_down, tree_up) > self.most_depth
                    ):
                        continue
                if root not in duals and not any(tree.root == root for _, tree in fresh):
                    cost = 0.0  # without a tree from each root, the program has no solution
                if tree not in self.uses and cost < limit * (1 - _TOLERANCE):
                    fresh.append((cost, tree))
        # A single root gives one column a turn: similar trees beside it save many turns.
        if (
            exact
            and len(self.roots) == 1
            and self.uses
            and not self.both
            and self.most_depth is None
        ):
            fresh += self._find_similar(metric, prices, forward, duals)
        # Weak duality: no schedule is faster than what all roots' cheapest trees cost, over what
        # all links cost.
        if cheapest:
            paid = float(self.capacity @ prices)
            costs = list(cheapest.values())
            value = (min(costs) if self.both else sum(costs) * self.times) / paid
            if value > out.value:
                out.value = value
                out.prices = {link: float(prices[self.row[i]]) for i, link in enumerate(self.links)}
        # The cheapest few a turn keep the program small: prices change, and most of the others
        # would never carry any.
        fresh.sort(key=lambda x: x[0])
        most = len(self.roots) if not self.both else 4
        return list(dict.fromkeys(tree for _, tree in fresh))[: max(most, 1 + _SIMILAR)]

    def _find_similar(
        self, metric: Metric, prices: Floats, forward: Floats, duals: Mapping[Hashable, float]
    ) -> list[tuple[float, RootedTree]]:
        """Return a few more out-trees of the only root, with their costs, each avoiding the edges
        of those before it.
        """
        root = self.roots[0]
        out: list[tuple[float, RootedTree]] = []
        raised = forward.copy()
        limit = duals.get(root, np.inf) / self.times
        least = float(np.mean(forward[np.isfinite(metric.distance)]))
        for _ in range(_SIMILAR):
            parents = cheapest_out_tree(raised, root)
            tree = self._route_tree(metric, root, parents, None)
            cost = (
                sum(float(prices[i]) * times for i, times in self._count_uses(tree).items())
                / self.times
            )
            if (
                tree not in self.uses
                and cost < limit * (1 - _TOLERANCE)
                and all(tree != t for _, t in out)
            ):
                out.append((cost, tree))
            for node, parent in enumerate(parents):
                if parent >= 0:
                    raised[parent, node] += _RAISE * (least + raised[parent, node])
        return out

    @staticmethod
    def _find_depth(*trees: Sequence[int] | None) -> int:
        """Return the greatest depth in edges of trees given as parents."""
        return max(max(levels(parents)[0]) for parents in trees if parents is not None)

    @staticmethod
    def _runs_both_ways(metric: Metric, parents: Sequence[int]) -> bool:
        """Return whether every edge of the tree has a route back."""
        return all(p < 0 or np.isfinite(metric.distance[v, p]) for v, p in enumerate(parents))

    def _route_tree(
        self, metric: Metric, root: int, down: Sequence[int], up: Sequence[int] | None
    ) -> RootedTree:
        """Return the tree with its routes, from the parents of each rank in the out-tree and the
        in-tree.
        """
        below = tuple(None if p < 0 else metric.route(p, v) for v, p in enumerate(down))
        above = (
            ()
            if up is None
            else tuple(None if p < 0 else metric.route(v, p) for v, p in enumerate(up))
        )
        return RootedTree(root, above if self.both else (), below)

    def _count_uses(self, tree: RootedTree) -> Counter[int]:
        """Return how often a tree uses each row, all its images together."""
        out: Counter[int] = Counter()
        for route in (*tree.up, *tree.down):
            if route is not None:
                for a, b in pairwise(route):
                    out[int(self.row[self.number[a, b]])] += self.times
        return out

    def _solve(self, effort: Effort) -> Division | None:
        """Divide each root's part among its trees (for allreduce, the whole buffer among all
        trees).
        """
        groups = [0 if self.both else tree.root for tree in self.uses]
        return divide(list(self.uses.values()), self.capacity, groups, effort=effort)
