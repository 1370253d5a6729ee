"""Groups of GPUs that are near each other: hosts, boxes, leaves, racks; by what joins them,
whatever they are called. And what such parts of a machine can send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ...topo.derived.route_table import RouteTable
from ...topo.errors import VerificationError
from ...topo.graph import Topology

# GPUs, by number, in parts; each GPU in one.
Tier = tuple[tuple[int, ...], ...]
_MOST_RATES = 6
_MOST_LEVELS = 6
# By how much a logarithm may be wrong.
_LOG_ERROR = Fraction(1, 10**13)


@dataclass(frozen=True)
class Part:
    """Devices of a machine, and the `gpus` with a rank among them, by number. What leaves (or
    enters) crosses links of `capacity_GBps`; the widest way across is `widest_GBps` wide.
    """

    inside: frozenset[str]
    gpus: tuple[int, ...]
    capacity_GBps: Fraction
    widest_GBps: Fraction


@dataclass(frozen=True)
class TierParts:
    """Parts of a machine that have no GPU in common, looked at in one direction; `covers`: each GPU
    with a rank is in one.
    """

    direction: str
    parts: tuple[Part, ...]
    covers: bool

    @cached_property
    def capacity_GBps(self) -> Fraction:
        """What all parts together can send: sums of few different rates."""
        return sum((part.capacity_GBps for part in self.parts), Fraction(0))

    @cached_property
    def ranks(self) -> int:
        """How many ranks are in some part."""
        return sum(len(part.gpus) for part in self.parts)

    @cached_property
    def mean_log(self) -> Fraction:
        """The mean over the ranks of the logarithm of how many its part has, rounded up."""
        sizes = Counter(len(part.gpus) for part in self.parts)
        return (
            sum((n * size * log_at_most(size) for size, n in sizes.items()), Fraction(0))
            / self.ranks
        )

    def is_within(self, coarser: TierParts) -> bool:
        """Return whether each part of the other tier consists of whole parts of this one."""
        part_of = {gpu: i for i, part in enumerate(self.parts) for gpu in part.gpus}
        for outer in coarser.parts:
            touched = {part_of.get(gpu, -1) for gpu in outer.gpus}
            if -1 in touched or sum(len(self.parts[i].gpus) for i in touched) != len(outer.gpus):
                return False
        return True


def log_at_most(value: int) -> Fraction:
    """Return a logarithm, rounded up."""
    return Fraction(0) if value == 1 else Fraction(log(value)) + _LOG_ERROR


def log_at_least(value: int) -> Fraction:
    """Return a logarithm, rounded down."""
    return Fraction(0) if value == 1 else Fraction(log(value)) - _LOG_ERROR


def measure_part(
    table: RouteTable, gpus: Sequence[int], insides: Sequence[frozenset[str]], direction: str
) -> Part:
    """Return a part with the capacity of the links that routes from its GPUs to the others must
    cross where they leave it: of several sets of devices with the same GPUs, the one around which
    there is least.
    """
    topology = table.topology
    unknown = frozenset().union(*insides) - topology.by_id.keys()
    if unknown or direction not in ("out", "in"):
        raise VerificationError(
            f"bound: a part names {min(unknown, default=direction)!r}, which there is not"
        )
    is_mine = np.zeros(len(topology.ranks), dtype=bool)
    is_mine[[table.number[x] for x in insides[0] if x in table.number]] = True
    listed = np.asarray(gpus)
    mine, rest = listed[is_mine[listed]], listed[~is_mine[listed]]
    crossed = (
        table.crossed[mine[:, None], rest]
        if direction == "out"
        else table.crossed[rest[:, None], mine]
    )
    used = np.flatnonzero(np.bincount(crossed.reshape(-1), minlength=len(table.links) + 1)[:-1])
    ways = [
        table.links[link] if direction == "out" else table.links[link][::-1]
        for link in used.tolist()
    ]
    capacities = []
    for inside in insides:
        leaving = [
            link if direction == "out" else link[::-1]
            for link in ways
            if link[0] in inside and link[1] not in inside
        ]
        capacities.append(sum((topology.capacity_GBps[link] for link in leaving), Fraction(0)))
    least = min(range(len(insides)), key=capacities.__getitem__)
    return Part(insides[least], tuple(mine.tolist()), capacities[least], table.widest_GBps(crossed))


def find_tiers(
    topology: Topology, gpus: Sequence[int], hosts: Sequence[Sequence[int]]
) -> list[Tier]:
    """Return ways to divide GPUs (numbers of the topology's ranks) into parts that are near each
    other, finest first.

    Parts are what stays joined without the slower links, or without the switches that are far from
    GPUs; hosts as the topology says; and single GPUs. All GPUs as one part are left out.
    """
    joined = _Joined(topology)
    tiers: dict[Tier, None] = {tuple((gpu,) for gpu in gpus): None}
    for labels in (
        *joined.without_slow_links(),
        *joined.without_far_devices(),
        *joined.without_both(),
    ):
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
    """Which devices of a topology stay joined to each other when some links or devices are taken
    away.
    """

    def __init__(self, topology: Topology) -> None:
        number = {d.id: i for i, d in enumerate(topology.devices)}
        self.size = len(number)
        self.gpus = [number[gpu] for gpu in topology.ranks]
        self.ends = np.array(
            [(number[a], number[b]) for a, b in topology.capacity_GBps], dtype=np.int64
        ).reshape(-1, 2)
        self.rates = [float(rate) for rate in topology.capacity_GBps.values()]
        self.level = self._find_levels()

    def _label(self, kept: NDArray[np.bool_]) -> NDArray[np.int32]:
        ends = self.ends[kept]
        graph = csr_matrix(
            (np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(self.size, self.size)
        )
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
        highest = (
            self.level[self.ends].max(axis=1) if len(self.ends) else np.zeros(0, dtype=np.int64)
        )
        for level in sorted({int(x) for x in highest}, reverse=True)[:_MOST_LEVELS]:
            yield highest < level

    def without_slow_links(self) -> Iterable[NDArray[np.int32]]:
        """Return what is joined by links of at least each rate."""
        return map(self._label, self._keep_rates())

    def without_far_devices(self) -> Iterable[NDArray[np.int32]]:
        """Return what is joined by devices that are near GPUs: below the spines, below the
        leaves.
        """
        return map(self._label, self._keep_levels())

    def without_both(self) -> Iterable[NDArray[np.int32]]:
        """Return what is joined by fast links below the highest switches: boxes whose uplinks are
        slower than a leaf's.
        """
        return (
            self._label(fast & near)
            for near in list(self._keep_levels())[:2]
            for fast in self._keep_rates()
        )
