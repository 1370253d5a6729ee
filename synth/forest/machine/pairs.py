"""A topology as two-way links with prices, for undirected trees, on which data is reduced to a root
and broadcast back.

A tree edge between two GPUs is a route through other devices. The reduction uses it in one
direction, the broadcast in the other, so a tree uses every link on its edges once each way, and the
direction with less bandwidth counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra, minimum_spanning_tree

from ....topo.graph import Topology
from ....topo.routes import Route
from .symmetry import colours

Floats = NDArray[np.float64]
_HOP_SHARE = 1e-6


@dataclass(frozen=True)
class Tree:
    """An undirected tree of GPUs; its edges are routes, each standing for both directions."""

    edges: tuple[Route, ...]


class PairGraph:
    """Pairs of devices with a link each way. Prices and capacities are arrays over `pairs`;
    capacities are in GB/s.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        capacity = topology.capacity_GBps
        self.names = [d.id for d in topology.devices]
        index = {d: i for i, d in enumerate(self.names)}
        self.pairs = [(a, b) for a, b in capacity if index[a] < index[b] and (b, a) in capacity]
        self.number = {pair: i for i, pair in enumerate(self.pairs)} | {
            (b, a): i for i, (a, b) in enumerate(self.pairs)
        }
        self.exact = [min(capacity[a, b], capacity[b, a]) for a, b in self.pairs]
        self.capacity = np.array([float(c) for c in self.exact])
        self.low = np.array([index[a] for a, _ in self.pairs], dtype=np.int64)
        self.high = np.array([index[b] for _, b in self.pairs], dtype=np.int64)
        self.gpus = np.array([index[g] for g in topology.ranks], dtype=np.int64)

    def joins_all(self) -> bool:
        """Return whether two-way links join all GPUs."""
        size = len(self.names)
        graph = coo_matrix((np.ones(len(self.pairs)), (self.low, self.high)), shape=(size, size))
        _, part = connected_components(graph, directed=False)
        return bool((part[self.gpus] == part[self.gpus[0]]).all())

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """The number of each pair's class: pairs of one class play the same role in the machine."""
        device = colours(self.topology)
        values = {c: i for i, c in enumerate(sorted(set(self.exact)))}
        ends = np.sort(np.stack([device[self.low], device[self.high]]), axis=0)
        rows = np.stack([*ends, np.array([values[c] for c in self.exact], dtype=np.int64)], axis=1)
        _, number = np.unique(rows, axis=0, return_inverse=True)
        return np.asarray(number, dtype=np.int64).reshape(-1)

    def cheapest_tree(
        self, prices: Floats, ends: NDArray[np.int64] | None = None
    ) -> tuple[float, Tree]:
        """Return the price of a minimum spanning tree of the GPUs over cheapest routes, and the
        tree (Mehlhorn 1988).

        Among routes of equal price those of fewest hops are taken. `ends` are the devices to be
        joined, if not just the GPUs.
        """
        # The nearest GPU of every device, by one search from all GPUs at once.
        size = len(self.names)
        weight = prices + _HOP_SHARE * max(float(prices.mean()), 1e-300)
        both = csr_matrix(
            (np.tile(weight, 2), (np.r_[self.low, self.high], np.r_[self.high, self.low])),
            shape=(size, size),
        )
        distance, before, source = dijkstra(
            both,
            indices=self.gpus if ends is None else ends,
            min_only=True,
            return_predecessors=True,
        )
        # An edge of the tree crosses one pair of devices with different nearest GPUs; of those that
        # join the same two GPUs only the shortest can be in it.
        a, b = source[self.low], source[self.high]
        with np.errstate(invalid="ignore"):
            length = distance[self.low] + weight + distance[self.high]
        crossing = np.flatnonzero((a != b) & np.isfinite(length))
        order = crossing[np.argsort(length[crossing], kind="stable")]
        key = np.minimum(a, b)[order] * size + np.maximum(a, b)[order]
        _, first = np.unique(key, return_index=True)
        best = order[first]
        graph = csr_matrix(
            (length[best], (np.minimum(a, b)[best], np.maximum(a, b)[best])), shape=(size, size)
        )
        via = dict(zip(key[first].tolist(), best.tolist(), strict=True))
        tree = minimum_spanning_tree(graph).tocoo()
        # The edge's route leads from the pair that it crosses back to a GPU on either side.
        edges = []
        for u, v in zip(tree.row.tolist(), tree.col.tolist(), strict=True):
            pair = via[min(u, v) * size + max(u, v)]
            left = self._path_back(before, int(self.low[pair]))
            right = self._path_back(before, int(self.high[pair]))
            edges.append((*reversed(left), *right))
        cheapest = Tree(tuple(edges))
        price = float(sum(prices[i] * times for i, times in self.uses(cheapest).items()))
        return price, cheapest

    def _path_back(self, before: NDArray[np.int32], node: int) -> list[str]:
        """Return the devices from `node` to its nearest GPU."""
        path = [self.names[node]]
        while before[node] >= 0:
            node = int(before[node])
            path.append(self.names[node])
        return path

    def uses(self, tree: Tree) -> Counter[int]:
        """Count how often a tree uses each pair."""
        return Counter(self.number[link] for route in tree.edges for link in pairwise(route))
