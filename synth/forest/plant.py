"""Forests for allreduce, from single trees to many: few shallow trees where that costs little, more
to reach the bound.

Where GPUs are joined by links of their own, whole numbers of trees are packed by matroid union.
Where shifts of the rank order are symmetries, one tree's images load all links alike. Equal boxes
are joined lane by lane. Where none of these reaches the bound, trees of the column generation are
weighed against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np

from ...topo.errors import InputError
from ...topo.exact import parse_fraction
from ...topo.routes import Router
from ..effort import Effort
from ..numeric.linear import pack
from .large.combs import comb_trees
from .machine.boxes import lane_trees
from .machine.metric import Metric
from .machine.pairs import Floats, Tree
from .machine.symmetry import group
from .shapes import SHAPES, turn_to_root
from .survey import Survey
from .trees import Forest, RootedTree, hang_tree, tree_depth
from .weigh import Usage, find_best_shares, find_max_load, round_shares

# A gap of at most this counts as at the bound.
AT_BOUND = Fraction(1, 10**6)
_MOST_TREES = 256
_UNION_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
_UNION_WORK = 3_000_000
_ROOTS = 64
_METRIC_RANKS = 256
_LOW_WORK_S = 10.0
# Seconds of a quiet core to grow and count a low tree, and for each rank in it.
_LOW_TREE_S, _LOW_TREE_RANK_S = 5e-4, 2e-5
_SINGLE_RANKS, _SINGLE_PAIRS = 128, 1000
_SLOW_BOXES = 4
_FAR = Fraction(1, 10)
# With more than _SINGLE_RANKS GPUs, trees are not generated link by link where a simpler forest is
# this near the bound.
_NEAR = Fraction(1, 50)


@dataclass(frozen=True)
class Limits:
    """A user's limits: the gap `epsilon` (a share of the bound) that is accepted in exchange for
    fewer and shallower trees, the most trees, and their greatest depth in hops. Raises InputError
    where they allow nothing.
    """

    epsilon: Fraction | None = None
    max_trees: int | None = None
    max_depth: int | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            try:
                epsilon = parse_fraction(self.epsilon)
            except ValueError:
                raise InputError(
                    f"epsilon is {self.epsilon!r}; expected a share of the bound, such as 0.05"
                ) from None
            if not 0 <= epsilon < 1:
                raise InputError(
                    f"epsilon is {float(epsilon):g}; expected at least 0 and less than 1"
                )
            object.__setattr__(self, "epsilon", epsilon)
        for name in ("max_trees", "max_depth"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(f"{name} is {value!r}; expected a whole number of at least 1")

    def allows(self, planted: Planted) -> bool:
        """Return whether the number of trees and their depth are within the limits."""
        few = self.max_trees is None or planted.forest.count <= self.max_trees
        return few and (self.max_depth is None or planted.forest.depth <= self.max_depth)


@dataclass(frozen=True)
class Planted:
    """A forest, the algbw in GB/s that its exact loads allow, and the method that gave it."""

    forest: Forest
    rate_GBps: Fraction
    how: str


class Nursery:
    """Collects forests for one machine, by every method that suits it."""

    def __init__(
        self,
        survey: Survey,
        router: Router,
        bound_GBps: Fraction,
        limits: Limits,
        effort: Effort,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.survey, self.router, self.bound = survey, router, bound_GBps
        self.limits, self.effort, self.say = limits, effort, say
        self.planted: list[Planted] = []

    # -- collecting
    # -------------------------------------------------------------------------------------------------

    def keep(self, forest: Forest, rate: Fraction, how: str) -> None:
        """Add a forest to the collection."""
        self.planted.append(Planted(forest, rate, how))
        if self.say is not None:
            gap = 1 - float(rate / self.bound)
            self.say(
                f"packing: {forest.count} trees, {forest.depth} deep, {gap:.2%} under the bound "
                f"({how})"
            )

    def keep_weighed(
        self,
        trees: Sequence[RootedTree],
        how: str,
        images: np.ndarray | None = None,
        *,
        even: bool = False,
    ) -> None:
        """Add trees with the shares that load links least; with even shares where these do as well,
        or if `even`.

        Equal trees are merged.
        """
        # A tree that stands in the list twice carries twice an even share.
        times = Counter(trees)
        total, trees = len(trees), list(times)
        usage = Usage(self.survey.topology, trees, images)
        group_of = [0] * len(trees)
        even_time = (
            find_max_load(usage.uses, [times[tree] for tree in trees], usage.capacity) / total
        )
        shares = [Fraction(times[tree], total) for tree in trees]
        # Even shares make the smallest fractions; the linear program is only worth it where they
        # miss the bound.
        if not even and len(trees) > 1 and 1 / even_time < self.bound * (1 - AT_BOUND):
            depths = [tree_depth(tree, self.survey.ranks) for tree in trees]
            floats = find_best_shares(usage.uses, usage.capacity, group_of, depths)
            shares = round_shares(floats, usage.uses, usage.capacity, group_of)
        # Rounding leaves some trees without a share: these must not count in the forest's size or
        # depth.
        carrying = [(tree, share) for tree, share in zip(trees, shares, strict=True) if share]
        load = self._find_max_load(usage, shares)
        depth = max(tree_depth(tree, self.survey.ranks) for tree, _ in carrying)
        self.keep(
            Forest(tuple(t for t, _ in carrying), tuple(s for _, s in carrying), depth, images),
            1 / load,
            how,
        )

    @staticmethod
    def _find_max_load(usage: Usage, shares: Sequence[Fraction]) -> Fraction:
        """Return the greatest load over capacity of any link under the shares; exact."""
        # In whole numbers over a common denominator: exact, and faster than fractions.
        whole = np.lcm.reduce([s.denominator for s in shares], dtype=object)
        return find_max_load(usage.uses, [int(s * whole) for s in shares], usage.capacity) / int(
            whole
        )

    def is_near_bound(self) -> bool:
        """Return whether a forest within the limits is within a tenth of the bound."""
        return self._has_within(_FAR)

    def is_at_bound(self) -> bool:
        """Return whether a forest within the limits is at the bound."""
        return self._has_within(AT_BOUND)

    def _has_reached(self, gap: Fraction) -> bool:
        """Return whether any forest, within the limits or not, is within `gap` of the bound."""
        return any(p.rate_GBps >= self.bound * (1 - gap) for p in self.planted)

    def _has_within(self, gap: Fraction) -> bool:
        """Return whether a forest within the limits is within `gap` of the bound."""
        return any(
            p.rate_GBps >= self.bound * (1 - gap) and self.limits.allows(p) for p in self.planted
        )

    def _may_go_on(self) -> bool:
        """Return whether work and time are left."""
        return not self.effort.is_over("packing trees")

    def _hang(self, tree: Tree, root: int | None = None) -> RootedTree:
        """Return the tree rooted at a rank, or at its centre."""
        return hang_tree(tree, self.survey.ranks, root)

    # -- methods
    # -----------------------------------------------------------------------------------------

    def grow(self) -> list[Planted]:
        """Try the methods that suit the machine, the slow ones only where the bound is not reached;
        return all forests.
        """
        # Cheap methods first: where they reach the bound, column generation is not needed.
        self.add_single_trees()
        if self.survey.direct:
            self.add_combs()
            # Whole numbers of trees take long on large machines; there they are only sought where
            # combs fall short.
            if len(self.survey.ranks) <= _SINGLE_RANKS or not self._has_within(_NEAR):
                self.add_whole_number_trees()
        else:
            self.add_lane_trees()
            self.add_images()
        if not self._has_reached(AT_BOUND) and self._may_go_on():
            if self.survey.direct:
                self.add_images()
            # Every pair of devices is a row of its own here, so large machines take far longer.
            near = AT_BOUND if len(self.survey.ranks) <= _SINGLE_RANKS else _NEAR
            if not self._has_reached(near) and len(self.survey.graph.pairs) <= _SINGLE_PAIRS:
                self.add_trees_by_link()
        # Optimal trees may all break the user's limits; then trees are generated within them from
        # the start.
        if (
            (self.limits.max_depth or self.limits.max_trees)
            and not self._has_within(_FAR)
            and self._may_go_on()
        ):
            self.add_low_trees()
        return self.planted

    def add_single_trees(self) -> None:
        """Add the shallowest tree, and deeper ones that each carry more than all shallower ones."""
        graph, n = self.survey.graph, len(self.survey.ranks)
        if n > _METRIC_RANKS:
            _, tree = graph.cheapest_tree(1 / graph.capacity)
            self.keep_weighed([self._hang(tree)], "one tree")
            return
        # Roots and prices of a hop trade depth for rate; only the best of each depth is of
        # interest.
        metric = make_two_way_metric(self.survey, 1 / graph.capacity)
        best: dict[int, tuple[Fraction, RootedTree]] = {}
        for root in range(0, n, ceil(n / _ROOTS)):
            for hop_price in (0.0, 0.5, 10.0):
                low = grow_low_tree(metric, root, hop_price)
                if low is None:
                    continue
                rooted = self._hang(low)
                usage = Usage(self.survey.topology, [rooted])
                rate = 1 / find_max_load(usage.uses, [1], usage.capacity)
                depth = tree_depth(rooted, self.survey.ranks)
                if depth not in best or rate > best[depth][0]:
                    best[depth] = rate, rooted
        for depth in sorted(best):
            if all(best[depth][0] > best[lower][0] for lower in best if lower < depth):
                self.keep_weighed([best[depth][1]], "one tree")

    def add_whole_number_trees(self) -> None:
        """Add, on direct links, k trees of equal shares for several k, up to the least k that
        reaches the bound.
        """
        unit, nodes = self.survey.unit, len(self.survey.ranks)
        # k trees in which a link of bandwidth c is used at most u c / unit times reach k unit / u:
        # of each k, the best u.
        best_of: dict[int, tuple[Fraction, int]] = {}
        for u in range(1, _MOST_TREES + 1):
            count = int(u * self.bound / unit)
            if not 1 <= count <= _MOST_TREES or count * nodes * count > _UNION_WORK:
                continue
            rate = count * unit / u
            if count not in best_of or rate > best_of[count][0]:
                best_of[count] = rate, u
        # Fewer trees mean fewer messages, so of each limit on their number the fastest forest is
        # tried.
        wanted = {
            max((k for k in best_of if k <= most), key=lambda k: best_of[k][0], default=0)
            for most in self._list_limits()
        }
        for count in sorted(wanted - {0}):
            _, u = best_of[count]
            trees = (
                self.survey.find_whole_trees(count, u, self.effort) if self._may_go_on() else None
            )
            if trees is not None:
                self.keep_weighed([self._hang(tree) for tree in trees], "whole numbers", even=True)

    def add_combs(self) -> None:
        """Add, on grids of direct links, all combs, and a half, a quarter ... of them."""
        combs = [self._hang(tree) for tree in comb_trees(self.survey.topology)]
        combs = combs if len(combs) <= _MOST_TREES else combs[:: ceil(len(combs) / _MOST_TREES)]
        every = 1
        while combs and every * 2 <= len(combs) and not self.is_at_bound():
            self.keep_weighed(combs[::every], "combs")
            every *= 2

    def _list_limits(self) -> list[int]:
        """Return the limits on the number of trees for which whole-number trees are tried."""
        if self.limits.max_trees is not None:
            most = self.limits.max_trees
            return [
                most,
                most * 3 // 2,
                2 * most,
            ]  # equal trees are merged, so that more may still fit
        return [*_UNION_STEPS, _MOST_TREES]

    def add_images(self) -> None:
        """Add the trees generated by classes of links, each with all its images under shifts of the
        rank order.
        """
        columns = self.survey.pack_by_class(self.effort, self.say)
        carrying = [
            tree for tree, rate in zip(columns.trees, columns.rates, strict=True) if rate > 1e-9
        ]
        most = min(_MOST_TREES, self.limits.max_trees or _MOST_TREES)
        images = group(self.survey.turns, max(1, most // max(len(carrying), 1)))
        if images is None:
            return
        trees = [self._hang(tree) for tree in carrying]
        if len(self.survey.ranks) <= _METRIC_RANKS:
            metric = make_two_way_metric(self.survey, columns.prices)
            # Images load alike whatever the tree, so a shallow one is tried before deep ones.
            low = [grow_low_tree(metric, 0, price) for price in (0.0, 0.25)]
            flat = [self._hang(tree) for tree in low if tree is not None]
            self.keep_weighed(flat, "images of low trees", images)
            if self.is_at_bound():
                return
            trees += flat
        self.keep_weighed(trees, "images", images)

    def add_lane_trees(self) -> None:
        """Add, where the machine is made of equal boxes, trees over the boxes: for each shape a set
        of trees a lane.
        """
        boxes = self.survey.boxes
        if boxes is None:
            return
        for name, shape in SHAPES.items():
            parents = shape(boxes.count)
            # A slow box sends least at the root of a tree, so trees turned that way are offered
            # beside.
            turned = [
                turn_to_root(tree, parents, box)
                for box in self.survey.slow_boxes[:_SLOW_BOXES]
                for tree in parents
            ]
            for more in turned if len(parents) <= 2 else []:
                parents = [*parents, *(tree for tree in more if tree not in parents)]
            if len(parents) * boxes.lanes > _MOST_TREES or not self._may_go_on():
                continue
            trees = lane_trees(self.survey.topology, boxes, parents, self.router)
            if trees is not None:
                self.keep_weighed(
                    [self._hang(tree, root) for tree, root in trees], f"boxes, {name}"
                )

    def add_broadcast_trees(self, root: int) -> None:
        """Add out-trees from a root, for machines too large for column generation: a set for each
        lane of boxes, or whole-number trees.
        """
        trees: list[RootedTree] = []
        boxes = self.survey.boxes
        if boxes is not None:
            # Boxes in a row from the root's own, or as a binary tree: the first sends least, the
            # second has less depth.
            home = next(b for b, members in enumerate(boxes.ranks) if root in members)
            onward = [(home + i) % boxes.count for i in range(boxes.count)]
            row = [-1] * boxes.count
            for a, b in pairwise(onward):
                row[b] = a
            for shape in ([row], SHAPES["binary"](boxes.count)):
                lanes = lane_trees(self.survey.topology, boxes, shape, self.router) or []
                trees = [replace(self._hang(tree, root), up=()) for tree, _ in lanes]
                if trees:
                    self.keep_weighed(trees, "lanes of boxes")
        elif self.survey.direct:
            # No more trees than all links together have room for; then fewer until they can be
            # packed.
            count = max(
                1,
                int(
                    self.survey.graph.capacity.sum()
                    / (len(self.survey.ranks) - 1)
                    / float(self.survey.unit)
                ),
            )
            for k in range(count, 0, -1):
                whole = self.survey.find_whole_trees(k, 1, self.effort)
                if whole is not None:
                    trees = [replace(self._hang(tree, root), up=()) for tree in whole]
                    self.keep_weighed(trees, "whole numbers")
                    break

    def add_trees_by_link(self) -> None:
        """Add the trees of column generation in which every link has a price of its own."""
        columns = self.survey.pack_by_link(self.effort, self.say)
        carrying = [
            tree for tree, rate in zip(columns.trees, columns.rates, strict=True) if rate > 1e-9
        ]
        self.keep_weighed([self._hang(tree) for tree in carrying], "column generation")

    def add_low_trees(self) -> None:
        """Add trees generated within the depth limit, and of these the heaviest, as many as the
        limits allow.
        """
        low = generate_low_trees(
            self.survey, self.limits.max_depth, self.effort.grant(_LOW_WORK_S, 0.5)
        )
        if not low:
            return
        trees = [self._hang(tree) for tree in low]
        self.keep_weighed(trees, "low trees")
        most = self.limits.max_trees
        if most is not None and self.planted[-1].forest.count > most:
            heaviest = sorted(
                zip(self.planted[-1].forest.shares, self.planted[-1].forest.trees, strict=True),
                key=lambda x: -x[0],
            )
            self.keep_weighed([tree for _, tree in heaviest[:most]], "heaviest low trees")


def make_two_way_metric(survey: Survey, prices: Floats) -> Metric:
    """Return the metric in which a pair's price holds in both directions."""
    pairs = survey.graph.pairs
    return Metric(survey.topology, [*pairs, *((b, a) for a, b in pairs)], np.tile(prices, 2))


