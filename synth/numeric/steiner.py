"""Cheapest out-trees that reach some of a graph's nodes, possibly through others.

Such a tree is a directed Steiner tree. For few terminals the dynamic program of Dreyfus and Wagner
(1971), on directed distances, finds the cheapest: the tree for a set of terminals is a cheapest
path to a node at which the set divides in two. For more terminals, trees are grown path by path,
to the nearest terminal first (Takahashi, Matsuyama 1980), and dual ascent (Wong 1984) bounds their
price from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# With more terminals, cheapest trees are not searched for: the work grows with 3 to their number
# (0.1 s for 12 terminals among 16 nodes).
MAX_TERMINALS = 12


def count_work(terminals: int, nodes: int) -> float:
    """Return the estimated seconds of an idle core to find cheapest trees for all roots.

    `terminals` is the number of nodes to reach, `nodes` that of all nodes.
    """
    seconds = 2e-8 * nodes * nodes * nodes
    if terminals <= MAX_TERMINALS:
        seconds += 2e-5 * 2.0**terminals + 1e-9 * nodes * 3.0**terminals
    return seconds


def close(price: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the length of a shortest path between any two nodes, and the node before its end.

    `price[u, v]` is the price of the edge u -> v; without an edge it must exceed the sum of all
    others. Both results are matrices (Floyd-Warshall algorithm).
    """
    nodes = np.arange(len(price))
    length, before = price.copy(), np.repeat(nodes[:, None], len(nodes), axis=1)
    length[nodes, nodes] = 0
    for i in nodes.tolist():
        through = length[:, i, None] + length[None, i, :]
        shorter = through < length
        length = np.where(shorter, through, length)
        before = np.where(shorter, before[None, i, :], before)
    return length, before


