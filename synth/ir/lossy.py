"""Lossy schedules: the effects of rounding values when they are sent (compression on the wire).

The runtime follows two rules:

1. A value is rounded when it is sent, and the sender continues with the rounded value itself.
2. At the end, every receiver of a chunk that is copied anywhere rounds its value of it.

The codecs ensure that rounding a rounded value changes nothing, so forwarding loses nothing more.
Under these rules a schedule fixes the expression that each rank ends with, as in addition_order.py,
with roundings in it.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019) adds the error of a
rounding to the next call's input. If several ranks round the same value, exactly one must feed the
error back: the others are its echoes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .addition_order import INPUT, ROUNDED, Expressions, play
from .schedule import Schedule
from .transfers import COPY

# Represents a step in `Rounded.echoes`: the final rounding, of rule 2.
END = -1


@dataclass(frozen=True)
class Rounded:
    """The effects of rounding on a schedule.

    `uniform`: all receivers of a chunk end with the same expression. `most`: the greatest number of
    roundings between a rank's contribution and a result. `once`: only contributions and complete
    sums are rounded, no partial sums. `echoes`: (rank, chunk, step) of the roundings that another
    rank makes too, or that the same rank made before. `copied`: the chunks that rule 2 applies to.
    """

    uniform: bool
    most: int
    once: bool
    echoes: frozenset[tuple[int, int, int]]
    copied: frozenset[int]


@lru_cache(maxsize=256)
def rounded(schedule: Schedule) -> Rounded:
    """Return the effects of rounding on a schedule in one segment (`Schedule.uncut`).

    Segmentation does not change them.
    """
    uniform, once = True, True
    echoes: set[tuple[int, int, int]] = set()
    results: set[int] = set()
    t = schedule.transfers
    copied = frozenset(t.chunk[t.op == COPY].tolist())
    values = Expressions()
    roundings: list[tuple[int, int, int]] = []
    for c, held in enumerate(play(schedule, values, roundings)):
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
    most = max((depths[value] for value in results), default=0)
    return Rounded(uniform, most, once, frozenset(echoes), copied)


def _is_whole(values: Expressions, value: int, ends: set[int]) -> bool:
    """Return whether a value is not a partial sum: an input, already rounded, or a final value."""
    return values.operands[value][1] < 0 or value in ends or values.rounded(value) in ends
