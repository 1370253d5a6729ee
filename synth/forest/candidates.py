"""Forests for allreduce, from single trees to many.

A forest is a set of trees, each with a share of the buffer. A few shallow trees are preferred if
they cost little; more trees reach the bound. On direct links, trees of equal share are packed by
matroid union (numeric/spanning_trees.py). If shifts of the rank order are symmetries, one tree's
images load all links equally. Boxes, equal groups of GPUs such as hosts, are joined rail by rail (a
rail is the i-th GPU of every box). If none of these reaches the bound, trees from column generation
are weighed against each other.

A request is a collective on a topology, with the bound to reach, an `Effort` (an allowance of work
and time for searches) and the user's `TreeLimits` on the number and depth of trees.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import ceil

import numpy as np

from ...topo.errors import InfeasibleError
from ...topo.routes import Route, route_links
from ..bounds.single_path import has_single_paths
from ..machine.boxes import SHAPES, rail_trees, turn_to_root
from ..machine.links import Ints, LinkArrays
from ..machine.pairs import Tree
from ..machine.routes import Metric, OwnRoutes
from ..machine.symmetry import colours, group
from ..packing.division import find_best_shares
from ..packing.generate import MAX_ROOTS, METRIC_RANKS, LowTreePacking, grow_low_tree
from ..packing.survey import survey  # what is known of a topology, cached
from ..packing.trees import Forest, RootedTree, root_tree, tree_depth
from ..packing.weigh import (
    count_uses,
    find_max_load,
    find_share_load,
    round_shares,
)
from ..request import Request, TreeLimits
from .combs import comb_trees
from .level_trees import SLACKS, LevelTrees, choose_count, choose_depth

# A gap of at most this counts as at the bound.
AT_BOUND = Fraction(1, 10**6)
# Maximum number of trees of a forest: each is a separate chunk with its own messages.
_MAX_TREES = 256
# Limits on the number of trees for which the best forest of equal shares is searched for, besides
# _MAX_TREES.
_UNION_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
# Maximum of trees squared times GPUs for matroid union, whose work grows with this product.
_UNION_WORK = 3_000_000
# Seconds of an idle core for trees within the user's limits.
_LOW_WORK_S = 10.0
# Above these numbers of GPUs or pairs, trees are not generated link by link, with a row per pair of
# devices.
_SINGLE_RANKS, _SINGLE_PAIRS = 128, 1000
# Maximum number of boxes with slow links that become roots, besides the roots of the shape itself.
_SLOW_BOXES = 4
# Range of the number of trees that negotiate for links: each is a chunk with its own messages.
_MIN_LEVEL_TREES, _MAX_LEVEL_TREES = 16, 112
# Gap above which forests within the user's limits are too slow, and trees are generated within the
# limits.
FAR = Fraction(1, 10)
# With more than _SINGLE_RANKS GPUs, trees are not generated link by link if a simpler forest is
# within this gap.
_NEAR = Fraction(1, 50)
# With more GPUs, trees that negotiate for links may take any route, and lose where the hardware's
# is another: the routes of all pairs take long to list.
ROUTED_RANKS = 1024
# With more than _SINGLE_RANKS GPUs, trees negotiate for links if no other forest is this near.
_LEVEL_NEAR = Fraction(1, 100)


@dataclass(frozen=True)
class CandidateForest:
    """A forest, the rate that its exact loads allow, and the method that found it.

    `rate_GBps` is algbw, buffer size by time. `how` names the method for users, such as "one tree".
    """

    forest: Forest
    rate_GBps: Fraction
    how: str

    def keeps(self, limits: TreeLimits) -> bool:
        """Return whether the number of trees and their depth are within the limits."""
        return limits.allows(self.forest.count, self.forest.depth)


class ForestBuilder:
    """A search for forests for one request, by every method that suits its machine.

    Each `add_` method appends any number of forests to `candidates`, none if it does not suit the
    machine; those outside the limits are appended too. `survey` has what is known of the machine:
    symmetries, boxes, and packings of trees that it caches.
    """

    def __init__(self, request: Request) -> None:
        self.survey, self.router = survey(request.topology), request.router
        self.collective = request.collective
        self.bound, self.proof = request.bound_GBps, request.bound
        self.limits, self.effort, self.say = request.limits, request.effort, request.progress
        self.candidates: list[CandidateForest] = []

    def add_weighed(
        self,
        trees: Sequence[RootedTree],
        how: str,
        images: Ints | None = None,
        *,
        even: bool = False,
    ) -> None:
        """Add a forest of the given trees, with the shares that load links least.

        Shares are even if these reach the bound, or if `even` is set. Equal trees are merged, and
        trees without a share are left out. `how` names the method; with `images`, symmetries of the
        machine, each tree stands for its image under every one.
        """
        # A tree that is listed twice carries twice an even share.
        times = Counter(trees)
        shares = [Fraction(count, len(trees)) for count in times.values()]
        trees, ranks, group_of = list(times), self.survey.ranks, [0] * len(times)
        uses, capacity = count_uses(self.survey.topology, trees, images)
        load = find_share_load(uses, shares, capacity)
        # Even shares are the simplest fractions; the linear program is only worth it if they miss
        # the bound.
        if not even and len(trees) > 1 and 1 / load < self.bound * (1 - AT_BOUND):
            depths = [tree_depth(tree, ranks) for tree in trees]
            floats = find_best_shares(uses, capacity, group_of, depths)
            shares = round_shares(floats, uses, capacity, group_of)
            load = find_share_load(uses, shares, capacity)
        # Rounding leaves some trees without a share: these must not count in the forest's size or
        # depth.
        carrying = {tree: share for tree, share in zip(trees, shares, strict=True) if share}
        depth = max(tree_depth(tree, ranks) for tree in carrying)
        forest = Forest(tuple(carrying), tuple(carrying.values()), depth, images)
        self.candidates.append(CandidateForest(forest, 1 / load, how))
        if self.say is not None:
            self.say(
                f"packing: {forest.count} trees, {depth} deep, "
                f"{1 - float(1 / load / self.bound):.2%} under the bound ({how})"
            )

    def _has_reached(self, gap: Fraction) -> bool:
        """Return whether any forest, within the limits or not, is within `gap` of the bound."""
        return any(c.rate_GBps >= self.bound * (1 - gap) for c in self.candidates)

    def has_within(self, gap: Fraction = AT_BOUND) -> bool:
        """Return whether some forest within the limits is at most `gap` below the bound.

        `gap` is a fraction of the bound, by default that of forests which count as reaching it.
        """
        least = self.bound * (1 - gap)
        return any(c.rate_GBps >= least and c.keeps(self.limits) for c in self.candidates)

    def _may_go_on(self) -> bool:
        return not self.effort.is_over("packing trees")

    def _hang(self, tree: Tree, root: int | None = None) -> RootedTree:
        return root_tree(tree, self.survey.ranks, root)

    def _fit_routes(self, tree: RootedTree) -> RootedTree | None:
        """Return a tree with the router's routes in place of those that the machine does not have.

        Where links have one direction, a reversed route may not exist. None if the router has no
        route either.
        """
        links = self.survey.topology.capacity_GBps

        def fit(routes: Sequence[Route | None]) -> tuple[Route | None, ...]:
            return tuple(
                route
                if route is None or all(link in links for link in route_links(route))
                else self.router.find_route(route[0], route[-1])
                for route in routes
            )

        fitted = RootedTree(tree.root, fit(tree.up), fit(tree.down))
        lacks = any(
            route is None and rank != tree.root
            for routes in (fitted.up, fitted.down)
            for rank, route in enumerate(routes)
        )
        return None if lacks else fitted

    def build_all(self) -> list[CandidateForest]:
        """Try the methods for allreduce that suit the machine and return all forests.

        The slow methods run only if the others do not reach the bound.
        """
        # Cheap methods first: if they reach the bound, column generation is not needed.
        self.add_single_trees()
        few = len(self.survey.ranks) <= _SINGLE_RANKS
        if self.survey.direct:
            self.add_combs()
            # Matroid union takes long on large machines.
            if few:
                self.add_whole_number_trees()
        else:
            self.add_rail_trees()
            if not self.has_within():
                self.add_images()
        if not self._has_reached(AT_BOUND) and self._may_go_on():
            if self.survey.direct:
                self.add_images()
            if not few and not self.has_within(_LEVEL_NEAR):
                self.add_level_trees()
            # Here every pair of devices is a separate row, so large machines take far longer.
            near = AT_BOUND if few else _NEAR
            if not self._has_reached(near) and len(self.survey.graph.links) <= _SINGLE_PAIRS:
                carrying = self.survey.pack_by_link(self.effort, self.say).carrying
                self.add_weighed([self._hang(tree) for tree in carrying], "column generation")
        # If all optimal trees break the user's limits, generate trees within the limits from the
        # start.
        limited = self.limits.max_depth or self.limits.max_trees
        if limited and not self.has_within(FAR) and self._may_go_on():
            self.add_low_trees()
        return self.candidates

    def add_single_trees(self) -> None:
        """Add forests of one tree: the shallowest, and each that is faster than all shallower."""
        graph, n = self.survey.graph, len(self.survey.ranks)
        if n > METRIC_RANKS:
            _, tree = graph.cheapest_tree(1 / graph.capacity)
            self.add_weighed([self._hang(tree)], "one tree")
            return
        # Roots and prices per hop trade depth for rate; only the best tree of each depth is kept.
        # GPUs of the same role root the same trees, so one of each is enough.
        role = colours(self.survey.topology)[graph.gpus]
        roots = np.sort(np.unique(role, return_index=True)[1]).tolist()
        metric = Metric(graph, 1 / graph.capacity, both=True)
        best: dict[int, tuple[Fraction, RootedTree]] = {}
        starts = product(roots[:: ceil(len(roots) / MAX_ROOTS)], (0.0, 0.5, 10.0))
        grown = [grow_low_tree(metric, root, hop_price) for root, hop_price in starts]
        trees = [*dict.fromkeys(self._hang(tree) for tree in grown if tree is not None)]
        uses, capacity = count_uses(self.survey.topology, trees)
        for rooted, used in zip(trees, uses, strict=True):
            offer = 1 / find_max_load([used], [1], capacity), rooted
            depth = tree_depth(rooted, self.survey.ranks)
            best[depth] = max(best.get(depth, offer), offer, key=lambda entry: entry[0])
        for depth, (rate, rooted) in sorted(best.items()):
            if all(rate > best[lower][0] for lower in best if lower < depth):
                self.add_weighed([rooted], "one tree")

    def add_whole_number_trees(self) -> None:
        """Add forests of k trees with equal shares, for several k, on direct links.

        k is at most _MAX_TREES and at most twice the user's limit on trees, as equal trees are
        merged.
        """
        unit, nodes = self.survey.unit, len(self.survey.ranks)
        # k trees that use each link of bandwidth c at most u c / unit times reach k unit / u: find
        # the best u for each k.
        best_of: dict[int, tuple[Fraction, int]] = {}
        for u in range(1, _MAX_TREES + 1):
            count = int(u * self.bound / unit)
            if not 1 <= count <= _MAX_TREES or count * nodes * count > _UNION_WORK:
                continue
            offer = count * unit / u, u
            best_of[count] = max(best_of.get(count, offer), offer, key=lambda entry: entry[0])
        # Equal trees are merged, so that more of them than the user's limit may still fit.
        limit = self.limits.max_trees
        steps = (*_UNION_STEPS, _MAX_TREES) if limit is None else (limit, limit * 3 // 2, 2 * limit)
        # Fewer trees mean fewer messages: for each limit on their number, try the fastest forest.
        wanted = {
            max((k for k in best_of if k <= step), key=lambda k: best_of[k][0], default=0)
            for step in steps
        }
        for count in sorted(wanted - {0}):
            if self._may_go_on():
                trees = self.survey.find_whole_trees(count, best_of[count][1], self.effort)
                if trees is not None:
                    hung = [self._hang(tree) for tree in trees]
                    self.add_weighed(hung, "whole numbers", even=True)

    def add_combs(self) -> None:
        """Add forests of combs, if direct links form a grid.

        A comb is a tree of all lines of one direction and one line across them. The first forest
        has all combs, the next half of them, a quarter, and so on, until the bound is reached.
        """
        combs = [self._hang(tree) for tree in comb_trees(self.survey.topology)]
        combs = combs[:: ceil(len(combs) / _MAX_TREES) or 1]
        every = 1
        while every * 2 <= len(combs) and not self.has_within():
            self.add_weighed(combs[::every], "combs")
            every *= 2

    def add_images(self) -> None:
        """Add forests of a few trees with their images under symmetries that shift the rank order.

        The trees come from column generation with one price for links of the same role. There are
        no forests without such symmetries.
        """
        packing = self.survey.pack_by_class(self.effort, self.say)
        limit = min(_MAX_TREES, self.limits.max_trees or _MAX_TREES)
        trees = [self._hang(tree) for tree in packing.carrying]
        images = group(self.survey.turns, max(1, limit // max(len(trees), 1)))
        if images is None:
            return
        if len(self.survey.ranks) <= METRIC_RANKS:
            metric = Metric(self.survey.graph, packing.pair_prices, both=True)
            # Images load links equally whatever the tree, so a shallow one is tried before deep
            # ones.
            low = [grow_low_tree(metric, 0, price) for price in (0.0, 0.25)]
            flat = [self._hang(tree) for tree in low if tree is not None]
            self.add_weighed(flat, "images of low trees", images)
            if self.has_within():
                return
            trees += flat
        self.add_weighed(trees, "images", images)

    def add_rail_trees(self) -> None:
        """Add trees over boxes (equal groups of GPUs, such as hosts), if the machine has them.

        For each shape of trees in SHAPES there is one set of trees per rail: the i-th GPUs of all
        boxes.
        """
        boxes = self.survey.boxes
        if boxes is None:
            return
        tried = set[frozenset[frozenset[tuple[int, int]]]]()
        for name, shape in SHAPES.items():
            parents = shape(boxes.count)
            # A slow box sends least at the root of a tree, so trees rotated to root it are tried
            # too. Sets of more trees root every box.
            turned = [
                turn_to_root(tree, parents, box)
                for box in self.survey.slow_boxes[:_SLOW_BOXES]
                for tree in (parents if len(parents) <= 2 else ())
            ]
            for more in turned:
                parents = [*parents, *(tree for tree in more if tree not in parents)]
            # Shapes over two boxes are the same, and chains from every box are deeper than stars.
            # Each as the pairs of nodes, lower first, that it joins; the root's parent is -1.
            joined = frozenset(
                frozenset((min(v, p), max(v, p)) for v, p in enumerate(tree) if p >= 0)
                for tree in parents
            )
            is_dominated = joined in tried or (name == "chains" and self.has_within())
            tried.add(joined)
            if is_dominated or len(parents) * boxes.rails > _MAX_TREES or not self._may_go_on():
                continue
            trees = rail_trees(boxes, parents, self.router)
            hung = [self._fit_routes(self._hang(tree, root)) for tree, root in trees or ()]
            fitting = [tree for tree in hung if tree is not None]
            if fitting and len(fitting) == len(hung):
                self.add_weighed(fitting, f"boxes, {name}")

    def add_level_trees(self, root: int | None = None) -> None:
        """Add trees of equal share, no link being in more of them than it has room for.

        The trees negotiate for links that too many of them want (level_trees.py). They are for
        allreduce, or out-trees for a broadcast from rank `root` if it is given.
        """
        most = min(_MAX_LEVEL_TREES, self.limits.max_trees or _MAX_LEVEL_TREES)
        counts = range(min(most, _MIN_LEVEL_TREES), most + 1)
        links = LinkArrays(self.survey.topology)
        assert self.proof is not None
        for slack in SLACKS:
            count, gap = choose_count(links, self.proof, counts, slack=slack)
            listed = self._lay_level_trees(root, count, gap)
            if listed:
                self.add_weighed(listed, "trees negotiating for links", even=True)
            if not listed or self.has_within(_NEAR) or not self._may_go_on():
                return

    def _lay_level_trees(self, root: int | None, count: int, gap: float) -> list[RootedTree]:
        """Return `count` trees that negotiated for links, none if routes do not join all GPUs."""
        topology, both = self.survey.topology, root is None
        single = has_single_paths(topology, self.collective, ROUTED_RANKS)
        middle, max_depth = choose_depth(topology, both=both)
        trees = LevelTrees(
            topology,
            # Trees from one root would all want its links.
            [middle[i * len(middle) // count] for i in range(count)]
            if root is None
            else [root] * count,
            both=both,
            routes=OwnRoutes(self.router) if single else None,
            max_depth=self.limits.max_depth or max_depth,
        )
        try:
            trees.grow(float(self.bound), self.effort)
        except InfeasibleError:  # links of one direction may join the GPUs where routes do not
            return []
        trees.even_out(float(self.bound), gap, self.effort, self.say)
        listed: list[RootedTree] = []
        for tree, times in trees.count_trees():
            # An undirected tree is shallowest if it hangs from its centre.
            hung = self._hang(Tree(tuple(filter(None, tree.down)))) if both else tree
            listed += [hung] * times
        return listed

    def add_broadcast_trees(self, root: int) -> None:
        """Add out-trees from rank `root`, for machines too large for column generation.

        They are one set per rail (the i-th GPU of every box) if the machine has boxes, and trees of
        equal share if its links are direct.
        """
        boxes, graph = self.survey.boxes, self.survey.graph
        if boxes is not None:
            # A chain from the root's own box, or a binary tree: the first sends least, the second
            # is shallower.
            row = [(box - 1) % boxes.count for box in range(boxes.count)]
            row[next(b for b, members in enumerate(boxes.ranks) if root in members)] = -1
            for shape in ([row], SHAPES["binary"](boxes.count)):
                trees = rail_trees(boxes, shape, self.router)
                if trees:
                    down = [replace(self._hang(tree, root), up=()) for tree, _ in trees]
                    self.add_weighed(down, "rails of boxes")
        elif self.survey.direct:
            # Start from as many trees as the total bandwidth allows, and try fewer until they can
            # be packed.
            links = len(self.survey.ranks) - 1
            count = int(graph.capacity.sum() / links / float(self.survey.unit))
            for k in range(max(1, count), 0, -1):
                whole = self.survey.find_whole_trees(k, 1, self.effort)
                if whole is not None:
                    down = [replace(self._hang(tree, root), up=()) for tree in whole]
                    self.add_weighed(down, "whole numbers")
                    break

    def add_low_trees(self) -> None:
        """Add shallow ("low") trees: column generation among trees within the depth limit.

        If they are more than the limit on trees, also add the heaviest of them, as many as the
        limit allows.
        """
        if len(self.survey.ranks) > METRIC_RANKS:
            return
        low = LowTreePacking(self.survey.graph, self.limits.max_depth)
        low.generate(self.effort.grant(_LOW_WORK_S, 0.5), "low trees")
        if not low.carrying:
            return
        self.add_weighed([self._hang(tree) for tree in low.carrying], "low trees")
        limit, forest = self.limits.max_trees, self.candidates[-1].forest
        if limit is not None and forest.count > limit:
            weighed = zip(forest.shares, forest.trees, strict=True)
            heaviest = sorted(weighed, key=lambda item: -item[0])[:limit]
            self.add_weighed([tree for _, tree in heaviest], "heaviest low trees")


def pareto(candidates: Sequence[CandidateForest]) -> list[CandidateForest]:
    """Return the Pareto front of forests in rate, depth and number of trees, fastest first."""
    out: list[CandidateForest] = []
    for c in sorted(candidates, key=lambda c: (-c.rate_GBps, c.forest.count, c.forest.depth)):
        size, depth = c.forest.count, c.forest.depth
        if not any(faster.forest.count <= size and faster.forest.depth <= depth for faster in out):
            out.append(c)
    return out


def choose(
    candidates: Sequence[CandidateForest], bound_GBps: Fraction, limits: TreeLimits
) -> list[CandidateForest]:
    """Return the Pareto front of the forests within the limits.

    If the limits have an epsilon, only forests count whose rates are at most that fraction below
    the bound: return the one with the fewest trees, or an empty list if there is none.
    """
    allowed = [c for c in candidates if c.keeps(limits)]
    if limits.epsilon is None:
        return pareto(allowed)
    least = bound_GBps * (1 - max(limits.epsilon, AT_BOUND))
    near = (c for c in allowed if c.rate_GBps >= least)
    return sorted(near, key=lambda c: (c.forest.count, c.forest.depth, -c.rate_GBps))[:1]
