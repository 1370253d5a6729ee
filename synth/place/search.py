"""Evaluation of the orders of one job on one machine, which keeps the best one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..numeric.effort import Effort
from .job import AROUND, PAIRS, SPREAD, Ints, Job
from .loads import OrderLoads

# Seconds of an idle core per number that an evaluation touches, and per evaluation.
_ENTRY_S, _CALL_S = 2e-8, 1e-4
# Unevenness per forwarded message: more than that of all links together.
_FORWARDED = 1e6

# The cost of an order, compared in this order: members apart from their groups, value, unevenness.
Key = tuple[int, int, float]


@dataclass
class Search:
    """A search over orders, with the best `order` so far and its key `best`.

    `together` are groups (rows of ranks) that must share a host; `host_of` is the host of each GPU.
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

        Misplaced members are apart from their groups' hosts. Messages that GPUs forward dominate
        the unevenness.
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
        """Return the number of messages that go through other GPUs in each order."""
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
                # A copy, so that the batch does not stay in memory.
                self.best, self.order = key, orders[row].copy()
