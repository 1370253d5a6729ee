"""Find tiers: divisions of GPUs into parts that are near each other (hosts, leaves, racks).

Tiers are found by the links between GPUs, whatever their names, with the capacity out of each part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ....topo.errors import VerificationError
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from .route_table import RouteTable

# GPUs, by number, in disjoint parts.
Tier = tuple[tuple[int, ...], ...]
# Most rates and levels that divide a machine: link generations, and switches from GPUs to spines.
_MAX_RATES = _MAX_LEVELS = 6
# Upper bound on the error of a logarithm of a number of ranks in floating point.
_LOG_ERROR = Fraction(1, 10**13)


@dataclass(frozen=True)
class TierPart:
    """One part of a tier: its devices, `inside` (ids), and its GPUs that have a rank.

    `gpus` are numbers of the topology's ranks. Messages that leave (or enter) the part cross links
    of `capacity_GBps` in all, in GB/s; no route across is faster than `widest_GBps`.
    """

    inside: frozenset[str]
    gpus: tuple[int, ...]
    capacity_GBps: Fraction
    widest_GBps: Fraction


@dataclass(frozen=True)
class TierParts:
    """All parts of a tier, or some, with capacities in one direction: "out" of them, or "in".

    Parts are disjoint. `covers` is True if each GPU with a rank is in one of them.
    """

    direction: str
    parts: tuple[TierPart, ...]
    covers: bool

    @cached_property
    def capacity_GBps(self) -> Fraction:
        """The total capacity of all parts, in GB/s."""
        return sum((part.capacity_GBps for part in self.parts), Fraction(0))

    @cached_property
    def ranks(self) -> int:
        """The number of ranks in the parts."""
        return sum(len(part.gpus) for part in self.parts)

    @cached_property
    def mean_log(self) -> Fraction:
        """The mean over the ranks of log(number of ranks in the rank's part), rounded up."""
        counts = Counter(len(part.gpus) for part in self.parts)
        logs = (n * size * log_at_most(size) for size, n in counts.items())
        return sum(logs, Fraction(0)) / self.ranks

    def is_within(self, coarser: TierParts) -> bool:
        """Return whether each part of the coarser tier consists of complete parts of this one."""
        part_of = {gpu: i for i, part in enumerate(self.parts) for gpu in part.gpus}
        touched = ({part_of.get(gpu, -1) for gpu in outer.gpus} for outer in coarser.parts)
        return all(
            -1 not in numbers and sum(len(self.parts[i].gpus) for i in numbers) == len(outer.gpus)
            for numbers, outer in zip(touched, coarser.parts, strict=True)
        )


def log_at_most(value: int) -> Fraction:
    """Return the natural logarithm of `value`, rounded up to a fraction that is surely no less."""
    return Fraction(0) if value == 1 else Fraction(log(value)) + _LOG_ERROR


def log_at_least(value: int) -> Fraction:
    """Return the natural logarithm of `value`, rounded down to a fraction surely no more."""
    return Fraction(0) if value == 1 else Fraction(log(value)) - _LOG_ERROR


def measure_part(
    table: RouteTable, gpus: Sequence[int], insides: Sequence[frozenset[str]], direction: str
) -> TierPart:
    """Return a part of a tier, with the capacity of the links across its border in one direction.

    `table` has the routes; `gpus` are all GPUs that have a rank, as numbers of the topology's
    ranks. `insides` are sets of device ids that hold the same GPUs; the one with the least capacity
    is used. With direction "out" the links are those on which routes from its GPUs leave it, with
    "in" those on which routes enter it. Raise VerificationError for an unknown device or direction.
    """
    topology = table.topology
    unknown = frozenset().union(*insides) - topology.by_id.keys()
    if unknown or direction not in ("out", "in"):
        raise VerificationError(
            f"bound: a part names {min(unknown, default=direction)!r}, which does not exist"
        )
    is_mine = np.zeros(len(topology.ranks), dtype=bool)
    is_mine[[table.number[x] for x in insides[0] if x in table.number]] = True
    listed = np.asarray(gpus)
    mine, rest = listed[is_mine[listed]], listed[~is_mine[listed]]
    sources, targets = (mine, rest) if direction == "out" else (rest, mine)
    crossed = table.crossed[sources[:, None], targets]
    links = [table.links[i] for i in np.unique(crossed).tolist() if i < len(table.links)]
    # The end of a link that lies inside the part: its source for "out", else its target.
    near, far = (0, 1) if direction == "out" else (1, 0)

    def sum_capacity(inside: frozenset[str]) -> Fraction:
        return sum(
            (
                topology.capacity_GBps[x]
                for x in links
                if x[near] in inside and x[far] not in inside
            ),
            Fraction(0),
        )

    inside = min(insides, key=sum_capacity)
    return TierPart(inside, tuple(mine.tolist()), sum_capacity(inside), table.widest_GBps(crossed))


def find_tiers(
    topology: Topology, gpus: Sequence[int], hosts: Sequence[Sequence[int]]
) -> list[Tier]:
    """Return divisions of GPUs (tiers) into parts that are near each other, finest first.

    `gpus` are numbers of the topology's ranks; `hosts` are the GPUs of each host. Parts are the
    sets of GPUs that stay connected without the slower links, without the switches that are far
    from GPUs, or without both (hosts whose uplinks are slower than a leaf's); hosts as named by the
    topology; and single GPUs. All GPUs as one part are left out.
    """
    remains = _Remains(topology)
    near, fast = list(remains.list_near()), list(remains.list_fast())
    host_of = {gpu: number for number, host in enumerate(hosts) for gpu in host}
    tiers = {_divide({gpu: gpu for gpu in gpus}), _divide({gpu: host_of[gpu] for gpu in gpus})}
    for links in (*fast, *near, *(low & wide for low in near[:2] for wide in fast)):
        labels = remains.label(links)
        tiers.add(_divide({gpu: int(labels[remains.gpus[gpu]]) for gpu in gpus}))
    return sorted((tier for tier in tiers if len(tier) > 1), key=lambda tier: (-len(tier), tier))


def divide_by_links(topology: Topology, gpus: Sequence[int], medium: str) -> Tier:
    """Divide GPUs (numbers of the topology's ranks) into those that links of one medium join.

    `medium` is the `kind` of these links, such as "nvlink". A GPU without one is a part alone.
    """
    remains = _Remains(topology)
    ends = {(link.src, link.dst) for link in topology.links if link.kind == medium}
    labels = remains.label(np.array([x in ends for x in topology.capacity_GBps], dtype=np.bool_))
    return _divide({gpu: int(labels[remains.gpus[gpu]]) for gpu in gpus})


def stack_equal(tiers: Iterable[Tier]) -> list[NDArray[np.int64]]:
    """Return each tier whose parts have equal sizes as an array of GPUs, one row per part.

    Other tiers are left out.
    """
    return [np.array(tier) for tier in tiers if len({len(part) for part in tier}) == 1]


def _divide(label_of: Mapping[int, int]) -> Tier:
    parts = group_by_key((label, gpu) for gpu, label in label_of.items())
    return tuple(sorted(tuple(part) for part in parts.values()))


class _Remains:
    """The connected components of a topology without some of its links."""

    def __init__(self, topology: Topology) -> None:
        number = {d.id: i for i, d in enumerate(topology.devices)}
        self.size = len(number)
        self.gpus = [number[gpu] for gpu in topology.ranks]
        self.ends = np.array(
            [(number[a], number[b]) for a, b in topology.capacity_GBps], dtype=np.int64
        ).reshape(-1, 2)
        self.rates = np.array([float(rate) for rate in topology.capacity_GBps.values()])

    def label(self, links: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return for each device the number of its component if only these links remain."""
        sources, targets = self.ends[links].T
        graph = csr_matrix((np.ones(len(sources)), (sources, targets)), shape=[self.size] * 2)
        return np.asarray(connected_components(graph, directed=False)[1])

    def list_fast(self) -> Iterator[NDArray[np.bool_]]:
        """Yield, for each rate, the links of at least this rate."""
        for rate in np.unique(self.rates)[1 : _MAX_RATES + 1]:
            yield self.rates >= rate

    def list_near(self) -> Iterator[NDArray[np.bool_]]:
        """Yield the links between devices near GPUs: below the spines, then below the leaves."""
        hops = np.full(self.size, self.size, dtype=np.int64)
        hops[self.gpus] = 0
        before = hops - 1
        while (hops != before).any():
            before = hops.copy()
            np.minimum.at(hops, self.ends[:, 1], before[self.ends[:, 0]] + 1)
        highest = hops[self.ends].max(axis=1, initial=0)
        for level in np.unique(highest)[::-1][:_MAX_LEVELS]:
            yield highest < level
