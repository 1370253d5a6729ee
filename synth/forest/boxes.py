"""Equal boxes on a network: find them by their links, and join trees inside them lane by lane.

Lane i is the i-th GPU of every box. Data of lane i is reduced inside each box to that GPU, then across boxes along a tree
of boxes (see shapes.py), and broadcast the same way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ...topo.graph import Topology
from ...topo.routes import Route, Router
from .machine.pairs import Tree
from .machine.symmetry import colours
from .shapes import Parents


@dataclass(frozen=True)
class Boxes:
    """Equal groups of GPUs; `ranks[b][i]` is the GPU of lane i in box b."""

    ranks: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Number of boxes."""
        return len(self.ranks)

    @property
    def lanes(self) -> int:
        """Number of GPUs in a box."""
        return len(self.ranks[0])


def find_boxes(topology: Topology) -> Boxes | None:
    """Return the largest equal groups of GPUs that slower links join, or None where the machine is one box.

    Links are removed, those of network switches first, then from the slowest up, until several equal groups are left.
    """
    index = {d.id: i for i, d in enumerate(topology.devices)}
    colour = colours(topology)
    links = list(topology.capacity_GBps.items())
    network = {d.id for d in topology.devices if d.family == "network"}
    local = [(a, b, c) for (a, b), c in links if a not in network and b not in network]
    for least in [None, *sorted({c for _, c in links})[:8]]:
        inside = [(index[a], index[b]) for a, b, c in local if least is None or c > least]
        if len(inside) == len(links):
            continue
        boxes = _equal_parts(topology, inside, colour, index)
        if boxes is not None:
            return boxes
    return None


def _equal_parts(
    topology: Topology, inside: Sequence[tuple[int, int]], colour: np.ndarray, index: dict[str, int]
) -> Boxes | None:
    """Return the groups of GPUs that the links `inside` join, if they are several and equal in size and colours."""
    size = len(topology.devices)
    a, b = (np.array([pair[i] for pair in inside], dtype=np.int64) for i in (0, 1))
    _, part = connected_components(coo_matrix((np.ones(len(a)), (a, b)), shape=(size, size)), directed=False)
    groups: dict[int, list[int]] = {}
    for rank, gpu in enumerate(topology.ranks):
        groups.setdefault(int(part[index[gpu]]), []).append(rank)
    members = list(groups.values())
    kinds = {tuple(int(colour[index[topology.ranks[r]]]) for r in group) for group in members}
    if len(members) < 2 or len(members[0]) < 2 or len({len(group) for group in members}) != 1:
        return None
    if len(kinds) == 1:
        return Boxes(tuple(tuple(group) for group in members))
    # Boxes may list their GPUs in different orders: then lanes go by colour.
    ordered = [sorted(group, key=lambda r: int(colour[index[topology.ranks[r]]])) for group in members]
    kinds = {tuple(int(colour[index[topology.ranks[r]]]) for r in group) for group in ordered}
    return Boxes(tuple(tuple(group) for group in ordered)) if len(kinds) == 1 else None


def lane_trees(
    topology: Topology, boxes: Boxes, trees_of_boxes: Iterable[Parents], router: Router
) -> list[tuple[Tree, int]] | None:
    """Return the tree of GPUs, with its root, for every lane and tree of boxes; None where a route does not exist.

    Inside a box, GPUs reach the lane's GPU on a tree of fewest hops.
    """
    insides = [[_tree_inside(members, lane, router) for lane in range(boxes.lanes)] for members in boxes.ranks]
    if any(inside is None for row in insides for inside in row):
        return None
    out = []
    for lane in range(boxes.lanes):
        local = [route for row in insides for route in (row[lane] or [])]
        for parents in trees_of_boxes:
            across = []
            for child, parent in enumerate(parents):
                if parent >= 0:
                    route = router.route(boxes.ranks[child][lane], boxes.ranks[parent][lane])
                    if route is None:
                        return None
                    across.append(route)
            out.append((Tree((*local, *across)), boxes.ranks[parents.index(-1)][lane]))
    return out


def _tree_inside(members: Sequence[int], lane: int, router: Router) -> list[Route] | None:
    """Return routes that join a box's GPUs into a tree of fewest hops from the lane's GPU; None where that fails."""
    left = [r for r in members if r != members[lane]]
    layer, out = [members[lane]], []
    while left and layer:
        next_layer = []
        for rank in list(left):
            for near in layer:
                route = router.route(rank, near)
                if route is not None and not _leaves_box(route, router.topology):
                    out.append(route)
                    next_layer.append(rank)
                    left.remove(rank)
                    break
        layer = next_layer
    return None if left else out


def _leaves_box(route: Route, topology: Topology) -> bool:
    """Return whether a route leaves the box, by passing a network switch."""
    return any(topology.by_id[d].family == "network" for d in route[1:-1])
