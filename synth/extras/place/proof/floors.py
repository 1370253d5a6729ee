"""Lower bounds on the latencies of all orders, and on the time of traffic given as a matrix.

An order is the GPU of each rank. A tier divides the GPUs into parts, such as hosts; a group of
ranks touches a part if one of its members is in it. A phase is one collective of all groups of a
dimension of the job, as messages between ranks. Both bounds hold by counting alone, so a
certificate (check.py) only names the tiers of which they use the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from ..job import AROUND, Ints, Phase
from ..loads import find_call_s
from ..route_table import RouteTable
from ..tiers import TierParts


class LatencyFloors:
    """Lower bounds on the latencies of a job's calls, for ranks on `gpus` in any order.

    `table` has the routes of all pairs of GPUs; `gpus` are numbers of its topology's ranks.
    """

    def __init__(self, table: RouteTable, gpus: Sequence[int]) -> None:
        self._table, self._gpus = table, gpus
        self._between: dict[TierParts | None, int] = {}

    @cached_property
    def _routes(self) -> tuple[Ints, Fraction]:
        routes, unit_s = self._table.sum_latencies()
        return routes[np.ix_(self._gpus, self._gpus)], unit_s

    def find_between(self, tier: TierParts | None) -> int:
        """Return the least latency of a route between parts of a tier (None: between any GPUs).

        It is a whole number of the unit that `RouteTable.sum_latencies` returns in seconds; 0 if
        the tier has one part only.
        """
        if tier not in self._between:
            at = {gpu: i for i, gpu in enumerate(self._gpus)}
            part_of = np.arange(len(at))
            for number, part in enumerate(tier.parts if tier else ()):
                part_of[[at[gpu] for gpu in part.gpus]] = number
            between = part_of[:, None] != part_of
            routes = self._routes[0]
            self._between[tier] = int(routes[between].min()) if between.any() else 0
        return self._between[tier]

    def floor(
        self, phase: Phase, touched: Sequence[tuple[TierParts | None, int, bool]]
    ) -> Fraction:
        """Return the least seconds of a phase's latencies, whatever its bytes.

        It is for all calls of a step together, with what the hosts add to each. `touched` has tiers
        (None: each GPU is a part), each with the number of parts that every group touches at least,
        and whether some group touches two or more.

        Around a ring of a group that touches p > 1 parts, at least p routes lead from part to part.
        So, counting the slowest first, route k is no faster than those between the parts of any
        tier with p >= k. Other patterns wait for a route between parts once there are two.
        """
        rows = [(self.find_between(tier), parts) for tier, parts, _ in touched if parts > 1]
        around = phase.pattern.shape == AROUND
        size = len(phase.pattern.sends) if around else 2

        def total(rows: Sequence[tuple[int, int]]) -> int:
            slowest = [max((us for us, p in rows if p >= k), default=0) for k in range(1, size + 1)]
            return sum(slowest) if around else max(slowest)

        # Some group is divided, but not every one, and not one group in all such tiers.
        divided = [(self.find_between(tier), 2) for tier, _, is_divided in touched if is_divided]
        least = max([total(rows), *(total([*rows, row]) for row in divided)])
        seconds = phase.pattern.rounds * least * self._routes[1]
        return phase.traffic.calls * (seconds + find_call_s(self._table.topology, phase))


def floor_of_matrix(phase: Phase, tiers: Sequence[TierParts], widest_GBps: Fraction) -> Fraction:
    """Return a lower bound on the seconds of messages of different sizes, in every order.

    `phase` is that of traffic given as a matrix; tiers that do not cover the machine are skipped.
    No route is wider than `widest_GBps`, so the largest message takes at least its bytes over that.
    In a part with s ranks, all messages of a rank leave but those to s - 1 others, at most the
    largest ones. What leaves all parts takes at least its bytes over their capacity, and what one
    rank sends out of its part those over the capacity of the largest.
    """
    parts, each = phase.parts, phase.pattern.bytes_each
    assert parts is not None
    least = Fraction(int(parts.max())) / widest_GBps
    for tier in tiers:
        if not tier.covers:
            continue
        ends, others = (phase.src, phase.dst) if tier.direction == "out" else (phase.dst, phase.src)
        matrix = np.zeros((tier.ranks, tier.ranks), dtype=np.int64)
        matrix[ends, others] = parts
        most = max(len(part.gpus) for part in tier.parts)
        matrix.sort(axis=1)
        leaving = matrix[:, : tier.ranks - most + 1].sum(axis=1)
        largest = max(part.capacity_GBps for part in tier.parts)
        if largest:
            least = max(
                least, int(leaving.sum()) / tier.capacity_GBps, int(leaving.max()) / largest
            )
    return least * each / 10**9
