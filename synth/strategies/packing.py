"""Throughput-optimal schedules: trees, or paths, packed into the links (synth/forest).

Allreduce: in- and out-trees with free root shares. Allgather and reduce-scatter: trees from, or to,
every rank, of equal shares. Broadcast and reduce: trees of one root. Alltoall, scatter and gather:
paths that GPUs relay. All are pipelined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import InfeasibleError
from ..bounds.single_path import SINGLE_PATH_RANKS, SINGLE_PATH_ROOTS, find_bounds
from ..cost.affine import bandwidth_s_per_GB
from ..cost.innetwork import computes_in_network
from ..cost.segmentation import on_own_routes
from ..forest.balanced import balanced_trees
from ..forest.innet import in_network_forests
from ..forest.large.level_trees import LevelTrees
from ..forest.machine.own_routes import OwnRoutes
from ..forest.machine.symmetry import shifts
from ..forest.paths import PathPacking, level_schedule, path_schedule
from ..forest.plant import Nursery, Planted, choose
from ..forest.rooted import Branches, RootedPacking
from ..forest.routed import keeps_to_routes, routed_forest
from ..forest.survey import MOST_PAIRS, Survey, survey
from ..forest.trees import Forest, RootedTree, schedule_of, tree_depth
from ..forest.weigh import round_shares
from ..ir.schedule import Schedule
from ..ir.transform import reverse
from ..request import Request, segment_counts

_TURNED = ("reduce", "reduce-scatter", "gather")
_EXACT_RANKS, _EXACT_BROADCAST = 128, 300
_LANES = 48
_BOUND_WORK_S = 20.0
# With more GPUs, out-trees of all ranks are evened out before column generation; work for those of
# the mended machine, and for evening them out.
_LEVEL_RANKS, _MENDED_WORK_S, _EVENING_WORK_S = 8, 8.0, 10.0
# With more GPUs, trees of all roots have too many branches to be evened out.
_MOST_LEVEL_RANKS = 1536
# Fraction of the bound from which evened trees are taken without column generation.
_NEAR = Fraction(998, 1000)
# Fraction of the bound from which simple trees are offered beside the optimal ones.
_WORTH_KEEPING = Fraction(9, 10)


def build(request: Request) -> list[Schedule]:
    """Return schedules of different numbers of trees, depths and segments.

    Raises InfeasibleError where there is none within the limits.
    """
    if request.bound is None:
        granted = request.effort.grant(_BOUND_WORK_S, 0.5)
        limit = find_bounds(
            request.collective, request.router, granted, request.progress
        ).single_path
        request = replace(request, bound=limit)
    if request.collective.name in _TURNED:
        return [reverse(schedule) for schedule in build(request.reversed())]
    schedules = (
        [_plan_paths(request)]
        if request.collective.name in ("alltoall", "scatter")
        else _plan_trees(request)
    )
    return [replace(s, segments=m) for s in schedules for m in segment_counts(s.trees or 1)]


def _plan_paths(request: Request) -> Schedule:
    """Return the schedule of alltoall or scatter over packed paths."""
    machine, collective = survey(request.topology), request.collective
    packing = _pack_own_paths(request, machine)
    level = None
    if packing is None and collective.name == "alltoall" and request.bound is not None:
        level = machine.level_paths(request.bound.s_per_GB, request.effort)
    if level is not None:
        schedule = level_schedule(level, collective, "packing")
    else:
        packing = packing or machine.paths(collective, request.effort, request.progress)
        schedule = path_schedule(packing, collective, "packing")
    _note(request, replace(schedule, segments=2), "paths")
    return schedule


def _pack_own_paths(request: Request, machine: Survey) -> PathPacking | None:
    """Return packed paths over the system's own routes; None where any routes serve, or there are
    too many pairs of ranks.
    """
    routes, n = _own_routes(request), request.collective.ranks
    if routes is None:
        return None
    sources = (
        list(range(n)) if request.collective.name == "alltoall" else [request.collective.root or 0]
    )
    packing = PathPacking(request.topology, sources, _keeping(machine, routes), routes)
    if len(packing.sources) * n > MOST_PAIRS:
        return None
    packing.run(request.effort, request.progress)
    return packing


def _send_on(routes: OwnRoutes | None, tree: RootedTree) -> RootedTree:
    """Return an out-tree with the same parents whose edges are the system's own routes, where
    schedules must keep to those.
    """
    if routes is None:
        return tree
    number = {gpu: rank for rank, gpu in enumerate(routes.topology.ranks)}
    down = (route and routes.route(number[route[0]], number[route[-1]]) for route in tree.down)
    return replace(tree, down=tuple(down))


def _own_routes(request: Request) -> OwnRoutes | None:
    """Return the routes that schedules must keep to; None where GPUs are linked directly only,
    switches compute, or there are too many GPUs: then schedules are planned with any routes.
    """
    topology = request.topology
    direct = all(
        topology.by_id[a].kind == topology.by_id[b].kind == "gpu" for a, b in topology.capacity_GBps
    )
    if direct or computes_in_network(topology) or len(topology.ranks) > SINGLE_PATH_RANKS:
        return None
    return OwnRoutes(request.router)


def _keeping(machine: Survey, routes: OwnRoutes | None) -> list[NDArray[np.int64]]:
    """Return the machine's shifts that take routes to routes."""
    return [turn for turn in machine.turns if routes is None or routes.keeps(turn[1])]


