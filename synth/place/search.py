"""Evaluate orders of one job on one machine, and hold the best one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..effort import Effort
from .job import AROUND, PAIRS, SPREAD, Ints, Job
from .loads import OrderLoads

# Seconds of a quiet core per number that an evaluation touches, and per evaluation.
_ENTRY_S, _CALL_S = 2e-8, 1e-4
# What a forwarded message adds to unevenness: more than all links together.
_FORWARDED = 1e6

# How good an order is, less being better: groups apart, value, unevenness.
Key = tuple[int, int, float]


@dataclass
class Search:
    """A search over orders, with the best `order` so far and its key `best`.

    `together` are groups (rows of ranks) that must share a host; `host_of` is the host of each GPU.
    `forwarded[u, v]` says whether other GPUs forward what GPU u sends to v (None if none do), which
    is avoided if that costs nothing.
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
        """Whether a symmetry of the job takes any rank to any other; rank 0 may then be fixed."""
        return all(phase.pattern.shape in (AROUND, PAIRS, SPREAD) for phase in self.loads.phases)

    def evaluate(self, orders: Ints) -> tuple[Ints, NDArray[Any], NDArray[np.float64]]:
        """Return the members apart from their groups' hosts, the values, and the unevenness of
        orders, which messages forwarded by GPUs dominate.
        """
        self.effort.spend(_CALL_S + _ENTRY_S * self.loads.entries * len(orders))
        values, uneven = self.loads.values(orders)
        apart = np.zeros(len(orders), dtype=np.int64)
        for groups in self.together:
            hosts = self.host_of[orders[:, groups]]
            apart += (hosts != hosts[:, :, :1]).sum(axis=(1, 2))
        return apart, values, uneven + _FORWARDED * self.count_forwarded(orders)

    def find_best(self, orders: Ints) -> tuple[int, Key]:
        """Return the row of the best order, and its key."""
        apart, values, uneven = self.evaluate(orders)
        row = int(np.lexsort((uneven, values, apart))[0])
        return row, (int(apart[row]), int(values[row]), float(uneven[row]))

    def count_forwarded(self, orders: Ints) -> Ints:
        """Return how many messages go through other GPUs in each order."""
        count = np.zeros(len(orders), dtype=np.int64)
        if self.forwarded is not None:
            for phase in self.loads.phases:
                count += self.forwarded[orders[:, phase.src], orders[:, phase.dst]].sum(axis=1)
        return count

    def offer(self, orders: Ints) -> None:
        """Evaluate orders, and keep the best of them if it is better than all before."""
        if len(orders):
            row, key = self.find_best(orders)
            if not len(self.order) or key < self.best:
                # A copy, which does not keep the batch in memory.
                self.best, self.order = key, orders[row].copy()
