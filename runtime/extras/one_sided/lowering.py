"""Lower a schedule to one-sided programs (see instructions.py).

In each step of the schedule a rank first puts what it sends, signals, and then waits for what it
receives. If it sends a value to several ranks, or again later, pull mode puts the value once. A
schedule's segments are not used: slices have their effect.

Sums have the bits of the two-sided programs: contributions of one step are added from the lowest
source rank to the highest, the rank's own value in its place (see synth/ir/addition_order.py).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from ....synth.ir.schedule import Schedule
from ....synth.ir.transfers import REDUCE
from ....topo.errors import InfeasibleError
from ...program.layout import Layout
from ...program.lowering import find_completing_steps
from .instructions import (
    END,
    Fold,
    Instruction,
    Mode,
    OneSidedProgram,
    Part,
    Put,
    Signal,
    Slot,
    Wait,
    align,
)

# A message of one chunk: step, source, destination, chunk, and whether it is added.
_Message = tuple[int, int, int, int, bool]


def lower_one_sided(
    schedule: Schedule,
    rank: int,
    numel: int,
    *,
    window_numel: int,
    averages: bool = False,
    mode: Mode = "pull",
    slices: int | None = None,
) -> OneSidedProgram:
    """Return the one-sided program of `rank` for a buffer of `numel` elements.

    Half a window has room for `window_numel` elements; the buffer is cut into as many `slices` as
    that needs, or as many as given. `mode` says whether receivers "pull" or senders "push" values.
    With `averages` (of an allreduce) sums are divided when they are completed. Raise
    InfeasibleError if even the smallest slices need a larger window.
    """
    layout = Layout(schedule.uncut, numel)
    messages = _list_messages(layout)
    puts = _Puts(messages, mode, [hi - lo for lo, hi in layout.in_block])
    if slices is None:
        slices = _count_slices(puts.lengths, window_numel)
    needed = max((_sum_rooms(of_rank, slices) for of_rank in puts.lengths.values()), default=0)
    if needed > window_numel:
        raise InfeasibleError(
            f"{schedule.label}: one-sided programs need {needed} elements of a window of "
            f"{window_numel}; expected fewer chunks"
        )
    completing = find_completing_steps(layout.schedule, rank) if averages else {}
    writer = _ProgramWriter(layout, rank, puts, slices, completing)
    return OneSidedProgram(
        rank=rank,
        ranks=layout.collective.ranks,
        work_numel=layout.work_numel(rank),
        window_numel=window_numel,
        slices=slices,
        fills=tuple(layout.fills(rank)),
        drains=tuple(layout.drains(rank)),
        instructions=tuple(_put_results_at_once(writer.write(messages))),
    )


def _list_messages(layout: Layout) -> list[_Message]:
    """Return all messages that have elements, by step, source and destination."""
    t = layout.schedule.transfers
    columns = (column.tolist() for column in (t.step, t.src, t.dst, t.chunk, t.op == REDUCE))
    return sorted(
        message
        for message in zip(*columns, strict=True)
        if layout.in_block[message[3]][0] < layout.in_block[message[3]][1]
    )


def _find_room(length: int, slices: int) -> int:
    """Return the elements of a slot for any slice of a piece of `length` elements."""
    return align(-(-length // slices))


def _sum_rooms(lengths: Iterable[int], slices: int) -> int:
    return sum(_find_room(length, slices) for length in lengths)


def _count_slices(lengths: dict[int, list[int]], window_numel: int) -> int:
    """Return the smallest number of slices whose slots fit into each rank's window."""
    least, most = 1, max((max(of_rank) for of_rank in lengths.values()), default=1)
    while least < most:
        middle = (least + most) // 2
        if all(_sum_rooms(of_rank, middle) <= window_numel for of_rank in lengths.values()):
            most = middle
        else:
            least = middle + 1
    return least


@dataclass(frozen=True)
class _PutAt:
    """A put: its slot's number in the owner's window, and the signal that publishes it."""

    owner: int
    place: int
    signal: int