def _plan_trees(request: Request) -> list[Schedule]:
    """Return the schedules of the best forests within the limits, and add all forests to the
    request's table.
    """
    machine = survey(request.topology)
    name = request.collective.name
    best = request.bound_GBps
    if name == "allreduce" and computes_in_network(request.topology):
        planted = in_network_forests(
            machine, request.router, best, request.limits, request.effort, request.progress
        )
    elif name == "allreduce" and (
        request.topology.is_symmetric or len(machine.ranks) > _EXACT_RANKS
    ):
        if not machine.graph.joins_all():
            raise InfeasibleError(
                f"topology {request.topology.name!r}: links that go both ways do not join all "
                "GPUs into a tree"
            )
        planted = Nursery(
            machine, request.router, best, request.limits, request.effort, request.progress
        ).grow()
    else:
        planted = _pack_rooted(request, machine)
    plain = (
        name == "allreduce"
        and request.topology.is_symmetric
        and not computes_in_network(request.topology)
    )
    picked = choose(planted, best, request.limits)
    schedules = [
        schedule_of(p.forest, request.collective, request.topology, "packing") for p in picked
    ]
    if plain and not all(
        keeps_to_routes(schedule.transfers, request.router) for schedule in schedules
    ):
        planted = _send_as_routed(planted, machine, request)
        picked = choose(planted, best, request.limits)
        schedules = [
            schedule_of(p.forest, request.collective, request.topology, "packing") for p in picked
        ]
    if not picked:
        raise InfeasibleError(_explain_no_forest(planted, best, request))
    schedules = [on_own_routes(schedule, request.router) for schedule in schedules]
    for candidate in planted:
        request.table.append(
            {"trees": candidate.forest.count, "depth": candidate.forest.depth, "algbw_GBps": float(candidate.rate_GBps),
             "gap": max(0.0, float(1 - candidate.rate_GBps / best)), "how": candidate.how, "kept": candidate in picked}
        )  # fmt: skip
    return schedules


def _send_as_routed(planted: Sequence[Planted], machine: Survey, request: Request) -> list[Planted]:
    """Return forests with the rates that they have as sent, and those whose edges are the system's
    own routes.

    Trees whose edges are divided over several routes promise more than point-to-point sends carry.
    """
    out = [replace(p, rate_GBps=_compute_rate(request, p.forest)) for p in planted]
    routes = _own_routes(request)
    if routes is not None and not routes.is_mirrored and len(machine.ranks) <= SINGLE_PATH_ROOTS:
        return out + _pack_rooted(request, machine)
    return out + routed_forest(
        machine,
        request.router,
        request.bound_GBps,
        request.limits,
        request.effort,
        request.progress,
    )


