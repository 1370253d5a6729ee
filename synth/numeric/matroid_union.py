"""Find k spanning trees that use no edge more often than it has copies.

By matroid union (Edmonds 1965; Nash-Williams, Tutte 1961) as Roskind and Tarjan do it (1985):
forests grow greedily, shallow and balanced; a spare edge that fits nowhere is brought in by a chain
of exchanges, each pushing an edge on into the next forest. Where k trees exist, they are found.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from ..effort import Effort

Edge = tuple[int, int]
_DEPTH_WEIGHT = 0.25
# Seconds of a quiet core: to push an edge on in a chain, and to consider one for a tree.
_PUSH_S, _EDGE_S = 2e-6, 3e-6


class _Forest:
    """A forest: its edges, by number, and how it hangs from a root in each component."""

    def __init__(self, nodes: int, ends: Sequence[Edge]) -> None:
        self.ends = ends
        self.around: list[set[int]] = [set() for _ in range(nodes)]
        self.edges: set[int] = set()
        self.parent: list[int] = []
        self.depth: list[int] = []
        self.top: list[int] = []
        self.hang()

    def change(self, drop: int | None, add: int) -> None:
        """Put edge `add` in, for edge `drop` where one is given."""
        if drop is not None:
            self.edges.discard(drop)
            for node in self.ends[drop]:
                self.around[node].discard(drop)
        self.edges.add(add)
        for node in self.ends[add]:
            self.around[node].add(add)
        self.hang()

    def hang(self) -> None:
        """Recompute for every node `parent` (the edge towards it, -1 at a root), `depth` and `top`
        (the root).
        """
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
                    neighbour = b if a == node else a
                    if self.depth[neighbour] < 0:
                        self.parent[neighbour], self.depth[neighbour] = edge, self.depth[node] + 1
                        self.top[neighbour] = start
                        stack.append(neighbour)

    def joins(self, edge: int) -> bool:
        """Return whether the edge's ends are joined already."""
        a, b = self.ends[edge]
        return self.top[a] == self.top[b]


def spanning_trees(
    nodes: int, ends: Sequence[Edge], copies: Sequence[int], count: int, effort: Effort
) -> list[set[int]] | None:
    """Return `count` spanning trees, as sets of edge numbers; None where there are not as many, or
    the work is done.
    """
    if sum(min(c, count) for c in copies) < count * (nodes - 1):
        return None
    # Greedy trees first: most edges find their place without any search, and the trees come out
    # shallow.
    left = [min(c, count) for c in copies]
    roots = _central_nodes(nodes, ends)
    forests = [_Forest(nodes, ends) for _ in range(count)]
    for i, forest in enumerate(forests):
        for edge in _shallow_tree(nodes, ends, left, copies, roots[i % len(roots)]):
            left[edge] -= 1
            forest.edges.add(edge)
            for node in ends[edge]:
                forest.around[node].add(edge)
        forest.hang()
    # Then one edge more at a time, by exchanges, until all forests are trees or no edge helps.
    missing = sum(nodes - 1 - len(forest.edges) for forest in forests)
    spare = [edge for edge in range(len(ends)) if left[edge]]
    effort.spend(_EDGE_S * count * len(ends))
    while missing:
        if not spare or effort.is_over("whole numbers of trees"):
            return None
        clump = _augment(forests, left, spare[-1], effort)
        if clump is None:
            missing -= 1
            if not left[spare[-1]]:
                spare.pop()
        # every forest spans these nodes already, and will: no edge between them can ever help
        else:
            spare = [e for e in spare if _find(clump, ends[e][0]) != _find(clump, ends[e][1])]
    return [forest.edges for forest in forests]


def _augment(
    forests: list[_Forest], left: list[int], spare: int, effort: Effort
) -> list[int] | None:
    """Bring one more copy of edge `spare` in by a chain of exchanges; return None.

    Where there is no such chain, return the clumps instead, as a union-find array over the nodes:
    sets of nodes that every forest spans.

    The search is by breadth. An edge pushed out of forest i is tried in the next one; if its ends
    are joined there, any edge on the path between them that was not reached before may be pushed
    out for it. `above[i][node]` jumps over edges of forest i that were reached.
    """
    nodes = len(forests[0].parent)
    above: dict[int, list[int]] = {}
    # (edge, forest that it is pushed out of, -1: the spare one): the state whose edge takes its
    # place
    reached_from: dict[tuple[int, int], tuple[int, int]] = {}
    queue = deque([(spare, -1)])
    while queue:
        state = queue.popleft()
        edge, origin = state
        i = (origin + 1) % len(forests)
        forest = forests[i]
        if not forest.joins(edge):
            _exchange_along(forests, left, reached_from, state, i)
            effort.spend(_PUSH_S * (len(reached_from) + nodes))
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
            reached_from[up, i] = state
            queue.append((up, i))
    effort.spend(_PUSH_S * (len(reached_from) + nodes))
    return above[0]


def _find(jump: list[int], node: int) -> int:
    """Return the representative of a node's set, halving paths on the way."""
    while jump[node] != node:
        jump[node] = jump[jump[node]]
        node = jump[node]
    return node


def _exchange_along(
    forests: list[_Forest],
    left: list[int],
    reached_from: dict[tuple[int, int], tuple[int, int]],
    state: tuple[int, int],
    target: int,
) -> None:
    """Put the last edge of a chain into forest `target`, and each edge before it where its
    successor was.
    """
    edge, origin = state
    forests[target].change(None, edge)
    while origin >= 0:
        pushed = reached_from[edge, origin]
        forests[origin].change(edge, pushed[0])
        edge, origin = pushed
    left[edge] -= 1


def _central_nodes(nodes: int, ends: Sequence[Edge]) -> list[int]:
    """Return the nodes from which the farthest node is nearest."""
    around: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in ends:
        around[a].append(b)
        around[b].append(a)
    reach = []
    for start in range(nodes):
        seen, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            for neighbour in around[node]:
                if neighbour not in seen:
                    seen[neighbour] = seen[node] + 1
                    queue.append(neighbour)
        reach.append(max(seen.values()))
    return [node for node in range(nodes) if reach[node] == min(reach)]


def _shallow_tree(
    nodes: int, ends: Sequence[Edge], left: Sequence[int], copies: Sequence[int], root: int
) -> list[int]:
    """Return a shallow spanning tree of the copies that are left (a forest where they do not join
    all nodes).

    Edges of which most copies are left are preferred (Prim-Dijkstra: depth and use are weighed).
    """
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
                neighbour = b if a == node else a
                if not done[neighbour]:
                    used = 1 - left[edge] / copies[edge]
                    heapq.heappush(
                        heap, (_DEPTH_WEIGHT * (depth + 1) + used, depth + 1, neighbour, edge)
                    )
    return out
