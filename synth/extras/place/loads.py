"""Compute the time of rank orders from the exact loads of links, many orders at once.

An order is the GPU of each rank. A phase is one collective of all groups of a dimension of the
job's mesh, as messages between ranks. Its time is that of its busiest link, its bytes over its
bandwidth, and for each call the latency of the slowest group; phases follow each other, so an
order's time is the sum over them. The objective "bottleneck" is instead the time of the link that
is busy longest over all phases, which latencies do not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....topo.graph import Topology
from ...cost.host_costs import host_of, step_us
from ...numeric.effort import Effort
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
class Latencies:
    """The latencies of routes between GPUs, as whole numbers of `unit_s` seconds.

    routes[u, v] is that from GPU u to GPU v. widest[t] is the largest one inside any part of
    division t of the GPUs, with that of the whole machine last; plans take it for their groups.
    call_s[p] are the seconds that the hosts add to each call of phase p.
    """

    routes: Ints
    widest: Ints
    unit_s: Fraction
    call_s: Sequence[Fraction]


def find_call_s(topology: Topology, phase: Phase) -> Fraction:
    """Return the seconds that hosts add to each call of a phase, which do not depend on the order.

    These are the calibrated costs of the messages that a call sends in succession, or else the
    typical cost of a kernel on GPUs.
    """
    host, pattern = host_of(topology), phase.pattern
    if host is None:
        return step_us(topology) / 10**6
    rounds = pattern.rounds * (len(pattern.sends) if pattern.shape == AROUND else 1)
    each_us = host.send_us + host.receive_us + host.io_us + host.wake_us
    # Whole nanoseconds, since exact values of floats would make all integers long.
    return Fraction(round(1000 * (host.call_us + float(rounds) * each_us)), 10**9)


@dataclass(frozen=True)
class RouteLoads:
    """The links, and for plans borders of parts of the machine, that orders load: one column each.

    Plans are topoplan's own, whose traffic is only known out of each part, such as a host. Each
    column has a name and a bandwidth. crossed[u, v] lists the columns on the route from GPU u to
    GPU v, padded with the number of columns. part_of[t, u] is the column of GPU u's part in
    division t of the GPUs; a plan's traffic out of the part loads it. GPUs are numbered among those
    that have a rank. Without `latencies` calls cost nothing.
    """

    names: Sequence[str]
    bandwidths_GBps: Sequence[Fraction]
    crossed: NDArray[np.int32]
    part_of: NDArray[np.int64]
    latencies: Latencies | None = None


class OrderLoads:
    """Computes the exact loads and times of a job's phases on a machine for rank orders.

    An order has the GPU of each rank, numbered among the GPUs that have one; `orders` are arrays
    with one order per row. An order's value is its time by the objective, as an integer in units of
    `seconds_each` seconds. `routes` are the links that messages load; `links` are their names and
    `crossed` those on each route. `relative_weights` are 1 / bandwidth of the links, divided by
    that of the slowest, and end with a 0 for padding. `entries` is the number of array entries that
    evaluating one order touches.

    `sizes`, `weights` and prices are integers. Link l is busy with phase p for sizes[p] * n *
    weights[l] units of values, where n is what `count` returns for it. latency_prices[p] is the
    value of one unit of latency in every round of all calls of phase p, call_prices[p] that of what
    the hosts add to all its calls.
    """

    def __init__(self, routes: RouteLoads, phases: Sequence[Phase], objective: str) -> None:
        self.routes, self.phases, self.objective = routes, phases, objective
        self.latencies = routes.latencies if objective == TIME else None
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
        coarse = Fraction(shared * divisor, rates * common * 10**9)
        # What a unit of latency and what a call of each phase adds to an order's time, in seconds.
        latency_s, call_s = self._list_latency_prices()
        self.seconds_each = _find_common_unit([coarse, *latency_s, *call_s])
        refined = int(coarse / self.seconds_each)
        self.sizes = [size // divisor * refined for size in sizes]
        self.latency_prices = [int(price / self.seconds_each) for price in latency_s]
        self.call_prices = [int(price / self.seconds_each) for price in call_s]
        heaviest = max(self.weights, default=1)
        most = heaviest * sum(
            size * p.messages * unit for size, p, unit in zip(self.sizes, phases, fine, strict=True)
        )
        if self.latencies is not None:
            # No call waits for more routes in succession than the machine has GPUs.
            longest = int(self.latencies.widest[-1]) * len(self.crossed)
            most += sum(self.latency_prices) * longest + sum(self.call_prices)
        self.exact: Any = np.int64 if most < _SAFE else object
        # The last column is padding, which costs nothing.
        self._weight_of = np.array([*self.weights, 0], dtype=self.exact)
        # Weights themselves may be too large for floats if all bandwidths are different.
        self.relative_weights = np.array([*(float(Fraction(w, heaviest)) for w in self.weights), 0])
        largest = max(self.sizes, default=1) or 1
        self._shares = [size / largest for size in self.sizes]
        self.entries = sum(len(p.src) for p in phases) * (self.crossed.shape[2] + 1) + len(
            self.links
        )

    def _list_latency_prices(self) -> tuple[list[Fraction], list[Fraction]]:
        """Return the seconds per unit of latency of each phase, and those of its calls' overhead.

        Both are for all calls of a phase together.
        """
        latencies = self.latencies
        if latencies is None:
            return [Fraction(0)] * len(self.phases), [Fraction(0)] * len(self.phases)
        calls = [phase.traffic.calls for phase in self.phases]
        return (
            [
                n * p.pattern.rounds * latencies.unit_s
                for n, p in zip(calls, self.phases, strict=True)
            ],
            [n * each for n, each in zip(calls, latencies.call_s, strict=True)],
        )

    def measure_latencies(self, phase: Phase, orders: Ints) -> Ints:
        """Return the latency of one round of a phase in each order, in units of `Latencies.unit_s`.

        It is that of the slowest group: the sum around a ring, else its slowest route; for a plan,
        the largest one inside the smallest part that holds the group.
        """
        latencies = self.latencies
        if latencies is None:
            return np.zeros(len(orders), dtype=np.int64)
        if phase.pattern.shape == SPREAD:
            return self._widen_latencies(latencies, phase, orders)
        each = latencies.routes[orders[:, phase.src], orders[:, phase.dst]]
        if phase.pattern.shape != AROUND:
            return np.asarray(each.max(axis=1))
        return np.asarray(
            each.reshape(len(orders), -1, len(phase.pattern.sends)).sum(axis=2).max(axis=1)
        )

    def _widen_latencies(self, latencies: Latencies, phase: Phase, orders: Ints) -> Ints:
        """Return the largest latency inside the smallest parts that hold each group, for plans."""
        members = orders[:, phase.src.reshape(-1, len(phase.pattern.sends))]
        least = np.full(members.shape[:2], latencies.widest[-1])
        for part_of, widest in zip(self.routes.part_of, latencies.widest, strict=False):
            parts = part_of[members]
            is_whole = (parts == parts[:, :, :1]).all(axis=2)
            least = np.where(is_whole, np.minimum(least, widest), least)
        return np.asarray(least.max(axis=1))

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
        times = None
        if phase.parts is not None:
            # Sums of whole numbers are exact in floating point below 2^53, which traffic.py checks.
            times = np.broadcast_to(phase.parts[:, None].astype(float), crossed.shape).reshape(-1)
        counts: Ints = np.bincount(crossed.reshape(-1), times, minlength=len(orders) * width)
        counts = counts.astype(np.int64, copy=False)
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
        """Return the exact value of each order (less is better), and how unevenly it loads links.

        The latter breaks ties between equal values.
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
        prices = zip(self.sizes, self._shares, self.latency_prices, self.call_prices, strict=True)
        for phase, (size, share, latency, calls) in zip(self.phases, prices, strict=True):
            counts = self.count(phase, orders)
            seconds = counts.astype(self.exact) * self._weight_of
            value += size * (seconds if by_link else seconds.max(axis=1)[:, None])
            if not by_link:
                rounds = self.measure_latencies(phase, orders).astype(self.exact)
                value += (latency * rounds + calls)[:, None]
            busy += share * counts * self.relative_weights
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
        """Return the seconds of each phase in an order: its busiest link's, and its latencies."""
        return [
            max(busy, default=0) * self.seconds_each + latency
            for busy, latency in zip(
                self._list_busy(order), self.latency_seconds(order), strict=True
            )
        ]

    def latency_seconds(self, order: Sequence[int]) -> list[Fraction]:
        """Return, for each phase, the seconds that its calls' latencies add in this order."""
        rows = np.array([order], dtype=np.int64)
        return [
            (latency * int(self.measure_latencies(phase, rows)[0]) + calls) * self.seconds_each
            for phase, latency, calls in zip(
                self.phases, self.latency_prices, self.call_prices, strict=True
            )
        ]

    def find_busiest(self, order: Sequence[int]) -> str:
        """Return the name of the link that is busy longest over all phases."""
        busy = list(map(sum, zip(*self._list_busy(order), strict=True)))
        return self.links[busy.index(max(busy))]


