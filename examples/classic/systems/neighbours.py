"""Decentralized training: every worker averages its parameters with its neighbours' only.

Neighbours are GPUs that the hardware connects without other GPUs between. The weights are those of
Metropolis and Hastings (Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004):
symmetric and doubly stochastic on any graph, so averaging preserves the mean, and brings the
replicas nearer to it by the factor `contraction` each time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import torch

from topoplan import InfeasibleError, InputError, Router, Topology

from ..base import Setting, System
from ..buckets import Flats, dequantize, quantize, quantized_bytes, sum_dtype

Edge = tuple[int, int]


@dataclass(frozen=True)
class MixingMatrix:
    """The weights by which each rank mixes its own and its neighbours' parameters.

    `weight[i][j]` is that of rank j's parameters at rank i; 0 unless j is i or a neighbour.
    """

    weight: tuple[tuple[Fraction, ...], ...]

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """Return the ranks with which `rank` exchanges parameters, in increasing order."""
        return tuple(j for j, w in enumerate(self.weight[rank]) if w and j != rank)

    @property
    def contraction(self) -> float:
        """Second largest absolute eigenvalue of the weights.

        One averaging multiplies the distance of replicas from their mean by at most that.
        """
        values = np.linalg.eigvalsh(np.array([[float(w) for w in row] for row in self.weight]))
        # The largest is 1, as the weights of a rank sum up to it.
        return float(np.sort(np.abs(values))[-2]) if len(values) > 1 else 0.0


def neighbour_edges(topology: Topology) -> tuple[Edge, ...]:
    """Return the pairs of ranks that are connected in both directions without other GPUs."""
    router = Router(topology)
    return tuple(
        (a, b)
        for a, b in combinations(range(len(topology.ranks)), 2)
        if router.route(a, b) is not None and router.route(b, a) is not None
    )


def ring_edges(ranks: int) -> tuple[Edge, ...]:
    """Return the pairs of consecutive ranks, including the last and the first."""
    return tuple(sorted(nx.cycle_graph(ranks).edges)) if ranks > 1 else ()


def metropolis_weights(ranks: int, edges: Iterable[Edge]) -> MixingMatrix:
    """Return the mixing matrix with weights 1 / (1 + the larger degree) for neighbours.

    `edges` are the pairs of neighbours among ranks 0 to `ranks` - 1. A rank's own weight makes its
    weights sum up to 1. Raise InputError for an edge that does not link two ranks, InfeasibleError
    if the graph is not connected.
    """
    graph: nx.Graph[Any] = nx.empty_graph(ranks)
    for a, b in edges:
        if not (0 <= a < ranks and 0 <= b < ranks) or a == b:
            raise InputError(f"neighbours: ({a}, {b}) is no edge between two of {ranks} ranks")
        graph.add_edge(a, b)
    unreachable = set(graph) - nx.node_connected_component(graph, 0)
    if unreachable:
        raise InfeasibleError(
            f"neighbours: rank {min(unreachable)} and rank 0 are not joined by a chain of "
            "neighbours, so they would never agree"
        )
    rows = [[Fraction(0)] * ranks for _ in range(ranks)]
    for a, row in enumerate(rows):
        for b in graph[a]:
            row[b] = Fraction(1, 1 + max(len(graph[a]), len(graph[b])))
        row[a] = 1 - sum(row, Fraction(0))
    return MixingMatrix(tuple(map(tuple, rows)))


def find_mixing_matrix(setting: Setting) -> MixingMatrix:
    """Return the mixing matrix of the setting's topology, or without one of a ring in rank order.

    Collective. Raises like `metropolis_weights`.
    """

    def find() -> MixingMatrix:
        ranks, topology = len(setting.workers), setting.topology
        if topology is None:
            return metropolis_weights(ranks, ring_edges(ranks))
        setting.check_gpus(topology)
        return metropolis_weights(ranks, neighbour_edges(topology))

    return setting.compute_on_rank_0(find)


class Neighbours(System):
    """Average parameters with the neighbours, then apply the worker's own optimizer step.

    A step replaces x_i by the sum over j of W_ij x_j, of parameters as they were when the gradients
    were computed. W has the weights of Metropolis and Hastings on the graph of GPUs that are
    connected without others between, or on a ring without a topology. The mean over workers moves
    by the mean of their gradients; replicas differ, and each averaging brings them nearer to their
    mean by at least the factor `report()["contraction"]`. `finish` sets all replicas to the mean.
    """

    name = "neighbours"
    promise = (
        "averaging keeps the mean of the replicas, up to rounding, and contracts by the graph's "
        "second eigenvalue"
    )
    source = (
        "Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms? (D-PSGD), "
        "NIPS 2017, algorithm 1"
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.mixing = find_mixing_matrix(setting)
        self._weight = {j: float(self.mixing.weight[self.rank][j]) for j in self.workers}
        self._neighbours = self.mixing.neighbours(self.rank)
        self.optimizer = setting.make_optimizer(self.buckets.parameters)
        self._own = self.buckets.allocate()
        self._received = {j: self.buckets.allocate() for j in self._neighbours}
        self._distance: float | None = None

    def report(self) -> dict[str, object]:
        """Return `neighbours`, `contraction` and, after `finish`, the `distance` to the mean."""
        out: dict[str, object] = {
            "neighbours": self._neighbours,
            "contraction": self.mixing.contraction,
        }
        return out if self._distance is None else {**out, "distance": self._distance}

    def _advance(self) -> None:
        self.buckets.copy_values(self._own)
        self._exchange(self._own, self._received)
        self._mix_and_update()

    def _exchange(self, sent: Flats, received: dict[int, Flats]) -> None:
        self.p2p.exchange(
            [(j, flat) for j in self._neighbours for flat in sent],
            [(j, flat) for j, flats in received.items() for flat in flats],
        )

    def _mix_and_update(self) -> None:
        """Replace the parameters by the weighted mean with the neighbours', then step."""
        mixed = []
        for number, own in enumerate(self._own):
            total = torch.zeros_like(own, dtype=sum_dtype(own.dtype))
            for j in sorted((*self._neighbours, self.rank)):
                total.add_(
                    own if j == self.rank else self._received[j][number], alpha=self._weight[j]
                )
            mixed.append(total)
        self.buckets.set_values(mixed)
        assert self.optimizer is not None
        self.optimizer.step()

    def _end(self) -> None:
        self.buckets.copy_values(self._own)
        # The replicas differ until here; `report` has the distance.
        before = [flat.clone() for flat in self._own]
        self._average_at_first(self._own)
        self._broadcast_first(self._own)
        self.buckets.set_values(self._own)
        self._distance = float(
            sum(
                (a.double() - b.double()).square().sum()
                for a, b in zip(before, self._own, strict=True)
            )
            ** 0.5
        )


