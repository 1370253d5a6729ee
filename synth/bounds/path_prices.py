"""What a certificate's checker sums up where data may take any way: cheapest paths and spanning
trees, in whole numbers.
"""

from __future__ import annotations

import heapq

from ...topo.errors import VerificationError
from ...topo.graph import Topology

WholePrices = dict[tuple[str, str], int]


def find_distances(start: str, prices: WholePrices, topology: Topology) -> dict[str, int]:
    """Return the least price of a path from `start` to every other GPU that it reaches
    (Dijkstra).
    """
    best: dict[str, int] = {}
    heap = [(0, start)]
    while heap:
        cost, device = heapq.heappop(heap)
        if device in best:
            continue
        best[device] = cost
        for neighbour in topology.out_neighbours[device]:
            if neighbour not in best:
                heapq.heappush(heap, (cost + prices.get((device, neighbour), 0), neighbour))
    return {gpu: best[gpu] for gpu in topology.ranks if gpu != start and gpu in best}


def spanning_tree_price(prices: WholePrices, topology: Topology) -> int:
    """Return the weight of a minimum spanning tree of the GPUs over cheapest paths, every link
    taken in both directions.
    """
    around: dict[str, list[tuple[str, int]]] = {d.id: [] for d in topology.devices}
    for a, b in topology.capacity_GBps:
        price = prices.get((a, b), 0)
        around[a].append((b, price))
        around[b].append((a, price))
    # Mehlhorn: a minimum spanning tree over all pairs of GPUs needs no other edges than those that
    # a link makes between the regions of devices nearest to each GPU, so one search from all GPUs
    # is enough.
    nearest = {gpu: (0, gpu) for gpu in topology.ranks}
    heap = [(price, neighbour, gpu) for gpu in topology.ranks for neighbour, price in around[gpu]]
    heapq.heapify(heap)
    while heap:
        cost, device, gpu = heapq.heappop(heap)
        if device in nearest:
            continue
        nearest[device] = cost, gpu
        for neighbour, price in around[device]:
            if neighbour not in nearest:
                heapq.heappush(heap, (cost + price, neighbour, gpu))
    # Kruskal over those edges; parts that are joined already share a root.
    parent = {gpu: gpu for gpu in topology.ranks}

    def root_of(gpu: str) -> str:
        """Return the GPU that stands for all that are joined to this one."""
        while parent[gpu] != gpu:
            parent[gpu] = parent[parent[gpu]]
            gpu = parent[gpu]
        return gpu

    # Kruskal over the links between devices with different nearest GPUs: their paths contain a
    # minimum spanning tree.
    edges = sorted(
        (nearest[a][0] + prices.get((a, b), 0) + nearest[b][0], nearest[a][1], nearest[b][1])
        for a, b in topology.capacity_GBps
        if a in nearest and b in nearest and nearest[a][1] != nearest[b][1]
    )
    total, left = 0, len(topology.ranks) - 1
    for price, u, v in edges:
        if root_of(u) != root_of(v):
            parent[root_of(u)] = root_of(v)
            total, left = total + price, left - 1
    if left:
        raise VerificationError("bound: the links do not join all GPUs")
    return total
