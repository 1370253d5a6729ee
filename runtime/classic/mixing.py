"""Whose parameters each rank averages with its own, and with which weights: decentralised training on a topology's graph.

Neighbours are GPUs that the hardware joins without other GPUs between. The weights are those of Metropolis and Hastings
(Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004): symmetric and doubly stochastic on any graph, so
that averaging leaves the mean as it is, and each averaging brings the replicas nearer to it by the factor `contraction`.
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
class Mixing:
    """`weight[i][j]` is what rank i multiplies rank j's parameters with: 0 for all but itself and its neighbours."""

    weight: tuple[tuple[Fraction, ...], ...]

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """The other ranks with which `rank` exchanges parameters, in order."""
        return tuple(j for j, w in enumerate(self.weight[rank]) if w and j != rank)

    @property
    def contraction(self) -> float:
        """The second largest absolute eigenvalue: the distance from consensus shrinks at least by this factor each time."""
        values = np.linalg.eigvalsh(np.array([[float(w) for w in row] for row in self.weight]))
        return float(np.sort(np.abs(values))[-2]) if len(values) > 1 else 0.0


def neighbour_edges(topology: Topology) -> tuple[Edge, ...]:
    """Pairs of ranks that the hardware joins, in both directions, without other GPUs between."""
    router = Router(topology)
    pairs = combinations(range(len(topology.ranks)), 2)
    return tuple((a, b) for a, b in pairs if router.route(a, b) is not None and router.route(b, a) is not None)


def ring_edges(ranks: int) -> tuple[Edge, ...]:
    """Every rank and the next, in rank order."""
    return tuple(sorted({(min(r, (r + 1) % ranks), max(r, (r + 1) % ranks)) for r in range(ranks) if ranks > 1}))


def metropolis(ranks: int, edges: Iterable[Edge]) -> Mixing:
    """Weights 1 / (1 + the greater degree) for two neighbours, and what is left for a rank itself.

    InputError: an edge that is none; InfeasibleError: the graph falls into parts that would never agree.
    """
    near: list[set[int]] = [set() for _ in range(ranks)]
    for a, b in edges:
        if not (0 <= a < ranks and 0 <= b < ranks) or a == b:
            raise InputError(f"neighbours: ({a}, {b}) is no edge between two of {ranks} ranks")
        near[a].add(b)
        near[b].add(a)
    apart = set(range(ranks)) - _reached(near)
    if apart:
        raise InfeasibleError(
            f"neighbours: rank {min(apart)} and rank 0 are not joined by a chain of neighbours, so they would never agree"
        )
    rows = [[Fraction(0)] * ranks for _ in range(ranks)]
    for a, others in enumerate(near):
        for b in others:
            rows[a][b] = Fraction(1, 1 + max(len(near[a]), len(near[b])))
        rows[a][a] = 1 - sum(rows[a], Fraction(0))
    return Mixing(tuple(map(tuple, rows)))


def _reached(near: Sequence[set[int]]) -> set[int]:
    seen, todo = {0}, [0]
    while todo:
        fresh = near[todo.pop()] - seen
        seen |= fresh
        todo += fresh
    return seen
