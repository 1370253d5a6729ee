"""Schedules of demands on many GPUs, without a linear program.

Demands are pieces of data, the ranks that hold each one, and those that need it. A class is all
pieces with the same holders and the same receivers that lack them, a portion one of the equal parts
into which a large class is divided, and a box a group of GPUs that slower links join to others,
such as a host. A schedule sends a portion to a box once, from the GPU that has sent least to other
boxes so far, and spreads it within the box; where a link would be busy for longer than the bound,
GPUs of the same box with idle links pass it on. The plan's gap to the bound shows how good that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np

from ....topo.errors import InfeasibleError
from ....topo.routes import Router
from ...ir.demands import Demands
from ...machine.boxes import find_boxes
from .packing import Delivery, Hop

# A portion keeps the narrowest link busy for at most this part of the bound.
_PORTION = Fraction(1, 64)
# Ranks count as having sent the same within this part of what the narrowest link carries.
_LEVELS = 32

# The ranks of a box.
Box = tuple[int, ...]


class BoxDeliveries:
    """Chooses the sends of demands, portion by portion, when it is made.

    `columns` has for each portion its sends (a Delivery without `links`) and its share of its
    class. `router` gives the routes that are loaded. `limit` is what a link of 1 GB/s carries
    within the bound, in the unit of the demands' sizes. Raise InfeasibleError if a send has no
    route.
    """

    def __init__(self, demands: Demands, router: Router, limit: Fraction) -> None:
        topology = router.topology
        boxes = find_boxes(topology)
        groups = boxes.ranks if boxes else [(rank,) for rank in range(len(topology.ranks))]
        self._gpus = topology.ranks
        self._router, self._box = router, {rank: group for group in groups for rank in group}
        self._links: dict[Hop, tuple[int, ...]] = {}
        self._number = {link: i for i, link in enumerate(topology.capacity_GBps)}
        self._capacity = [float(c) for c in topology.capacity_GBps.values()]
        self._busy = [0.0] * len(self._capacity)
        self._limit = float(limit)
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
        narrowest = limit * min(topology.capacity_GBps.values())
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
