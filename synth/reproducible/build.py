"""Candidates for reproducible plans, and the choice of the one bracketing of a plan.

Levels come first. If they are far from the bound, one tree over which everything is added up and
searched bracketings are offered too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import log

from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ...topo.routes import Router
from ..cost.affine import Cost, bandwidth_s_per_GB
from ..cost.host_costs import HostCosts
from ..cost.segmentation import families, fastest, reroute_unless_in_network
from ..forest.trees import levels as tree_levels
from ..ir.addition_order import find_bracketing
from ..ir.schedule import Schedule
from ..request import (
    MAX_TRANSFERS,
    Request,
    Send,
    build_schedule,
    segment_counts,
    whole,
)
from .bracket import parse_bracket
from .levels import build_levels
from .search import search_brackets

Costed = list[tuple[Schedule, Cost]]
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


def build_reproducible(request: Request) -> list[Schedule]:
    """Return schedules for reproducible plans, most of which have one bracketing each.

    `choose_bracketing` drops those that have none. Raise InfeasibleError if no schedule is found.
    """
    levels = build_levels(request)
    bases = {schedule.uncut: find_bracketing(schedule.uncut) for schedule in levels}
    trees: list[Schedule] = []
    if request.bound is not None:
        bracketed = (base for base, text in bases.items() if text is not None)
        enough = request.bound_GBps * _GOOD
        if any(_compute_rate(request, base) >= enough for base in bracketed):
            return levels
    try:
        trees = _build_one_tree(request)
        bases |= {schedule.uncut: find_bracketing(schedule.uncut) for schedule in trees}
    except InfeasibleError as error:
        request.say(str(error))
    try:
        given = [parse_bracket(text) for text in dict.fromkeys(bases.values()) if text is not None]
        return levels + trees + search_brackets(request, given)
    except InfeasibleError:
        if not levels + trees:
            raise
        return levels + trees


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
    chunks = whole(request.collective)
    if len(chunks) * 2 * n > MAX_TRANSFERS:
        raise InfeasibleError(
            f"{ONE_TREE}: the parts of {n} ranks take more transfers than are planned for"
        )
    depth, height = tree_levels(parents)
    top = max(height)
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
        sends += [(top + depth[r] - 1, parents[r], r, c, "copy") for r in into if parents[r] >= 0]
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


def _compute_rate(request: Request, base: Schedule) -> Fraction:
    """Return the algbw in GB/s that a pipelined schedule approaches at large sizes.

    Every transfer takes the hardware's route.
    """
    sent = reroute_unless_in_network(base, request.router)
    return 1 / bandwidth_s_per_GB(replace(sent, segments=2), request.topology)


def choose_bracketing(costed: Costed, router: Router, host: HostCosts | None) -> tuple[str, Costed]:
    """Return the bracketing that is fastest over all sizes, and the schedules that have it.

    Only bracketings that are nearly the fastest at large sizes are compared, by the mean logarithm
    of the predicted time. Raise InfeasibleError if no schedule has a bracketing.
    """
    text_of = {
        base: find_bracketing(base)
        for base in dict.fromkeys(schedule.uncut for schedule, _ in costed)
    }
    by_text: dict[str, Costed] = defaultdict(list)
    for schedule, cost in costed:
        text = text_of[schedule.uncut]
        if text is not None:
            by_text[text].append((schedule, cost))
    if not by_text:
        names = ", ".join(sorted({schedule.strategy for schedule, _ in costed}))
        raise InfeasibleError(
            f"no schedule of {names} adds every element up in one bracketing; let auto choose",
            parameter="strategy",
        )
    rates = {
        text: _find_limit_GBps([base for base, t in text_of.items() if t == text], router.topology)
        for text in by_text
    }
    fast = [text for text in by_text if rates[text] >= max(rates.values()) * _NEARLY]
    best = min(fast, key=lambda text: _score(by_text[text], router, host))
    return best, by_text[best]


def _score(costed: Costed, router: Router, host: HostCosts | None) -> float:
    """Return the sum of the logarithms of the predicted times in seconds at _SIZES."""
    playable = [s for s, _ in costed if len(s.transfers) <= _PLAYED_TRANSFERS]
    if host is not None and playable:
        listed = families(playable, router)
        return sum(log(fastest(listed, router.topology, host, size)[0][0]) for size in _SIZES)
    return sum(log(min(cost.time_s(size) for _, cost in costed)) for size in _SIZES)


def _find_limit_GBps(schedules: Sequence[Schedule], topology: Topology) -> Fraction:
    """Return the highest algbw in GB/s that any of the schedules approaches at large sizes."""
    return max(
        1 / bandwidth_s_per_GB(replace(schedule.uncut, segments=2), topology)
        for schedule in schedules
    )
