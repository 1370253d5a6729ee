"""Decentralised training: every worker averages its parameters with its neighbours' only."""

from __future__ import annotations

import torch

from ....topo.errors import InputError
from ..base import Setting, System
from ..buckets import Flats, sums_in
from ..mixing import Mixing, metropolis, neighbour_edges, ring_edges


def found_mixing(setting: Setting) -> Mixing:
    """Weights on the graph of the setting's topology, or, without one, on a ring in rank order; the same on all ranks."""

    def find() -> Mixing:
        ranks, topology = len(setting.workers), setting.topology
        if topology is None:
            return metropolis(ranks, ring_edges(ranks))
        if len(topology.ranks) != ranks:
            raise InputError(f"topology {topology.name!r} has {len(topology.ranks)} GPUs, there are {ranks} workers")
        return metropolis(ranks, neighbour_edges(topology))

    return setting.told(find)


class Neighbours(System):
    """A step: x_i becomes sum over j of W_ij x_j (the neighbours' parameters as they were when the gradients were computed),
    then the worker's own optimizer applies its own gradients. W has the weights of Metropolis and Hastings on the graph of
    GPUs that are joined without others between (synth/mixing.py), or on a ring where no topology is given.

    The mean over workers moves by the mean of their gradients; replicas differ, and each averaging brings them nearer to their
    mean at least by the factor `report()["contraction"]`. `finish` makes all of them the mean.
    """

    name = "neighbours"
    promise = "averaging keeps the mean of the replicas, up to rounding, and contracts by the graph's second eigenvalue"
    source = (
        "Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms? (D-PSGD), NIPS 2017, algorithm 1"
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.mixing = found_mixing(setting)
        self._weight = {j: float(self.mixing.weight[self.rank][j]) for j in self.workers}
        self._near = self.mixing.neighbours(self.rank)
        self.optimizer = setting.make_optimizer(self.buckets.parameters)
        self._own = self.buckets.empty()
        self._theirs = {j: self.buckets.empty() for j in self._near}
        self._distance: float | None = None

    def report(self) -> dict[str, object]:
        """`neighbours` of this rank, `contraction` of the graph; after `finish`, the `distance` from the mean before."""
        out: dict[str, object] = {"neighbours": self._near, "contraction": self.mixing.contraction}
        return out if self._distance is None else {**out, "distance": self._distance}

    def _advance(self) -> None:
        self.buckets.values(self._own)
        sends = [(j, flat) for j in self._near for flat in self._own]
        self.mail.exchange(sends, [(j, flat) for j, flats in self._theirs.items() for flat in flats])
        self._mix()
        self._update()

    def _mix(self) -> None:
        """The parameters become the weighted mean of this rank's and its neighbours', added in rank order."""
        mixed = []
        for number, own in enumerate(self._own):
            total = torch.zeros_like(own, dtype=sums_in(own.dtype))
            for j in sorted((*self._near, self.rank)):
                total.add_(own if j == self.rank else self._theirs[j][number], alpha=self._weight[j])
            mixed.append(total)
        self.buckets.set_values(mixed)

    def _update(self) -> None:
        assert self.optimizer is not None
        self.optimizer.step()

    def _end(self) -> None:
        self.buckets.values(self._own)
        before = [flat.clone() for flat in self._own]
        self._to_mean(self._own)
        self.buckets.set_values(self._own)
        self._distance = float(
            sum((a.double() - b.double()).square().sum() for a, b in zip(before, self._own, strict=True)) ** 0.5
        )

    def _to_mean(self, flats: Flats) -> None:
        """All workers' `flats` become their mean, the same bits everywhere."""
        self._mean_at_first(flats)
        self._from_first(flats)
