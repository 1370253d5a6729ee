"""The order of reductions, and whether all ranks end with the same bits.

Floating-point addition commutes but does not associate. The rule that the runtime follows: what lands on a chunk at a
rank in one step, the rank's own value included, is added from the lowest source rank to the highest. Under that rule
a schedule fixes the expression that each rank ends with; where all are the same, all ranks agree bitwise.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from .schedule import Schedule
from .transfers import COPY, REDUCE


def is_uniform(schedule: Schedule) -> bool:
    """Return whether all receivers of a chunk end with the same expression, operands of an addition in any order."""
    if not schedule.collective.reduces or _adds_before_it_copies(schedule):
        return True
    # Expressions are numbered as they appear: equal expressions have equal numbers.
    known: dict[tuple[object, ...], int] = {}

    def number(*key: object) -> int:
        """Return the number of an expression, given its operation and operands."""
        return known.setdefault(key, len(known))

    held: dict[tuple[int, int], int] = {
        (rank, c): number("input", rank)
        for c, chunk in enumerate(schedule.chunks)
        for rank in schedule.collective.holders(chunk)
    }
    # All transfers of a step read what their sources held before it, so results are only written when it is over.
    for transfers in schedule.by_step:
        adding: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        after: dict[tuple[int, int], int] = {}
        for t in transfers:
            value = held[t.src, t.chunk]
            if t.op == "copy":
                after[t.dst, t.chunk] = value
            else:
                adding[t.dst, t.chunk].append((t.src, value))
        for (rank, c), terms in adding.items():
            ordered = [value for _, value in sorted([*terms, (rank, held[rank, c])])]
            total = ordered[0]
            for value in ordered[1:]:
                total = number("sum", *sorted((total, value)))
            after[rank, c] = total
        held |= after
    return all(
        len({held[rank, c] for rank in schedule.collective.receivers(chunk)}) == 1
        for c, chunk in enumerate(schedule.chunks)
    )


def _adds_before_it_copies(schedule: Schedule) -> bool:
    """Return whether every chunk is first added up and then only copied, to each other rank once.

    Then all ranks hold one rank's sum. This quick test settles trees of any kind; that copies come from ranks that have the
    chunk is for the verifier to check.
    """
    t, chunks, n = schedule.transfers, len(schedule.chunks), schedule.collective.ranks
    if schedule.collective.name != "allreduce" or not len(t):
        return False
    copies, adds = t.op == COPY, t.op == REDUCE
    last_add, first_copy = np.full(chunks, -1), np.full(chunks, np.iinfo(np.int64).max)
    np.maximum.at(last_add, t.chunk[adds], t.step[adds])
    np.minimum.at(first_copy, t.chunk[copies], t.step[copies])
    times = np.bincount(t.chunk[copies] * n + t.dst[copies], minlength=chunks * n).reshape(chunks, n)
    copied_at = np.full((chunks, n), -1)
    copied_at[t.chunk[copies], t.dst[copies]] = t.step[copies]
    in_order = (copied_at[t.chunk[copies], t.src[copies]] < t.step[copies]).all()
    return bool(
        (last_add < first_copy).all() and (times <= 1).all() and (times.sum(axis=1) == n - 1).all() and in_order
    )
