"""A rank's messages: which pieces go to and come from whom, tick by tick, and where each lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from .instructions import Place
from .layout import Layout, Range
from .slots import Slots


@dataclass(frozen=True)
class Piece:
    """Segment `part` of chunk `chunk` in a message: what is done with it, and where it lies in this rank's work buffer."""

    step: int
    chunk: int
    part: int
    adds: bool
    lo: int
    hi: int

    @property
    def key(self) -> tuple[int, int]:
        """Chunk and segment."""
        return self.chunk, self.part


@dataclass
class Message:
    """To or from `peer`; `slot` is where it is staged (what gave the room, from where on, how much), None while it is not,
    or where it lies in the work buffer.
    """

    sent: bool
    peer: int
    number: int
    tick: int
    pieces: list[Piece]
    slot: tuple[Slots, int, int] | None = None
    post: int | None = None
    awaited: bool = False
    unused: int = 0

    @property
    def length(self) -> int:
        """Elements in all."""
        return sum(p.hi - p.lo for p in self.pieces)

    @property
    def at(self) -> int:
        """Where it is staged."""
        assert self.slot is not None
        return self.slot[1]

    def before(self, piece: Piece | None, padded: Callable[[int], int] | None) -> int:
        """Elements that are laid before a piece (None: in all), each piece taking `padded` of its length."""
        total = 0
        for other in self.pieces:
            if other is piece:
                break
            total += other.hi - other.lo if padded is None else padded(other.hi - other.lo)
        return total

    @property
    def step(self) -> int:
        """The first step of any piece."""
        return min(p.step for p in self.pieces)


@dataclass
class Group:
    """What lands on a piece in one step: the messages, by source, and how many operations of the sum are done."""

    step: int
    messages: list[tuple[Message, Piece]]
    done: int = 0


Reads = dict[tuple[int, int], list[tuple[int, Message]]]
"""Of a piece (chunk and segment): in which steps it is sent, and with which message."""
Writes = dict[tuple[int, int], list[Group]]
"""Of a piece: what lands on it, by step."""


def messages(layout: Layout, rank: int) -> tuple[list[Message], list[Message]]:
    """A rank's messages by tick. Both ends cut and number them alike: tick, order of pieces and count come from the
    schedule alone.
    """
    schedule = layout.schedule
    t = schedule.transfers
    found: dict[tuple[int, bool, int], list[Piece]] = defaultdict(list)
    for transfer in t.taken((t.src == rank) | (t.dst == rank)):
        sent = transfer.src == rank
        peer = transfer.dst if sent else transfer.src
        for part in range(schedule.segments):
            lo, hi = layout.segment(rank, transfer.chunk, part)
            if lo < hi:
                tick = schedule.tick(transfer.step, part)
                piece = Piece(transfer.step, transfer.chunk, part, transfer.op == "reduce", lo, hi)
                found[tick, sent, peer].append(piece)
    sends: list[Message] = []
    receives: list[Message] = []
    count: dict[tuple[bool, int], int] = defaultdict(int)
    for (tick, sent, peer), pieces in sorted(found.items(), key=lambda item: item[0]):
        ordered = sorted(pieces, key=lambda p: (p.adds, p.chunk, p.part))
        message = Message(sent, peer, count[sent, peer], tick, ordered)
        count[sent, peer] += 1
        (sends if sent else receives).append(message)
    return sends, receives


def joined(ranges: list[Range]) -> list[Range]:
    """Ranges one after the other in the buffer become one."""
    out: list[Range] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = out[-1][0], hi
        else:
            out.append((lo, hi))
    return out


def merged(pairs: list[tuple[Place, Place]]) -> tuple[tuple[Place, Place], ...]:
    """Neighbouring operations become one."""
    out: list[tuple[Place, Place]] = []
    for into, other in pairs:
        if out:
            before, beside = out[-1]
            if (
                (before.buffer, beside.buffer) == (into.buffer, other.buffer)
                and before.at + before.length == into.at
                and beside.at + beside.length == other.at
            ):
                out[-1] = (
                    Place(into.buffer, before.at, before.length + into.length),
                    Place(other.buffer, beside.at, beside.length + other.length),
                )
                continue
        out.append((into, other))
    return tuple(out)
