"""A rank's messages, tick by tick: their pieces, peers and staging places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from .instructions import Span
from .layout import Layout, Range


class Slots:
    """Room in one staging buffer, taken and given back in program order.

    The first gap that fits is taken, else room at the end. `size` is the number of elements that
    the buffer must have.
    """

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []

    def take(self, length: int) -> int:
        """Return the start of `length` free elements, which are taken from now on."""
        for i, (lo, hi) in enumerate(self._free):
            if hi - lo >= length:
                self._free[i : i + 1] = [(lo + length, hi)] if hi - lo > length else []
                return lo
        if self._free and self._free[-1][1] == self.size:
            start, _ = self._free.pop()
        else:
            start = self.size
        self.size = start + length
        return start

    def give_back(self, start: int, length: int) -> None:
        """Free what `take` returned."""
        self._free = join_ranges(sorted([*self._free, (start, start + length)]))


@dataclass(frozen=True)
class Piece:
    """Segment `part` of chunk `chunk` in a message, and its place in this rank's work buffer.

    `adds` says whether it is added to the rank's own value.
    """

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
    """A message to or from `peer`.

    `slot` is its staging place: the Slots, the start and the length; None while it is not staged,
    or is in the work buffer.
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
        """Number of elements in all pieces."""
        return sum(p.hi - p.lo for p in self.pieces)

    @property
    def start(self) -> int:
        """The first element of its slot."""
        assert self.slot is not None
        return self.slot[1]

    def offset_of(self, piece: Piece | None, padded: Callable[[int], int] | None) -> int:
        """Return the number of elements before a piece (None: of all pieces).

        Each piece takes `padded` of its length.
        """
        before = takewhile(lambda other: other is not piece, self.pieces)
        lengths = (other.hi - other.lo for other in before)
        return sum(lengths if padded is None else map(padded, lengths))

    @property
    def step(self) -> int:
        """The first step of any piece."""
        return min(p.step for p in self.pieces)


@dataclass
class Group:
    """The messages that arrive for a piece in one step, by source.

    It also counts how many operations of their sum are done.
    """

    step: int
    messages: list[tuple[Message, Piece]]
    done: int = 0


# For each piece (chunk and segment) the steps in which it is sent, and with which message.
Reads = dict[tuple[int, int], list[tuple[int, Message]]]
# For each piece the messages that arrive for it, by step.
Writes = dict[tuple[int, int], list[Group]]


def list_messages(layout: Layout, rank: int) -> tuple[list[Message], list[Message]]:
    """Return the messages that a rank sends and those that it receives, by tick.

    Both ends compose and number them identically: tick, order of pieces and count come from the
    schedule alone.
    """
    schedule = layout.schedule
    t = schedule.transfers
    pieces_of: dict[tuple[int, bool, int], list[Piece]] = defaultdict(list)
    for transfer in t.taken((t.src == rank) | (t.dst == rank)):
        sent = transfer.src == rank
        peer = transfer.dst if sent else transfer.src
        for part in range(schedule.segments):
            lo, hi = layout.segment(rank, transfer.chunk, part)
            if lo < hi:
                tick = schedule.tick(transfer.step, part)
                piece = Piece(transfer.step, transfer.chunk, part, transfer.op == "reduce", lo, hi)
                pieces_of[tick, sent, peer].append(piece)
    sends: list[Message] = []
    receives: list[Message] = []
    count: dict[tuple[bool, int], int] = defaultdict(int)
    for (tick, sent, peer), pieces in sorted(pieces_of.items(), key=lambda item: item[0]):
        ordered = sorted(pieces, key=lambda p: (p.adds, p.chunk, p.part))
        message = Message(sent, peer, count[sent, peer], tick, ordered)
        count[sent, peer] += 1
        (sends if sent else receives).append(message)
    return sends, receives


def join_ranges(ranges: list[Range]) -> list[Range]:
    """Return the ranges, with consecutive ones joined."""
    out: list[Range] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = out[-1][0], hi
        else:
            out.append((lo, hi))
    return out


def merge_pairs(pairs: list[tuple[Span, Span]]) -> tuple[tuple[Span, Span], ...]:
    """Return the pairs of spans, joined if they are consecutive in both buffers."""
    out: list[tuple[Span, Span]] = []
    for into, other in pairs:
        if out:
            before, beside = out[-1]
            if (
                (before.buffer, beside.buffer) == (into.buffer, other.buffer)
                and before.start + before.length == into.start
                and beside.start + beside.length == other.start
            ):
                out[-1] = (
                    Span(into.buffer, before.start, before.length + into.length),
                    Span(other.buffer, beside.start, beside.length + other.length),
                )
                continue
        out.append((into, other))
    return tuple(out)
