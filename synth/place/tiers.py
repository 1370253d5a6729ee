"""Groups of GPUs that are near each other: hosts, boxes, leaves, racks; by what joins them, whatever they are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ...topo.graph import Topology

Tier = tuple[tuple[int, ...], ...]
"""GPUs, by number, in parts; each GPU in one."""
_MOST_RATES = 6
_MOST_LEVELS = 6


def find_tiers(topology: Topology, gpus: Sequence[int], hosts: Sequence[Sequence[int]]) -> list[Tier]:
    """Return ways to divide GPUs (numbers of the topology's ranks) into parts that are near each other, finest first.

    Parts are what stays joined without the slower links, or without the switches that are far from GPUs; hosts as the
    topology says; and single GPUs. All GPUs as one part are left out.
    """
    joined = _Joined(topology)
    tiers: dict[Tier, None] = {tuple((gpu,) for gpu in gpus): None}
    for labels in (*joined.without_slow_links(), *joined.without_far_devices(), *joined.without_both()):
        tiers[_divide(gpus, [int(labels[joined.gpus[gpu]]) for gpu in gpus])] = None
    host_of = {gpu: number for number, host in enumerate(hosts) for gpu in host}
    tiers[_divide(gpus, [host_of[gpu] for gpu in gpus])] = None
    return sorted((tier for tier in tiers if len(tier) > 1), key=lambda tier: (-len(tier), tier))


def _divide(gpus: Sequence[int], labels: Sequence[int]) -> Tier:
    """Return GPUs in parts by their labels."""
    parts: dict[int, list[int]] = {}
    for gpu, label in zip(gpus, labels, strict=True):
        parts.setdefault(label, []).append(gpu)
    return tuple(sorted(tuple(part) for part in parts.values()))


class _Joined:
    """Which devices of a topology stay joined to each other when some links or devices are taken away."""

    def __init__(self, topology: Topology) -> None:
        number = {d.id: i for i, d in enumerate(topology.devices)}
        self.size = len(number)
        self.gpus = [number[gpu] for gpu in topology.ranks]
        self.ends = np.array([(number[a], number[b]) for a, b in topology.capacity_GBps], dtype=np.int64).reshape(-1, 2)
        self.rates = [float(rate) for rate in topology.capacity_GBps.values()]
        self.level = self._find_levels()

    def _label(self, kept: NDArray[np.bool_]) -> NDArray[np.int32]:
        ends = self.ends[kept]
        graph = csr_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(self.size, self.size))
        labels: NDArray[np.int32] = connected_components(graph, directed=False)[1]
        return labels

    def _find_levels(self) -> NDArray[np.int64]:
        """Return how many links each device is away from the nearest GPU."""
        level = np.full(self.size, self.size, dtype=np.int64)
        level[self.gpus] = 0
        while len(self.ends):
            before = level.copy()
            np.minimum.at(level, self.ends[:, 1], before[self.ends[:, 0]] + 1)
            if (level == before).all():
                break
        return level

    def _keep_rates(self) -> Iterable[NDArray[np.bool_]]:
        rates = np.array(self.rates)
        for rate in sorted(set(self.rates))[1 : _MOST_RATES + 1]:
            yield rates >= rate

    def _keep_levels(self) -> Iterable[NDArray[np.bool_]]:
        highest = self.level[self.ends].max(axis=1) if len(self.ends) else np.zeros(0, dtype=np.int64)
        for level in sorted({int(x) for x in highest}, reverse=True)[:_MOST_LEVELS]:
            yield highest < level

    def without_slow_links(self) -> Iterable[NDArray[np.int32]]:
        """Return what is joined by links of at least each rate."""
        return map(self._label, self._keep_rates())

    def without_far_devices(self) -> Iterable[NDArray[np.int32]]:
        """Return what is joined by devices that are near GPUs: below the spines, below the leaves."""
        return map(self._label, self._keep_levels())

    def without_both(self) -> Iterable[NDArray[np.int32]]:
        """Return what is joined by fast links below the highest switches: boxes whose uplinks are slower than a leaf's."""
        return (self._label(fast & near) for near in list(self._keep_levels())[:2] for fast in self._keep_rates())
