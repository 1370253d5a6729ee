"""The order of additions, whether all ranks end with the same bits, and effects of rounding.

A schedule copies or adds chunks, parts of a buffer, from rank to rank, step by step. Floating-point
addition commutes but does not associate. If several values reach a chunk at a rank in one step, the
runtime adds them, the rank's own value included, from the lowest source rank to the highest. Under
that rule a schedule fixes the expression that each rank ends with; if all of them are equal, all
ranks agree bitwise. An expression without its numbers is a bracketing of ranks: if all chunks have
the same one, an element's bits do not depend on its chunk.

With compressed messages, values are rounded. The runtime follows two rules:

1. A value is rounded when it is sent, and the sender continues with the rounded value itself.
2. At the end, every receiver of a chunk that is copied anywhere rounds its value of it.

The codecs ensure that rounding a rounded value changes nothing, so forwarding loses nothing more.
Under these rules the expression that each rank ends with has roundings in it.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019) adds the error of a
rounding to the next call's input. If several ranks round the same value, exactly one must feed the
error back: the others are its echoes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

import numpy as np

from ...topo.grouping import group_by_key
from .schedule import Schedule
from .transfers import COPY, REDUCE

# Markers in place of a second operand: for a rank's own contribution, and for a rounded value.
INPUT, ROUNDED = -1, -2
_STEP = attrgetter("step")
# Represents a step in `Rounded.echoes`: the final rounding, of rule 2.
END = -1


def is_uniform(schedule: Schedule) -> bool:
    """Return whether all receivers of a chunk end with the same expression, so the same bits.

    The order of the two operands of an addition does not matter.
    """
    if not schedule.collective.reduces or _adds_before_it_copies(schedule):
        return True
    return all(len(ends) == 1 for ends in list_ends(schedule, Expressions()))


class Expressions:
    """A numbered list of expressions over the ranks' contributions; equal ones have equal numbers.

    `operands` of a sum are the numbers of its two operands, the smaller first, since addition
    commutes; for an input they are (rank, INPUT), for a rounded value (value, ROUNDED).
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.operands: list[tuple[int, int]] = []

    def number(self, a: int, b: int) -> int:
        """Return the number of the expression with operands `a` and `b`, adding it if it is new.

        For a sum they are numbers of expressions; for an input (rank, INPUT), for a rounded value
        (value, ROUNDED).
        """
        number = self._numbers.setdefault((a, b), len(self.operands))
        if number == len(self.operands):
            self.operands.append((a, b))
        return number

    def rounded(self, value: int) -> int:
        """Return the number of expression `value` after rounding.

        That is `value` itself if it is rounded already.
        """
        return value if self.operands[value][1] == ROUNDED else self.number(value, ROUNDED)

    def add(self, terms: Iterable[tuple[int, int]]) -> int:
        """Return the number of the sum of terms, each (source rank, number of its expression).

        They are added from the lowest source rank to the highest, as the runtime does.
        """
        total, *values = (value for _, value in sorted(terms))
        for value in values:
            total = self.number(min(total, value), max(total, value))
        return total


def replay(
    schedule: Schedule,
    expressions: Expressions,
    roundings: list[tuple[int, int, int]] | None = None,
) -> Iterator[dict[int, int]]:
    """Replay a schedule; yield for each chunk, in order, what every rank ends with.

    That is a dict from ranks to numbers in `expressions`; a rank that never holds the chunk is
    missing. With the list `roundings`, values are rounded when they are sent, and (rank, step,
    number before rounding) of each rounding is appended to it before its chunk is yielded. The
    caller clears the list between chunks.
    """
    of_chunk = group_by_key((transfer.chunk, transfer) for transfer in schedule.transfers)
    for c, chunk in enumerate(schedule.chunks):
        held = {r: expressions.number(r, INPUT) for r in schedule.collective.holders(chunk)}
        for step, group in groupby(sorted(of_chunk[c], key=_STEP), key=_STEP):
            rows = list(group)
            # All transfers of a step read their sources' values from before it.
            sent = {t.src: held[t.src] for t in rows}
            if roundings is not None:
                roundings += [(rank, step, value) for rank, value in sent.items()]
                sent = {rank: expressions.rounded(value) for rank, value in sent.items()}
                held |= sent
            after = {t.dst: sent[t.src] for t in rows if t.op == "copy"}
            terms = group_by_key((t.dst, (t.src, sent[t.src])) for t in rows if t.op == "reduce")
            for rank, arriving in terms.items():
                # Only a helper has no value of its own, until the first one arrives.
                own = [(rank, held[rank])] if rank in held else []
                after[rank] = expressions.add(own + arriving)
            held |= after
        yield held


