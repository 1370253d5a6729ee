"""Double binary trees, pipelined: each half of the buffer uses one of two binary trees.

It is reduced up and broadcast down its tree. The leaves of one tree are inner nodes of the other
(Sanders, Speck, Traeff 2009; NCCL 2.4).

A request is a collective on a topology, with limits and an allowance of work; the planner verifies
and costs the schedules that `build` returns for it. Segments are parts of a chunk that follow each
other through the steps.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...topo.errors import InfeasibleError
from ..ir.schedule import Schedule
from ..machine.boxes import Parents, binary_pair
from ..packing.trees import levels
from ..request import SEGMENTS, Request, Send, build_schedule
from .placement import LARGE_BYTES, place

# Orders of ranks are compared at this number of segments, about the best one at LARGE_BYTES.
_COMPARED_SEGMENTS = 16


def build(request: Request) -> list[Schedule]:
    """Return one schedule per number of segments for a request, over two binary trees.

    Ranks are placed in the trees for large messages. Raise InfeasibleError if there are fewer than
    two.
    """
    n = request.collective.ranks
    if n < 2:
        raise InfeasibleError("double-tree needs at least two ranks")
    chunks = request.collective.even_chunks(2)
    positions = [send for c, tree in enumerate(binary_pair(n)) for send in tree_sends(tree, c)]

    def place_sends(order: Sequence[int]) -> list[Send]:
        return [(step, order[a], order[b], c, op) for step, a, b, c, op in positions]

    def draw(order: Sequence[int]) -> Schedule:
        schedule = build_schedule(request, "double-tree", chunks, place_sends(order), trees=2)
        return replace(schedule, segments=_COMPARED_SEGMENTS)

    best = place(request, draw, lambda order: {x[1:3] for x in place_sends(order)}, LARGE_BYTES)
    return [replace(best, segments=m) for m in SEGMENTS]


def tree_sends(parents: Parents, chunk: int) -> list[Send]:
    """Return the sends that reduce chunk number `chunk` up a tree, then broadcast it down.

    `parents[v]` is the parent of node v, -1 at the root. Ends of sends are nodes, which the caller
    replaces by ranks; steps begin at 0. Each node sends upwards once all its children are done.
    """
    depth, height = levels(parents)
    top = max(height)
    sends: list[Send] = []
    for node, parent in enumerate(parents):
        if parent >= 0:
            sends.append((height[node], node, parent, chunk, "reduce"))
            sends.append((top + depth[parent], parent, node, chunk, "copy"))
    return sends
