"""A few trees per root, evened out by moving branches off the busiest link.

For allgather (and, reversed, reduce-scatter) on machines with more roots than column generation can
serve. A branch moves if another route is less busy: some rank in it gets another parent outside,
and the edges between that rank and the branch's top are reversed.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from ....topo.graph import Topology
from ...numeric.effort import Effort
from ..trees import Forest, RootedTree
from .level_paths import EvenedLoads

# How steeply prices rise with load while branches are moved, in the order of trial; and while trees
# are grown.
_STEEP, _BUSY = (40.0, 15.0), 2.0
# Maximum number of trees of all roots together, and of one root, into which forests are divided.
_TREES, _MAX_PARTS = 1024, 16
# Number of trees that may fail to move a branch off a link.
_TRIES = 40
# Seconds of an idle core: per move of a branch, per link that the search for it visits, and per
# rank.
_MOVE_S, _LINK_S, _RANK_S = 1e-3, 4e-7, 1e-6
Numbers = tuple[int, ...]


@dataclass
class _Tree:
    """An out-tree with its share of its root's part.

    `parent[r]` is the parent of rank r (-1 for the root), and `down[r]` is the route, as device
    numbers, on which rank r receives.
    """

    root: int
    share: Fraction
    parent: list[int]
    down: list[Numbers]

    def list_branch(self, top: int) -> list[int]:
        """Return `top` and all ranks below it, `top` first."""
        children: list[list[int]] = [[] for _ in self.parent]
        for rank, parent in enumerate(self.parent):
            if parent >= 0:
                children[parent].append(rank)
        out = [top]
        for rank in out:
            out += children[rank]
        return out


class LevelTrees(EvenedLoads):
    """Trees with every rank as a root; a part is the data of one rank."""

    def __init__(self, topology: Topology, seeds: Forest | None, effort: Effort) -> None:
        super().__init__(topology)
        self.link_at = {
            ends: i for i, ends in enumerate(zip(self.src.tolist(), self.dst.tolist(), strict=True))
        }
        self.rank_at = {int(gpu): r for r, gpu in enumerate(self.gpus)}
        # Each GPU has a second node at which routes end and from which no edge leads on, so no
        # route passes through a GPU.
        self.receiver = np.arange(self.size)
        self.receiver[self.gpus] = self.size + np.arange(self.ranks)
        self.parts = max(1, min(_MAX_PARTS, _TREES // self.ranks))
        self.trees: list[_Tree] = []
        if seeds is not None:
            self._take(seeds)
        else:
            self._grow_all(effort)
        # The numbers of the trees that use each link, updated with each move.
        self.users: list[set[int]] = [set() for _ in self.links]
        for number, tree in enumerate(self.trees):
            for route in tree.down:
                for link in self._links_on(route):
                    self.users[link].add(number)

    def _links_on(self, route: Sequence[int]) -> list[int]:
        return [self.link_at[pair] for pair in pairwise(route)]

    def _take(self, seeds: Forest) -> None:
        """Take the trees of a forest with all their images.

        Heavy trees are split into several lighter ones.
        """
        images = np.arange(self.size)[None] if seeds.images is None else seeds.images
        times = max(1, len(images) // self.ranks)
        for tree, share in zip(seeds.trees, seeds.shares, strict=True):
            parent = tree.parents({gpu: r for r, gpu in enumerate(self.topology.ranks)}, "down")
            down = [tuple(self.index[d] for d in route or ()) for route in tree.down]
            pieces = max(1, round(share / times * self.parts))
            each = share / times / pieces
            for image in images.tolist():
                moved = [self.rank_at[image[gpu]] for gpu in self.gpus.tolist()]
                # The ranks in the order of their images.
                order = sorted(range(self.ranks), key=moved.__getitem__)
                new_parent = [-1 if parent[r] < 0 else moved[parent[r]] for r in order]
                new_down = [tuple(image[d] for d in down[r]) for r in order]
                for _ in range(pieces):
                    self._add(_Tree(moved[tree.root], each, [*new_parent], [*new_down]))

    def _add(self, tree: _Tree) -> None:
        self.trees.append(tree)
        for route in tree.down:
            for link in self._links_on(route):
                self.load[link] += float(tree.share)

    def _grow_all(self, effort: Effort) -> None:
        """Grow trees for every root in turn, at prices that rise with the load of earlier ones."""
        around: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for (a, b), i in self.link_at.items():
            around[a].append((b, i))
        for root in [*range(self.ranks)] * self.parts:
            self._add(self._grow(root, around, self.price_rising(_BUSY).tolist()))
            effort.spend(_LINK_S * 4 * len(self.links))

    def _grow(self, root: int, around: list[list[tuple[int, int]]], prices: list[float]) -> _Tree:
        """Return a cheap out-tree, grown by repeatedly adding the GPU nearest to the tree."""
        start = int(self.gpus[root])
        best = {start: 0.0}
        before: dict[int, int] = {}
        parent = [-1] * self.ranks
        down: list[Numbers] = [()] * self.ranks
        inside = {start}
        heap = [(0.0, start)]
        while heap and len(inside) <= self.ranks:
            cost, device = heappop(heap)
            if cost > best[device]:
                continue
            rank = self.rank_at.get(device)
            if rank is not None and device not in inside:
                path = [device]
                while len(path) == 1 or path[-1] not in inside:
                    path.append(before[path[-1]])
                down[rank] = tuple(reversed(path))
                parent[rank] = self.rank_at[path[-1]]
                inside.add(device)
                best[device] = cost = 0.0
            for neighbour, link in around[device]:
                offer = cost + prices[link]
                if neighbour not in inside and offer < best.get(neighbour, np.inf):
                    best[neighbour] = offer
                    before[neighbour] = device
                    heappush(heap, (offer, neighbour))
        return _Tree(root, Fraction(1, self.parts), parent, down)

    def relieve(self, link: int, enough: float, effort: Effort) -> bool:
        """Move branches of trees that use a link to less busy routes; return whether any moved."""
        level = float(self.load[link] / self.capacity[link])
        excess = self.load[link] - enough * self.capacity[link]
        moved = 0.0
        for steep in _STEEP:
            failed = 0
            # The lightest trees first; 7919, a prime, spreads trees of one root over the list.
            order = sorted(
                self.users[link], key=lambda i: (self.trees[i].share, i * 7919 % len(self.trees))
            )
            for number in order:
                if self._move(number, link, level, steep):
                    moved += float(self.trees[number].share)
                else:
                    failed += 1
                effort.spend(_MOVE_S + _LINK_S * len(self.capacity) + _RANK_S * self.ranks)
                if moved > excess / 4 or failed > _TRIES or effort.left_s <= 0:
                    break
            if moved:
                break
        return moved > 0

    def _move(self, number: int, link: int, level: float, steep: float) -> bool:
        """Move a branch that a tree sends over a link; return whether it was moved.

        It is moved only if all links that gain load then take less time than `level`.
        """
        tree, ends = self.trees[number], (int(self.src[link]), int(self.dst[link]))
        top = next((r for r, route in enumerate(tree.down) if ends in pairwise(route)), None)
        if top is None:
            return False
        branch = tree.list_branch(top)
        prices, weight = self.price_above(link, steep, level)
        shape = self.size + self.ranks, self.size + self.ranks
        matrix = csr_matrix((weight, (self.src, self.receiver[self.dst])), shape)
        outside = [int(self.gpus[r]) for r in sorted(set(range(self.ranks)) - set(branch))]
        distance, before, _ = dijkstra(
            matrix, indices=outside, min_only=True, return_predecessors=True
        )
        # The rank that receives in place of the top forwards to it: the edges between the two are
        # reversed.
        turned = {top: 0.0}
        best, entry = np.inf, -1
        for rank in branch:
            if rank != top:
                up = tree.parent[rank]
                back = tree.down[rank][::-1]
                if up not in turned or any(pair not in self.link_at for pair in pairwise(back)):
                    continue
                forth = prices[self._links_on(tree.down[rank])].sum()
                turned[rank] = turned[up] + float(prices[self._links_on(back)].sum() - forth)
            cost = float(distance[self.size + rank]) + turned[rank]
            if cost < best:
                best, entry = cost, rank
        if entry < 0:
            return False
        path = [self.size + entry]
        while before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
        route = tuple(
            int(self.gpus[i - self.size]) if i >= self.size else i for i in reversed(path)
        )
        new = {entry: route}
        new_parent = {entry: self.rank_at[route[0]]}
        rank = entry
        while rank != top:
            up = tree.parent[rank]
            new[up], new_parent[up] = tree.down[rank][::-1], rank
            rank = up
        return self._replace(number, new, new_parent, level)

    def _replace(
        self, number: int, new: dict[int, Numbers], new_parent: dict[int, int], level: float
    ) -> bool:
        """Give some ranks of a tree other routes and parents; return whether that was done.

        It is done only if all links that gain load then take less time than `level`.
        """
        tree = self.trees[number]
        share = float(tree.share)
        change: dict[int, float] = defaultdict(float)
        for rank, route in new.items():
            for sign, links in ((-share, tree.down[rank]), (share, route)):
                for i in self._links_on(links):
                    change[i] += sign
        most = level * (1 - 1e-12)
        if any(x > 0 and (self.load[i] + x) / self.capacity[i] >= most for i, x in change.items()):
            return False
        for i, more in change.items():
            self.load[i] += more
        for rank, route in new.items():
            tree.down[rank], tree.parent[rank] = route, new_parent[rank]
        used = {i for route in tree.down for i in self._links_on(route)}
        for i in change:
            (self.users[i].add if i in used else self.users[i].discard)(number)
        return True

    def list_forest(self) -> tuple[list[RootedTree], list[Fraction]]:
        """Return the trees with their shares of their roots' parts, merging equal trees."""
        shares: dict[tuple[int, tuple[Numbers, ...]], Fraction] = defaultdict(Fraction)
        for tree in self.trees:
            shares[tree.root, tuple(tree.down)] += tree.share
        trees = [
            RootedTree(root, (), tuple(tuple(self.names[d] for d in r) or None for r in down))
            for root, down in shares
        ]
        return trees, list(shares.values())
