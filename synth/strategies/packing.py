"""Throughput-optimal schedules: trees, or paths, packed into the links (synth/forest).

Allreduce: in- and out-trees with free root shares. Allgather and reduce-scatter: trees from, or to,
every rank, of equal shares. Broadcast and reduce: trees of one root. Alltoall, scatter and gather:
paths that GPUs relay. All are pipelined.

A request is a collective on a topology, with limits and an allowance of work; the planner verifies
and costs the schedules that `build` returns for it. A segment is a part of each chunk, which are
sent one after the other.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import InfeasibleError
from ...topo.grouping import group_by_key
from ..bounds.single_path import SINGLE_PATH_ROOTS, find_bounds, has_single_paths
from ..cost.affine import bandwidth_s_per_GB
from ..cost.loads import computes_in_network
from ..cost.segmentation import list_omitted, reroute_unless_in_network
from ..forest.candidates import CandidateForest, ForestBuilder, choose
from ..forest.innet import in_network_forests
from ..forest.level_trees import LevelTrees, choose_count, choose_depth
from ..forest.routed import keeps_to_routes, routed_forest
from ..ir.schedule import Schedule, reverse
from ..machine.links import LinkArrays
from ..machine.routes import OwnRoutes
from ..machine.symmetry import shifts
from ..packing.balanced import balanced_trees
from ..packing.division import TOLERANCE
from ..packing.level_paths import explain_too_many
from ..packing.paths import PathPacking, level_schedule, path_schedule
from ..packing.rooted import RootedPacking, group_packing
from ..packing.survey import MAX_PAIRS, survey
from ..packing.trees import Forest, RootedTree, schedule_of, tree_depth
from ..request import Request, segment_counts

# Collectives that are planned as their opposite on the reversed machine.
_REVERSED = ("reduce", "reduce-scatter", "gather")
# Work for the bound if the request has none, in seconds of an idle core; its share of the time.
_BOUND_WORK_S, _BOUND_CLOCK = 20.0, 0.5
# With more GPUs, column generation takes too long for trees of all roots (in every turn it prices
# one tree per root), and for those of a broadcast.
_EXACT_RANKS, _EXACT_BROADCAST = 128, 300
# With more GPUs, a broadcast also tries trees built from boxes or in integer counts.
_BUILT_BROADCAST = 48
# With more GPUs, out-trees of all ranks are balanced before column generation; work for those of
# the mended machine, and for balancing them, in seconds of an idle core.
_LEVEL_RANKS, _MENDED_WORK_S, _EVENING_WORK_S = 8, 8.0, 10.0
# With more GPUs, trees of all roots have too many branches to be balanced.
_MAX_LEVEL_RANKS = 1536
# With more GPUs, growing a tree per root on the hardware's routes takes too long.
_ROUTED_RANKS = 300
# Maximum number of trees of all roots together that negotiate for links, and of one root.
_LEVEL_TREES, _MAX_PARTS = 1024, 16
# Fraction of the bound from which balanced trees are used without column generation.
_NEAR = Fraction(998, 1000)
# Gap to the bound below which a broadcast needs no column generation.
_CLOSE = Fraction(1, 50)
# Fraction of the bound from which simple trees are offered besides the optimal ones.
_WORTH_OFFERING = Fraction(9, 10)


def build(request: Request) -> list[Schedule]:
    """Return schedules of different numbers of trees, depths and segments for a request.

    Raise InfeasibleError if there is none within its limits.
    """
    if request.bound is None:
        granted = request.effort.grant(_BOUND_WORK_S, _BOUND_CLOCK)
        bounds = find_bounds(request.collective, request.router, granted, request.progress)
        request = replace(request, bound=bounds.single_path)
    if request.collective.name in _REVERSED:
        return [reverse(schedule) for schedule in build(request.reversed())]
    packer = _Packer(request)
    paths = request.collective.name in ("alltoall", "scatter")
    schedules = [packer.plan_paths()] if paths else packer.plan_trees()
    return [replace(s, segments=m) for s in schedules for m in segment_counts(s.trees or 1)]


class _Packer:
    """The packing of paths, or trees, into the links of one request's machine."""

    def __init__(self, request: Request) -> None:
        self.request, self.collective, self.topology = request, request.collective, request.topology
        self.effort, self.limits, self.say = request.effort, request.limits, request.progress
        self.bound_GBps = request.bound_GBps
        self.machine = survey(self.topology)
        # Every member is a root, or the source of paths, if the collective has no root.
        root, self.is_group = self.collective.root, not self.collective.has_all_gpus
        self.roots = list(self.collective.members) if root is None else [root]
        self.both = self.collective.name == "allreduce"

    @cached_property
    def routes(self) -> OwnRoutes | None:
        """The hardware's routes that schedules must keep to.

        None if they restrict nothing, or are too many: schedules are then planned with any routes.
        """
        if not has_single_paths(self.topology, self.collective):
            return None
        return OwnRoutes(self.request.router)

    @cached_property
    def turns(self) -> list[NDArray[np.int64]]:
        """The machine's shifts that map routes to routes."""
        routes = self.routes
        return [turn for turn in self.machine.turns if routes is None or routes.keeps(turn[1])]

    def plan_paths(self) -> Schedule:
        """Return the schedule of alltoall or scatter over packed paths."""
        packing = level = None
        if self.routes is not None or self.is_group:
            targets = list(self.collective.members) if self.is_group else None
            turns = [] if self.is_group else self.turns
            own = PathPacking(self.topology, self.roots, turns, self.routes, targets)
            if len(own.sources) * self.collective.ranks <= MAX_PAIRS:
                packing = own
                packing.run(self.effort, self.say)
            elif self.is_group:
                raise InfeasibleError(explain_too_many(self.collective.ranks))
        if packing is None and self.collective.name == "alltoall":
            level = self.machine.level_paths(1 / self.bound_GBps, self.effort)
        if level is not None:
            schedule = level_schedule(level, self.collective)
        else:
            packing = packing or self.machine.paths(self.collective, self.effort, self.say)
            schedule = path_schedule(packing, self.collective)
        self._note(None, schedule.steps, self._find_rate(schedule), "paths", is_kept=True)
        return schedule

    def plan_trees(self) -> list[Schedule]:
        """Return the schedules of the best forests within the limits.

        All forests considered are added to the request's table. Raise InfeasibleError if there is
        no forest, or none within the limits.
        """
        symmetric = self.topology.is_symmetric
        in_network = computes_in_network(self.topology, self.collective)
        few, joined = len(self.machine.ranks) <= _EXACT_RANKS, self.machine.graph.joins_all()
        if self.is_group:
            candidates = self._pack_group()
        elif self.both and in_network and joined:
            candidates = in_network_forests(self.request)
            # Those trees use only what links have in both directions.
            if few and not symmetric:
                candidates += self._pack_rooted()
        elif self.both and (symmetric or not few):
            if not joined:
                raise InfeasibleError(
                    f"topology {self.topology.name!r}: links that have both directions do not join "
                    "all GPUs into a tree"
                )
            candidates = ForestBuilder(self.request).build_all()
        else:
            candidates = self._pack_rooted()
        picked = choose(candidates, self.bound_GBps, self.limits)
        schedules = [self._draw(p.forest) for p in picked]
        if (self.both and symmetric and not in_network and not self.is_group) and not all(
            keeps_to_routes(schedule.transfers, self.request.router) for schedule in schedules
        ):
            candidates = self._send_as_routed(candidates)
            if self.request.router.omits_pairs:
                candidates = [
                    p
                    for p in candidates
                    if not list_omitted(self._draw(p.forest), self.request.router)
                ]
            picked = choose(candidates, self.bound_GBps, self.limits)
            schedules = [self._draw(p.forest) for p in picked]
        if not picked:
            raise InfeasibleError(_explain_no_forest(candidates, self.request))
        for p in candidates:
            self._note(p.forest.count, p.forest.depth, p.rate_GBps, p.how, is_kept=p in picked)
        return [reroute_unless_in_network(schedule, self.request.router) for schedule in schedules]

    def _draw(self, forest: Forest) -> Schedule:
        return schedule_of(forest, self.collective, self.topology, "packing")

    def _find_rate(self, schedule: Schedule) -> Fraction:
        """Return the algbw in GB/s of a schedule, pipelined."""
        return 1 / bandwidth_s_per_GB(replace(schedule, segments=2), self.topology)

    def _rate(self, forest: Forest, how: str) -> CandidateForest:
        """Return a forest with the algbw of its schedule on the hardware's routes."""
        schedule = reroute_unless_in_network(self._draw(forest), self.request.router)
        return CandidateForest(forest, self._find_rate(schedule), how)

    def _note(
        self, trees: int | None, depth: int, rate_GBps: Fraction, how: str, *, is_kept: bool
    ) -> None:
        gap = max(0.0, float(1 - rate_GBps / self.bound_GBps))
        self.request.table.append(
            {"trees": trees, "depth": depth, "algbw_GBps": float(rate_GBps), "gap": gap, "how": how,
             "kept": is_kept}
        )  # fmt: skip

    def _send_as_routed(self, candidates: Sequence[CandidateForest]) -> list[CandidateForest]:
        """Return forests with the rates they reach on the hardware's routes.

        Forests whose edges are the hardware's routes are added. Trees whose edges are divided over
        several routes promise more than point-to-point sends carry.
        """
        out = [self._rate(p.forest, p.how) for p in candidates]
        uneven = self.routes is not None and not self.routes.is_mirrored
        if uneven and len(self.machine.ranks) <= SINGLE_PATH_ROOTS:
            return out + self._pack_rooted()
        return out + routed_forest(self.request)

    def _pack_group(self) -> list[CandidateForest]:
        """Return forests for a group: trees that reach its members through any GPUs."""
        if len(self.machine.ranks) > _EXACT_RANKS:
            raise InfeasibleError(
                f"packing: groups among {len(self.machine.ranks)} GPUs are more than are searched "
                f"for; name at most {_EXACT_RANKS} members and helpers together"
            )
        packing = group_packing(self.topology, self.collective, self.limits.max_depth, self.routes)
        parts = len(self.roots) if self.collective.name == "allgather" else 1
        enough = float(1 / self.bound_GBps) * parts * (1 + TOLERANCE)
        seeds = packing.list_hub_trees() if self.limits.max_depth is None else []
        if self.limits.max_depth is None:
            seeds += packing.grow_spread_trees(self.effort)
        packing.run(self.effort, enough, self.say, seeds)
        packing.prefer_few_steps(self.effort)
        forests = self._list_forests(packing, self.limits.max_trees)
        return [self._rate(forest, how) for forest, how in forests]

    def _pack_rooted(self) -> list[CandidateForest]:
        """Return forests for collectives or machines in which the directions of links differ."""
        n = self.collective.ranks
        parts = len(self.roots) if self.collective.name == "allgather" else 1
        out, is_enough = ([], False) if self.both else self._pack_simple(parts)
        if is_enough:
            return out
        packing = RootedPacking(
            self.topology, self.roots, self.both, self.turns, self.limits.max_depth, self.routes
        )
        seeds: list[RootedTree] = []
        if out and packing.images is not None and n > _EXACT_RANKS:
            return out
        few = _LEVEL_RANKS < n <= _MAX_LEVEL_RANKS
        if parts > 1 and packing.images is None and few and self.limits.max_depth is None:
            out += self._plan_level_trees()
            level = max(out, key=lambda candidate: candidate.rate_GBps, default=None)
            if level is not None:
                if level.rate_GBps >= self.bound_GBps * _NEAR or n > _EXACT_RANKS:
                    return out
                seeds = [_send_on(self.routes, tree) for tree in level.forest.trees]
        # Column generation prices an out-tree for each root in every turn, which takes too long on
        # large machines without shifts.
        if len(packing.roots) > _EXACT_RANKS:
            raise InfeasibleError(
                f"packing: out-trees from {len(packing.roots)} ranks are more than are searched "
                "for; number the ranks so that equal boxes follow each other in the same order, or "
                "name another strategy"
            )
        enough = 0.0 if self.both else float(1 / self.bound_GBps) * parts
        packing.run(self.effort, enough, self.say, seeds)
        forests = self._list_forests(packing, self.limits.max_trees)
        return out + [self._rate(forest, how) for forest, how in forests]

    def _pack_simple(self, parts: int) -> tuple[list[CandidateForest], bool]:
        """Return forests of one direction that need no column generation, and whether they suffice.

        If they suffice, no other forests need be sought.
        """
        out: list[CandidateForest] = []
        balanced = balanced_trees(self.topology, self.roots, self.machine.turns)
        many = len(self.machine.ranks) > (_EXACT_RANKS if parts > 1 else _EXACT_BROADCAST)
        if balanced is not None:
            simple = self._rate(balanced, "balanced fewest hops")
            if many or simple.rate_GBps >= self.bound_GBps * _WORTH_OFFERING:
                out.append(simple)
        if self.collective.name == "broadcast" and len(self.machine.ranks) > _BUILT_BROADCAST:
            builder = ForestBuilder(self.request)
            builder.add_broadcast_trees(self.roots[0])
            if not builder.has_within(_CLOSE):
                builder.add_level_trees(self.roots[0])
            out += builder.candidates
            many = many or builder.has_within(_CLOSE)
        best = max((p.rate_GBps for p in out), default=Fraction(0))
        return out, bool(out) and many and (parts == 1 or best >= self.bound_GBps * _NEAR)

    def _plan_level_trees(self) -> list[CandidateForest]:
        """Return forests of trees of every root that negotiate for links, none if time is over.

        They start from the trees that are best if all links of a role are identical, if there are.
        """
        seeds, mended = None, self.machine.mended
        if mended is not None:
            packing = RootedPacking(mended, self.roots, False, shifts(mended))
            if packing.images is not None:
                packing.run(self.effort.grant(_MENDED_WORK_S), 0.0, self.say)
                seeds = self._list_forests(packing, None)[0][0]
        assert self.request.bound is not None
        n, bound, links = self.collective.ranks, float(self.bound_GBps), LinkArrays(self.topology)
        counts = [n * parts for parts in range(1, min(_MAX_PARTS, max(1, _LEVEL_TREES // n)) + 1)]
        max_depth, out = choose_depth(self.topology, both=False)[1], []
        routes = self.routes
        if routes is None and has_single_paths(self.topology, self.collective, _ROUTED_RANKS):
            routes = OwnRoutes(self.request.router)
        # One tree per root has the fewest messages; with more, links can be filled better.
        best, gap = choose_count(links, self.request.bound, counts)
        for count in sorted({n, best}):
            trees = LevelTrees(
                self.topology, self.roots * (count // n), routes=routes, max_depth=max_depth
            )
            if seeds is not None:
                trees.take(seeds)
            elif not trees.grow(bound, self.effort):
                break
            # Negotiating is cheap and gets within 0.3% of the bound at 1,024 GPUs, so it may exceed
            # the work that was granted.
            trees.even_out(bound, gap, self.effort.extend(_EVENING_WORK_S), self.say)
            listed, shares = trees.list_forest()
            depth = max(tree_depth(tree, self.machine.ranks) for tree in listed)
            forest = Forest(tuple(listed), tuple(shares), depth)
            out.append(self._rate(forest, "trees negotiating for links"))
        return out

    def _list_forests(
        self, packing: RootedPacking, max_trees: int | None
    ) -> list[tuple[Forest, str]]:
        """Return the forest of packed branches, and one of at most `max_trees`, each with its name.

        The shares of both are rounded.
        """
        shares = zip(packing.columns, packing.round(), strict=True)
        carrying = [(tree, share) for tree, share in shares if share]
        out = [(self._build_forest(packing, carrying), "column generation")]
        # The optimum may take more trees than the user allows. If so, the heaviest trees of each
        # root carry its whole part, in proportion to their shares.
        if max_trees is not None and out[0][0].count > max_trees:
            images = 1 if packing.images is None else len(packing.images)
            of_root = group_by_key(
                (packing.group_of(tree), (tree, share))
                for tree, share in sorted(carrying, key=lambda item: -item[1])
            )
            each = max(1, max_trees // (images * len(of_root)))
            heaviest: list[tuple[RootedTree, Fraction]] = []
            for _, own in sorted(of_root.items()):
                total = sum((share for _, share in own[:each]), Fraction(0))
                heaviest += [(tree, share / total) for tree, share in own[:each]]
            out.append((self._build_forest(packing, heaviest), "heaviest"))
        return out

    def _build_forest(
        self, packing: RootedPacking, carrying: Sequence[tuple[RootedTree, Fraction]]
    ) -> Forest:
        trees, shares = zip(*carrying, strict=True)
        depth = max(tree_depth(tree, self.machine.ranks) for tree in trees)
        return Forest(trees, shares, depth, packing.images)


def _send_on(routes: OwnRoutes | None, tree: RootedTree) -> RootedTree:
    """Return an out-tree with the same parents whose edges are the hardware's routes.

    If schedules need not keep to those routes, the tree is returned unchanged.
    """
    if routes is None:
        return tree
    number = {gpu: rank for rank, gpu in enumerate(routes.topology.ranks)}
    down = (route and routes.route(number[route[0]], number[route[-1]]) for route in tree.down)
    return replace(tree, down=tuple(down))


def _explain_no_forest(candidates: Sequence[CandidateForest], request: Request) -> str:
    """Return the message that no forest is within the limits.

    It names the fastest, the lowest and the smallest forest that exist.
    """
    limits = request.limits
    conditions = [
        text
        for limit, text in (
            (limits.max_trees, f"at most {limits.max_trees} trees"),
            (limits.max_depth, f"a depth of at most {limits.max_depth}"),
            (limits.epsilon, f"a gap of at most {float(limits.epsilon or 0):g}"),
        )
        if limit is not None
    ]
    orders = (
        lambda p: -p.rate_GBps,
        lambda p: (p.forest.depth, -p.rate_GBps),
        lambda p: (p.forest.count, -p.rate_GBps),
    )
    nearest = (
        list(dict.fromkeys(min(candidates, key=order) for order in orders)) if candidates else []
    )
    listed = "; ".join(
        f"{p.forest.count} tree{'s' * (p.forest.count > 1)}, {p.forest.depth} deep, gap "
        f"{float(1 - p.rate_GBps / request.bound_GBps):.2g}"
        for p in nearest
    )
    wanted = " and ".join(conditions) or "what was asked"
    return f"packing found no trees with {wanted}; it has {listed or 'none'}"
