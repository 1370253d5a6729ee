"""Distances and spanning trees under prices of links, as the checker of certificates sums them up:
over any paths, or over the system's own routes. All numbers are whole.

Over own routes (topo/routes.py) the distance between two GPUs is what the links of their route
cost, not those of the cheapest path; two that only other GPUs join have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ...topo.errors import VerificationError
from ...topo.graph import Topology
from ...topo.routes import Router

WholePrices = Mapping[tuple[str, str], int]
Distances = dict[str, dict[str, int]]
# Sums of whole numbers below this fit into 64 bits; others are Python's.
_MAX_WORD = 1 << 62


def path_distances(prices: WholePrices, topology: Topology) -> Distances:
    """Return the least price of a path from each GPU to each other that it reaches."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(topology.by_id)
    graph.add_weighted_edges_from((a, b, prices.get((a, b), 0)) for a, b in topology.capacity_GBps)
    return {
        gpu: _among_gpus(nx.single_source_dijkstra_path_length(graph, gpu), gpu, topology)
        for gpu in topology.ranks
    }


def _among_gpus(paid: Mapping[str, Any], start: str, topology: Topology) -> dict[str, int]:
    return {gpu: paid[gpu] for gpu in topology.ranks if gpu != start and gpu in paid}


def route_distances(prices: WholePrices, router: Router) -> Distances:
    """Return the price of the own route from each GPU to each other that it has a route to."""
    distance = {}
    for gpu in router.topology.ranks:
        paid: dict[str, int] = {}
        for device, previous in router.before_each(gpu).items():
            paid[device] = paid.get(previous, 0) + prices.get((previous, device), 0)
        distance[gpu] = _among_gpus(paid, gpu, router.topology)
    return distance


def relayed_distances(distance: Distances, topology: Topology) -> Distances:
    """Return the least price from each GPU to each other if GPUs may relay (Floyd, Warshall)."""
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
    """Return distances as a matrix of whole numbers, and the number that stands for none: more than
    any tree costs.
    """
    gpus = topology.ranks
    far = 1 + sum(sum(row.values()) for row in distance.values())
    kind = np.int64 if far * (len(gpus) + 2) < _MAX_WORD else object
    return np.array([[distance[u].get(v, far) for v in gpus] for u in gpus], dtype=kind), far


def route_tree_price(distance: Distances, topology: Topology) -> int:
    """Return the weight of a minimum spanning tree of the GPUs, a pair weighing as much as its
    cheaper direction.
    """
    edges = ((price, u, v) for u, row in distance.items() for v, price in row.items())
    return _sum_spanning_tree(edges, topology)


def path_tree_price(prices: WholePrices, topology: Topology) -> int:
    """Return the weight of a minimum spanning tree of the GPUs over cheapest paths, every link
    taken in both directions.
    """
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(topology.by_id)
    graph.add_weighted_edges_from((a, b, prices.get((a, b), 0)) for a, b in topology.capacity_GBps)
    # Mehlhorn: a minimum spanning tree over all pairs of GPUs needs no other edges than those that
    # a link makes between the regions of devices nearest to each GPU, so one search from all GPUs
    # is enough.
    search: Any = nx.multi_source_dijkstra(graph, set(topology.ranks))
    paid, paths = search
    edges = (
        (paid[a] + graph[a][b]["weight"] + paid[b], paths[a][0], paths[b][0])
        for a, b in graph.edges
        if a in paid
    )
    return _sum_spanning_tree(edges, topology)


def _sum_spanning_tree(edges: Iterable[tuple[int, str, str]], topology: Topology) -> int:
    """Return the weight of a minimum spanning tree of the GPUs over priced edges (Kruskal)."""
    joined: nx.utils.UnionFind[str] = nx.utils.UnionFind(topology.ranks)
    total, left = 0, len(topology.ranks) - 1
    for price, u, v in sorted(edges):
        if left and joined[u] != joined[v]:
            joined.union(u, v)
            total, left = total + price, left - 1
    if left:
        raise VerificationError("bound: the links or routes do not join all GPUs")
    return total
