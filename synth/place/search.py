"""A placement as it is sought: what values orders, which orders are allowed, and the best one by
now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..effort import Effort
from .job import Ints, Job
from .loads import Loads
from .patterns import AROUND, PAIRS, SPREAD

# Seconds of a quiet core to touch a number while orders are valued.
_ENTRY_S = 2e-8
_CALL_S = 1e-4
# What a forwarded message counts in unevenness.
_FORWARDED = 1e6


@dataclass
class Search:
    """Orders of one job on one machine, and the best that was seen: `order`, its `value`, its
    groups `apart`.

    `together` are groups (rows of ranks) that must share a host; `host_of` has each GPU's.
    `forwarded[u, v]`: other GPUs hand on what GPU u sends to v (None: none do), which is avoided
    where that costs nothing.
    """

    loads: Loads
    job: Job
    together: tuple[Ints, ...]
    host_of: Ints
    effort: Effort
    best: tuple[int, int, float] = (0, 0, 0.0)
    order: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    forwarded: NDArray[np.bool_] | None = None

    @property
    def is_turnable(self) -> bool:
        """Whether any rank can be exchanged with any other by a symmetry of the job: then rank 0
        may be put anywhere.
        """
        return all(phase.pattern.shape in (AROUND, PAIRS, SPREAD) for phase in self.loads.phases)

    def judge(self, orders: Ints) -> tuple[Ints, NDArray[Any], NDArray[np.float64]]:
        """Return the groups apart, the values and the unevenness of orders (above all messages that
        GPUs forward); that all are small counts in this order.
        """
        self.effort.spend(_CALL_S + _ENTRY_S * self.loads.entries * len(orders))
        values, uneven = self.loads.values(orders)
        apart = np.zeros(len(orders), dtype=np.int64)
        for groups in self.together:
            hosts = self.host_of[orders[:, groups]]
            apart += (hosts != hosts[:, :, :1]).sum(axis=(1, 2))
        return apart, values, uneven + _FORWARDED * self.count_forwarded(orders)

    def count_forwarded(self, orders: Ints) -> Ints:
        """Return how many messages go through other GPUs in each order."""
        count = np.zeros(len(orders), dtype=np.int64)
        if self.forwarded is not None:
            for phase in self.loads.phases:
                count += self.forwarded[orders[:, phase.src], orders[:, phase.dst]].sum(axis=1)
        return count

    def offer(self, orders: Ints) -> bool:
        """Look at orders, keep the best of them where it is better than all before, and return
        whether it is.
        """
        if not len(orders):
            return False
        apart, values, uneven = self.judge(orders)
        at = int(
            np.lexsort(
                (uneven, values.astype(object) if values.dtype == object else values, apart)
            )[0]
        )
        key = int(apart[at]), int(values[at]), float(uneven[at])
        if len(self.order) and not key < self.best:
            return False
        self.best, self.order = key, orders[at].copy()
        return True
