"""A topology as bidirectional links with prices, for undirected trees.

Data is reduced to the root of a tree and broadcast back. A tree edge between two GPUs is a route
through other devices. The reduction uses it in one direction, the broadcast in the other, so a tree
uses every link on its edges once in each direction, and the direction with less bandwidth counts.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra, minimum_spanning_tree

from ...topo.graph import Topology
from ...topo.routes import Route
from .links import Floats, Ints, LinkArrays, find_parts, number_values
from .routes import price_hops
from .symmetry import colours  # a number for the role of each device


@dataclass(frozen=True)
class Tree:
    """An undirected tree of GPUs; its edges are routes, each representing both directions."""

    edges: tuple[Route, ...]


class PairGraph(LinkArrays):
    """Pairs of devices with a link in each direction; a pair counts as one undirected link.

    Pairs lead from the lower device number to the higher. Prices and capacities are arrays over
    `links`; the capacity is the bandwidth in GB/s of the narrower direction.
    """

    def __init__(self, topology: Topology) -> None:
        capacity = topology.capacity_GBps
        index = {d.id: i for i, d in enumerate(topology.devices)}
        super().__init__(
            topology,
            {
                (a, b): min(c, capacity[b, a])
                for (a, b), c in capacity.items()
                if index[a] < index[b] and (b, a) in capacity
            },
        )
        self.number |= {(b, a): i for (a, b), i in self.number.items()}

    def make_key(self, a: NDArray[Any], b: NDArray[Any]) -> Ints:
        """Return one number per pair of device numbers (a[i], b[i]), the same in either order."""
        return super().make_key(np.minimum(a, b), np.maximum(a, b))

    def joins_all(self) -> bool:
        """Return whether links with both directions connect all GPUs."""
        part = find_parts(self.size, self.src, self.dst)
        return bool((part[self.gpus] == part[self.gpus[0]]).all())

    @cached_property
    def classes(self) -> Ints:
        """The number of each pair's class; pairs of one class are alike in the machine.

        They join devices of equal colours (machine/symmetry.py) at the same bandwidth.
        """
        device = colours(self.topology)
        ends = np.sort(np.stack([device[self.src], device[self.dst]]), axis=0)
        _, number = np.unique(
            np.stack([*ends, number_values(self.exact)]), axis=1, return_inverse=True
        )
        return np.asarray(number, dtype=np.int64).reshape(-1)

    def cheapest_tree(self, prices: Floats, ends: Ints | None = None) -> tuple[float, Tree]:
        """Return the price and a minimum spanning tree of the GPUs over cheapest routes.

        `prices[i]` is the price of pair i. The algorithm is Mehlhorn's (1988). Among routes of
        equal price those of fewest hops are taken. `ends` are the numbers of the devices to
        connect, by default the GPUs.
        """
        # Find the nearest GPU of every device by one search from all GPUs at once.
        size, low, high = self.size, self.src, self.dst
        weight = price_hops(prices)
        distance, before, source = dijkstra(
            csr_matrix((np.tile(weight, 2), (np.r_[low, high], np.r_[high, low])), (size, size)),
            indices=self.gpus if ends is None else ends,
            min_only=True,
            return_predecessors=True,
        )
        # An edge of the tree crosses one pair of devices with different nearest GPUs; among those
        # between the same two GPUs, only the shortest can be in the tree.
        a, b = source[low], source[high]
        with np.errstate(invalid="ignore"):
            length = distance[low] + weight + distance[high]
        crossing = np.flatnonzero((a != b) & np.isfinite(length))
        order = crossing[np.argsort(length[crossing], kind="stable")]
        key = self.make_key(a, b)[order]
        _, first = np.unique(key, return_index=True)
        best = order[first]
        between = np.minimum(a, b)[best], np.maximum(a, b)[best]
        tree = minimum_spanning_tree(csr_matrix((length[best], between), (size, size))).tocoo()
        via = dict(zip(key[first].tolist(), best.tolist(), strict=True))

        def path_back(node: int) -> list[str]:
            """Return the devices from `node` to its nearest GPU."""
            path = [node]
            while before[path[-1]] >= 0:
                path.append(int(before[path[-1]]))
            return [self.names[i] for i in path]

        # The edge's route leads from the pair that it crosses back to a GPU on either side.
        edges = []
        for u, v in zip(tree.row.tolist(), tree.col.tolist(), strict=True):
            pair = via[min(u, v) * size + max(u, v)]
            edges.append((*reversed(path_back(int(low[pair]))), *path_back(int(high[pair]))))
        cheapest = Tree(tuple(edges))
        return self.price(cheapest, prices), cheapest

    def price(self, tree: Tree, prices: Floats) -> float:
        """Return the price of all links of a tree, given the price of each pair."""
        return float(sum(prices[i] * times for i, times in self.uses(tree).items()))

    def uses(self, tree: Tree) -> Counter[int]:
        """Return how often a tree uses each pair of devices, by the pair's number."""
        return Counter(self.number[link] for route in tree.edges for link in pairwise(route))