def grow_low_tree(
    metric: Metric, root: int, hop_price: float = 0.0, most_depth: int | None = None
) -> Tree | None:
    """Return a shallow tree (see Metric.grow_tree) with its routes, or None where there is none of
    that depth.
    """
    parents = metric.grow_tree(root, hop_price, most_depth)
    if parents is None:
        return None
    return Tree(
        tuple(metric.route(parent, node) for node, parent in enumerate(parents) if parent >= 0)
    )


def generate_low_trees(survey: Survey, most_depth: int | None, effort: Effort) -> list[Tree]:
    """Generate columns among shallow trees only, and return those that carry something.

    The trees are grown by a heuristic, so the rate that they reach proves nothing.
    """
    graph, n = survey.graph, len(survey.ranks)
    if n > _METRIC_RANKS:
        return []
    # Roots are sampled on large machines, so that a turn takes about the same time on all.
    prices = 1 / graph.capacity
    trees: dict[Tree, None] = {}
    columns: list[Counter[int]] = []
    roots = range(0, n, ceil(n / _ROOTS))
    dual = prices
    while not effort.is_over("low trees"):
        metric = make_two_way_metric(survey, dual)
        effort.spend(2 * len(roots) * (_LOW_TREE_S + _LOW_TREE_RANK_S * n))
        fresh = []
        for root in roots:
            for hop_price in (0.0, 0.5):
                tree = grow_low_tree(metric, root, hop_price, most_depth)
                if tree is None or tree in trees:
                    continue
                # Under the duals, only a tree that costs less than 1 can improve the packing.
                used = graph.uses(tree)
                price = sum(dual[i] * times for i, times in used.items())
                if not columns or price < 1 - 1e-9:
                    fresh.append((price, tree, used))
        # The cheapest few a turn keep the program small: duals change, and most others would carry
        # nothing.
        fresh.sort(key=lambda x: x[0])
        for _, tree, used in fresh[:8]:
            if tree not in trees:
                trees[tree] = None
                columns.append(used)
        if not fresh:
            break
        solved = pack(columns, graph.capacity, effort)
        if solved is None:
            break
        rates, dual = solved
    if not columns:
        return []
    return [tree for tree, rate in zip(trees, rates, strict=True) if rate > 1e-9]


def pareto(planted: Sequence[Planted]) -> list[Planted]:
    """Return the forests that no other matches or beats in rate, depth and number of trees at once,
    fastest first.
    """
    out: list[Planted] = []
    for candidate in sorted(planted, key=lambda p: (-p.rate_GBps, p.forest.count, p.forest.depth)):
        size, depth = candidate.forest.count, candidate.forest.depth
        if not any(faster.forest.count <= size and faster.forest.depth <= depth for faster in out):
            out.append(candidate)
    return out


def choose(planted: Sequence[Planted], bound_GBps: Fraction, limits: Limits) -> list[Planted]:
    """Return the Pareto front of the forests within the limits; with an epsilon, the one within it
    that has fewest trees.
    """
    allowed = [p for p in planted if limits.allows(p)]
    if limits.epsilon is not None:
        near = [
            p for p in allowed if p.rate_GBps >= bound_GBps * (1 - max(limits.epsilon, AT_BOUND))
        ]
        return sorted(near, key=lambda p: (p.forest.count, p.forest.depth, -p.rate_GBps))[:1]
    return pareto(allowed)
