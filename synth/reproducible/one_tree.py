"""One tree over which everything is added up: for machines on which nothing faster in one
bracketing was found.
"""

from __future__ import annotations

from dataclasses import replace

from ...topo.errors import InfeasibleError
from ..forest.trees import levels
from ..ir.schedule import Schedule
from ..request import MAX_TRANSFERS, Request, Send, build_schedule, segment_counts, whole

NAME = "one-tree"
# At most this many ranks are tried as the root.
_ROOTS = 16


def build_one_tree(request: Request) -> list[Schedule]:
    """Return the schedules of the lowest tree that is found. InfeasibleError where no rank reaches
    all others.
    """
    name, n = request.collective.name, request.collective.ranks
    roots = [request.collective.root or 0] if name == "reduce" else range(0, n, max(1, n // _ROOTS))
    trees = [tree for root in roots if (tree := _grow_tree(request, root)) is not None]
    if not trees:
        raise InfeasibleError(
            f"{NAME}: no rank has routes to all others and back, over other ranks where it must be"
        )
    parents = min(trees, key=lambda tree: max(levels(tree)[0]))
    chunks = whole(request.collective)
    if len(chunks) * 2 * n > MAX_TRANSFERS:
        raise InfeasibleError(
            f"{NAME}: the parts of {n} ranks take more transfers than are planned for"
        )
    depth, height = levels(parents)
    top = max(height)
    sends: list[Send] = []
    for c, chunk in enumerate(chunks):
        sends += [
            (height[rank], rank, parent, c, "reduce")
            for rank, parent in enumerate(parents)
            if parent >= 0
        ]
        into = list(range(n)) if name == "allreduce" else []
        # A part that is for one rank goes back only on the way to it.
        rank = -1 if chunk.target is None else chunk.target
        while rank >= 0:
            into.append(rank)
            rank = parents[rank]
        sends += [(top + depth[r] - 1, parents[r], r, c, "copy") for r in into if parents[r] >= 0]
    schedule = build_schedule(request, NAME, chunks, sends, trees=1)
    return [replace(schedule, segments=m) for m in segment_counts(len(chunks))]


def _grow_tree(request: Request, root: int) -> list[int] | None:
    """Return the parents in a tree of fewest hops over routes that exist both ways; None where it
    does not reach all.
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