def _pack_rooted(request: Request, machine: Survey) -> list[Planted]:
    """Return forests for collectives or machines in which the directions of links differ."""
    collective, topology = request.collective, request.topology
    roots = (
        [collective.root or 0] if collective.name == "broadcast" else list(range(collective.ranks))
    )
    both = collective.name == "allreduce"
    parts = len(roots) if collective.name == "allgather" else 1
    out: list[Planted] = []
    if not both:
        balanced = balanced_trees(topology, roots, machine.turns)
        many = len(machine.ranks) > (_EXACT_RANKS if parts > 1 else _EXACT_BROADCAST)
        if balanced is not None:
            rate = _compute_rate(request, balanced)
            if many or rate >= request.bound_GBps * _WORTH_KEEPING:
                out.append(Planted(balanced, rate, "balanced fewest hops"))
        if collective.name == "broadcast" and len(machine.ranks) > _LANES:
            nursery = Nursery(
                machine,
                request.router,
                request.bound_GBps,
                request.limits,
                request.effort,
                request.progress,
            )
            nursery.add_broadcast_trees(roots[0])
            out += nursery.planted
            many = many or nursery.is_near_bound()
        if (
            out
            and many
            and (parts == 1 or max(p.rate_GBps for p in out) >= request.bound_GBps * _NEAR)
        ):
            return out
    routes = _own_routes(request)
    packing = RootedPacking(
        topology, roots, both, _keeping(machine, routes), request.limits.max_depth, routes
    )
    seeds: list[RootedTree] = []
    if out and packing.images is not None and collective.ranks > _EXACT_RANKS:
        return out
    few = _LEVEL_RANKS < collective.ranks <= _MOST_LEVEL_RANKS
    if parts > 1 and packing.images is None and few and request.limits.max_depth is None:
        level = _plan_level_trees(request, out[0].forest if out else None)
        out.append(level)
        if level.rate_GBps >= request.bound_GBps * _NEAR or collective.ranks > _EXACT_RANKS:
            return out
        seeds = [_send_on(routes, tree) for tree in level.forest.trees]
    # Column generation prices an out-tree for each root in every turn, which large machines without
    # shifts cannot afford.
    if len(packing.roots) > _EXACT_RANKS:
        raise InfeasibleError(
            f"packing: out-trees from {len(packing.roots)} ranks are more than are searched for; "
            "number the ranks so that "
            "equal boxes follow each other in the same order, or name another strategy"
        )
    enough = (
        float(request.bound.s_per_GB) * parts if request.bound is not None and not both else 0.0
    )
    branches = packing.run(request.effort, enough, request.progress, seeds)
    for forest, how in _build_forests(packing, branches, machine, request.limits.max_trees):
        out.append(Planted(forest, _compute_rate(request, forest), how))
    return out


def _plan_level_trees(request: Request, simple: Forest | None) -> Planted:
    """Return trees for every root, evened out; they start from `simple` ones or from those that are
    best where all links of a role are alike.
    """
    topology, seeds = request.topology, simple
    whole = survey(topology).mended
    if whole is not None:
        packing = RootedPacking(whole, range(request.collective.ranks), False, shifts(whole))
        if packing.images is not None:
            branches = packing.run(request.effort.grant(_MENDED_WORK_S), 0.0, request.progress)
            seeds = _build_forests(packing, branches, survey(topology), None)[0][0]
    trees = LevelTrees(topology, seeds, request.effort)
    if request.bound is not None:
        evening = request.effort.extend(_EVENING_WORK_S)
        trees.even_out(float(request.bound.s_per_GB) * request.collective.ranks, evening)
    listed, shares = trees.list_forest()
    ranks = survey(topology).ranks
    forest = Forest(tuple(listed), tuple(shares), max(tree_depth(tree, ranks) for tree in listed))
    return Planted(forest, _compute_rate(request, forest), "branches evened out")


