"""The cost of rank orders: exact loads of links, for many orders at once, and the best order.

An order is the GPU of each rank. The time of a phase is that of its busiest link, its bytes over
its bandwidth; phases follow each other, so an order's time is the sum over them. The objective
"bottleneck" is instead the time of the link that is busy longest over all phases.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..numeric.effort import Effort
from .job import AROUND, PAIRS, SPREAD, Ints, Job, Phase

# The objectives.
OBJECTIVES = TIME, BOTTLENECK = "time", "bottleneck"
# Values below this are summed in int64 without overflow; larger ones as Python's integers.
_SAFE = 1 << 61
# Most numbers in memory while orders are evaluated: 32 MB as int64.
_MAX_ENTRIES = 4_000_000
# Seconds of an idle core per number that an evaluation touches, and per evaluation.
_ENTRY_S, _CALL_S = 2e-8, 1e-4
# Unevenness per forwarded message: more than that of all links together.
_FORWARDED = 1e6

# The cost of an order, compared in this order: members apart from their groups, value, unevenness.
Key = tuple[int, int, float]


@dataclass(frozen=True)
class RouteLoads:
    """The columns of load tables: links and, for plans, the borders of parts of the machine.

    Each column has a name and a bandwidth. `crossed[u, v]` lists the columns on the route from GPU
    u to GPU v, padded with the number of columns. `part_of[t, u]` is the column of GPU u's part in
    division t of the GPUs; a plan's traffic out of the part loads it. GPUs are numbered among those
    that have a rank.
    """

    names: Sequence[str]
    bandwidths_GBps: Sequence[Fraction]
    crossed: NDArray[np.int32]
    part_of: NDArray[np.int64]


class OrderLoads:
    """Evaluator of rank orders: the exact loads and times of a job's phases on a machine.

    An order has the GPU of each rank, numbered among the GPUs that have one; `orders` are arrays
    with one order per row. An order's value is its time by the objective, as an integer in units of
    `seconds_each` seconds. `entries` is the number of array entries that evaluating one order
    touches.
    """

    def __init__(self, routes: RouteLoads, phases: Sequence[Phase], objective: str) -> None:
        self.routes, self.phases, self.objective = routes, phases, objective
        self.links, self.crossed = routes.names, routes.crossed
        # 1 / bandwidth = weight / rates and bytes = size / common, as integers without common
        # factors.
        bandwidths = routes.bandwidths_GBps
        rates = lcm(*(b.numerator for b in bandwidths))
        weights = [b.denominator * (rates // b.numerator) for b in bandwidths]
        shared = gcd(*weights) or 1
        self.weights = [weight // shared for weight in weights]
        fine = [_find_unit(p) if p.pattern.shape == SPREAD else 1 for p in phases]
        each = [p.pattern.bytes_each / unit for p, unit in zip(phases, fine, strict=True)]
        common = lcm(*(size.denominator for size in each))
        sizes = [int(size * common) for size in each]
        divisor = gcd(*sizes) or 1
        self.sizes = [size // divisor for size in sizes]
        self.seconds_each = Fraction(shared * divisor, rates * common * 10**9)
        heaviest = max(self.weights, default=1)
        most = sum(
            size * len(p.src) * unit for size, p, unit in zip(self.sizes, phases, fine, strict=True)
        )
        self.exact: Any = np.int64 if most * heaviest < _SAFE else object
        # The last column is padding, which costs nothing.
        self._weight_of = np.array([*self.weights, 0], dtype=self.exact)
        self._soft = np.array([*map(float, self.weights), 0.0]) / heaviest
        largest = max(self.sizes, default=1) or 1
        self._shares = [size / largest for size in self.sizes]
        self.entries = sum(len(p.src) for p in phases) * self.crossed.shape[2] + len(self.links)

    def count(self, phase: Phase, orders: Ints) -> Ints:
        """Return how many messages of a phase cross each link (a column) in each order (a row).

        The last column is padding, always 0. For a plan, return its traffic out of each part
        instead, in units of 1 / lcm(1, 2, ..., group size) of a message.
        """
        width = len(self.links) + 1
        # One bincount serves all orders, since each has a separate range of bins.
        row = np.arange(len(orders))[:, None, None] * width
        if phase.pattern.shape == SPREAD:
            return self._count_shares(phase, orders, row, width)
        crossed = self.crossed[orders[:, phase.src], orders[:, phase.dst]].astype(np.int64) + row
        counts: Ints = np.bincount(crossed.reshape(-1), minlength=len(orders) * width)
        counts = counts.reshape(len(orders), width)
        counts[:, -1] = 0
        return counts

    def _count_shares(self, phase: Phase, orders: Ints, row: Ints, width: int) -> Ints:
        """Return a plan's traffic out of each part, in the unit of `_find_unit`.

        A group in p parts sends a share of (p - 1) / p out of each.
        """
        unit = _find_unit(phase)
        counts = np.zeros(len(orders) * width, dtype=np.int64)
        groups = phase.src.reshape(-1, len(phase.pattern.sends))
        for part_of in self.routes.part_of:
            # Sorted, the members of a part are neighbours, so a part begins where neighbours
            # differ.
            parts = np.sort(part_of[orders[:, groups]], axis=2)
            is_new = np.ones(parts.shape, dtype=bool)
            is_new[:, :, 1:] = parts[:, :, 1:] != parts[:, :, :-1]
            share = np.where(is_new, (unit - unit // is_new.sum(axis=2))[:, :, None], 0)
            np.add.at(counts, (parts + row).reshape(-1), share.reshape(-1))
        return counts.reshape(len(orders), width)

    def values(self, orders: Ints) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the exact value of each order (less is better), and its unevenness.

        Unevenness measures how unevenly an order loads links; it is the tie-breaker between equal
        values.
        """
        each = max(1, _MAX_ENTRIES // max(1, self.entries))
        batches = (orders[i : i + each] for i in range(0, len(orders), each))
        values, uneven = zip(*map(self._values, batches), strict=True)
        return np.concatenate(values), np.concatenate(uneven)

    def _values(self, orders: Ints) -> tuple[NDArray[Any], NDArray[np.float64]]:
        width = len(self.links) + 1
        # For a bottleneck, times add up per link, otherwise per phase.
        by_link = self.objective == BOTTLENECK
        value = np.zeros((len(orders), width if by_link else 1), dtype=self.exact)
        busy = np.zeros((len(orders), width))
        for phase, size, share in zip(self.phases, self.sizes, self._shares, strict=True):
            counts = self.count(phase, orders)
            seconds = counts.astype(self.exact) * self._weight_of
            value += size * (seconds if by_link else seconds.max(axis=1)[:, None])
            busy += share * counts * self._soft
        return value.max(axis=1), (busy**2).sum(axis=1)

    def _list_busy(self, order: Sequence[int]) -> list[list[int]]:
        """Return how long each phase keeps each link busy, in units of values."""
        rows = np.array([order], dtype=np.int64)
        return [
            [
                size * int(n) * w
                for n, w in zip(self.count(phase, rows)[0], self.weights, strict=False)
            ]
            for phase, size in zip(self.phases, self.sizes, strict=True)
        ]

    def phase_seconds(self, order: Sequence[int]) -> list[Fraction]:
        """Return the seconds of each phase in an order: those of its busiest link."""
        return [max(busy, default=0) * self.seconds_each for busy in self._list_busy(order)]

    def find_busiest(self, order: Sequence[int]) -> str:
        """Return the name of the link that is busy longest over all phases."""
        busy = list(map(sum, zip(*self._list_busy(order), strict=True)))
        return self.links[busy.index(max(busy))]


def _find_unit(phase: Phase) -> int:
    """Return the number of units per message for which every share is an integer.

    A share is (p - 1) / p of a message, for a group in p parts.
    """
    return lcm(*range(1, len(phase.pattern.sends) + 1))


@dataclass
class Search:
    """A search over orders, with the best `order` so far and its key `best`.

    A key has the number of members that are on another host than their group, the order's value and
    its unevenness; the least key is best. `order` is empty until one is offered. `together` are
    groups (rows of ranks) that must share a host; `host_of` is the number of each GPU's host.
    `forwarded[u, v]` is True if other GPUs forward messages from GPU u to v (None if none do);
    forwarding is avoided if that costs no time.
    """

    loads: OrderLoads
    job: Job
    together: tuple[Ints, ...]
    host_of: Ints
    effort: Effort
    best: Key = (0, 0, 0.0)
    order: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    forwarded: NDArray[np.bool_] | None = None

    @property
    def is_symmetric(self) -> bool:
        """Whether a symmetry of the job maps any rank to any other; rank 0 may then be fixed."""
        return all(phase.pattern.shape in (AROUND, PAIRS, SPREAD) for phase in self.loads.phases)

    def evaluate(self, orders: Ints) -> tuple[Ints, NDArray[Any], NDArray[np.float64]]:
        """Return the parts of the keys of orders: misplaced members, values, and unevenness.

        A member is misplaced if its group must share a host and it is on another host than the
        group's first member. Forwarded messages dominate the unevenness. The work is charged to
        `effort`.
        """
        self.effort.spend(_CALL_S + _ENTRY_S * self.loads.entries * len(orders))
        values, uneven = self.loads.values(orders)
        apart = np.zeros(len(orders), dtype=np.int64)
        for groups in self.together:
            hosts = self.host_of[orders[:, groups]]
            apart += (hosts != hosts[:, :, :1]).sum(axis=(1, 2))
        return apart, values, uneven + _FORWARDED * self.count_forwarded(orders)

    def find_best(self, orders: Ints) -> tuple[int, Key]:
        """Return the row of the order with the least key, and this key; keep neither."""
        apart, values, uneven = self.evaluate(orders)
        row = int(np.lexsort((uneven, values, apart))[0])
        return row, (int(apart[row]), int(values[row]), float(uneven[row]))

    def count_forwarded(self, orders: Ints) -> Ints:
        """Return the number of messages that go through other GPUs in each order."""
        count = np.zeros(len(orders), dtype=np.int64)
        if self.forwarded is not None:
            for phase in self.loads.phases:
                count += self.forwarded[orders[:, phase.src], orders[:, phase.dst]].sum(axis=1)
        return count

    def offer(self, orders: Ints) -> None:
        """Evaluate orders, and keep the best as `order` and `best` if its key is below `best`."""
        if len(orders):
            row, key = self.find_best(orders)
            if not len(self.order) or key < self.best:
                # A copy, so that the batch does not stay in memory.
                self.best, self.order = key, orders[row].copy()