class SteinerTrees:
    """Cheapest out-trees from any root to all of `terminals`.

    `price[u, v]` is the price of the edge u -> v. Prices are floats, or exact integers; if there is
    no edge between two nodes, its price must exceed the sum of all others, and twice that sum times
    the number of nodes must fit. `is_exact` tells whether trees are proved to be the cheapest.
    """

    def __init__(self, price: NDArray[Any], terminals: Sequence[int]) -> None:
        self._set_up(*close(price), terminals)

    @classmethod
    def from_any(
        cls,
        length: NDArray[Any],
        before: NDArray[np.int64],
        roots: Sequence[int],
        terminals: Sequence[int],
    ) -> SteinerTrees:
        """Return trees that may begin at any of `roots` and reach all `terminals`.

        `length` and `before` are the results of `close`. The root is an extra node, numbered after
        all others, from which edges to `roots` are free.
        """
        out, n = cls.__new__(cls), len(length)
        starts = np.array(roots)
        nearest = starts[np.argmin(length[starts], axis=0)]
        wide, last = np.full((n + 1, n + 1), length.max() + 1), np.full((n + 1, n + 1), n)
        wide[:n, :n], last[:n, :n] = length, before
        wide[n, :n], last[n, :n] = length[nearest, np.arange(n)], before[nearest, np.arange(n)]
        wide[n, n], last[n, starts] = 0, n
        out._set_up(wide, last, terminals)
        return out

    def _set_up(
        self, length: NDArray[Any], before: NDArray[np.int64], terminals: Sequence[int]
    ) -> None:
        self.terminals = list(terminals)
        self.is_exact = len(self.terminals) <= MAX_TERMINALS
        self._length, self._before = length, before
        # For each set of terminals, as a bit mask: the price of the cheapest tree from each node,
        # and of the cheapest tree that divides the set at the node itself.
        self._tree: list[NDArray[Any]] = []
        self._split: list[NDArray[Any]] = []
        if self.is_exact:
            self._fill_in()

    def _fill_in(self) -> None:
        """Find the cheapest trees for all sets of terminals, the small sets first."""
        nothing = np.zeros(len(self._length), dtype=self._length.dtype)
        tree = np.repeat(nothing[None], 1 << len(self.terminals), axis=0)
        self._split = [nothing] * len(tree)
        for mask in range(1, len(tree)):
            if mask & (mask - 1) == 0:
                tree[mask] = self._length[:, self.terminals[mask.bit_length() - 1]]
                continue
            parts = _list_parts(mask)
            self._split[mask] = (tree[parts] + tree[mask ^ parts]).min(axis=0)
            tree[mask] = (self._length + self._split[mask][None, :]).min(axis=1)
        self._tree = list(tree)

    def price(self, root: int) -> Any:
        """Return the price of the cheapest tree from `root`; allowed only if `is_exact`."""
        return self._tree[-1][root]

    def bound_price(self, root: int) -> Any:
        """Return a lower bound on the price of a tree from `root`: the price itself if `is_exact`.

        Otherwise it is found by dual ascent: while some terminal cannot be reached over edges that
        are paid for, all edges into the set of nodes that reach it are paid evenly. The smallest
        set comes first.
        """
        if self.is_exact:
            return self.price(root)
        left, total = self._length.copy(), self._length.dtype.type(0)
        inside = {t: np.arange(len(left)) == t for t in self.terminals if t != root}
        sizes = dict.fromkeys(inside, 1)
        while sizes:
            at = min(sizes, key=sizes.__getitem__)
            grown, before = inside[at], 0
            while before < (size := int(grown.sum())):
                before, grown = size, grown | (left[:, grown] == 0).any(axis=1)
            inside[at], sizes[at] = grown, size
            if grown[root]:
                del sizes[at]
            elif sizes[at] <= min(sizes.values()):
                edges = np.ix_(~grown, grown)
                step = left[edges].min()
                left[edges] -= step
                total += step
        return total

    def find(self, root: int) -> list[int]:
        """Return the parent of every node in the tree from `root`.

        It is -1 at the root and at nodes that are not in the tree.
        """
        edges: list[tuple[int, int]] = []
        if self.is_exact:
            self._trace(len(self._tree) - 1, root, edges)
        else:
            self._grow(root, edges)
        return self._prune(root, edges)

    def _trace(self, mask: int, root: int, edges: list[tuple[int, int]]) -> None:
        """Append the edges of the cheapest tree from `root` to the terminals of a mask."""
        while mask & (mask - 1):
            node = int(np.argmin(self._length[root] + self._split[mask]))
            self._append_path(root, node, edges)
            parts = _list_parts(mask)
            prices = [self._tree[p][node] + self._tree[mask ^ p][node] for p in parts.tolist()]
            part = int(parts[int(np.argmin(np.array(prices)))])
            self._trace(part, node, edges)
            mask, root = mask ^ part, node
        if mask:
            self._append_path(root, self.terminals[mask.bit_length() - 1], edges)

    def _grow(self, root: int, edges: list[tuple[int, int]]) -> None:
        """Append the paths of a tree that takes in the nearest terminal again and again."""
        inside, missing = [root], [t for t in self.terminals if t != root]
        while missing:
            lengths = self._length[np.ix_(inside, missing)]
            start, end = divmod(int(np.argmin(lengths)), len(missing))
            path: list[tuple[int, int]] = []
            self._append_path(inside[start], missing[end], path)
            edges += path
            inside = list(dict.fromkeys([*inside, *(node for _, node in path)]))
            missing = [t for t in missing if t not in inside]

    def _append_path(self, start: int, end: int, edges: list[tuple[int, int]]) -> None:
        path = []
        while end != start:
            before = int(self._before[start, end])
            path.append((before, end))
            end = before
        edges += reversed(path)

    def _prune(self, root: int, edges: Sequence[tuple[int, int]]) -> list[int]:
        """Return the parents in a tree of some of `edges` that lead from the root to terminals.

        Paths of equal price may meet in a node; the tree then enters it once.
        """
        parent = [-1] * len(self._length)
        order, reached = [root], {root}
        for node in order:
            for before, after in edges:
                if before == node and after not in reached:
                    parent[after] = node
                    reached.add(after)
                    order.append(after)
        needed = set(self.terminals)
        for node in reversed(order):
            if node in needed:
                needed.add(parent[node])
            else:
                parent[node] = -1
        return parent


def _list_parts(mask: int) -> NDArray[np.int64]:
    """Return the masks of the proper subsets of a set that have its lowest member."""
    lowest = mask & -mask
    rest, part, parts = mask ^ lowest, 0, []
    while part != rest:
        parts.append(part | lowest)
        part = (part - rest) & rest
    return np.array(parts, dtype=np.int64)
