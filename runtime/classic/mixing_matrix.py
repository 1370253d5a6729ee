"""Compute the weights with which each rank averages its neighbours' parameters.

Neighbours are GPUs that the hardware connects without other GPUs between. The weights are those of
Metropolis and Hastings (Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004):
symmetric and doubly stochastic on any graph, so averaging preserves the mean, and brings the
replicas nearer to it by the factor `contraction` each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np

from ...topo.errors import InfeasibleError, InputError
from ...topo.graph import Topology
from ...topo.routes import Router

Edge = tuple[int, int]


@dataclass(frozen=True)
class MixingMatrix:
    """`weight[i][j]` of rank j's parameters at rank i; 0 unless j is i or a neighbour."""

    weight: tuple[tuple[Fraction, ...], ...]

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """Return the ranks with which `rank` exchanges parameters, in order."""
        return tuple(j for j, w in enumerate(self.weight[rank]) if w and j != rank)

    @property
    def contraction(self) -> float:
        """Second largest absolute eigenvalue: averaging shrinks distances to the mean by it."""
        values = np.linalg.eigvalsh(np.array([[float(w) for w in row] for row in self.weight]))
        return float(np.sort(np.abs(values))[-2]) if len(values) > 1 else 0.0


def neighbour_edges(topology: Topology) -> tuple[Edge, ...]:
    """Return the pairs of ranks that the hardware connects in both directions without other
    GPUs.
    """
    router = Router(topology)
    pairs = combinations(range(len(topology.ranks)), 2)
    return tuple(
        (a, b)
        for a, b in pairs
        if router.route(a, b) is not None and router.route(b, a) is not None
    )


def ring_edges(ranks: int) -> tuple[Edge, ...]:
    """Return the pairs of consecutive ranks, including the last and the first."""
    return tuple(
        sorted(
            {(min(r, (r + 1) % ranks), max(r, (r + 1) % ranks)) for r in range(ranks) if ranks > 1}
        )
    )


def metropolis_weights(ranks: int, edges: Iterable[Edge]) -> MixingMatrix:
    """Return weights of 1 / (1 + the larger degree) for neighbours, and the rest to 1 for the
    rank.

    Raise InputError for an edge that does not link two ranks, InfeasibleError if the graph is not
    connected.
    """
    neighbours: list[set[int]] = [set() for _ in range(ranks)]
    for a, b in edges:
        if not (0 <= a < ranks and 0 <= b < ranks) or a == b:
            raise InputError(f"neighbours: ({a}, {b}) is no edge between two of {ranks} ranks")
        neighbours[a].add(b)
        neighbours[b].add(a)
    unreachable = set(range(ranks)) - _find_reachable(neighbours)
    if unreachable:
        raise InfeasibleError(
            f"neighbours: rank {min(unreachable)} and rank 0 are not joined by a chain of "
            "neighbours, so they would never "
            "agree"
        )
    rows = [[Fraction(0)] * ranks for _ in range(ranks)]
    for a, others in enumerate(neighbours):
        for b in others:
            rows[a][b] = Fraction(1, 1 + max(len(neighbours[a]), len(neighbours[b])))
        rows[a][a] = 1 - sum(rows[a], Fraction(0))
    return MixingMatrix(tuple(map(tuple, rows)))


def _find_reachable(neighbours: Sequence[set[int]]) -> set[int]:
    """Return the ranks that neighbours connect to rank 0."""
    seen, todo = {0}, [0]
    while todo:
        fresh = neighbours[todo.pop()] - seen
        seen |= fresh
        todo += fresh
    return seen
