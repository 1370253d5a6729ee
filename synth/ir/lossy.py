"""What becomes of a schedule's values when they are rounded for the way: compression on the wire.

The rules that the runtime follows:

1. A value is rounded when it is sent, and the sender goes on with the rounded value itself.
2. In the end every receiver of a chunk that is copied anywhere rounds what it holds of it.

Rounding twice is rounding once (the codecs see to that), so what is handed on unchanged loses nothing more. Under these
rules a schedule fixes the expression that each rank ends with, as in `order`, with roundings in it.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019) adds what a rounding took away to the next
call's input. Where several ranks round the same value, one of them must do so: the others are its echoes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from .schedule import Schedule
from .transfers import Transfer

END = -1
"""Stands for a step in `Rounded.echoes`: the rounding in the end."""


@dataclass(frozen=True)
class Rounded:
    """`uniform`: all receivers of a chunk end with the same expression. `most`: roundings between a rank's contribution and
    a result, the most there are. `once`: nothing is rounded but contributions and whole sums. `echoes`: the (rank, chunk,
    step) of roundings that another rank does as well, or the same rank did before. `copied`: chunks that rule 2 is for.
    """

    uniform: bool
    most: int
    once: bool
    echoes: frozenset[tuple[int, int, int]]
    copied: frozenset[int]


@lru_cache(maxsize=256)
def rounded(schedule: Schedule) -> Rounded:
    """Of a schedule in one segment (`Schedule.uncut`); cutting changes nothing."""
    of_chunk: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in schedule.transfers:
        of_chunk[transfer.chunk].append(transfer)
    uniform, most, once = True, 0, True
    echoes: set[tuple[int, int, int]] = set()
    copied: set[int] = set()
    for c, chunk in enumerate(schedule.chunks):
        values = _Values()
        held = {rank: values.number("input", rank) for rank in schedule.collective.holders(chunk)}
        here = of_chunk[c]
        roundings = _play(values, held, here)
        receivers = schedule.collective.receivers(chunk)
        if any(t.op == "copy" for t in here):
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
    """Expressions by number: how often their inputs were rounded at most, and whether they are rounded as they stand."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], int] = {}
        self.depth: list[int] = []
        self.is_rounded: list[bool] = []
        self.is_input: list[bool] = []

    def number(self, kind: str, *of: int) -> int:
        key = kind, *of
        if key not in self._known:
            self._known[key] = len(self.depth)
            below = 0 if kind == "input" else max(self.depth[x] for x in of)
            self.depth.append(below + (kind == "rounded"))
            self.is_rounded.append(kind == "rounded")
            self.is_input.append(kind == "input")
        return self._known[key]

    def rounded(self, value: int) -> int:
        return value if self.is_rounded[value] else self.number("rounded", value)

    def is_whole(self, value: int, ends: set[int]) -> bool:
        """Whether a value is no partial sum: an input, rounded already, or what some rank ends with."""
        return self.is_input[value] or self.is_rounded[value] or value in ends or self.rounded(value) in ends


def _play(values: _Values, held: dict[int, int], transfers: list[Transfer]) -> list[tuple[int, int, int]]:
    """Plays one chunk's transfers on `held`, by rank; the roundings as (rank, step, value before)."""
    by_step: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        by_step[transfer.step].append(transfer)
    roundings = []
    for step, rows in sorted(by_step.items()):
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
    """All but the first rounding of each value, the lowest rank's; those of rounded values take nothing away."""
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
