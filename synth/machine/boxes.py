"""Equal boxes on a network, found by their links, and trees that join them rail by rail.

Rail i is the i-th GPU of every box. Data of rail i is reduced inside each box to that GPU, then
across boxes along a tree of boxes, and broadcast back along the same route.

Shapes of trees over boxes 0..n-1 are given as the parent of each box (-1 at the root), in sets
whose trees get equal shares: pairs of binary trees (Sanders, Speck, Traeff 2009; NCCL 2.4), a chain
rooted in the middle, chains that begin at every box in turn, and stars around every box in turn.
The last two load all boxes equally.

The colour of a device is a number for its role in the machine (symmetry.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product

import numpy as np

from ...topo.graph import Topology
from ...topo.grouping import group_by_key
from ...topo.routes import Route, Router
from .links import Ints, LinkArrays, find_parts
from .pairs import Tree
from .symmetry import colours

Parents = list[int]
# Number of lowest link bandwidths that are tried as the border between boxes.
_BORDERS = 8


@dataclass(frozen=True)
class Boxes:
    """Groups of GPUs joined by slower links, such as hosts, of equal size unless GPUs are missing.

    `ranks[b][i]` is the rank of the i-th GPU of box b; rail i consists of the i-th GPUs of all
    boxes.
    """

    ranks: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """The number of boxes."""
        return len(self.ranks)

    @property
    def rails(self) -> int:
        """The number of GPUs in the largest box."""
        return max(map(len, self.ranks))

    def rank_at(self, box: int, rail: int, turn: int) -> int:
        """Return the rank of the GPU of a rail in a box.

        If the box has too few GPUs for the rail, its GPUs take turns: `turn`, any integer, selects
        one.
        """
        members = self.ranks[box]
        return members[rail] if rail < len(members) else members[(rail + turn) % len(members)]


def find_boxes(topology: Topology) -> Boxes | None:
    """Return the largest equal groups of GPUs that are connected by slower links.

    None if the machine is one box. Links are removed, those of network switches first, then from
    the slowest up, until several equal groups are left. If that never happens, accept groups of
    which most are equal and the others not much smaller.
    """
    links, colour = LinkArrays(topology), colours(topology)
    network = np.array([d.family == "network" for d in topology.devices])
    local = ~(network[links.src] | network[links.dst])
    borders = [Fraction(0), *sorted(set(links.exact))[:_BORDERS]]
    for find_groups in (_find_equal_groups, _find_uneven_groups):
        for border in borders:
            kept = local & np.array([c > border for c in links.exact], dtype=np.bool_)
            if kept.all():
                continue
            part = find_parts(links.size, links.src[kept], links.dst[kept])
            members = group_by_key(
                (number, rank) for rank, number in enumerate(part[links.gpus].tolist())
            )
            groups = find_groups(list(members.values()), colour[links.gpus])
            if groups is not None:
                return Boxes(tuple(map(tuple, groups)))
    return None


def _find_uneven_groups(members: list[list[int]], colour: Ints) -> list[list[int]] | None:
    """Return the groups if most are equal in size and the others not much smaller, else None."""
    sizes = sorted(map(len, members))
    equal = sizes[len(sizes) // 2] == sizes[-1] and 2 * sizes[0] >= sizes[-1] > sizes[0] > 1
    return members if len(members) > 2 and equal else None


def _find_equal_groups(members: list[list[int]], colour: Ints) -> list[list[int]] | None:
    """Return the groups, in the order of rails, if they are equal in size and colours of ranks.

    None if they are not equal.
    """
    if len(members) < 2 or len(members[0]) < 2 or len(set(map(len, members))) != 1:
        return None
    # Boxes may list their GPUs in different orders; rails then follow colours.
    by_colour = [sorted(group, key=lambda rank: int(colour[rank])) for group in members]
    for groups in (members, by_colour):
        if len({tuple(colour[group].tolist()) for group in groups}) == 1:
            return groups
    return None


def rail_trees(
    boxes: Boxes, trees_of_boxes: Sequence[Parents], router: Router
) -> list[tuple[Tree, int]] | None:
    """Return (tree of GPUs, rank of its root) for every rail and every tree of boxes.

    A rail is the i-th GPU of every box; a tree of boxes is a list of each box's parent, -1 at the
    root. Inside a box, GPUs reach the rail's GPU on a tree of fewest hops. None if a route does not
    exist.
    """
    insides: dict[tuple[int, int], list[Route] | None] = {}
    out = []
    for rail in range(boxes.rails):
        for turn, parents in enumerate(trees_of_boxes):
            hubs = [boxes.rank_at(box, rail, turn) for box in range(boxes.count)]
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
    """Return routes that join a box's GPUs into a tree of fewest hops from the rail's GPU.

    None if some GPU cannot be reached inside the box.
    """
    by_id = router.topology.by_id
    layer, joined = [hub], dict[int, Route]()
    while layer:
        reached = dict[int, Route]()
        for rank, near in product((r for r in members if r != hub and r not in joined), layer):
            route = router.route(rank, near)
            # A route through a network switch would leave the box.
            if route and all(by_id[d].family != "network" for d in route[1:-1]):
                reached.setdefault(rank, route)
        joined |= reached
        layer = [*reached]
    return list(joined.values()) if len(joined) == len(members) - 1 else None


def chain(order: Sequence[int]) -> Parents:
    """Return the parent of each box in a chain over boxes in this order, rooted in the middle.

    The parent of the root is -1.
    """
    parents = [-1] * len(order)
    for i, (a, b) in enumerate(pairwise(order)):
        child, parent = (a, b) if i < len(order) // 2 else (b, a)
        parents[child] = parent
    return parents


def binary_pair(count: int) -> list[Parents]:
    """Return two binary trees over 0..count-1 as lists of parents, -1 at the root.

    No node is a leaf in both, except node 0 if `count` is odd.
    """
    tree = binary(count)
    if count % 2 == 0:
        return [tree, [-1 if p < 0 else count - 1 - p for p in reversed(tree)]]
    return [tree, *turn_to_root(tree, [tree], (tree.index(-1) + 1) % count)]


def binary(count: int) -> Parents:
    """Return each node's parent in a binary tree over 0..count-1, numbered in-order.

    The parent of the root is -1. Even positions are leaves.
    """
    parents = [-1] * count

    def attach(low: int, high: int, parent: int) -> None:
        if low > high:
            return
        middle = max(range(low, high + 1), key=lambda i: (i + 1) & -(i + 1))
        parents[middle] = parent
        attach(low, middle - 1, middle)
        attach(middle + 1, high, middle)

    attach(0, count - 1, -1)
    return parents


def turn_to_root(tree: Parents, trees: Sequence[Parents], box: int) -> list[Parents]:
    """Return `trees` with all positions rotated so that the root of `tree` moves to position `box`.

    Trees are lists of each position's parent, -1 at the root.
    """
    count = len(tree)
    shift = (box - tree.index(-1)) % count
    return [
        [-1 if p < 0 else (p + shift) % count for p in (*t[count - shift :], *t[: count - shift])]
        for t in trees
    ]


# Sets of trees over boxes by name; every rail uses all trees of a set, with equal shares. Chains
# from every box come after stars, which are as many and shallower.
SHAPES: dict[str, Callable[[int], list[Parents]]] = {
    "binary": binary_pair,
    "chain": lambda count: [chain(range(count))],
    "stars": lambda count: [
        [-1 if leaf == hub else hub for leaf in range(count)] for hub in range(count)
    ],
    "chains": lambda count: [chain([(i + j) % count for j in range(count)]) for i in range(count)],
}