def _build_forests(
    packing: RootedPacking, branches: Branches, machine: Survey, most: int | None
) -> list[tuple[Forest, str]]:
    uses = [packing.uses[tree] for tree in branches.trees]
    root_of = [0 if packing.both else tree.root for tree in branches.trees]
    capacity = packing.exact_capacity()
    shares = round_shares(branches.shares, uses, capacity, root_of)
    out = [(_build_forest(branches.trees, shares, branches, machine), "column generation")]
    # The optimum may take more trees than the user allows: then the heaviest of each root carry its
    # whole part.
    if most is not None and out[0][0].count > most:
        images = 1 if branches.images is None else len(branches.images)
        each = max(1, most // (images * len(set(root_of))))
        heaviest = []
        for root in sorted(set(root_of)):
            carrying = [j for j in range(len(root_of)) if root_of[j] == root and shares[j]]
            heaviest += sorted(carrying, key=lambda j: -shares[j])[:each]
        whole: Counter[int] = Counter()
        # What the trees left out carried is spread over those of the same root, in proportion.
        for j in heaviest:
            whole[root_of[j]] += shares[j]  # type: ignore[assignment]
        rescaled = [shares[j] / whole[root_of[j]] for j in heaviest]
        out.append(
            (
                _build_forest([branches.trees[j] for j in heaviest], rescaled, branches, machine),
                "heaviest",
            )
        )
    return out


def _build_forest(
    trees: Sequence[RootedTree], shares: Sequence[Fraction], branches: Branches, machine: Survey
) -> Forest:
    carrying = [(tree, share) for tree, share in zip(trees, shares, strict=True) if share]
    depth = max(tree_depth(tree, machine.ranks) for tree, _ in carrying)
    return Forest(
        tuple(t for t, _ in carrying), tuple(s for _, s in carrying), depth, branches.images
    )


def _compute_rate(request: Request, forest: Forest) -> Fraction:
    """Return the algbw in GB/s of a forest's schedule as it is sent, pipelined."""
    schedule = schedule_of(forest, request.collective, request.topology, "packing")
    schedule = on_own_routes(schedule, request.router)
    return 1 / bandwidth_s_per_GB(replace(schedule, segments=2), request.topology)


def _note(request: Request, schedule: Schedule, how: str) -> None:
    """Add a row for a schedule of paths to the request's table."""
    rate = 1 / bandwidth_s_per_GB(schedule, request.topology)
    gap = max(0.0, float(1 - rate * request.bound.s_per_GB)) if request.bound is not None else None
    row = {
        "trees": None,
        "depth": schedule.steps,
        "algbw_GBps": float(rate),
        "gap": gap,
        "how": how,
        "kept": True,
    }
    request.table.append(row)


def _explain_no_forest(planted: Sequence[Planted], best: Fraction, request: Request) -> str:
    """Return the message that no forest is within the limits, with the fastest, lowest and smallest
    that there are.
    """
    limits = request.limits
    conditions = [f"at most {limits.max_trees} trees"] * (limits.max_trees is not None)
    conditions += [f"a depth of at most {limits.max_depth}"] * (limits.max_depth is not None)
    conditions += (
        [f"a gap of at most {float(limits.epsilon):g}"] if limits.epsilon is not None else []
    )
    orders = (
        lambda p: -p.rate_GBps,
        lambda p: (p.forest.depth, -p.rate_GBps),
        lambda p: (p.forest.count, -p.rate_GBps),
    )
    nearest = list(dict.fromkeys(min(planted, key=order) for order in orders)) if planted else []
    listed = "; ".join(
        f"{p.forest.count} tree{'s' * (p.forest.count > 1)}, {p.forest.depth} deep, gap "
        f"{float(1 - p.rate_GBps / best):.2g}"
        for p in nearest
    )
    return f"packing found no trees with {' and '.join(conditions) or 'what was asked'}; it has {listed or 'none'}"
