"""The order of reductions, and whether all ranks end with the same bits.

Floating-point addition commutes but does not associate. The rule that the runtime follows: what
lands on a chunk at a rank in one step, the rank's own value included, is added from the lowest
source rank to the highest. Under that rule a schedule fixes the expression that each rank ends
with; where all are the same, all ranks agree bitwise. Without its numbers, an expression is a
bracketing of ranks: where all chunks have one, an element's bits are the same in every chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from .schedule import Schedule
from .transfers import COPY, REDUCE

# Characters of a bracketing that messages show.
_SHOWN = 64


def is_uniform(schedule: Schedule) -> bool:
    """Return whether all receivers of a chunk end with the same expression, operands of an addition
    in any order.
    """
    if not schedule.collective.reduces or _adds_before_it_copies(schedule):
        return True
    return all(len(ends) == 1 for ends in _play(schedule, _Expressions()))


@lru_cache(maxsize=64)
def find_bracketing(schedule: Schedule) -> str | None:
    """Return the one bracketing in which all chunks are added up, at every rank that ends with
    them; None where two differ.

    It is written in one way: of the two operands of an addition that with the lowest rank comes
    first, "((0+1)+(2+3))". Where schedules have the same one, an element's bits do not depend on
    which of them added it, nor on its chunk. None for a collective that adds nothing.
    """
    if not schedule.collective.reduces:
        return None
    expressions = _Expressions()
    ends = set[int]().union(*_play(schedule, expressions))
    return expressions.write(ends.pop()) if len(ends) == 1 else None


def shorten_bracketing(bracketing: str) -> str:
    """Return a bracketing as messages show it: cut where it is long."""
    return bracketing if len(bracketing) <= _SHOWN else f"{bracketing[:_SHOWN]}..."


class _Expressions:
    """Expressions, numbered as they appear: equal ones, operands of an addition in any order, have
    equal numbers.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}
        self._operands: list[tuple[int, int]] = []

    def number_input(self, rank: int) -> int:
        """Return the number of a rank's own contribution."""
        return self._number(rank, -1)

    def number_sum(self, a: int, b: int) -> int:
        """Return the number of the sum of two expressions."""
        return self._number(min(a, b), max(a, b))

    def _number(self, a: int, b: int) -> int:
        number = self._known.setdefault((a, b), len(self._operands))
        if number == len(self._operands):
            self._operands.append((a, b))
        return number

    def write(self, whole: int) -> str:
        """Return an expression as text; see find_bracketing."""
        # An expression may be as deep as there are ranks, so this does not recurse. Operands have
        # lower numbers than sums.
        needed, lowest = {whole}, dict[int, int]()
        for number in range(whole, -1, -1):
            if number in needed and self._operands[number][1] >= 0:
                needed.update(self._operands[number])
        for number in sorted(needed):
            a, b = self._operands[number]
            lowest[number] = a if b < 0 else min(lowest[a], lowest[b])
        parts: list[str] = []
        rest: list[int | str] = [whole]
        while rest:
            item = rest.pop()
            if isinstance(item, str):
                parts.append(item)
            elif self._operands[item][1] < 0:
                parts.append(str(lowest[item]))
            else:
                first, second = sorted(self._operands[item], key=lowest.__getitem__)
                rest += [")", second, "+", first, "("]
        return "".join(parts)


def _play(schedule: Schedule, expressions: _Expressions) -> Iterator[set[int]]:
    """Yield, for each chunk, the numbers of the expressions with which its receivers end."""
    held: dict[tuple[int, int], int] = {
        (rank, c): expressions.number_input(rank)
        for c, chunk in enumerate(schedule.chunks)
        for rank in schedule.collective.holders(chunk)
    }
    # All transfers of a step read what their sources held before it, so results are only written
    # when it is over.
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
                total = expressions.number_sum(total, value)
            after[rank, c] = total
        held |= after
    for c, chunk in enumerate(schedule.chunks):
        yield {held[rank, c] for rank in schedule.collective.receivers(chunk)}


def _adds_before_it_copies(schedule: Schedule) -> bool:
    """Return whether every chunk is first added up and then only copied, to each other rank once.

    Then all ranks hold one rank's sum. This quick test settles trees of any kind; that copies come
    from ranks that have the chunk is for the verifier to check.
    """
    t, chunks, n = schedule.transfers, len(schedule.chunks), schedule.collective.ranks
    if schedule.collective.name != "allreduce" or not len(t):
        return False
    copies, adds = t.op == COPY, t.op == REDUCE
    last_add, first_copy = np.full(chunks, -1), np.full(chunks, np.iinfo(np.int64).max)
    np.maximum.at(last_add, t.chunk[adds], t.step[adds])
    np.minimum.at(first_copy, t.chunk[copies], t.step[copies])
    times = np.bincount(t.chunk[copies] * n + t.dst[copies], minlength=chunks * n).reshape(
        chunks, n
    )
    copied_at = np.full((chunks, n), -1)
    copied_at[t.chunk[copies], t.dst[copies]] = t.step[copies]
    in_order = (copied_at[t.chunk[copies], t.src[copies]] < t.step[copies]).all()
    return bool(
        (last_add < first_copy).all()
        and (times <= 1).all()
        and (times.sum(axis=1) == n - 1).all()
        and in_order
    )
