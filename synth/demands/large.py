"""Bounds and schedules of demands on many GPUs, without a linear program.

The bound is that of the narrowest cut around a group of devices: single GPUs, boxes, all behind a
leaf switch. The schedule sends a portion of a class to a box once, from the GPU that has sent least
to other boxes so far, and spreads it within the box; where a link would be busy for longer than the
bound, box mates with idle links pass it on. The gap shows how good that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np

from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ...topo.routes import Router
from ..bounds.certificate import Bound
from ..bounds.cuts import bound_of_cut
from ..forest.large.groups import list_partitions
from ..forest.machine.boxes import find_boxes
from ..forest.machine.links import Ints, LinkArrays
from .demands import Demands
from .packing import Delivery, Hop

# With more GPUs, or more classes, no linear program is solved: it takes a minute.
_MAX_RANKS, _MAX_CLASSES = 128, 6000
# A portion keeps the narrowest link busy for at most this part of the bound.
_PORTION = Fraction(1, 64)
# Ranks count as having sent the same within this part of what the narrowest link carries.
_LEVELS = 32

# The ranks of a box.
Box = tuple[int, ...]


def is_large(demands: Demands, topology: Topology) -> bool:
    """Return whether demands are planned and bounded without a linear program."""
    return len(topology.ranks) > _MAX_RANKS or len(demands.classes) > _MAX_CLASSES


def find_cut_bound(demands: Demands, topology: Topology) -> Bound:
    """Return the bound of the narrowest cut around a group of devices, or around all others."""
    links = LinkArrays(topology)
    sizes = np.array(list(demands.classes.values()), dtype=np.float64)
    ends = [_list_ends([key[side] for key in demands.classes]) for side in (0, 1)]
    best, inside = 0.0, np.ones(links.size, dtype=np.bool_)
    for part in (np.arange(links.size), *list_partitions(links)):
        count, of_rank = int(part.max()) + 1, part[links.gpus]
        # The groups that hold a class, and those that need it, as one number per class and group.
        held, needed = (_sort_once(number * count + of_rank[rank]) for number, rank in ends)
        place = np.minimum(np.searchsorted(held, needed), len(held) - 1)
        arriving = needed[held[place] != needed]
        into = np.bincount(arriving % count, sizes[arriving // count], count)
        # A class leaves a group for sure if no other group holds it, and some other one needs it.
        leaves = np.bincount(held // count, minlength=len(sizes)) == 1
        leaves &= np.bincount(arriving // count, minlength=len(sizes)) > 0
        only = held[leaves[held // count]]
        out = np.bincount(only % count, sizes[only // count], count)
        across = part[links.src] != part[links.dst]
        for crossing, end, turned in ((out, links.src, False), (into, links.dst, True)):
            width = np.bincount(part[end[across]], links.capacity[across], count)
            needed_s = np.divide(crossing, width, out=np.zeros(count), where=width > 0)
            if needed_s.max() > best:
                best, inside = float(needed_s.max()), (part == needed_s.argmax()) != turned
    return bound_of_cut((links.names[i] for i in np.flatnonzero(inside)), demands, topology)


def _sort_once(numbers: Ints) -> Ints:
    """Return the distinct numbers, ascending; np.unique takes 20 times as long for a million."""
    ordered = np.sort(numbers)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]]


def _list_ends(ranks: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return the number of a class for each of its ranks, and the ranks, of all classes."""
    lengths = [len(row) for row in ranks]
    return np.repeat(np.arange(len(ranks)), lengths), np.concatenate([*map(np.array, ranks)])


