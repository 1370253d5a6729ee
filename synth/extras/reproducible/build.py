"""Make candidates for reproducible plans, and choose the one bracketing of a plan.

A bracketing is the order of additions, such as "((0+1)+(2+3))"; a plan is reproducible if all of
its schedules have the same one. Schedules over levels of groups (levels.py: ranks in a grid,
exchanging along one dimension after the other) come first. If they are far from the bound, one tree
over which everything is added up and searched bracketings are offered too. In the search several
bracketings are tried; then the best one is varied until the allowed work is done.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import log, prod

import numpy as np

from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ....topo.routes import Router
from ...cost.affine import affine_s, bandwidth_s_per_GB
from ...cost.host_costs import HostCosts
from ...cost.loads import computes_in_network
from ...cost.segmentation import families, fastest, reroute_unless_in_network
from ...ir.schedule import Schedule
from ...machine.routes import OwnRoutes
from ...packing.trees import levels as tree_levels
from ...request import (
    MAX_TRANSFERS,
    Costed,
    Request,
    Send,
    build_schedule,
    segment_counts,
)
from .bracket import (
    Bracket,
    grow_bracket,
    match_brackets,
    measure_closeness,
    parse_bracket,
    vary_bracket,
)
from .bracketing import find_bracketing
from .fitting import NAME, Fitting
from .levels import build_levels
from .section import OneBracketing

# Fraction of the bound above which levels are good enough and no other bracketing is searched for.
_GOOD = Fraction(98, 100)
# Fraction of the highest rate above which a bracketing is nearly the fastest at large sizes.
_NEARLY = Fraction(95, 100)
# Bytes at which bracketings are compared: 1 KiB to 1 GiB.
_SIZES = tuple(4**i for i in range(5, 16))
# Above this, simulating a schedule at every size takes too long.
_PLAYED_TRANSFERS = 20_000
# Maximum number of ranks tried as the root of one tree, up to rounding.
_ROOTS = 16
ONE_TREE = "one-tree"
# Above this, bracketings are not searched for, and only levels remain.
_MAX_SEARCHED = 64
# Number of bracketings that are matched, and grown at random, before the best is varied.
_SEEDS, _GROWN = 4, 8
# Turns of column generation per bracketing, and for the best one at the end.
_TURNS, _LAST_TURNS = 60, 200
# A bracketing that takes at most this many times the bound ends the search.
_NEAR = 1.002
# A bracketing is better if it takes less than this fraction of the best time.
_BETTER = 0.999


def build_reproducible(request: Request) -> list[Schedule]:
    """Return schedules for reproducible plans, most of which have one bracketing each.

    `choose_bracketing` drops those that have none. Searches are limited by `request.effort`. Raise
    InfeasibleError if no schedule is found.
    """
    built = build_levels(request)
    bracketed = [base for base in dict.fromkeys(s.uncut for s in built) if find_bracketing(base)]
    sent = [reroute_unless_in_network(base, request.router) for base in bracketed]
    if sent and _find_limit_GBps(sent, request.topology) >= request.bound_GBps * _GOOD:
        return built
    try:
        built += _build_one_tree(request)
    except InfeasibleError as error:
        request.say(str(error))
    texts = dict.fromkeys(find_bracketing(schedule.uncut) for schedule in built)
    try:
        built += search_brackets(request, [parse_bracket(text) for text in texts if text])
    except InfeasibleError:
        if not built:
            raise
    return built


def _build_one_tree(request: Request) -> list[Schedule]:
    """Return the schedules of the shallowest tree, one per number of segments.

    Raise InfeasibleError if no rank reaches all others and back, or if the tree takes too many
    transfers.
    """
    name, n = request.collective.name, request.collective.ranks
    roots = [request.collective.root or 0] if name == "reduce" else range(0, n, max(1, n // _ROOTS))
    trees = [tree for root in roots if (tree := _grow_tree(request, root)) is not None]
    if not trees:
        raise InfeasibleError(
            f"{ONE_TREE}: no rank has routes to all others and back, even over other ranks"
        )
    parents = min(trees, key=lambda tree: max(tree_levels(tree)[0]))
    chunks = request.collective.even_chunks(1)
    if len(chunks) * 2 * n > MAX_TRANSFERS:
        raise InfeasibleError(
            f"{ONE_TREE}: the parts of {n} ranks take more transfers than are planned for"
        )
    depth, height = tree_levels(parents)
    sends: list[Send] = []
    for c, chunk in enumerate(chunks):
        sends += [
            (height[rank], rank, parent, c, "reduce")
            for rank, parent in enumerate(parents)
            if parent >= 0
        ]
        into = list(range(n)) if name == "allreduce" else []
        # A part with a target rank goes back only along the path to it.
        rank = -1 if chunk.target is None else chunk.target
        while rank >= 0:
            into.append(rank)
            rank = parents[rank]
        sends += [
            (max(height) + depth[r] - 1, parents[r], r, c, "copy") for r in into if parents[r] >= 0
        ]
    schedule = build_schedule(request, ONE_TREE, chunks, sends, trees=1)
    return [replace(schedule, segments=m) for m in segment_counts(len(chunks))]


def _grow_tree(request: Request, root: int) -> list[int] | None:
    """Return the parent of each rank in a tree of fewest hops from `root`; -1 for the root.

    Only routes that exist in both directions are used. None if the tree does not reach all ranks.
    """
    router, ranks = request.router, {gpu: rank for rank, gpu in enumerate(request.topology.ranks)}
    parents = [-1] * len(ranks)
    reached, layer = {root}, [root]
    while layer:
        following = []
        for parent in layer:
            for gpu in router.routes_from(parent):
                rank = ranks[gpu]
                if rank not in reached and router.route(rank, parent) is not None:
                    reached.add(rank)
                    parents[rank] = parent
                    following.append(rank)
        layer = following
    return parents if len(reached) == len(ranks) else None


def search_brackets(request: Request, given: Sequence[Bracket]) -> list[Schedule]:
    """Return schedules in the best bracketing found: for large messages, and a tree for small ones.

    The best one takes the least time for each GB of buffer, by its embeddings in the machine
    (fitting.py). The bracketings `given` are tried first. Raise InfeasibleError if there are too
    many ranks, if switches compute, or if none is found.
    """
    n = request.collective.ranks
    if n > _MAX_SEARCHED:
        raise InfeasibleError(
            f"{NAME}: bracketings of {n} ranks are not searched for; at most {_MAX_SEARCHED}"
        )
    if computes_in_network(request.topology, request.collective):
        raise InfeasibleError(f"{NAME}: switches that add have an order of their own")
    best = _search(request, given, OwnRoutes(request.router))
    best.add_low_columns()
    return [
        *(cut for fit in best.list_fits() for cut in _cut(best.build(request, fit))),
        *_build_small(request, best),
    ]


def _search(request: Request, given: Sequence[Bracket], routes: OwnRoutes) -> Fitting:
    close = measure_closeness(routes)
    chance = random.Random(0)
    enough_s = 0.0 if request.bound is None else float(request.bound.s_per_GB) * _NEAR
    best: Fitting | None = None
    reason: InfeasibleError | None = None
    seen: set[str] = set()
    tries = [*given, *(match_brackets(close, seed) for seed in range(_SEEDS))]
    tries += [grow_bracket(close, chance) for _ in range(_GROWN)]
    while best is None or best.seconds > enough_s:
        if tries:
            bracket = tries.pop(0)
        elif best is not None:
            bracket = vary_bracket(best.embedding.bracket, close, chance)
        else:
            break
        if repr(bracket) in seen:
            # All bracketings of few ranks were tried; above 7 ranks the number is never reached.
            every = prod(2 * k - 3 for k in range(3, min(routes.ranks, 7) + 1))
            if len(seen) >= max(2, every):
                break
            request.effort.spend(1e-3)
            if request.effort.is_over(NAME):
                break
            continue
        seen.add(repr(bracket))
        fitting = Fitting(bracket, request.collective, routes)
        try:
            fitting.run(request.effort, _TURNS, np.inf if best is None else best.seconds * _BETTER)
        except InfeasibleError as error:
            reason = error
        else:
            if best is None or fitting.seconds < best.seconds * _BETTER:
                best = fitting
                request.say(f"{NAME}: {1 / best.seconds:.4g} GB/s with {len(seen)} bracketings")
        if request.effort.is_over(NAME):
            break
    if best is None:
        raise reason or InfeasibleError(f"{NAME}: no bracketing was found in time")
    best.run(request.effort.grant(4.0), _LAST_TURNS)
    return best


def _cut(schedule: Schedule) -> list[Schedule]:
    return [replace(schedule, segments=m) for m in segment_counts(schedule.trees or 1)]


def _build_small(request: Request, fitting: Fitting) -> list[Schedule]:
    """Return the schedules of a single chunk in the fewest steps found, for small messages.

    The result is empty for reduce-scatter.
    """
    if fitting.is_apart:
        return []
    distance = np.where(fitting.routes.exists, 1.0, np.inf)
    np.fill_diagonal(distance, 0.0)
    column = min(fitting.list_columns(distance), key=lambda column: column.steps)
    sends = [(step, src, dst, 0, op) for step, src, dst, op in column.moves]
    return _cut(build_schedule(request, NAME, request.collective.even_chunks(1), sends, trees=1))


def choose_bracketing(
    costed: Costed, router: Router, host: HostCosts | None
) -> tuple[OneBracketing, Costed]:
    """Return the bracketing that is fastest over all sizes, and the schedules that have it.

    `costed` are schedules with their costs; `host` are the host costs, None if unknown. Only
    bracketings that are nearly the fastest at large sizes are compared, by the mean logarithm of
    the predicted time. Raise InfeasibleError if no schedule has a bracketing.
    """
    by_text = group_by_key(
        (text, (schedule, cost))
        for schedule, cost in costed
        if (text := find_bracketing(schedule.uncut)) is not None
    )
    if not by_text:
        names = ", ".join(sorted({schedule.strategy for schedule, _ in costed}))
        raise InfeasibleError(
            f"no schedule of {names} adds every element up in one bracketing; let auto choose",
            parameter="strategy",
        )
    rates = {
        text: _find_limit_GBps([schedule for schedule, _ in rows], router.topology)
        for text, rows in by_text.items()
    }
    fast = [text for text in by_text if rates[text] >= max(rates.values()) * _NEARLY]
    best = min(fast, key=lambda text: _score(by_text[text], router, host))
    return OneBracketing(best), by_text[best]


def _score(costed: Costed, router: Router, host: HostCosts | None) -> float:
    """Return the sum of the logarithms of the predicted times in seconds at _SIZES."""
    playable = [s for s, _ in costed if len(s.transfers) <= _PLAYED_TRANSFERS]
    if host is not None and playable:
        listed = families(playable, router)
        return sum(log(fastest(listed, router.topology, host, size)[0][0]) for size in _SIZES)
    return sum(log(min(affine_s(cost, size) for _, cost in costed)) for size in _SIZES)


def _find_limit_GBps(schedules: Sequence[Schedule], topology: Topology) -> Fraction:
    """Return the highest algbw in GB/s that any of the schedules approaches at large sizes."""
    bases = {replace(schedule.uncut, segments=2) for schedule in schedules}
    return max(1 / bandwidth_s_per_GB(base, topology) for base in bases)
