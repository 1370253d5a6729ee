"""Rooted trees over ranks, forests of them, and the schedules that forests define.

The edges of a tree are routes, and each tree of a forest carries a share of the data. Invariant: a
tree reaches every rank exactly once, so each share is reduced once and arrives everywhere, whatever
the routes are.
"""

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
from ..ir.schedule import Schedule, find_helpers
from ..ir.transfers import COPY, REDUCE, Transfers
from ..machine.links import Ints, LinkArrays
from ..machine.pairs import Tree


@dataclass(frozen=True)
class RootedTree:
    """A tree on which data is reduced to a root, broadcast from it, or both.

    `up[r]` is the route on which rank r sends its partial sum to its parent, `down[r]` the route
    on which it receives from its parent. Both have an entry for each rank, None for the root and
    for helpers that are not in the tree. `up` is empty if nothing is reduced, `down` if nothing is
    broadcast.
    """

    root: int
    up: tuple[Route | None, ...] = ()
    down: tuple[Route | None, ...] = ()

    def parents(self, ranks: dict[str, int], direction: str) -> list[int]:
        """Return the parent of every rank in the tree of a direction, -1 for the root.

        `ranks` maps the ids of GPUs to ranks, and `direction` is "up" or "down".
        """
        routes, parent_end = (self.up, -1) if direction == "up" else (self.down, 0)
        return [-1 if route is None else ranks[route[parent_end]] for route in routes]


@dataclass(frozen=True)
class Forest:
    """Trees, with their shares of the buffer (or of each root's part of it).

    `images` are symmetries of the machine: row i gives the number of each device's image, the first
    row the device itself. If given, every tree represents all its images, and its share is divided
    evenly among them. `depth` is the greatest number of hops from a root.
    """

    trees: tuple[RootedTree, ...]
    shares: tuple[Fraction, ...]
    depth: int
    images: Ints | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """The number of trees, including all images."""
        return len(self.trees) * (1 if self.images is None else len(self.images))


def root_tree(tree: Tree, ranks: dict[str, int], root: int | None = None) -> RootedTree:
    """Return an undirected tree as a RootedTree with rank `root` as root; None: the tree's centre.

    `ranks` maps the ids of GPUs to ranks. The down routes are the up routes reversed.
    """
    around: list[dict[int, Route]] = [{} for _ in ranks]
    for route in tree.edges:
        u, v = ranks[route[0]], ranks[route[-1]]
        around[u][v], around[v][u] = route, route[::-1]
    root = _find_centre(around) if root is None else root
    up: list[Route | None] = [None] * len(ranks)
    for child, node in _walk(around, root).items():
        up[child] = around[child][node] if node >= 0 else None
    return RootedTree(root, tuple(up), tuple(route and route[::-1] for route in up))


def _walk(around: Sequence[dict[int, Route]], start: int) -> dict[int, int]:
    """Return the node from which each node of a tree is reached, the nearest to `start` first."""
    before = {start: -1}
    order = [start]
    for node in order:
        order += [neighbour for neighbour in around[node] if neighbour != before[node]]
        before |= {neighbour: node for neighbour in around[node] if neighbour != before[node]}
    return before


def _find_centre(around: Sequence[dict[int, Route]]) -> int:
    """Return the centre of a tree: the middle of a longest path, which minimizes the depth."""

    def longest_path(start: int) -> list[int]:
        """Return the path to `start` from a node that is farthest from it."""
        before = _walk(around, start)
        path = [[*before][-1]]
        while before[path[-1]] >= 0:
            path.append(before[path[-1]])
        return path

    path = longest_path(longest_path(0)[0])
    return min(path[(len(path) - 1) // 2], path[len(path) // 2])


def levels(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the depth and the height of every node of a tree, given each node's parent.

    The depth counts the hops from the root, the height those to the farthest leaf below. The parent
    of the root is -1.
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
        height[node] = max((height[child] + 1 for child in children[node]), default=0)
    return depth, height


def tree_depth(tree: RootedTree, ranks: dict[str, int]) -> int:
    """Return the greatest number of hops between the root and any rank, in either direction.

    `ranks` maps the ids of GPUs to ranks.
    """
    return max(
        max(levels(tree.parents(ranks, direction))[0])
        for direction in ("up", "down")
        if getattr(tree, direction)
    )


def tree_steps(tree: RootedTree, ranks: dict[str, int]) -> int:
    """Return the steps that a tree takes: its depths in both directions together.

    `ranks` maps the ids of GPUs to ranks.
    """
    directions = (d for d in ("up", "down") if getattr(tree, d))
    return sum(max(levels(tree.parents(ranks, direction))[0]) for direction in directions)


def list_moves(tree: RootedTree, ranks: dict[str, int], together: bool) -> list[list[Any]]:
    """Return the transfers that reduce up a tree and broadcast down it, as a list of columns.

    The columns are the step (from 0), source rank, destination rank, operation (COPY or REDUCE),
    and the devices on the route between the two. `ranks` maps the ids of GPUs to ranks. Each rank
    sends up when all ranks below it have sent. With `together`, all children of a parent send in
    the same step, as in-network reduction in switches requires.
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
    """Return the schedule of a forest: each tree carries a chunk of its own from step 0 on.

    `collective` is what it carries out on the topology; `strategy` is the name that it records.
    """
    links = LinkArrays(topology)
    ranks, rank_of = {gpu: r for r, gpu in enumerate(topology.ranks)}, links.rank_of
    images = np.arange(links.size)[None] if forest.images is None else forest.images
    # Transfers can only merge in a switch in the same step.
    together = computes_in_network(topology, collective)
    per_root = collective.name in ("allgather", "reduce-scatter")
    whole = Fraction(1, collective.ranks if per_root else 1)
    chunks: list[Chunk] = []
    parts: list[Transfers] = []
    # A tree's share is divided among its images, or, if every root has its own trees, among the
    # images with the same root.
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
            root = int(moved[tree.root]) if per_root else None
            ends = (root, None) if collective.name == "allgather" else (None, root)
            chunks.append(Chunk(share * whole / each, *ends))
    transfers = Transfers.joined(parts).sorted()
    bare = Schedule(
        collective,
        strategy,
        tuple(chunks),
        transfers,
        (),
        trees=forest.count,
        depth=forest.depth,
        helpers=find_helpers(collective, transfers),
    )
    return tighten(bare, topology)
