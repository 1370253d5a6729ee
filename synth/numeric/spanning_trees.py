"""Spanning trees that use no edge more often than it has copies: k of them, and shallow ones.

By matroid union (Edmonds 1965; Nash-Williams, Tutte 1961) as Roskind and Tarjan do it (1985):
forests grow greedily, shallow and balanced; a spare edge that fits nowhere is inserted by a chain
of exchanges, each pushing an edge on into the next forest. If k trees exist, they are found. Trees
get shallower by moving subtrees nearer to the root, over spare copies of edges or edges exchanged
with other trees, which preserves the invariant.
"""

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path

from .effort import Effort  # an allowance of work and time for searches

Edge = tuple[int, int]
# Weight of a hop of depth relative to the fraction of an edge's copies in use, in greedy trees.
_DEPTH_WEIGHT = 0.25
# Seconds of an idle core: to push an edge on in a chain, and to consider one for a tree.
_PUSH_S, _EDGE_S = 2e-6, 3e-6
# Seconds of an idle core: to try an edge, or a tree that may give one up, and per node of a tree to
# update it.
_OFFER_S, _EXCHANGE_NODE_S = 1.5e-6, 1e-6


class _Forest:
    """A forest: its edges, by number (`ends` are their nodes), and a rooted tree per component."""

    def __init__(self, nodes: int, ends: Sequence[Edge], edges: Collection[int] = ()) -> None:
        self.ends, self.edges, self.nodes = ends, set(edges), nodes
        self.around: list[set[int]] = [set() for _ in range(nodes)]
        for edge in edges:
            for node in ends[edge]:
                self.around[node].add(edge)
        self.roots: Iterable[int] = range(nodes)
        self.hang()

    def other(self, edge: int, node: int) -> int:
        a, b = self.ends[edge]
        return b if a == node else a

    def exchange(self, drop: int | None, add: int) -> None:
        """Insert edge `add`, in place of edge `drop` if one is given."""
        for change, edge in ((set.discard, drop), (set.add, add)):
            if edge is not None:
                change(self.edges, edge)
                for node in self.ends[edge]:
                    change(self.around[node], edge)
        self.hang()

    def hang(self) -> None:
        """Recompute `parent`, `depth` and `top` of every node, and `last`.

        `parent` is the edge towards it (-1 at a root), `top` the root, and `last` a deepest node of
        the last component.
        """
        parent, depth, top = ([-1] * self.nodes for _ in range(3))
        for start in self.roots:
            if depth[start] >= 0:
                continue
            depth[start], top[start] = 0, start
            order = [start]
            for node in order:
                for edge in self.around[node]:
                    # No function calls here: this runs for a forest in every exchange.
                    a, b = self.ends[edge]
                    child = b if a == node else a
                    if depth[child] < 0:
                        parent[child], depth[child], top[child] = edge, depth[node] + 1, start
                        order.append(child)
            self.last = order[-1]
        self.parent, self.depth, self.top = parent, depth, top

    def joins(self, edge: int) -> bool:
        """Return whether the forest already connects the edge's ends."""
        a, b = self.ends[edge]
        return self.top[a] == self.top[b]


def spanning_trees(
    nodes: int, ends: Sequence[Edge], copies: Sequence[int], count: int, effort: Effort
) -> list[set[int]] | None:
    """Return `count` spanning trees, as sets of edge numbers; None if they were not found.

    Edge i joins the two nodes `ends[i]` and may be in `copies[i]` of the trees. None means that
    there are not that many trees, or that the effort is used up.
    """
    if sum(min(c, count) for c in copies) < count * (nodes - 1):
        return None
    # Greedy trees first: most edges find their place without any search, and the trees come out
    # shallow.
    left = [min(c, count) for c in copies]
    roots, around = _central_nodes(nodes, ends), _list_around(nodes, ends)
    forests = []
    for i in range(count):
        edges = _shallow_tree(around, ends, left, copies, roots[i % len(roots)])
        for edge in edges:
            left[edge] -= 1
        forests.append(_Forest(nodes, ends, edges))
    # Then add one more edge at a time, by exchanges, until all forests are trees or no edge helps.
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
        else:
            # Every forest spans these nodes already and continues to: no edge between them can ever
            # help.
            spare = [e for e in spare if _find(clump, ends[e][0]) != _find(clump, ends[e][1])]
    return [forest.edges for forest in forests]


def _augment(
    forests: list[_Forest], left: list[int], spare: int, effort: Effort
) -> list[int] | None:
    """Insert one more copy of edge `spare` by a chain of exchanges; return None.

    If there is no such chain, return the clumps instead, as a union-find array over the nodes: sets
    of nodes that every forest spans.

    The search is breadth-first. An edge pushed out of forest i is tried in the next one; if its
    ends are joined there, any edge on the path between them that was not reached before may be
    pushed out for it. `above[i][node]` jumps over edges of forest i that were reached.
    """
    nodes = forests[0].nodes
    above: dict[int, list[int]] = {}
    # (edge, forest that it is pushed out of; -1: the spare one): the state whose edge takes its
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
    """Return the representative of a node's set (union-find, with path halving)."""
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
    """Put the last edge of a chain into `target`, and each earlier one in its successor's place."""
    edge, origin = state
    forests[target].exchange(None, edge)
    while origin >= 0:
        pushed = reached_from[edge, origin]
        forests[origin].exchange(edge, pushed[0])
        edge, origin = pushed
    left[edge] -= 1


