"""Rooted trees over ranks, whose edges are routes; forests of them, with shares; and the schedules
that they define.

Invariant: a tree reaches every rank exactly once, so every share is added up once and arrives
everywhere, whatever the routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ...topo.graph import Topology
from ...topo.routes import Route
from ..cost.affine import tighten
from ..cost.loads import computes_in_network
from ..ir.collective import Chunk, Collective
from ..ir.schedule import Schedule
from ..ir.transfers import COPY, REDUCE, Transfers
from .machine.links import Ints, LinkArrays
from .machine.pairs import Tree


@dataclass(frozen=True)
class RootedTree:
    """A tree on which data is reduced to a root, broadcast from it, or both.

    `up[r]` is the route on which rank r sends its partial sum to its parent, `down[r]` the one on
    which it receives. Both have an entry for each rank, None at the root; `up` is empty where
    nothing is reduced, `down` where nothing is broadcast.
    """

    root: int
    up: tuple[Route | None, ...] = ()
    down: tuple[Route | None, ...] = ()

    def parents(self, ranks: dict[str, int], direction: str) -> list[int]:
        """Return the parent of every rank in the tree of a direction, "up" or "down"; -1 at the
        root.
        """
        routes, parent_end = (self.up, -1) if direction == "up" else (self.down, 0)
        return [-1 if route is None else ranks[route[parent_end]] for route in routes]


@dataclass(frozen=True)
class Forest:
    """Trees, with their shares of the buffer (or of each root's part of it).

    With `images` (permutations of the devices, one a row, the identity first) every tree stands for
    all its images, among which its share is divided evenly. `depth` is the greatest number of hops
    from a root.
    """

    trees: tuple[RootedTree, ...]
    shares: tuple[Fraction, ...]
    depth: int
    images: Ints | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """Number of trees, all images included."""
        return len(self.trees) * (1 if self.images is None else len(self.images))


def hang_tree(tree: Tree, ranks: dict[str, int], root: int | None = None) -> RootedTree:
    """Root an undirected tree at `root`, or at its centre; down routes are up routes reversed."""
    around: list[dict[int, Route]] = [{} for _ in ranks]
    for route in tree.edges:
        u, v = ranks[route[0]], ranks[route[-1]]
        around[u][v], around[v][u] = route, route[::-1]
    root = _find_centre(around) if root is None else root
    up: list[Route | None] = [None] * len(ranks)
    order, reached = [root], {root}
    for node in order:
        for child in around[node]:
            if child not in reached:
                reached.add(child)
                up[child] = around[child][node]
                order.append(child)
    return RootedTree(
        root, tuple(up), tuple(None if route is None else route[::-1] for route in up)
    )


def _find_centre(around: Sequence[dict[int, Route]]) -> int:
    """Return the node of a tree from which the farthest node is nearest: the middle of a longest
    path.
    """

    def longest_path(start: int) -> list[int]:
        """Return the path to `start` from a node that is farthest from it."""
        before, order = {start: -1}, [start]
        for node in order:
            for neighbour in around[node]:
                if neighbour not in before:
                    before[neighbour] = node
                    order.append(neighbour)
        path = [order[-1]]
        while before[path[-1]] >= 0:
            path.append(before[path[-1]])
        return path

    path = longest_path(longest_path(0)[0])
    return min(path[(len(path) - 1) // 2], path[len(path) // 2])


def levels(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the depth (hops from the root) and height (hops to the farthest leaf below) of every
    node.
    """
    children: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(child)
    order = [node for node, parent in enumerate(parents) if parent < 0]
    depth, height = [0] * len(parents), [0] * len(parents)
    for node in order:
        for child in children[node]:
            depth[child] = depth[node] + 1
        order.extend(children[node])
    for node in reversed(order):
        above = parents[node]
        if above >= 0 and height[above] <= height[node]:
            height[above] = height[node] + 1
    return depth, height


def tree_depth(tree: RootedTree, ranks: dict[str, int]) -> int:
    """Return the greatest number of hops between the root and any rank, in either direction."""
    directions = [direction for direction in ("up", "down") if getattr(tree, direction)]
    return max(max(levels(tree.parents(ranks, direction))[0]) for direction in directions)


def list_moves(tree: RootedTree, ranks: dict[str, int], together: bool) -> list[list[Any]]:
    """Return the columns (step, source, destination, operation, devices between) of the transfers
    that reduce up a tree and broadcast down.

    Each rank sends up once all ranks below it have; `together`: all children of a parent send in
    the same step, as switches that add need them to.
    """
    moves: list[tuple[Any, ...]] = []
    start = 0
    if tree.up:
        parents = tree.parents(ranks, "up")
        _, height = levels(parents)
        start = height[tree.root]
        for rank, route in enumerate(tree.up):
            if route is not None:
                step = height[parents[rank]] - 1 if together else height[rank]
                moves.append((step, rank, parents[rank], REDUCE, route[1:-1]))
    if tree.down:
        parents = tree.parents(ranks, "down")
        depth, _ = levels(parents)
        for rank, route in enumerate(tree.down):
            if route is not None:
                moves.append((start + depth[rank] - 1, parents[rank], rank, COPY, route[1:-1]))
    return [[move[column] for move in moves] for column in range(5)]


def schedule_of(
    forest: Forest, collective: Collective, topology: Topology, strategy: str
) -> Schedule:
    """Return the schedule in which every tree of a forest is a chunk, and starts at step 0."""
    links = LinkArrays(topology)
    ranks = {gpu: r for r, gpu in enumerate(topology.ranks)}
    rank_of = np.full(links.size, -1, dtype=np.int64)
    rank_of[links.gpus] = np.arange(len(ranks))
    images = np.arange(links.size)[None] if forest.images is None else forest.images
    # Transfers can only merge in a switch in the same step.
    together = computes_in_network(topology)
    per_root = collective.name in ("allgather", "reduce-scatter")
    whole = Fraction(1, collective.ranks) if per_root else Fraction(1)
    chunks: list[Chunk] = []
    parts: list[Transfers] = []
    # A tree's share is divided among its images; with a tree for each root, among those that have
    # the same root.
    each = len(images) if not per_root else max(1, len(images) // len(ranks))
    for tree, share in zip(forest.trees, forest.shares, strict=True):
        step, src, dst, op, route = list_moves(tree, ranks, together)
        between = sorted(set(route))
        number = {devices: i for i, devices in enumerate(between)}
        which = [number[devices] for devices in route]
        for image in images:
            moved = rank_of[image[links.gpus]]
            chunk = np.full(len(step), len(chunks))
            routes = [tuple(links.names[image[links.index[d]]] for d in r) for r in between]
            parts.append(Transfers(step, moved[src], moved[dst], chunk, op, which, routes))
            root = int(moved[tree.root])
            source = root if collective.name == "allgather" else None
            target = root if collective.name == "reduce-scatter" else None
            chunks.append(Chunk(share * whole / each, source, target))
    transfers = Transfers.joined(parts).sorted()
    bare = Schedule(
        collective, strategy, tuple(chunks), transfers, (), trees=forest.count, depth=forest.depth
    )
    return tighten(bare, topology)
