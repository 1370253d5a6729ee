"""What the checker of bounds needs where every pair of GPUs has one way: exact prices of the
system's own routes.

The distance between two GPUs is what the links of their own route (topo/routes.py) cost, not of the
cheapest; two between which only other GPUs could forward have none. All numbers are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import VerificationError
from ...topo.graph import Topology
from ...topo.routes import Router

# Sums of whole numbers below this are made in 64 bits.
_WORD = 1 << 62


def own_distances(
    prices: Mapping[tuple[str, str], int], router: Router
) -> dict[str, dict[str, int]]:
    """Return the price of the own route from each GPU to each other that it has a route to."""
    topology, gpus = router.topology, frozenset(router.topology.ranks)
    out = {}
    for gpu in topology.ranks:
        before = router.before_each(gpu)
        paid = {gpu: 0}
        for device, previous in before.items():
            if device != gpu:
                paid[device] = paid[previous] + prices.get((previous, device), 0)
        out[gpu] = {
            device: price for device, price in paid.items() if device in gpus and device != gpu
        }
    return out


def relayed(distance: dict[str, dict[str, int]], topology: Topology) -> dict[str, dict[str, int]]:
    """Return the least price from each GPU to each other if GPUs may hand on (Floyd, Warshall)."""
    gpus = topology.ranks
    matrix, far = matrix_of(distance, topology)
    np.fill_diagonal(matrix, 0)
    for i in range(len(gpus)):
        matrix = np.minimum(matrix, matrix[:, i, None] + matrix[None, i, :])
    return {
        u: {v: int(matrix[i, j]) for j, v in enumerate(gpus) if i != j and matrix[i, j] < far}
        for i, u in enumerate(gpus)
    }


def matrix_of(distance: dict[str, dict[str, int]], topology: Topology) -> tuple[NDArray[Any], int]:
    """Return distances as a matrix of whole numbers, and what stands in it where there is none:
    more than any tree costs.
    """
    gpus = topology.ranks
    far = 1 + sum(sum(row.values()) for row in distance.values())
    kind = np.int64 if far * (len(gpus) + 2) < _WORD else object
    return np.array([[distance[u].get(v, far) for v in gpus] for u in gpus], dtype=kind), far


def spanning_price(distance: dict[str, dict[str, int]], topology: Topology) -> int:
    """Return the weight of a minimum spanning tree of the GPUs, a pair weighing as much as its
    cheaper direction (Prim).
    """
    matrix, far = matrix_of(distance, topology)
    weight = np.minimum(matrix, matrix.T)
    near = weight[0].copy()
    outside = np.ones(len(near), dtype=np.bool_)
    outside[0] = False
    total = 0
    for _ in range(len(near) - 1):
        node = min(np.flatnonzero(outside).tolist(), key=lambda i: near[i])
        if near[node] >= far:
            raise VerificationError("bound: the system's routes do not join all GPUs")
        total += int(near[node])
        outside[node] = False
        near = np.minimum(near, weight[node])
    return total