class _Puts:
    """Which values each rank puts where, for all ranks.

    `lengths` has, by owner, the lengths of its slots in their order.
    """

    def __init__(self, messages: list[_Message], mode: Mode, sizes: list[int]) -> None:
        self._mode = mode
        # The steps in which a rank's value of a chunk changes: a value is put once.
        self._changes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for step, _, dst, chunk, _ in messages:
            steps = self._changes[dst, chunk]
            if not steps or steps[-1] != step:
                steps.append(step)
        self.lengths: dict[int, list[int]] = defaultdict(list)
        self._puts: dict[tuple[int, ...], _PutAt] = {}
        signals: dict[int, int] = defaultdict(int)
        for (_, src), group in groupby(messages, key=itemgetter(0, 1)):
            new = [message for message in group if self._key(message) not in self._puts]
            signals[src] += bool(new)
            for message in new:
                if self._key(message) in self._puts:
                    continue  # to another rank in this step
                _, _, dst, chunk, _ = message
                owner = src if mode == "pull" else dst
                slots = self.lengths[owner]
                self._puts[self._key(message)] = _PutAt(owner, len(slots), signals[src])
                slots.append(sizes[chunk])

    def _key(self, message: _Message) -> tuple[int, ...]:
        step, src, dst, chunk, _ = message
        version = bisect_left(self._changes.get((src, chunk), []), step)
        return (src, chunk, version) if self._mode == "pull" else (src, chunk, version, dst)

    def find(self, message: _Message) -> _PutAt:
        """Return the put whose slot a message is read from."""
        return self._puts[self._key(message)]


class _ProgramWriter:
    """Writes one rank's instructions."""

    def __init__(
        self, layout: Layout, rank: int, puts: _Puts, slices: int, completing: dict[int, int]
    ) -> None:
        self._layout, self._rank, self._puts = layout, rank, puts
        self._completing = completing
        self._starts: dict[int, list[int]] = {}
        for owner, lengths in puts.lengths.items():
            at, starts = 0, []
            for length in lengths:
                starts.append(at)
                at += _find_room(length, slices)
            self._starts[owner] = starts

    def write(self, messages: list[_Message]) -> list[Instruction]:
        rank, out = self._rank, list[Instruction]()
        mine = [x for x in messages if rank in (x[1], x[2])]
        if any(x[1] == rank for x in mine):
            others = (x for x in range(self._layout.collective.ranks) if x != rank)
            out += [Wait(peer, END, behind=2) for peer in others]
        put: set[tuple[int, int]] = set()
        awaited: dict[int, int] = defaultdict(int)
        for step, of_step in groupby(mine, key=itemgetter(0)):
            group = list(of_step)
            signal = 0
            for message in group:
                at = self._puts.find(message)
                if message[1] == rank and (at.owner, at.place) not in put:
                    put.add((at.owner, at.place))
                    out.append(Put(self._piece(message[3]), self._slot(message)))
                    signal = at.signal
            if signal:
                out.append(Signal(signal))
            received: dict[int, list[_Message]] = defaultdict(list)
            for message in group:
                if message[2] == rank:
                    received[message[3]].append(message)
            for chunk, arrivals in received.items():
                for message in arrivals:
                    needed = self._puts.find(message).signal
                    if awaited[message[1]] < needed:
                        awaited[message[1]] = needed
                        out.append(Wait(message[1], needed, step=step))
                out.append(self._combine(step, chunk, arrivals))
        out.append(Signal(END))
        return out

    def _combine(self, step: int, chunk: int, arrivals: list[_Message]) -> Fold:
        into = self._piece(chunk)
        terms: list[tuple[int, Part | Slot]] = [
            (message[1], self._slot(message)) for message in arrivals
        ]
        if arrivals[0][4]:
            terms.append((self._rank, into))
        return Fold(
            tuple(term for _, term in sorted(terms, key=itemgetter(0))),
            into,
            divides=self._completing.get(chunk) == step,
        )

    def _piece(self, chunk: int) -> Part:
        lo, hi = self._layout.chunk(self._rank, chunk)
        return Part(lo, hi - lo)

    def _slot(self, message: _Message) -> Slot:
        at = self._puts.find(message)
        lo, hi = self._layout.in_block[message[3]]
        return Slot(at.owner, self._starts[at.owner][at.place], hi - lo)


def _put_results_at_once(instructions: list[Instruction]) -> list[Instruction]:
    """Let each Fold also put its result, if a later Put would read it from the work buffer."""
    last: dict[Part, int] = {}
    out: list[Instruction | None] = list(instructions)
    for number, x in enumerate(instructions):
        if isinstance(x, Fold):
            last[x.into] = number
        elif isinstance(x, Put):
            writer = out[last[x.piece]] if x.piece in last else None
            if isinstance(writer, Fold) and writer.also is None:
                out[last[x.piece]] = replace(writer, also=x.slot)
                out[number] = None
    return [x for x in out if x is not None]