def list_ends(schedule: Schedule, expressions: Expressions) -> Iterator[set[int]]:
    """Yield, for each chunk, the numbers of the expressions that its receivers end with."""
    for chunk, held in zip(schedule.chunks, replay(schedule, expressions), strict=True):
        yield {held[rank] for rank in schedule.collective.receivers(chunk)}


def _adds_before_it_copies(schedule: Schedule) -> bool:
    """Return whether every chunk is first added up and then only copied, to each other rank once.

    If so, all ranks hold one rank's sum. This test is quick and covers trees of any kind; the
    verifier checks that copies come from ranks that have the chunk.
    """
    t, chunks, n = schedule.transfers, len(schedule.chunks), schedule.rank_limit
    collective = schedule.collective
    if collective.name != "allreduce" or not collective.has_all_gpus or not len(t):
        return False
    copies, adds = t.op == COPY, t.op == REDUCE
    last_add, first_copy = np.full(chunks, -1), np.full(chunks, np.iinfo(np.int64).max)
    np.maximum.at(last_add, t.chunk[adds], t.step[adds])
    np.minimum.at(first_copy, t.chunk[copies], t.step[copies])
    times = np.bincount(t.chunk[copies] * n + t.dst[copies], minlength=chunks * n).reshape(-1, n)
    copied_at = np.full((chunks, n), -1)
    copied_at[t.chunk[copies], t.dst[copies]] = t.step[copies]
    return bool(
        (last_add < first_copy).all()
        and (times <= 1).all()
        and (times.sum(axis=1) == n - 1).all()
        and (copied_at[t.chunk[copies], t.src[copies]] < t.step[copies]).all()
    )


@dataclass(frozen=True)
class Rounded:
    """The effects of rounding on a schedule, if values are rounded whenever they are sent.

    `uniform`: all receivers of a chunk end with the same expression. `most`: the greatest number of
    roundings between a rank's contribution and a result. `once`: only contributions and complete
    sums are rounded, no partial sums. `echoes`: (rank, chunk, step) of the roundings that another
    rank makes too, or that the same rank made before. `copied`: the chunks whose receivers round
    them at the end.
    """

    uniform: bool
    most: int
    once: bool
    echoes: frozenset[tuple[int, int, int]]
    copied: frozenset[int]


@lru_cache(maxsize=256)
def rounded(schedule: Schedule) -> Rounded:
    """Return the effects of rounding on a schedule in one segment (`Schedule.uncut`).

    Segmentation, cutting chunks for a pipeline, does not change the effects.
    """
    uniform, once, values, t = True, True, Expressions(), schedule.transfers
    echoes: set[tuple[int, int, int]] = set()
    results: set[int] = set()
    copied = frozenset(t.chunk[t.op == COPY].tolist())
    roundings: list[tuple[int, int, int]] = []
    for c, held in enumerate(replay(schedule, values, roundings)):
        receivers = schedule.collective.receivers(schedule.chunks[c])
        if c in copied:
            roundings += [(rank, END, held[rank]) for rank in receivers]
            held |= {rank: values.rounded(held[rank]) for rank in receivers}
        ends = {held[rank] for rank in receivers}
        uniform = uniform and len(ends) == 1
        results |= ends
        once = once and all(_is_whole(values, value, ends) for _, _, value in roundings)
        # If one value is rounded several times, the lowest rank's earliest rounding feeds its error
        # back; final ones come last. Rounding a rounded value has no error.
        fed_back: set[int] = set()
        for rank, step, value in sorted(roundings, key=lambda row: (row[0], row[1] == END, row[1])):
            if value in fed_back or values.operands[value][1] == ROUNDED:
                echoes.add((rank, c, step))
            fed_back.add(value)
        roundings.clear()
    depths: list[int] = []
    for a, b in values.operands:
        below = 0 if b == INPUT else depths[a] if b == ROUNDED else max(depths[a], depths[b])
        depths.append(below + (b == ROUNDED))
    return Rounded(
        uniform,
        max((depths[value] for value in results), default=0),
        once,
        frozenset(echoes),
        copied,
    )


def _is_whole(values: Expressions, value: int, ends: set[int]) -> bool:
    """Return whether a value is not a partial sum: an input, already rounded, or a final value."""
    return values.operands[value][1] < 0 or value in ends or values.rounded(value) in ends
