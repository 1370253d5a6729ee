"""Equal boxes on a network: find them by their links, and join trees inside them lane by lane.

Lane i is the i-th GPU of every box. Data of lane i is reduced inside each box to that GPU, then
across boxes along a tree of boxes (see shapes.py), and broadcast the same way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ....topo.graph import Topology
from ....topo.routes import Route, Router
from ..shapes import Parents
from .pairs import Tree
from .symmetry import colours


@dataclass(frozen=True)
class Boxes:
    """Equal groups of GPUs, but for some that may have lost GPUs; `ranks[b][i]` is the GPU of lane
    i in box b.
    """

    ranks: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Number of boxes."""
        return len(self.ranks)

    @property
    def lanes(self) -> int:
        """Number of GPUs in a box; in the largest, where some have fewer."""
        return max(map(len, self.ranks))

    def rank_at(self, box: int, lane: int, turn: int) -> int:
        """Return the GPU of a lane in a box; in boxes that have fewer GPUs, those there are stand
        in for it by turns.
        """
        members = self.ranks[box]
        return members[lane] if lane < len(members) else members[(lane + turn) % len(members)]


def find_boxes(topology: Topology) -> Boxes | None:
    """Return the largest equal groups of GPUs that slower links join, or None where the machine is
    one box.

    Links are removed, those of network switches first, then from the slowest up, until several
    equal groups are left. Where there never are, groups of which most are equal, and the others not
    much smaller, are as good.
    """
    return _find_boxes(topology, uneven=False) or _find_boxes(topology, uneven=True)


def _find_boxes(topology: Topology, *, uneven: bool) -> Boxes | None:
    """Return the groups of find_boxes that are equal, or that may be `uneven`."""
    index = {d.id: i for i, d in enumerate(topology.devices)}
    colour = colours(topology)
    links = list(topology.capacity_GBps.items())
    network = {d.id for d in topology.devices if d.family == "network"}
    local = [(a, b, c) for (a, b), c in links if a not in network and b not in network]
    for least in [None, *sorted({c for _, c in links})[:8]]:
        inside = [(index[a], index[b]) for a, b, c in local if least is None or c > least]
        if len(inside) == len(links):
            continue
        boxes = _equal_parts(topology, inside, colour, index, uneven=uneven)
        if boxes is not None:
            return boxes
    return None


def _equal_parts(
    topology: Topology,
    inside: Sequence[tuple[int, int]],
    colour: np.ndarray,
    index: dict[str, int],
    *,
    uneven: bool,
) -> Boxes | None:
    """Return the groups of GPUs that the links `inside` join, if they are several and equal in size
    and colours.
    """
    size = len(topology.devices)
    a, b = (np.array([pair[i] for pair in inside], dtype=np.int64) for i in (0, 1))
    _, part = connected_components(
        coo_matrix((np.ones(len(a)), (a, b)), shape=(size, size)), directed=False
    )
    groups: dict[int, list[int]] = {}
    for rank, gpu in enumerate(topology.ranks):
        groups.setdefault(int(part[index[gpu]]), []).append(rank)
    members = list(groups.values())
    sizes = sorted(len(group) for group in members)
    if uneven:
        usual = (
            len(members) > 2
            and sizes[len(sizes) // 2] == sizes[-1]
            and 2 * sizes[0] >= sizes[-1] > sizes[0]
        )
        return Boxes(tuple(tuple(group) for group in members)) if usual and sizes[0] > 1 else None
    kinds = {tuple(int(colour[index[topology.ranks[r]]]) for r in group) for group in members}
    if len(members) < 2 or len(members[0]) < 2 or len({len(group) for group in members}) != 1:
        return None
    if len(kinds) == 1:
        return Boxes(tuple(tuple(group) for group in members))
    # Boxes may list their GPUs in different orders: then lanes go by colour.
    ordered = [
        sorted(group, key=lambda r: int(colour[index[topology.ranks[r]]])) for group in members
    ]
    kinds = {tuple(int(colour[index[topology.ranks[r]]]) for r in group) for group in ordered}
    return Boxes(tuple(tuple(group) for group in ordered)) if len(kinds) == 1 else None


def lane_trees(
    topology: Topology, boxes: Boxes, trees_of_boxes: Sequence[Parents], router: Router
) -> list[tuple[Tree, int]] | None:
    """Return the tree of GPUs, with its root, for every lane and tree of boxes; None where a route
    does not exist.

    Inside a box, GPUs reach the lane's GPU on a tree of fewest hops.
    """
    insides: dict[tuple[int, int], list[Route] | None] = {}
    out = []
    for lane in range(boxes.lanes):
        for turn, parents in enumerate(trees_of_boxes):
            hubs = [boxes.rank_at(box, lane, turn) for box in range(boxes.count)]
            routes: list[Route] = []
            for box, hub in enumerate(hubs):
                if (box, hub) not in insides:
                    insides[box, hub] = _tree_inside(boxes.ranks[box], hub, router)
                local = insides[box, hub]
                if local is None:
                    return None
                routes += local
            for child, parent in enumerate(parents):
                if parent >= 0:
                    route = router.route(hubs[child], hubs[parent])
                    if route is None:
                        return None
                    routes.append(route)
            out.append((Tree(tuple(routes)), hubs[parents.index(-1)]))
    return out


def _tree_inside(members: Sequence[int], hub: int, router: Router) -> list[Route] | None:
    """Return routes that join a box's GPUs into a tree of fewest hops from the lane's GPU; None
    where that fails.
    """
    left = [r for r in members if r != hub]
    layer, out = [hub], []
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