class BoxDeliveries:
    """Chooses the sends of demands, portion by portion; `columns` has them with their shares."""

    def __init__(self, demands: Demands, router: Router, bound: Bound) -> None:
        topology = router.topology
        boxes = find_boxes(topology)
        groups = boxes.ranks if boxes else [(rank,) for rank in range(len(topology.ranks))]
        self._gpus = topology.ranks
        self._router, self._box = router, {rank: group for group in groups for rank in group}
        self._links: dict[Hop, tuple[int, ...]] = {}
        self._number = {link: i for i, link in enumerate(topology.capacity_GBps)}
        self._capacity = [float(c) for c in topology.capacity_GBps.values()]
        self._busy = [0.0] * len(self._capacity)
        self._limit = float(bound.s_per_GB * demands.size)
        # Sizes that each box has sent to others for each of its ranks, and that each rank has sent
        # to and received from other boxes.
        self._box_sent = defaultdict[Box, float](float)
        self._sent, self._got = [0.0] * len(topology.ranks), [0.0] * len(topology.ranks)
        self._delivered = 0  # portions
        # What one box alone holds must leave it once: that is counted in advance.
        for (holders, receivers), size in demands.classes.items():
            held = {self._box[rank] for rank in holders}
            if len(held) == 1 and not held.issuperset(self._box[rank] for rank in receivers):
                (box,) = held
                self._box_sent[box] += size / len(box)
        # What the narrowest link carries within the bound.
        narrowest = bound.s_per_GB * demands.size * min(topology.capacity_GBps.values())
        largest = max(1, int(narrowest * _PORTION))
        self._level = max(1.0, float(narrowest) / _LEVELS)
        classes = enumerate(demands.classes.items())
        portions = [
            (size / (k := ceil(size / largest)), k, part, *key) for part, (key, size) in classes
        ]
        portions.sort(key=lambda portion: -portion[0])
        self.columns = [
            (Delivery(part, self._deliver(size, holders, receivers), ()), Fraction(1, times))
            for size, times, part, holders, receivers in portions
            for _ in range(times)
        ]

    def _deliver(
        self, size: float, holders: Sequence[int], receivers: Sequence[int]
    ) -> tuple[Hop, ...]:
        """Return the sends of one portion, and count them."""
        hop = holders[0], receivers[0]
        if len(holders) == len(receivers) == 1 and self._time(hop, size) <= self._limit:
            self._count(hop, size)  # most of an alltoallv
            return (hop,)
        # The number of sends that it took to bring the portion to each rank, and those that have it
        # by box.
        depth, hops = dict.fromkeys(holders, 0), list[Hop]()
        within, missing = defaultdict[Box, list[int]](list), defaultdict[Box, list[int]](list)
        for rank in holders:
            within[self._box[rank]].append(rank)
        for rank in receivers:
            missing[self._box[rank]].append(rank)
        # Each portion begins with another box: those that get it first also send most.
        order = [*missing.items()]
        self._delivered += 1
        start = self._delivered % len(order)

        def send(*nodes: int) -> None:
            for hop in pairwise(dict.fromkeys(nodes)):
                if hop[1] not in depth:
                    depth[hop[1]] = depth[hop[0]] + 1
                    within[self._box[hop[1]]].append(hop[1])
                    hops.append(hop)
                    self._count(hop, size)

        for box, ranks in (*order[start:], *order[:start]):
            if box not in within:
                send(*self._enter(size, depth, within, box, ranks))
            for rank in ranks:
                near = within[box]
                if rank not in depth:
                    send(min(near, key=lambda other: self._time((other, rank), size)), rank)
        return tuple(hops)

    def _enter(
        self,
        size: float,
        depth: Mapping[int, int],
        within: Mapping[Box, Sequence[int]],
        box: Box,
        ranks: Sequence[int],
    ) -> tuple[int, ...]:
        """Return the ranks over which a portion gets to a box that does not have it."""
        if len(within) == 1:
            (box_of,) = within
            self._box_sent[box_of] -= size / len(box_of)  # this send was counted in advance
        # From a box that has sent little, since its ranks relay; of those about equal, one that has
        # the portion early.
        first = min(within, key=lambda b: (self._box_sent[b] // self._level, depth[within[b][0]]))
        u = min(within[first], key=self._sent.__getitem__)
        v = min(ranks, key=self._got.__getitem__)
        if self._time((u, v), size) <= self._limit:
            return u, v
        out = min(first, key=self._sent.__getitem__)
        into = min(box, key=self._got.__getitem__)
        paths = [(u, v), (u, out, v), (u, into, v), (u, out, into, v)]
        return min(
            paths,
            key=lambda path: max(self._time(hop, size) for hop in pairwise(dict.fromkeys(path))),
        )

    def _time(self, hop: Hop, size: float) -> float:
        """Return how long the busiest link of a send is busy, with it; infinite without a route.

        In units of the demands' sizes over 1 GB/s, as `_limit` is.
        """
        if hop not in self._links:
            route = self._router.route(*hop) or ()
            self._links[hop] = tuple(self._number[link] for link in pairwise(route))
        links = self._links[hop]
        if not links:
            return np.inf
        return max((self._busy[i] + size) / self._capacity[i] for i in links)

    def _count(self, hop: Hop, size: float) -> None:
        if self._time(hop, size) == np.inf:
            raise InfeasibleError(
                f"{self._gpus[hop[0]]} has no route to {self._gpus[hop[1]]}; demands of so many "
                "ranks need one"
            )
        for i in self._links[hop]:
            self._busy[i] += size
        if self._box[hop[0]] is not self._box[hop[1]]:
            self._sent[hop[0]] += size
            self._box_sent[self._box[hop[0]]] += size / len(self._box[hop[0]])
            self._got[hop[1]] += size
