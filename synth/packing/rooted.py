"""Directed trees for broadcast and allgather (out-trees) and allreduce (in- and out-trees).

The trees of a group reach its members, through any GPUs of the topology: they are Steiner trees.

Column generation with directed prices. A root's column is the cheapest out-tree over cheapest
routes (Edmonds 1967); for allreduce it is paired with the cheapest in-tree to the same rank. Equal
shards (allgather) form one group per root, since each root sends the same amount. Reduce and
reduce-scatter are solved as broadcast and allgather on the reversed topology, and reversed. The
dual prices, evaluated exactly, are the certificate of kind "tree-prices".

A packing divides data among trees (the columns of a linear program) so that the busiest link (a
row) takes the least time; an image is what a symmetry maps a tree to.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ..ir.collective import Collective
from ..machine.links import Floats, Ints, LinkArrays
from ..machine.routes import Metric, OwnRoutes, RoutedMetric
from ..machine.symmetry import find_transitive_group
from ..numeric.arborescence import cheapest_out_tree
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.steiner import MAX_TERMINALS, SteinerTrees, count_work
from .division import TOLERANCE, divide
from .packing import SharePacking
from .trees import RootedTree, levels, tree_steps

# Prices per hop, in mean distances, of the shallow trees offered besides the cheapest tree.
_HOP_PRICES = (0.0, 0.1, 1.0)
# Above this, Edmonds' algorithm takes too long in every turn: only shallow trees are tried.
_EXACT_RANKS = 320
# Similar trees added per turn for a single root, and the fraction by which each raises the price of
# its edges.
_SIMILAR, _RAISE = 8, 0.05
# Most trees through a hub to begin with.
_MAX_HUB_TREES = 1000
# Trees that avoid used links: how many, and how much one raises the price of its busiest link.
_SPREAD_TREES, _SPREAD = 256, 0.5
# Roots take turns in steps of this prime, so that successive trees begin far apart.
_ROOT_STRIDE = 37
# Pairs of trees for allreduce added per turn.
_FRESH_PAIRS = 4
# Seconds of an idle core: to price all routes, per tree, and per pair of ranks in it.
_METRIC_S, _TREE_S, _TREE_ENTRY_S = 1e-3, 5e-4, 1.7e-6


@dataclass(frozen=True)
class _CheapestTrees:
    """Functions that return every rank's parent in an out-tree, or in-tree, of a root.

    The parent is -1 at the root and at ranks that are not in the tree.
    """

    down: Callable[[int], list[int]]
    up: Callable[[int], list[int]] | None
    is_cheapest: bool


class RootedPacking(SharePacking[RootedTree]):
    """Column generation of trees for broadcast, allgather or allreduce on a topology.

    `roots` holds one rank for broadcast and all ranks for allgather; `both` selects allreduce.
    Trees reach `members` (None: all) in at most `max_depth` hops, on `routes` if given.
    """

    def __init__(
        self,
        topology: Topology,
        roots: Sequence[int],
        both: bool,
        turns: list[Ints] | None = None,
        max_depth: int | None = None,
        routes: OwnRoutes | None = None,
        members: Sequence[int] | None = None,
    ) -> None:
        """Set up the packing of trees.

        `turns` are symmetries that shift the rank order (see machine/symmetry.py), and `max_depth`
        is the greatest depth of a tree in hops. If `routes` is given, ranks send to each other only
        on these, and the turns must preserve them.
        `members` are the ranks that trees must reach, None for all; for a group, there may be no
        turns.
        """
        self.members = None if members is None else list(members)
        self.routes, self.both, self.max_depth = routes, both, max_depth
        # If shifts map rank 0 to every rank, one root represents all, and the links of an orbit
        # form one row.
        gpus = LinkArrays(topology).gpus
        images = find_transitive_group(turns if len(roots) > 1 else None, gpus, once=False)
        super().__init__(topology, images)
        self.roots = list(roots) if images is None else [0]
        self.times = 1 if both or images is None else len(gpus)
        trees = len(self.roots) * (2 if both else 1) + (_SIMILAR if len(self.roots) == 1 else 0)
        self.pricing_s = _METRIC_S + trees * (_TREE_S + _TREE_ENTRY_S * len(gpus) ** 2)
        if self.members is not None:
            work_s = count_work(len(self.members), len(gpus)) * (2 if both else 1)
            self.pricing_s = _METRIC_S + work_s + trees * _TREE_S
        self.dual = self.dual / len(self.row_capacity)

    def group_of(self, column: RootedTree) -> Hashable:
        """Return the root's rank; for allreduce always 0, as all trees form one group."""
        return 0 if self.both else column.root

    def count_uses(self, column: RootedTree) -> Counter[int]:
        """Return how often a tree and all its images together use each row, by row number."""
        return self.count_rows((*column.up, *column.down), self.times)

    def run(
        self,
        effort: Effort,
        enough: float = 0.0,
        say: Callable[[str], None] | None = None,
        start: Sequence[RootedTree] = (),
    ) -> None:
        """Generate trees with their shares, which are then in `columns` and `shares`.

        Generation ends at the optimum, once the time of a part is down to `enough` (in units of one
        part over 1 GB/s), or once the effort is spent. `start` are trees to begin with, some from
        each root. Raise InfeasibleError if the linear program has no optimum, or if no trees reach
        all GPUs within the depth limit.
        """
        self.enough = enough
        if start:
            self.solve(start, effort)
        if not self.generate(effort, "packing rooted trees", say):
            raise InfeasibleError(
                "the packing of trees has no optimum; are the bandwidths of very different sizes?"
            )
        if not self.columns:
            raise InfeasibleError(
                "no trees reach all GPUs from everywhere within the depth that is allowed"
            )

    def price_columns(self) -> list[RootedTree]:
        """Return new trees that cost less than their root's dual.

        Also store the prices if they raise the bound.
        """
        metric = self._price_routes(self.prices[self.row])
        cheapest: dict[int, float] = {}
        fresh: list[tuple[float, RootedTree]] = []
        forward = _fill_in(metric.distance)
        exact = len(forward) <= _EXACT_RANKS
        search = self._make_search(forward, both=self.both)
        for root in self.roots:
            # A column improves the program if its reduced cost is negative. Costs are those of one
            # image.
            limit = self._limit(root)
            for down, up, is_cheapest in self._offer_trees(metric, search, root):
                # A helper need not be joined with all members: then it is no root.
                if self.members is not None and not _has_routes(metric.distance, down, up):
                    continue
                tree = self._route_tree(metric, root, down, up)
                cost = self.cost_of(tree) / self.times
                # The cheapest tree counts for the bound even if it is too deep to be used.
                if is_cheapest:
                    cheapest[root] = cost
                    depth = max(max(levels(t)[0]) for t in (down, up) if t is not None)
                    if self.max_depth is not None and depth > self.max_depth:
                        continue
                if root not in self.duals and not any(tree.root == root for _, tree in fresh):
                    cost = 0.0  # without a tree from each root, the program has no solution
                if tree not in self.columns and cost < limit:
                    fresh.append((cost, tree))
        # A single root gives one column per turn: adding similar trees saves many turns.
        single = len(self.roots) == 1 and not self.both
        if exact and single and self.columns and self.max_depth is None:
            fresh += self._find_similar(metric)
        if cheapest:
            costs = list(cheapest.values())
            least = min(costs) if self.both else sum(costs) * self.times
            self.raise_bound(least)
        # Adding only the cheapest few per turn keeps the program small: prices change, and most of
        # the others would never carry anything.
        fresh.sort(key=lambda offer: offer[0])
        few = self.both and self.members is None
        count = max(_FRESH_PAIRS if few else len(self.roots), 1 + _SIMILAR)
        return list(dict.fromkeys(tree for _, tree in fresh))[:count]

    def list_hub_trees(self) -> list[RootedTree]:
        """Return the trees of a group that take one or two hops in each direction.

        Data goes from the root to a hub, any rank, and from there to the members; for allreduce,
        the root is the hub. The list is empty if there would be very many trees.
        """
        members, n = self.members or [], len(self.gpus)
        metric = self._price_routes(1 / self.capacity)
        exists = np.isfinite(metric.distance)
        np.fill_diagonal(exists, val=True)
        if len(self.roots) * n > _MAX_HUB_TREES:
            return []
        out = []
        for root in self.roots:
            for hub in [root] if self.both else range(n):
                ends = [member for member in members if member not in (root, hub)]
                if not (exists[root, hub] and exists[hub, ends].all()):
                    continue
                if self.both and not exists[ends, root].all():
                    continue
                parents = [-1] * n
                for member in ends:
                    parents[member] = hub
                if hub != root:
                    parents[hub] = root
                out.append(self._route_tree(metric, root, parents, parents))
        return out

    def grow_spread_trees(self, effort: Effort) -> list[RootedTree]:
        """Return trees for a group of many members, each of which avoids the links of earlier ones.

        Each tree raises the prices of its links for the following ones (multiplicative weights, as
        Garg and Koenemann 2007 pack columns). The list is empty for a group of few members, whose
        cheapest trees are found exactly: column generation is as quick for it.
        """
        if self.members is None or len(self.members) <= MAX_TERMINALS:
            return []
        work_s = count_work(len(self.members), len(self.gpus)) * (2 if self.both else 1)
        prices, out = 1 / self.row_capacity, dict[RootedTree, None]()
        for number in range(_SPREAD_TREES):
            if effort.is_over("trees that avoid used links"):
                break
            effort.spend(work_s)
            metric = self._price_routes(prices[self.row])
            search = self._make_search(_fill_in(metric.distance), both=self.both)
            # An odd stride visits all roots, and boxes in turn.
            root = self.roots[number * _ROOT_STRIDE % len(self.roots)]
            down, up = search.down(root), search.up(root) if search.up else None
            if not _has_routes(metric.distance, down, up):
                continue
            tree = self._route_tree(metric, root, down, up)
            out[tree] = None
            uses = self.count_uses(tree)
            rows, times = np.array([*uses.keys()]), np.array([*uses.values()], dtype=np.float64)
            load = times / self.row_capacity[rows]
            prices[rows] *= 1 + _SPREAD * load / load.max()
            prices /= prices.max()
        return list(out)

    def prefer_few_steps(self, effort: Effort) -> None:
        """Divide the shares anew: among equally fast ones, prefer those of trees with few steps."""
        ranks = {self.names[device]: rank for rank, device in enumerate(self.gpus.tolist())}
        uses, trees = list(self.columns.values()), list(self.columns)
        groups, steps = [self.group_of(t) for t in trees], [tree_steps(t, ranks) for t in trees]
        solved = divide(uses, self.row_capacity, groups, steps, effort)
        if solved is not None:
            self.shares, self.reached = solved.shares, solved.time

    def _price_routes(self, by_link: Floats) -> Metric:
        """Return the distances between GPUs at prices of links."""
        return Metric(self, by_link) if not self.routes else RoutedMetric(self.routes, by_link)

    def _limit(self, root: int) -> float:
        return self.duals.get(0 if self.both else root, np.inf) / self.times * (1 - TOLERANCE)

    def _offer_trees(
        self, metric: Metric, search: _CheapestTrees, root: int
    ) -> list[tuple[list[int], list[int] | None, bool]]:
        """Return trees of a root as (parents in the out-tree, parents in the in-tree, is cheapest).

        The in-tree is None unless the collective is allreduce. The flag tells whether the trees are
        proved to be the cheapest.
        """
        exact = len(metric.gpus) <= _EXACT_RANKS
        up = search.up(root) if exact and search.up else None
        offers = [(search.down(root), up, search.is_cheapest)] if exact else []
        # Shallow trees are only worth their time if the cheapest tree is unknown or may be too
        # deep, or if there are no trees yet.
        if not exact or not self.columns or self.max_depth is not None:
            for hop_price in _HOP_PRICES:
                low = metric.grow_tree(root, hop_price, self.max_depth)
                if low is not None:
                    low = low if self.members is None else prune(low, self.members)
                    has_routes_back = self.both and all(
                        p < 0 or np.isfinite(metric.distance[v, p]) for v, p in enumerate(low)
                    )
                    offers.append((low, low if has_routes_back else up, False))
        return [offer for offer in offers if not self.both or offer[1] is not None]

    def _find_similar(self, metric: Metric) -> list[tuple[float, RootedTree]]:
        """Return more out-trees of the only root, with their costs.

        Each avoids the edges of those before it.
        """
        root = self.roots[0]
        out: dict[RootedTree, float] = {}
        raised = metric.distance.copy()
        usual = float(np.mean(raised[np.isfinite(raised)]))
        for _ in range(_SIMILAR):
            # Filled in anew: edges that every tree needs may be raised by more than all others.
            parents = self._make_search(_fill_in(raised)).down(root)
            tree = self._route_tree(metric, root, parents, None)
            cost = self.cost_of(tree) / self.times
            if tree not in self.columns and cost < self._limit(root):
                out.setdefault(tree, cost)
            for node, parent in enumerate(parents):
                if parent >= 0:
                    raised[parent, node] += _RAISE * (usual + raised[parent, node])
        return [(cost, tree) for tree, cost in out.items()]

    def _make_search(self, forward: Floats, *, both: bool = False) -> _CheapestTrees:
        """Return the search for cheapest trees under distances; with `both`, for in-trees too."""
        # An in-tree is an out-tree on the transposed distances.
        facing = (forward, forward.T) if both else (forward,)
        if self.members is None:
            searches = [partial(cheapest_out_tree, matrix) for matrix in facing]
            return _CheapestTrees(searches[0], searches[1] if both else None, is_cheapest=True)
        trees = [SteinerTrees(matrix, self.members) for matrix in facing]
        up = trees[1].find if both else None
        return _CheapestTrees(trees[0].find, up, is_cheapest=trees[0].is_exact)

    def _route_tree(
        self, metric: Metric, root: int, down: Sequence[int], up: Sequence[int] | None
    ) -> RootedTree:
        """Return the tree with its routes, given each rank's parent in the out-tree and in-tree."""
        below = tuple(None if p < 0 else metric.route(p, v) for v, p in enumerate(down))
        above = (None if p < 0 else metric.route(v, p) for v, p in enumerate(up or ()))
        return RootedTree(root, tuple(above) if self.both else (), below)


