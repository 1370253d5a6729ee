"""What every order of ranks costs: exact loads of links, of many orders at once.

An order is the GPU of each rank. The time of a phase is that of its busiest link, its bytes over
its bandwidth; phases follow each other, so an order's time is the sum over them. The objective
"bottleneck" is that of the link which is busy longest over all phases instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .job import Phase
from .patterns import SPREAD

TIME, BOTTLENECK = "time", "bottleneck"
OBJECTIVES = (TIME, BOTTLENECK)
_SAFE = 1 << 61
_MOST_ENTRIES = 4_000_000
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ways:
    """What messages cross, and how fast it is: columns `names` with their bandwidths, the columns
    from GPU u to GPU v in `crossed[u, v]` (filled up with their number), and for each tier the
    column of the part that each GPU is in: what a plan sends out of a part crosses that.
    """

    names: Sequence[str]
    bandwidths_GBps: Sequence[Fraction]
    crossed: NDArray[np.int32]
    part_of: NDArray[np.int64]


class Loads:
    """The loads of a job's phases on a machine. Values are whole: one stands for `seconds_each`
    seconds.
    """

    def __init__(self, ways: Ways, phases: Sequence[Phase], objective: str) -> None:
        self.ways, self.phases, self.objective = ways, phases, objective
        self.links, self.crossed = ways.names, ways.crossed
        # 1 / bandwidth = weight / rates and bytes = whole / common: whole numbers, without common
        # factors
        bandwidths = ways.bandwidths_GBps
        rates = lcm(*(b.numerator for b in bandwidths))
        weights = [b.denominator * (rates // b.numerator) for b in bandwidths]
        shared = reduce(gcd, weights, 0) or 1
        self.weights = [weight // shared for weight in weights]
        self._fine = [
            lcm(*range(1, len(p.pattern.sends) + 1)) if p.pattern.shape == SPREAD else 1
            for p in phases
        ]  # of a part's share p - 1 / p, which is to be whole
        each = [p.pattern.bytes_each / fine for p, fine in zip(phases, self._fine, strict=True)]
        common = lcm(*(size.denominator for size in each))
        sizes = [int(size * common) for size in each]
        divisor = reduce(gcd, sizes, 0) or 1
        self.sizes = [size // divisor for size in sizes]
        self.seconds_each = Fraction(shared * divisor, rates * common * 10**9)
        counts = [len(p.src) * fine for p, fine in zip(phases, self._fine, strict=True)]
        most = sum(size * n for size, n in zip(self.sizes, counts, strict=True)) * max(
            self.weights, default=1
        )
        self.exact: Any = np.int64 if most < _SAFE else object
        self._weight_of = np.array([*self.weights, 0], dtype=self.exact)
        self._soft = np.array([*(float(w) for w in self.weights), 0.0]) / max(
            self.weights, default=1
        )
        heaviest = max(self.sizes, default=1) or 1
        self._shares = [size / heaviest for size in self.sizes]
        self.entries = sum(len(p.src) for p in phases) * self.crossed.shape[2] + len(self.links)
        """How many numbers are touched to value an order."""

    def count(self, phase: Phase, orders: Ints) -> Ints:
        """Return how many messages of a phase cross each link (a column) in each of some orders (a
        row).
        """
        if phase.pattern.shape == SPREAD:
            return self._count_shares(phase, orders)
        width = len(self.links) + 1
        crossed = self.crossed[orders[:, phase.src], orders[:, phase.dst]].astype(np.int64)
        crossed += (np.arange(len(orders)) * width)[:, None, None]
        counts: Ints = np.bincount(crossed.reshape(-1), minlength=len(orders) * width).reshape(
            len(orders), width
        )
        counts[:, -1] = 0
        return counts

    def _count_shares(self, phase: Phase, orders: Ints) -> Ints:
        """Return what plans send out of each part: for every group in p parts a share of (p - 1) /
        p each.
        """
        width, size = len(self.links) + 1, len(phase.pattern.sends)
        fine = lcm(*range(1, size + 1))
        counts = np.zeros(len(orders) * width, dtype=np.int64)
        groups = phase.src.reshape(-1, size)
        for part_of in self.ways.part_of:
            parts = np.sort(part_of[orders[:, groups]], axis=2)
            is_new = np.ones(parts.shape, dtype=bool)
            is_new[:, :, 1:] = parts[:, :, 1:] != parts[:, :, :-1]
            number = is_new.sum(axis=2)
            share = np.where(is_new, (fine - fine // number)[:, :, None], 0)
            at = parts + (np.arange(len(orders)) * width)[:, None, None]
            np.add.at(counts, at.reshape(-1), share.reshape(-1))
        return counts.reshape(len(orders), width)

    def values(self, orders: Ints) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the exact values of orders, and how unevenly they load links, which tells orders
        of the same value apart.
        """
        each = max(1, _MOST_ENTRIES // max(1, self.entries))
        parts = [self._values(orders[i : i + each]) for i in range(0, len(orders), each)]
        return np.concatenate([value for value, _ in parts]), np.concatenate(
            [soft for _, soft in parts]
        )

    def _values(self, orders: Ints) -> tuple[NDArray[Any], NDArray[np.float64]]:
        width = len(self.links) + 1
        value = np.zeros(
            (len(orders), width if self.objective == BOTTLENECK else 1), dtype=self.exact
        )
        busy = np.zeros((len(orders), width))
        for phase, size, share in zip(self.phases, self.sizes, self._shares, strict=True):
            counts = self.count(phase, orders)
            seconds = counts.astype(self.exact) * self._weight_of
            value += size * (
                seconds if self.objective == BOTTLENECK else seconds.max(axis=1)[:, None]
            )
            busy += share * counts * self._soft
        return value.max(axis=1), (busy**2).sum(axis=1)

    def value(self, order: Sequence[int]) -> int:
        """Return the exact value of one order."""
        return int(self.values(np.array([order], dtype=np.int64))[0][0])

    def phase_seconds(self, order: Sequence[int]) -> list[Fraction]:
        """Return how long each phase takes."""
        rows = np.array([order], dtype=np.int64)
        return [
            max(int(n) * w for n, w in zip(self.count(phase, rows)[0], [*self.weights, 0], strict=True))
            * size * self.seconds_each
            for phase, size in zip(self.phases, self.sizes, strict=True)
        ]  # fmt: skip

    def find_busiest(self, order: Sequence[int]) -> str:
        """Return the name of the link that is busy longest over all phases."""
        rows = np.array([order], dtype=np.int64)
        counts = [self.count(phase, rows)[0].tolist() for phase in self.phases]
        busy = [
            weight * sum(size * count[i] for size, count in zip(self.sizes, counts, strict=True))
            for i, weight in enumerate(self.weights)
        ]
        return self.links[max(range(len(busy)), key=busy.__getitem__)]
