"""Lossy schedules: what becomes of values that are rounded when they are sent (compression on the
wire).

The rules that the runtime follows:

1. A value is rounded when it is sent, and the sender goes on with the rounded value itself.
2. In the end every receiver of a chunk that is copied anywhere rounds what it holds of it.

Rounding a rounded value changes nothing (the codecs ensure that), so what is passed on unchanged
loses nothing more. Under these rules a schedule fixes the expression that each rank ends with, as
in addition_order.py, with roundings in it.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019) adds what a rounding
took away to the next call's input. Where several ranks round the same value, exactly one must feed
the error back: the others are its echoes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from .schedule import Schedule
from .transfers import Transfer

# Stands for a step in `Rounded.echoes`: the final rounding, of rule 2.
END = -1


@dataclass(frozen=True)
class Rounded:
    """What rounding does to a schedule.

    `uniform`: all receivers of a chunk end with the same expression. `most`: the greatest number of
    roundings between a rank's contribution and a result. `once`: only contributions and complete
    sums are rounded, no partial sums. `echoes`: (rank, chunk, step) of the roundings that another
    rank makes too, or the same rank made before. `copied`: the chunks that rule 2 applies to.
    """

    uniform: bool
    most: int
    once: bool
    echoes: frozenset[tuple[int, int, int]]
    copied: frozenset[int]


@lru_cache(maxsize=256)
def rounded(schedule: Schedule) -> Rounded:
    """Return what rounding does to a schedule in one segment (`Schedule.uncut`); segmentation does
    not change it.
    """
    of_chunk: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in schedule.transfers:
        of_chunk[transfer.chunk].append(transfer)
    uniform, most, once = True, 0, True
    echoes: set[tuple[int, int, int]] = set()
    copied: set[int] = set()
    for c, chunk in enumerate(schedule.chunks):
        values = _Values()
        held = {rank: values.number("input", rank) for rank in schedule.collective.holders(chunk)}
        transfers = of_chunk[c]
        roundings = _play(values, held, transfers)
        receivers = schedule.collective.receivers(chunk)
        if any(t.op == "copy" for t in transfers):
            copied.add(c)
            for rank in receivers:
                roundings.append((rank, END, held[rank]))
                held[rank] = values.rounded(held[rank])
        uniform = uniform and len({held[rank] for rank in receivers}) == 1
        ends = {held[rank] for rank in receivers}
        once = once and all(values.is_whole(value, ends) for _, _, value in roundings)
        most = max([most, *(values.depth[held[rank]] for rank in receivers)])
        echoes |= {(rank, c, step) for rank, step in _echoes(values, roundings)}
    return Rounded(uniform, most, once, frozenset(echoes), frozenset(copied))


class _Values:
    """Expressions by number: the greatest number of roundings in each, and whether the last
    operation was one.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self.depth: list[int] = []
        self.is_rounded: list[bool] = []
        self.is_input: list[bool] = []

    def number(self, kind: str, *of: int) -> int:
        """Return the number of an expression, given its operation and operands."""
        key = kind, *of
        if key not in self._numbers:
            self._numbers[key] = len(self.depth)
            below = 0 if kind == "input" else max(self.depth[x] for x in of)
            self.depth.append(below + (kind == "rounded"))
            self.is_rounded.append(kind == "rounded")
            self.is_input.append(kind == "input")
        return self._numbers[key]

    def rounded(self, value: int) -> int:
        """Return the rounded value: itself if it is rounded already."""
        return value if self.is_rounded[value] else self.number("rounded", value)

    def is_whole(self, value: int, ends: set[int]) -> bool:
        """Return whether a value is no partial sum: an input, already rounded, or what some rank
        ends with.
        """
        return (
            self.is_input[value]
            or self.is_rounded[value]
            or value in ends
            or self.rounded(value) in ends
        )


def _play(
    values: _Values, held: dict[int, int], transfers: list[Transfer]
) -> list[tuple[int, int, int]]:
    """Play one chunk's transfers on `held`, the value at each rank; return the roundings as (rank,
    step, value before).
    """
    by_step: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        by_step[transfer.step].append(transfer)
    roundings = []
    for step, rows in sorted(by_step.items()):
        # Rule 1: a sender rounds once, keeps the rounded value, and every receiver gets that one.
        sent = {t.src: held[t.src] for t in rows}
        for rank, value in sent.items():
            roundings.append((rank, step, value))
            held[rank] = values.rounded(value)
        arrived = {t.src: values.rounded(sent[t.src]) for t in rows}
        adding: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for t in rows:
            if t.op == "reduce":
                adding[t.dst].append((t.src, arrived[t.src]))
        after = {t.dst: arrived[t.src] for t in rows if t.op == "copy"}
        for rank, terms in adding.items():
            ordered = [value for _, value in sorted([*terms, (rank, held[rank])])]
            total = ordered[0]
            for value in ordered[1:]:
                total = values.number("sum", *sorted((total, value)))
            after[rank] = total
        held |= after
    return roundings


def _echoes(values: _Values, roundings: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return (rank, step) of all roundings of a value but the first, and of those of rounded
    values, which lose nothing.

    The first is the lowest rank's earliest, final roundings coming last.
    """
    of_value: dict[int, list[tuple[int, int]]] = defaultdict(list)
    out = []
    for rank, step, value in roundings:
        if values.is_rounded[value]:
            out.append((rank, step))
        else:
            of_value[value].append((rank, step if step != END else 1 << 60))
    for events in of_value.values():
        out += [(rank, step if step != 1 << 60 else END) for rank, step in sorted(events)[1:]]
    return out