def group_packing(
    topology: Topology,
    collective: Collective,
    max_depth: int | None = None,
    routes: OwnRoutes | None = None,
) -> RootedPacking:
    """Return the packing of a group's trees, through all GPUs of a topology.

    A group is the collective's members. The collective is broadcast, allgather or allreduce, or has
    the same trees as one of them on the reversed topology. Trees have at most `max_depth` hops, and
    ranks send only on `routes`, if given.
    """
    both = collective.name == "allreduce"
    if both:  # helpers may be roots
        roots: Sequence[int] = range(len(topology.ranks))
    else:
        roots = collective.members if collective.root is None else [collective.root]
    return RootedPacking(topology, list(roots), both, None, max_depth, routes, collective.members)


def _has_routes(distance: Floats, down: Sequence[int], up: Sequence[int] | None) -> bool:
    """Return whether all edges of an out-tree and an in-tree, given by parents, have routes."""
    edges = [(p, v) for v, p in enumerate(down) if p >= 0]
    edges += [(v, p) for v, p in enumerate(up or ()) if p >= 0]
    return all(np.isfinite(distance[edge]) for edge in edges)


def prune(parents: Sequence[int], members: Sequence[int]) -> list[int]:
    """Return a tree without the branches that lead to no member, given each rank's parent.

    The parent is -1 for the root, and in the result for ranks that are not in the tree.
    """
    needed: set[int] = set()
    for member in members:
        node = member
        while node >= 0 and node not in needed:
            needed.add(node)
            node = parents[node]
    return [parent if node in needed else -1 for node, parent in enumerate(parents)]


def _fill_in(distance: Floats) -> Floats:
    """Return distances in which a pair without a route costs more than all others together.

    Edmonds' algorithm needs a dense graph.
    """
    finite = np.isfinite(distance)
    return np.where(finite, distance, float(distance[finite].sum()) + 1)
