"""Decentralized training: every worker averages its parameters with its neighbours' only."""

from __future__ import annotations

import torch

from ..base import Setting, System
from ..buckets import sum_dtype
from ..mixing_matrix import MixingMatrix, metropolis_weights, neighbour_edges, ring_edges


def find_mixing_matrix(setting: Setting) -> MixingMatrix:
    """Return weights on the topology's graph, or without one on a ring in rank order.
    Collective.
    """

    def find() -> MixingMatrix:
        ranks, topology = len(setting.workers), setting.topology
        if topology is None:
            return metropolis_weights(ranks, ring_edges(ranks))
        setting.check_gpus(topology)
        return metropolis_weights(ranks, neighbour_edges(topology))

    return setting.compute_on_rank_0(find)


class Neighbours(System):
    """Average parameters with the neighbours, then apply the worker's own gradients and
    optimizer.

    A step replaces x_i by the sum over j of W_ij x_j, of parameters as they were when the gradients
    were computed. W has the weights of Metropolis and Hastings on the graph of GPUs that are
    connected without others between (mixing_matrix.py), or on a ring without a topology. The mean
    over workers moves by the mean of their gradients; replicas differ, and each averaging brings
    them nearer to their mean by at least the factor `report()["contraction"]`. `finish` sets all
    replicas to the mean.
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
        sends = [(j, flat) for j in self._neighbours for flat in self._own]
        self.p2p.exchange(
            sends, [(j, flat) for j, flats in self._received.items() for flat in flats]
        )
        self._mix()
        self._update()

    def _mix(self) -> None:
        """Replace the parameters by the weighted mean with the neighbours', in rank order."""
        mixed = []
        for number, own in enumerate(self._own):
            total = torch.zeros_like(own, dtype=sum_dtype(own.dtype))
            for j in sorted((*self._neighbours, self.rank)):
                total.add_(
                    own if j == self.rank else self._received[j][number], alpha=self._weight[j]
                )
            mixed.append(total)
        self.buckets.set_values(mixed)

    def _update(self) -> None:
        assert self.optimizer is not None
        self.optimizer.step()

    def _end(self) -> None:
        self.buckets.copy_values(self._own)
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