def _find_common_unit(values: Sequence[Fraction]) -> Fraction:
    """Return the largest fraction of which all values are multiples."""
    scale = lcm(*(value.denominator for value in values))
    return Fraction(gcd(*(int(value * scale) for value in values)), scale)


def _find_unit(phase: Phase) -> int:
    """Return the number of units per message for which every share is an integer.

    A share is (p - 1) / p of a message, for a group in p parts.
    """
    return lcm(*range(1, len(phase.pattern.sends) + 1))


@dataclass
class Search:
    """A search over rank orders: the best `order` so far, its key `best`, and what it must respect.

    A key is (number of members apart from their group's host, value, unevenness); the least is
    best. `order` is empty until one is offered. `together` has groups (rows of ranks) that must
    share a part of the machine each, with the number of each GPU's part; `host_of` is the number of
    each GPU's host. `starts` are the orders that a search began with, and their values.
    forwarded[u, v] is True if other GPUs forward messages from GPU u to v (None if none do);
    forwarding is avoided if that costs no time. `loads` evaluates orders of the `job`; `effort` is
    the work left, in seconds of an idle core, and the time limit.
    """

    loads: OrderLoads
    job: Job
    together: tuple[tuple[Ints, Ints], ...]
    host_of: Ints
    effort: Effort
    best: Key = (0, 0, 0.0)
    order: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    forwarded: NDArray[np.bool_] | None = None
    starts: list[tuple[Ints, NDArray[Any]]] = field(default_factory=list)

    @property
    def is_symmetric(self) -> bool:
        """Whether the job looks the same from every rank, so that rank 0's GPU may be fixed."""
        return all(phase.pattern.shape in (AROUND, PAIRS, SPREAD) for phase in self.loads.phases)

    def evaluate(self, orders: Ints) -> tuple[Ints, NDArray[Any], NDArray[np.float64]]:
        """Return the keys of orders in three arrays: misplaced members, values, and unevenness.

        A member is misplaced if its group must share a host or another part of the machine, and it
        is in another one than the group's first member. Forwarded messages dominate the unevenness.
        The work is charged to `effort`.
        """
        self.effort.spend(_CALL_S + _ENTRY_S * self.loads.entries * len(orders))
        values, uneven = self.loads.values(orders)
        apart = np.zeros(len(orders), dtype=np.int64)
        for groups, part_of in self.together:
            hosts = part_of[orders[:, groups]]
            apart += (hosts != hosts[:, :, :1]).sum(axis=(1, 2))
        return apart, values, uneven + _FORWARDED * self.count_forwarded(orders)

    def find_best(self, orders: Ints) -> tuple[int, Key]:
        """Return (row, key) of the order with the least key, without keeping it."""
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

    def adopt(self, order: Ints) -> None:
        """Make an order the best one, whatever its key."""
        _, self.best = self.find_best(order[None, :])
        self.order = order.copy()

    def offer(self, orders: Ints) -> None:
        """Evaluate orders, and keep the best as `order` and `best` if its key is below `best`."""
        if len(orders):
            row, key = self.find_best(orders)
            if not len(self.order) or key < self.best:
                # A copy, so that the batch does not stay in memory.
                self.best, self.order = key, orders[row].copy()
