"""A few trees for each root, evened out: branches move off the busiest link as long as another way
is less busy.

For allgather (and, turned round, reduce-scatter) on machines with more roots than column generation
can serve. A branch is moved by giving some rank in it another parent outside; the edges between
that rank and the branch's top are turned round.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from ....topo.graph import Topology
from ....topo.routes import Route
from ...effort import Effort
from ..trees import Forest, RootedTree

Floats = NDArray[np.float64]
_CLOSE = 1e-3
_STEEP = (40.0, 15.0)
_TREES = 1024
# Trees of all roots together, and of one root, into which forests are divided.
_MOST_PARTS = 16
# Seconds of a quiet core: to move a branch, for each link that is looked at for it, and for each
# rank.
_MOVE_S, _LINK_S, _RANK_S = 1e-3, 4e-7, 1e-6


class _Tree:
    """An out-tree with its share of its root's part; `down[r]` is the route, as numbers of devices,
    on which rank r receives.
    """

    def __init__(
        self, root: int, share: Fraction, parent: list[int], down: list[tuple[int, ...]]
    ) -> None:
        self.root, self.share, self.parent, self.down = root, share, parent, down

    def list_branch(self, top: int) -> list[int]:
        """Return the ranks below `top`, itself first."""
        children: list[list[int]] = [[] for _ in self.parent]
        for rank, parent in enumerate(self.parent):
            if parent >= 0:
                children[parent].append(rank)
        out = [top]
        for rank in out:
            out += children[rank]
        return out


class LevelTrees:
    """Trees for every rank as a root; `load[l]` / `capacity[l]` is how long link l takes, in units
    of one rank's part.
    """

    def __init__(self, topology: Topology, seeds: Forest | None, effort: Effort) -> None:
        self.topology = topology
        self.names = [d.id for d in topology.devices]
        self.index = {name: i for i, name in enumerate(self.names)}
        links = list(topology.capacity_GBps)
        self.capacity: Floats = np.array([float(c) for c in topology.capacity_GBps.values()])
        self.src = np.array([self.index[a] for a, _ in links], dtype=np.int64)
        self.dst = np.array([self.index[b] for _, b in links], dtype=np.int64)
        self.number = {
            (a, b): i
            for i, (a, b) in enumerate(zip(self.src.tolist(), self.dst.tolist(), strict=True))
        }
        self.gpus = np.array([self.index[g] for g in topology.ranks], dtype=np.int64)
        self.rank_of = {int(gpu): r for r, gpu in enumerate(self.gpus)}
        self.ranks, self.size = len(self.gpus), len(self.names)
        # Each GPU has a second node, at which routes end and from which none go on: so no route
        # passes a GPU.
        self.receiver = np.arange(self.size)
        self.receiver[self.gpus] = self.size + np.arange(self.ranks)
        self.parts = max(1, min(_MOST_PARTS, _TREES // self.ranks))
        self.load = np.zeros(len(links))
        self.trees: list[_Tree] = []
        if seeds is not None:
            self._take(seeds)
        else:
            self._grow_all(effort)
        # Which trees use a link, by links of each route: rows are found by scanning, as moves
        # change few.
        self.users: list[set[int]] = [set() for _ in links]
        for number, tree in enumerate(self.trees):
            for route in tree.down:
                for link in pairwise(route):
                    self.users[self.number[link]].add(number)

    @property
    def reached(self) -> float:
        """How long all trees take, in units of one rank's part over 1 GB/s."""
        return float((self.load / self.capacity).max())

    # -- trees to begin with
    # ----------------------------------------------------------------------------------------

    def _take(self, seeds: Forest) -> None:
        """Take the trees of a forest with all their images, the heavy ones as several lighter
        ones.
        """
        images = np.arange(self.size)[None] if seeds.images is None else seeds.images
        times = max(1, len(images) // self.ranks)
        for tree, share in zip(seeds.trees, seeds.shares, strict=True):
            parent = tree.parents({gpu: r for r, gpu in enumerate(self.topology.ranks)}, "down")
            down = [
                () if route is None else tuple(self.index[d] for d in route) for route in tree.down
            ]
            pieces = max(1, round(share / times * self.parts))
            for image in images.tolist():
                moved = [self.rank_of[image[gpu]] for gpu in self.gpus.tolist()]
                new_parent = [-1] * self.ranks
                new_down: list[tuple[int, ...]] = [()] * self.ranks
                for rank in range(self.ranks):
                    new_parent[moved[rank]] = -1 if parent[rank] < 0 else moved[parent[rank]]
                    new_down[moved[rank]] = tuple(image[d] for d in down[rank])
                for _ in range(pieces):
                    self._add(
                        _Tree(
                            moved[tree.root],
                            share / times / pieces,
                            list(new_parent),
                            list(new_down),
                        )
                    )

    def _add(self, tree: _Tree) -> None:
        self.trees.append(tree)
        for route in tree.down:
            for link in pairwise(route):
                self.load[self.number[link]] += float(tree.share)

    def _grow_all(self, effort: Effort) -> None:
        """Grow trees for every root in turn, under prices that rise with what earlier trees
        load.
        """
        around: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for i, (a, b) in enumerate(zip(self.src.tolist(), self.dst.tolist(), strict=True)):
            around[a].append((b, i))
        for _ in range(self.parts):
            for root in range(self.ranks):
                busy = self.load / self.capacity
                prices = np.exp(2 * busy / max(float(busy.max()), 1e-300)) / self.capacity
                self._add(self._grow(root, around, prices.tolist()))
                effort.spend(_LINK_S * 4 * len(prices))

    def _grow(self, root: int, around: list[list[tuple[int, int]]], prices: list[float]) -> _Tree:
        """Return a cheap out-tree: again and again the GPU that is nearest to those that are in it
        joins.
        """
        start = int(self.gpus[root])
        best = {start: 0.0}
        before: dict[int, int] = {}
        parent = [-1] * self.ranks
        down: list[tuple[int, ...]] = [()] * self.ranks
        inside = {start}
        heap = [(0.0, start)]
        while heap and len(inside) <= self.ranks:
            cost, device = heappop(heap)
            if cost > best[device]:
                continue
            rank = self.rank_of.get(device)
            if rank is not None and device not in inside:
                path = [device]
                while len(path) == 1 or path[-1] not in inside:
                    path.append(before[path[-1]])
                down[rank] = tuple(reversed(path))
                parent[rank] = self.rank_of[path[-1]]
                inside.add(device)
                best[device] = cost = 0.0
            for neighbour, link in around[device]:
                offer = cost + prices[link]
                if neighbour not in inside and offer < best.get(neighbour, np.inf):
                    best[neighbour] = offer
                    before[neighbour] = device
                    heappush(heap, (offer, neighbour))
        return _Tree(root, Fraction(1, self.parts), parent, down)

    # -- evening out
    # ------------------------------------------------------------------------------------------------

    def even_out(self, enough: float, effort: Effort) -> None:
        """Move branches off the busiest link until no link takes longer than `enough`, no move
        helps, or the work is done.
        """
        while not effort.is_over("evening trees out"):
            busy = self.load / self.capacity
            worst = int(np.argmax(busy))
            if busy[worst] <= enough * (1 + _CLOSE) or not self._relieve(worst, enough, effort):
                return

    def _relieve(self, link: int, enough: float, effort: Effort) -> bool:
        """Move branches of trees that use a link to less busy ways; return whether any could be."""
        level = float(self.load[link] / self.capacity[link])
        excess = self.load[link] - enough * self.capacity[link]
        moved = 0.0
        for steep in _STEEP:
            failed = 0
            for number in sorted(
                self.users[link], key=lambda i: (self.trees[i].share, i * 7919 % len(self.trees))
            ):
                if self._move(self.trees[number], number, link, level, steep):
                    moved += float(self.trees[number].share)
                else:
                    failed += 1
                effort.spend(_MOVE_S + _LINK_S * len(self.capacity) + _RANK_S * self.ranks)
                if moved > excess / 4 or failed > 40 or effort.left_s <= 0:
                    break
            if moved:
                break
        return moved > 0

    def _move(self, tree: _Tree, number: int, link: int, level: float, steep: float) -> bool:
        """Move a branch that a tree sends over a link, if all links concerned then take less time
        than `level`.
        """
        ends = int(self.src[link]), int(self.dst[link])
        top = next((r for r, route in enumerate(tree.down) if ends in pairwise(route)), None)
        if top is None:
            return False
        branch = tree.list_branch(top)
        below = set(branch)
        busy = self.load / self.capacity
        prices = np.exp(np.minimum(steep * (busy / level - 1), 0.0)) / self.capacity
        prices[link] *= 1e6
        weight = prices + 1e-6 * float(prices.mean())
        size = self.size + self.ranks
        matrix = csr_matrix((weight, (self.src, self.receiver[self.dst])), shape=(size, size))
        outside = [int(self.gpus[r]) for r in range(self.ranks) if r not in below]
        distance, before, _ = dijkstra(
            matrix, indices=outside, min_only=True, return_predecessors=True
        )
        # Whoever receives in place of the top hands on to it: the edges between the two are turned
        # round.
        turned = {top: 0.0}
        best, entry = np.inf, -1
        for rank in branch:
            if rank != top:
                up = tree.parent[rank]
                back = tree.down[rank][::-1]
                if up not in turned or any(pair not in self.number for pair in pairwise(back)):
                    continue
                numbers = [self.number[pair] for pair in pairwise(back)]
                forth = [self.number[pair] for pair in pairwise(tree.down[rank])]
                turned[rank] = turned[up] + float(prices[numbers].sum() - prices[forth].sum())
            cost = float(distance[self.size + rank]) + turned[rank]
            if cost < best:
                best, entry = cost, rank
        if entry < 0:
            return False
        path = [self.size + entry]
        while before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
        new = {
            entry: tuple(self.gpus[i - self.size] if i >= self.size else i for i in reversed(path))
        }
        new_parent = {entry: self.rank_of[int(new[entry][0])]}
        rank = entry
        while rank != top:
            up = tree.parent[rank]
            new[up], new_parent[up] = tree.down[rank][::-1], rank
            rank = up
        return self._replace(tree, number, new, new_parent, level)

    def _replace(
        self,
        tree: _Tree,
        number: int,
        new: dict[int, tuple[int, ...]],
        new_parent: dict[int, int],
        level: float,
    ) -> bool:
        """Give some ranks of a tree other routes and parents, if all links on them then take less
        time than `level`.
        """
        share = float(tree.share)
        change: dict[int, float] = {}
        for rank, route in new.items():
            for sign, way in ((-share, tree.down[rank]), (share, route)):
                for pair in pairwise(way):
                    i = self.number[int(pair[0]), int(pair[1])]
                    change[i] = change.get(i, 0.0) + sign
        grown = [i for i, more in change.items() if more > 0]
        if any((self.load[i] + change[i]) / self.capacity[i] >= level * (1 - 1e-12) for i in grown):
            return False
        for i, more in change.items():
            self.load[i] += more
        for rank, route in new.items():
            tree.down[rank] = tuple(int(d) for d in route)
            tree.parent[rank] = new_parent[rank]
        used = {self.number[pair] for route in tree.down for pair in pairwise(route)}
        for i in change:
            (self.users[i].add if i in used else self.users[i].discard)(number)
        return True

    # -- the result
    # -------------------------------------------------------------------------------------------------

    def list_forest(self) -> tuple[list[RootedTree], list[Fraction]]:
        """Return the trees with their shares of their roots' parts, equal trees as one."""
        shares: dict[tuple[int, tuple[tuple[int, ...], ...]], Fraction] = {}
        for tree in self.trees:
            key = tree.root, tuple(tree.down)
            shares[key] = shares.get(key, Fraction(0)) + tree.share
        trees = [
            RootedTree(root, (), tuple(self._name(route) for route in down))
            for root, down in shares
        ]
        return trees, list(shares.values())

    def _name(self, route: Sequence[int]) -> Route | None:
        """Return a route as names of devices."""
        return tuple(self.names[d] for d in route) or None
