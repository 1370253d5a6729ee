"""Double binary trees, pipelined: each half of the buffer is reduced and broadcast along a binary tree of its own, and
who is a leaf in one is an inner node in the other (Sanders, Speck, Traeff 2009; NCCL 2.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...topo.errors import InfeasibleError
from ..schedule import Schedule
from .base import SEGMENTS, Request, Send, build_schedule, only_for
from .placement import place

LARGE_BYTES = 1 << 26


def build(request: Request) -> list[Schedule]:
    """The schedule at several numbers of segments."""
    only_for(request, "double-tree", ["allreduce"])
    n = request.collective.ranks
    if n < 2:
        raise InfeasibleError("double-tree needs at least two ranks")
    chunks = request.collective.even_chunks(2)
    parents = [_parents(n), [None if p is None else n - 1 - p for p in reversed(_parents(n))]]
    if n % 2:
        shifted = _parents(n)
        parents[1] = [None if p is None else (p + 1) % n for p in (shifted[(i - 1) % n] for i in range(n))]
    sends = [send for c, tree in enumerate(parents) for send in tree_sends(tree, c)]

    def placed(order: Sequence[int]) -> list[Send]:
        return [(s, order[a], order[b], c, op) for s, a, b, c, op in sends]

    def draw(order: Sequence[int]) -> Schedule:
        found = build_schedule(request, "double-tree", chunks, placed(order), trees=2)
        return replace(found, segments=16)

    best = place(request, draw, lambda order: {(a, b) for _, a, b, _, _ in placed(order)}, LARGE_BYTES)
    return [replace(best, segments=m) for m in SEGMENTS]


def _parents(n: int) -> list[int | None]:
    """Parent of each of 0..n-1 in a binary tree in which even positions are leaves (in-order numbering)."""
    parents: list[int | None] = [None] * n

    def attach(low: int, high: int, parent: int | None) -> None:
        if low > high:
            return
        middle = _middle(low, high)
        parents[middle] = parent
        attach(low, middle - 1, middle)
        attach(middle + 1, high, middle)

    attach(0, n - 1, None)
    return parents


def _middle(low: int, high: int) -> int:
    """The position in [low, high] whose number plus one is divisible by the greatest power of two."""
    best = low
    for i in range(low, high + 1):
        if (i + 1) & -(i + 1) > (best + 1) & -(best + 1):
            best = i
    return best


def tree_sends(parents: Sequence[int | None], chunk: int) -> list[Send]:
    """Reduce `chunk` up a tree, each node once all its children are done, then broadcast it down."""
    n = len(parents)
    children: list[list[int]] = [[] for _ in range(n)]
    for child, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(child)
    root = next(i for i, p in enumerate(parents) if p is None)
    order = [root]
    for node in order:
        order.extend(children[node])
    height = [0] * n
    for node in reversed(order):
        height[node] = max((height[c] + 1 for c in children[node]), default=0)
    depth = [0] * n
    sends: list[Send] = []
    for node in order:
        parent = parents[node]
        if parent is not None:
            depth[node] = depth[parent] + 1
            sends.append((height[node], node, parent, chunk, "reduce"))
            sends.append((height[root] + depth[parent], parent, node, chunk, "copy"))
    return sends