def _central_nodes(nodes: int, ends: Sequence[Edge]) -> list[int]:
    """Return the nodes with the least distance to their farthest node."""
    a, b = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    graph = csr_matrix((np.ones(len(a)), (a, b)), shape=(nodes, nodes))
    hops = shortest_path(graph, directed=False, unweighted=True)
    farthest = np.where(np.isfinite(hops), hops, 0).max(axis=1)
    return list(np.flatnonzero(farthest == farthest.min()).tolist())


def _shallow_tree(
    around: Sequence[Sequence[int]],
    ends: Sequence[Edge],
    left: Sequence[int],
    copies: Sequence[int],
    root: int,
) -> list[int]:
    """Return the edges of a shallow spanning tree of the remaining copies.

    It is a forest if they do not connect all nodes. Edges with most copies left are preferred
    (Prim-Dijkstra: depth and use are weighed).
    """
    done, out = [False] * len(around), []
    for start in [root, *range(len(around))]:
        heap: list[tuple[float, int, int, int]] = [(0.0, 0, start, -1)]
        while heap:
            _, depth, node, via = heapq.heappop(heap)
            if done[node]:
                continue
            done[node] = True
            out.append(via)
            for edge in around[node]:
                a, b = ends[edge]
                neighbour = b if a == node else a
                if left[edge] and not done[neighbour]:
                    price = _DEPTH_WEIGHT * (depth + 1) + (1 - left[edge] / copies[edge])
                    heapq.heappush(heap, (price, depth + 1, neighbour, edge))
    return [edge for edge in out if edge >= 0]


def _list_around(nodes: int, ends: Sequence[Edge]) -> list[list[int]]:
    around: list[list[int]] = [[] for _ in range(nodes)]
    for edge, (a, b) in enumerate(ends):
        around[a].append(edge)
        around[b].append(edge)
    return around


class _CentredTree(_Forest):
    def __init__(self, nodes: int, ends: Sequence[Edge], edges: set[int]) -> None:
        super().__init__(nodes, ends, edges)
        # The middle of a longest path: go from a farthest node to the node farthest from that, and
        # half of the path back.
        self.roots = [self.last]
        self.hang()
        self.root = self.last
        for _ in range(self.height // 2):
            self.root = self.other(self.parent[self.root], self.root)
        self.roots = [self.root]
        self.hang()

    @property
    def height(self) -> int:
        return self.depth[self.last]

    def is_below(self, node: int, top: int) -> bool:
        """Return whether `node` is in the subtree of `top`."""
        while self.depth[node] > self.depth[top]:
            node = self.other(self.parent[node], node)
        return node == top

    def allows(self, drop: int, add: int) -> bool:
        """Return whether the edges are still a tree if `add` replaces `drop`.

        They are if `add` connects the two parts that `drop` leaves.
        """
        if drop not in self.edges or add in self.edges:
            return False
        a, b = self.ends[drop]
        lower = a if self.parent[a] == drop else b
        x, y = self.ends[add]
        return self.is_below(x, lower) != self.is_below(y, lower)


def make_shallower(
    nodes: int,
    ends: Sequence[Edge],
    copies: Sequence[int],
    trees: Sequence[set[int]],
    effort: Effort,
) -> list[set[int]]:
    """Return as many spanning trees, usually much shallower, none deeper than the deepest given.

    Depths are counted from a tree's centre. Edge i joins the two nodes `ends[i]` and is in at most
    `copies[i]` trees, before and after. `trees` are sets of edge numbers and are not changed.
    """
    hung = [_CentredTree(nodes, ends, edges) for edges in trees]
    spare = list(copies)
    for tree in hung:
        for edge in tree.edges:
            spare[edge] -= 1
    around = _list_around(nodes, ends)
    # The deepest tree is always next, as the greatest depth counts. An exchange changes two trees,
    # so it may help those that nothing helped before.
    stuck: set[int] = set()
    while len(stuck) < len(hung) and not effort.is_over("lower trees"):
        number = max((i for i in range(len(hung)) if i not in stuck), key=lambda i: hung[i].height)
        if _lift_deepest(hung, number, spare, around, effort):
            stuck.clear()
        else:
            stuck.add(number)
    return [tree.edges for tree in hung]


def _lift_deepest(
    hung: list[_CentredTree], number: int, spare: list[int], around: list[list[int]], effort: Effort
) -> bool:
    """Move the deepest node of a tree, or one above it, nearer to the root.

    Return whether that was possible.
    """
    tree = hung[number]
    node = tree.last
    while node != tree.root:
        old = tree.parent[node]
        for edge in around[node]:
            parent = tree.other(edge, node)
            effort.spend(_OFFER_S)
            if (
                edge == old
                or tree.depth[parent] + 1 >= tree.depth[node]
                or tree.is_below(parent, node)
            ):
                continue
            effort.spend(_OFFER_S * len(hung) + _EXCHANGE_NODE_S * tree.nodes)
            # A spare copy costs nothing.
            if spare[edge]:
                spare[edge] -= 1
                spare[old] += 1
                tree.exchange(old, edge)
                return True
            # Another tree may give up its copy for the edge that becomes free, if it does not
            # become as deep itself.
            for second, giver in enumerate(hung):
                if second != number and giver.allows(edge, old):
                    giver.exchange(edge, old)
                    if giver.height < tree.height:
                        tree.exchange(old, edge)
                        return True
                    giver.exchange(old, edge)
        node = tree.other(old, node)
    return False
