"""Make spanning trees shallower: subtrees move nearer to the root, over spare links or links
exchanged with other trees.

No link is used by more trees than it has copies, so trees of equal shares keep their rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..effort import Effort

Edge = tuple[int, int]
# Seconds of a quiet core: to look at an edge or a tree that may give one, and for each node of a
# tree to hang it anew.
_OFFER_S, _EXCHANGE_NODE_S = 1.5e-6, 1e-6


class _HungTree:
    """A spanning tree that hangs from its centre. Edges are numbers, `ends` their nodes."""

    def __init__(self, nodes: int, ends: Sequence[Edge], edges: set[int]) -> None:
        self.nodes, self.ends, self.edges = nodes, ends, set(edges)
        self.around: list[set[int]] = [set() for _ in range(nodes)]
        for edge in edges:
            for node in ends[edge]:
                self.around[node].add(edge)
        self.root = 0
        self.hang()
        self.root = self._find_centre()
        self.hang()

    def other(self, edge: int, node: int) -> int:
        """Return the other end of an edge."""
        a, b = self.ends[edge]
        return b if a == node else a

    def hang(self) -> None:
        """Recompute every node's `up` (the edge towards the root) and `depth`, the `height`, and
        `last`, a deepest node.
        """
        self.up, self.depth = [-1] * self.nodes, [0] * self.nodes
        order = [self.root]
        for node in order:
            for edge in self.around[node]:
                if edge != self.up[node]:
                    child = self.other(edge, node)
                    self.up[child], self.depth[child] = edge, self.depth[node] + 1
                    order.append(child)
        self.height = self.depth[order[-1]]
        self.last = order[-1]

    def _find_centre(self) -> int:
        """Return the middle of a longest path: from a farthest node to the node farthest from that,
        and half way back.
        """
        self.root = self.last
        self.hang()
        node = self.last
        for _ in range(self.height // 2):
            node = self.other(self.up[node], node)
        return node

    def is_below(self, node: int, top: int) -> bool:
        """Return whether `node` is in the subtree of `top`."""
        while self.depth[node] > self.depth[top]:
            node = self.other(self.up[node], node)
        return node == top

    def exchange(self, drop: int, add: int) -> None:
        """Replace edge `drop` by edge `add`."""
        for change, edge in ((set.discard, drop), (set.add, add)):
            change(self.edges, edge)
            for node in self.ends[edge]:
                change(self.around[node], edge)
        self.hang()

    def allows(self, drop: int, add: int) -> bool:
        """Return whether the tree is still one if `add` replaces `drop`: `add` joins the two parts
        that `drop` leaves.
        """
        if drop not in self.edges or add in self.edges:
            return False
        a, b = self.ends[drop]
        lower = a if self.up[a] == drop else b
        x, y = self.ends[add]
        return self.is_below(x, lower) != self.is_below(y, lower)


def make_shallower(
    nodes: int,
    ends: Sequence[Edge],
    copies: Sequence[int],
    trees: Sequence[set[int]],
    effort: Effort,
) -> list[set[int]]:
    """Return as many spanning trees, mostly much shallower, none deeper than the deepest of
    `trees`.

    Trees are sets of edge numbers. None of the edges is in more of them than it has copies.
    """
    hung = [_HungTree(nodes, ends, edges) for edges in trees]
    spare = list(copies)
    for tree in hung:
        for edge in tree.edges:
            spare[edge] -= 1
    around: list[list[int]] = [[] for _ in range(nodes)]
    for edge, (a, b) in enumerate(ends):
        around[a].append(edge)
        around[b].append(edge)
    # Always the deepest tree next, as the depth of the whole is what counts. An exchange changes
    # two trees, so it may help those that nothing helped before.
    stuck: set[int] = set()
    while len(stuck) < len(hung) and not effort.is_over("lower trees"):
        number = max((i for i in range(len(hung)) if i not in stuck), key=lambda i: hung[i].height)
        if _lift_deepest(hung, number, spare, around, effort):
            stuck.clear()
        else:
            stuck.add(number)
    return [tree.edges for tree in hung]


def _lift_deepest(
    hung: list[_HungTree], number: int, spare: list[int], around: list[list[int]], effort: Effort
) -> bool:
    """Move the deepest node of a tree, or one above it, nearer to the root; return whether that was
    possible.
    """
    tree = hung[number]
    node = tree.last
    while node != tree.root:
        old = tree.up[node]
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
            # Another tree may give its copy up for the one that becomes free, if it does not become
            # as deep itself.
            for second, giver in enumerate(hung):
                if second != number and giver.allows(edge, old):
                    giver.exchange(edge, old)
                    if giver.height < tree.height:
                        tree.exchange(old, edge)
                        return True
                    giver.exchange(old, edge)
        node = tree.other(old, node)
    return False
