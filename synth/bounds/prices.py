"""Compute distances and spanning trees under link prices, to check certificates of bounds.

A price on a link is a weight by which a certificate counts data that crosses the link.

Paths may be any paths through the topology, or only the routes that the hardware takes
(topo/routes.py). In the second case the distance between two GPUs is the price of the links on
their route, even if another path is cheaper; GPUs without a route have no distance. All prices are
integers.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import VerificationError
from ...topo.graph import Topology
from ...topo.routes import Router

# The price of each directed link, by the ids of source and target.
WholePrices = Mapping[tuple[str, str], int]
# The price of getting from one GPU to another, by the ids of source and target.
Distances = dict[str, dict[str, int]]
# The price of the link from each device to each other one, by their ids.
_Links = dict[str, dict[str, int]]
# Sums of integers below this fit into 64 bits; larger ones need Python's integers.
_MAX_WORD = 1 << 62


def path_distances(prices: WholePrices, topology: Topology) -> Distances:
    """Return the price of the cheapest path from each GPU to every other GPU that it reaches.

    `prices` are by directed link, 0 if missing. The result is by ids of source and target, without
    pairs that have no path. Paths may pass through GPUs.
    """
    links: _Links = {device: {} for device in topology.by_id}
    for a, b in topology.capacity_GBps:
        links[a][b] = prices.get((a, b), 0)
    distance = {}
    for gpu in topology.ranks:
        reached = _search(links, [gpu])
        distance[gpu] = _among_gpus({x: paid for x, (paid, _) in reached.items()}, gpu, topology)
    return distance


def _search(links: _Links, starts: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return the price of the cheapest path to each device, and which start it is from (Dijkstra).

    Devices that no start reaches are missing. Each start is its own, also where links are free.
    """
    reached = {start: (0, start) for start in starts}
    queue = [(price, near, start) for start in reached for near, price in links[start].items()]
    heapify(queue)
    while queue:
        paid, device, start = heappop(queue)
        if device in reached:
            continue
        reached[device] = paid, start
        for near, price in links[device].items():
            if near not in reached:
                heappush(queue, (paid + price, near, start))
    return reached


def _among_gpus(paid: Mapping[str, int], start: str, topology: Topology) -> dict[str, int]:
    return {gpu: paid[gpu] for gpu in topology.ranks if gpu != start and gpu in paid}


def route_distances(prices: WholePrices, router: Router) -> Distances:
    """Return the price of the hardware's route from each GPU to every other.

    `prices` are by directed link, 0 if missing. The result is by ids of source and target, without
    pairs that have no route.
    """
    distance = {}
    for gpu in router.topology.ranks:
        paid: dict[str, int] = {}
        for device, previous in router.before_each(gpu).items():
            paid[device] = paid.get(previous, 0) + prices.get((previous, device), 0)
        distance[gpu] = _among_gpus(paid, gpu, router.topology)
    return distance


def relayed_distances(distance: Distances, topology: Topology) -> Distances:
    """Return the least price between GPUs if other GPUs may relay (Floyd-Warshall algorithm).

    `distance` has the prices without relays, by the ids of source and target; the result is of the
    same form.
    """
    gpus = topology.ranks
    matrix, far = matrix_of(distance, topology)
    np.fill_diagonal(matrix, 0)
    for i in range(len(gpus)):
        matrix = np.minimum(matrix, matrix[:, i, None] + matrix[None, i, :])
    return {
        u: {v: int(matrix[i, j]) for j, v in enumerate(gpus) if i != j and matrix[i, j] < far}
        for i, u in enumerate(gpus)
    }


def matrix_of(distance: Distances, topology: Topology) -> tuple[NDArray[Any], int]:
    """Return distances as a matrix of integers, and the number that stands for missing ones.

    That number exceeds the price of every tree. Row i and column j belong to ranks i and j.
    """
    gpus = topology.ranks
    far = 1 + sum(sum(row.values()) for row in distance.values())
    kind = np.int64 if far * (len(gpus) + 2) < _MAX_WORD else object
    return np.array([[distance[u].get(v, far) for v in gpus] for u in gpus], dtype=kind), far


def route_tree_price(distance: Distances, topology: Topology) -> int:
    """Return the price of a minimum spanning tree of the GPUs over priced pairs.

    `distance` has the prices of pairs, by the ids of source and target; a pair costs as much as its
    cheaper direction. Raise VerificationError if no tree spans all GPUs.
    """
    edges = ((price, u, v) for u, row in distance.items() for v, price in row.items())
    return _sum_spanning_tree(edges, topology)


def path_tree_price(prices: WholePrices, topology: Topology) -> int:
    """Return the price of a minimum spanning tree of the GPUs whose edges are cheapest paths.

    `prices` are by link, the same in both directions. Raise VerificationError if no tree spans all
    GPUs.
    """
    links: _Links = {device: {} for device in topology.by_id}
    for a, b in topology.capacity_GBps:
        links[a][b] = links[b][a] = prices.get((a, b), 0)
    # Assign each device to its nearest GPU. The only paths that a minimum spanning tree needs are
    # those through a link between devices of different GPUs (Mehlhorn 1988), so one search from all
    # GPUs is enough.
    reached = _search(links, topology.ranks)
    edges = (
        (reached[a][0] + price + reached[b][0], reached[a][1], reached[b][1])
        for a in reached
        for b, price in links[a].items()
    )
    return _sum_spanning_tree(edges, topology)


def _sum_spanning_tree(edges: Iterable[tuple[int, str, str]], topology: Topology) -> int:
    """Return the price of a minimum spanning tree of the GPUs over priced edges (Kruskal)."""
    parts = {gpu: {gpu} for gpu in topology.ranks}
    total, missing = 0, len(topology.ranks) - 1
    for price, u, v in sorted(edges):
        if missing and parts[u] is not parts[v]:
            small, large = sorted((parts[u], parts[v]), key=len)
            large |= small
            parts |= dict.fromkeys(small, large)
            total, missing = total + price, missing - 1
    if missing:
        raise VerificationError("bound: the links or routes do not connect all GPUs")
    return total