class Neighbours8Bit(Neighbours):
    """Neighbours that send 8-bit differences and track replicas of each other's parameters.

    Every worker has a replica of each neighbour's parameters x and moves it by the neighbour's
    message: the quantized difference between its parameters after and before a step. The neighbour
    moves its own x by the same rounded difference, so all replicas of x have the same bits.
    Rounding is random and unbiased, and each block of 256 values has its own levels: the smaller
    the steps, the smaller the error, so replicas converge as without compression.

    Only float32: rounding the replicas to half precision would lose small differences.
    """

    name = "neighbours-8bit"
    promise = (
        "as neighbours with 0.258 of the bytes; the mean is kept up to an unbiased error of "
        "1/255 of a step's range"
    )
    source = (
        "Tang et al., Communication Compression for Decentralized Training (DCD-PSGD), NeurIPS "
        "2018, algorithm 1; "
        "Gan et al., Bagua, VLDB 2022, low-precision decentralised"
    )
    dtypes = (torch.float32,)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        for flats in (self._own, *self._received.values()):
            self.buckets.copy_values(flats)  # all workers begin equal
        # Seeded by rank: the rounding errors of the workers are independent.
        self._noise = torch.Generator(setting.device).manual_seed(self.rank)
        self._arrived = {
            j: [flat.new_empty(quantized_bytes(len(flat)), dtype=torch.uint8) for flat in self._own]
            for j in self._neighbours
        }

    def _advance(self) -> None:
        self._mix_and_update()
        target = [torch.empty_like(flat) for flat in self._own]
        self.buckets.copy_values(target)
        differences = [
            quantize((b - a)[None], self._noise)[0] for a, b in zip(self._own, target, strict=True)
        ]
        self._exchange(differences, self._arrived)
        # The own replica moves by the rounded difference, too, and so stays equal to its copies.
        for flats, moves in (
            (self._own, differences),
            *((self._received[j], self._arrived[j]) for j in self._neighbours),
        ):
            for flat, move in zip(flats, moves, strict=True):
                flat += dequantize(move[None], len(flat))[0]
        self.buckets.set_values(self._own)
