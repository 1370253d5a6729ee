"""Cheapest routes between all GPUs under prices of directed links, and shallow trees over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from ....topo.graph import Topology
from ....topo.routes import Route

Floats = NDArray[np.float64]
Link = tuple[str, str]
# What a hop costs beside its price, in mean prices of a link: of routes as cheap, those of fewest
# hops are taken.
HOP_SHARE = 1e-6


class Metric:
    """Cheapest routes between GPUs that pass no other GPU.

    `distance[u, v]` is the price from rank u to rank v (infinite where there is no route, and from
    a rank to itself). Among routes of equal price those of fewest hops are taken.
    """

    def __init__(self, topology: Topology, links: Sequence[Link], prices: Floats) -> None:
        self.names = [d.id for d in topology.devices]
        index = {name: i for i, name in enumerate(self.names)}
        self.gpus = np.array([index[g] for g in topology.ranks], dtype=np.int64)
        self.size, n = len(self.names), len(self.gpus)
        # Each GPU has a second node, at which routes end and from which none go on: so no route
        # passes a GPU.
        receiver = np.arange(self.size)
        receiver[self.gpus] = self.size + np.arange(n)
        weight = prices + HOP_SHARE * max(float(prices.mean()), 1e-300)
        src = np.array([index[a] for a, _ in links], dtype=np.int64)
        dst = receiver[np.array([index[b] for _, b in links], dtype=np.int64)]
        matrix = csr_matrix((weight, (src, dst)), shape=(self.size + n, self.size + n))
        distance, self.before = dijkstra(matrix, indices=self.gpus, return_predecessors=True)
        self.distance: Floats = distance[:, self.size :]
        np.fill_diagonal(self.distance, np.inf)

    def route(self, u: int, v: int) -> Route:
        """Return the cheapest route from rank u to rank v, as devices."""
        path = [self.size + v]
        while path[-1] != self.gpus[u]:
            path.append(int(self.before[u, path[-1]]))
        return tuple(
            self.names[i] if i < self.size else self.names[self.gpus[i - self.size]]
            for i in reversed(path)
        )

    def grow_tree(
        self, root: int, hop_price: float = 0.0, most_depth: int | None = None
    ) -> list[int] | None:
        """Return every rank's parent in a cheap and shallow out-tree grown from `root`
        (Prim-Dijkstra), -1 at the root.

        Each hop between a GPU and the root costs `hop_price` mean distances on top of the price; of
        equal offers the one nearer to the root is taken. None where some GPU cannot be reached
        within `most_depth` hops.
        """
        n = len(self.gpus)
        finite = self.distance[np.isfinite(self.distance)]
        step = max(hop_price, 1e-4) * (float(finite.mean()) if len(finite) else 1.0)
        depth = np.zeros(n, dtype=np.int64)
        key: Floats = self.distance[root] + step
        parent: NDArray[np.int64] = np.full(n, root)
        inside = np.zeros(n, dtype=np.bool_)
        inside[root] = True
        for _ in range(n - 1):
            node = int(np.argmin(np.where(inside, np.inf, key)))
            if inside[node] or not np.isfinite(key[node]):
                return None
            inside[node] = True
            depth[node] = depth[parent[node]] + 1
            if most_depth is not None and depth[node] >= most_depth:
                continue
            offer = self.distance[node] + step * (depth[node] + 1)
            better = (offer < key) & ~inside
            key = np.where(better, offer, key)
            parent = np.where(better, node, parent)
        parent[root] = -1
        return [int(p) for p in parent]
