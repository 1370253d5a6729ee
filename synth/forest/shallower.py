"""Lower trees from the same links: subtrees are hung up nearer to the root, by spare links or in exchange with other trees.

What each link carries does not change but for spare copies, so the rate of equal shares stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..effort import Effort

Edge = tuple[int, int]
_OFFER_S, _EXCHANGE_NODE_S = 1.5e-6, 1e-6
"""Seconds of a quiet core: to look at an edge or a tree that may give one, and for each node of a tree to hang it anew."""


class _Hung:
    """A spanning tree hung at its centre."""

    def __init__(self, nodes: int, ends: Sequence[Edge], edges: set[int]) -> None:
        self.nodes, self.ends, self.edges = nodes, ends, set(edges)
        self.around: list[set[int]] = [set() for _ in range(nodes)]
        for edge in edges:
            for node in ends[edge]:
                self.around[node].add(edge)
        self.root = 0
        self.hang()
        self.root = self._centre()
        self.hang()

    def other(self, edge: int, node: int) -> int:
        a, b = self.ends[edge]
        return b if a == node else a

    def hang(self) -> None:
        """Recompute `up` (the edge towards the root), `depth` and `height`, the greatest depth."""
        self.up, self.depth = [-1] * self.nodes, [0] * self.nodes
        order = [self.root]
        for node in order:
            for edge in self.around[node]:
                if edge != self.up[node]:
                    there = self.other(edge, node)
                    self.up[there], self.depth[there] = edge, self.depth[node] + 1
                    order.append(there)
        self.height = self.depth[order[-1]]
        self.last = order[-1]

    def _centre(self) -> int:
        self.root = self.last
        self.hang()
        node = self.last
        for _ in range(self.height // 2):
            node = self.other(self.up[node], node)
        return node

    def below(self, node: int, top: int) -> bool:
        """Whether `node` is in the subtree of `top`."""
        while self.depth[node] > self.depth[top]:
            node = self.other(self.up[node], node)
        return node == top

    def exchange(self, drop: int, add: int) -> None:
        for change, edge in ((set.discard, drop), (set.add, add)):
            change(self.edges, edge)
            for node in self.ends[edge]:
                change(self.around[node], edge)
        self.hang()

    def allows(self, drop: int, add: int) -> bool:
        """Whether `add` joins again what dropping `drop` parts."""
        if drop not in self.edges or add in self.edges:
            return False
        a, b = self.ends[drop]
        lower = a if self.up[a] == drop else b
        x, y = self.ends[add]
        return self.below(x, lower) != self.below(y, lower)


def lower_trees(
    nodes: int, ends: Sequence[Edge], copies: Sequence[int], trees: Sequence[set[int]], effort: Effort
) -> list[set[int]]:
    """Trees that use each edge no oftener than `copies`, none deeper than the deepest of `trees`, mostly much lower."""
    hung = [_Hung(nodes, ends, edges) for edges in trees]
    spare = list(copies)
    for tree in hung:
        for edge in tree.edges:
            spare[edge] -= 1
    at: list[list[int]] = [[] for _ in range(nodes)]
    for edge, (a, b) in enumerate(ends):
        at[a].append(edge)
        at[b].append(edge)
    stuck: set[int] = set()
    while len(stuck) < len(hung) and not effort.is_over("lower trees"):
        number = max((i for i in range(len(hung)) if i not in stuck), key=lambda i: hung[i].height)
        if _improve(hung, number, spare, at, effort):
            stuck.clear()
        else:
            stuck.add(number)
    return [tree.edges for tree in hung]


def _improve(hung: list[_Hung], number: int, spare: list[int], at: list[list[int]], effort: Effort) -> bool:
    """Hang the deepest node of a tree, or one above it, up higher; False where nothing is found that helps."""
    tree = hung[number]
    node = tree.last
    while node != tree.root:
        old = tree.up[node]
        for edge in at[node]:
            there = tree.other(edge, node)
            effort.spend(_OFFER_S)
            if edge == old or tree.depth[there] + 1 >= tree.depth[node] or tree.below(there, node):
                continue
            effort.spend(_OFFER_S * len(hung) + _EXCHANGE_NODE_S * tree.nodes)
            if spare[edge]:
                spare[edge] -= 1
                spare[old] += 1
                tree.exchange(old, edge)
                return True
            for second, giver in enumerate(hung):
                if second != number and giver.allows(edge, old):
                    giver.exchange(edge, old)
                    if giver.height < tree.height:
                        tree.exchange(old, edge)
                        return True
                    giver.exchange(old, edge)
        node = tree.other(old, node)
    return False
