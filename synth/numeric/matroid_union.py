"""Whole trees into whole links: k spanning trees of which every edge lies in at most as many as it has copies.

By matroid union (Edmonds 1965; Nash-Williams, Tutte 1961) as Roskind and Tarjan do it (1985): forests grow greedily, low
and balanced; a spare edge that fits nowhere is brought in by a chain of exchanges, each pushing an edge on into the
next forest. Where k trees exist, they are found.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from ..effort import Effort

Edge = tuple[int, int]
_DEPTH_WEIGHT = 0.25
_PUSH_S, _EDGE_S = 2e-6, 3e-6
"""Seconds of a quiet core: to push an edge on in a chain, and to consider one for a tree."""


class _Forest:
    """Edges of a forest as numbers, with a parent for every node."""

    def __init__(self, nodes: int, ends: Sequence[Edge]) -> None:
        self.ends = ends
        self.around: list[set[int]] = [set() for _ in range(nodes)]
        self.edges: set[int] = set()
        self.parent: list[int] = []
        self.depth: list[int] = []
        self.top: list[int] = []
        self.hang()

    def change(self, drop: int | None, add: int) -> None:
        if drop is not None:
            self.edges.discard(drop)
            for node in self.ends[drop]:
                self.around[node].discard(drop)
        self.edges.add(add)
        for node in self.ends[add]:
            self.around[node].add(add)
        self.hang()

    def hang(self) -> None:
        """Recompute `parent` (the edge towards it, -1 at a root), `depth` and `top`."""
        nodes = len(self.around)
        self.parent, self.depth, self.top = [-1] * nodes, [-1] * nodes, [-1] * nodes
        for start in range(nodes):
            if self.depth[start] >= 0:
                continue
            self.depth[start], self.top[start] = 0, start
            stack = [start]
            while stack:
                node = stack.pop()
                for edge in self.around[node]:
                    a, b = self.ends[edge]
                    there = b if a == node else a
                    if self.depth[there] < 0:
                        self.parent[there], self.depth[there] = edge, self.depth[node] + 1
                        self.top[there] = start
                        stack.append(there)

    def joins(self, edge: int) -> bool:
        """Whether the edge's ends are already joined."""
        a, b = self.ends[edge]
        return self.top[a] == self.top[b]


def spanning_trees(
    nodes: int, ends: Sequence[Edge], copies: Sequence[int], count: int, effort: Effort
) -> list[set[int]] | None:
    """`count` spanning trees, as sets of edge numbers; None where there are none, or the work that is allowed is done."""
    if sum(min(c, count) for c in copies) < count * (nodes - 1):
        return None
    left = [min(c, count) for c in copies]
    roots = _central(nodes, ends)
    forests = [_Forest(nodes, ends) for _ in range(count)]
    for i, forest in enumerate(forests):
        for edge in _low_tree(nodes, ends, left, copies, roots[i % len(roots)]):
            left[edge] -= 1
            forest.edges.add(edge)
            for node in ends[edge]:
                forest.around[node].add(edge)
        forest.hang()
    missing = sum(nodes - 1 - len(forest.edges) for forest in forests)
    spare = [edge for edge in range(len(ends)) if left[edge]]
    effort.spend(_EDGE_S * count * len(ends))
    while missing:
        if not spare or effort.is_over("whole numbers of trees"):
            return None
        full = _augment(forests, left, spare[-1], effort)
        if full is None:
            missing -= 1
            if not left[spare[-1]]:
                spare.pop()
        else:  # these nodes are joined as often as can be, and stay so
            spare = [e for e in spare if _find(full, ends[e][0]) != _find(full, ends[e][1])]
    return [forest.edges for forest in forests]


def _augment(forests: list[_Forest], left: list[int], spare: int, effort: Effort) -> list[int] | None:
    """Bring one more copy of edge `spare` in by a chain of exchanges. Where there is none: which nodes were joined in the
    search, the same in all forests, each of which spans them ("clumps").

    An edge out of forest i is tried in the next one; if its ends are joined there, all edges on the way between them that
    have not been reached yet may be pushed out for it. `above[i][node]` jumps over edges that have been.
    """
    nodes = len(forests[0].parent)
    above: dict[int, list[int]] = {}
    came: dict[tuple[int, int], tuple[int, int]] = {}  # (edge pushed out, forest it left): (edge in hand, whence)
    queue = deque([(spare, -1)])
    while queue:
        state = queue.popleft()
        edge, origin = state
        i = (origin + 1) % len(forests)
        forest = forests[i]
        if not forest.joins(edge):
            _carry_out(forests, left, came, state, i)
            effort.spend(_PUSH_S * (len(came) + nodes))
            return None
        jump = above.setdefault(i, list(range(nodes)))
        a, b = (_find(jump, end) for end in forest.ends[edge])
        depth, parent = forest.depth, forest.parent
        while a != b:
            if depth[a] < depth[b]:
                a, b = b, a
            up = parent[a]
            x, y = forest.ends[up]
            jump[a] = y if x == a else x
            a = _find(jump, a)
            came[up, i] = state
            queue.append((up, i))
    effort.spend(_PUSH_S * (len(came) + nodes))
    return above[0]


def _find(jump: list[int], node: int) -> int:
    while jump[node] != node:
        jump[node] = jump[jump[node]]
        node = jump[node]
    return node


def _carry_out(
    forests: list[_Forest],
    left: list[int],
    came: dict[tuple[int, int], tuple[int, int]],
    state: tuple[int, int],
    target: int,
) -> None:
    edge, origin = state
    forests[target].change(None, edge)
    while origin >= 0:
        pushed = came[edge, origin]
        forests[origin].change(edge, pushed[0])
        edge, origin = pushed
    left[edge] -= 1


def _central(nodes: int, ends: Sequence[Edge]) -> list[int]:
    """Nodes by how near the farthest node is, the most central ones only."""
    around: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in ends:
        around[a].append(b)
        around[b].append(a)
    reach = []
    for start in range(nodes):
        seen, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            for there in around[node]:
                if there not in seen:
                    seen[there] = seen[node] + 1
                    queue.append(there)
        reach.append(max(seen.values()))
    return [node for node in range(nodes) if reach[node] == min(reach)]


def _low_tree(nodes: int, ends: Sequence[Edge], left: Sequence[int], copies: Sequence[int], root: int) -> list[int]:
    """A spanning tree of what is left (a forest's part of it where that is all there is): low, and on spare links."""
    around: list[list[int]] = [[] for _ in range(nodes)]
    for edge, (a, b) in enumerate(ends):
        if left[edge]:
            around[a].append(edge)
            around[b].append(edge)
    done = [False] * nodes
    out = []
    for start in [root, *range(nodes)]:
        if done[start]:
            continue
        heap: list[tuple[float, int, int, int]] = [(0.0, 0, start, -1)]
        while heap:
            _, depth, node, via = heapq.heappop(heap)
            if done[node]:
                continue
            done[node] = True
            if via >= 0:
                out.append(via)
            for edge in around[node]:
                a, b = ends[edge]
                there = b if a == node else a
                if not done[there]:
                    used = 1 - left[edge] / copies[edge]
                    heapq.heappush(heap, (_DEPTH_WEIGHT * (depth + 1) + used, depth + 1, there, edge))
    return out
