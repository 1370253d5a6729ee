"""A rank's messages, tick by tick: their pieces, peers and staging places, and who encodes them.

A chunk is a part of the collective's buffer, a segment one of its equal parts, a piece a segment in
a message. A step is a round of a schedule's transfers; a tick is a step cut finer, when a schedule
has a piece sent. Received pieces wait in staging, encoded messages are in the wire buffer; both are
scratch memory.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Protocol

from .instructions import Encode, Span
from .layout import Layout, Range


class Slots:
    """The free and taken places in one buffer, allocated while a program is written.

    Lengths and places are in elements (in bytes for the wire buffer). The first gap that fits is
    taken, else room at the end; `size` is the length that the buffer must have.
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
        is_open = self._free and self._free[-1][1] == self.size
        start = self._free.pop()[0] if is_open else self.size
        self.size = start + length
        return start

    def give_back(self, start: int, length: int) -> None:
        """Free the `length` elements from `start` on, which `take` returned."""
        self._free = join_ranges(sorted([*self._free, (start, start + length)]))


@dataclass(frozen=True)
class Piece:
    """A segment of a chunk in a message; `part` and `chunk` are their numbers.

    It is at elements [`lo`, `hi`) of this rank's work buffer. `step` is the step, in the schedule,
    of its transfer; `adds` says whether it is added to the receiver's own value.
    """

    step: int
    chunk: int
    part: int
    adds: bool
    lo: int
    hi: int

    @property
    def key(self) -> tuple[int, int]:
        """The chunk's number, and the segment's in the chunk."""
        return self.chunk, self.part


@dataclass
class Message:
    """A message that this rank sends to `peer` (`sent`) or receives from it in `tick`.

    `number` counts the messages with that peer and direction. `slot` is its place in scratch memory
    while it has one: the Slots, the start and the length. `post` is the index of its post in the
    program, None before it is posted; `awaited` says whether the program has waited for it;
    `unused` counts its pieces still to be used.
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
        """The first element of its slot in scratch memory; it must have one."""
        assert self.slot is not None
        return self.slot[1]

    def offset_of(self, piece: Piece) -> int:
        """Return the number of elements in the message before `piece`."""
        return sum(p.hi - p.lo for p in takewhile(lambda p: p is not piece, self.pieces))

    @property
    def step(self) -> int:
        """The smallest step, in the schedule, of its pieces."""
        return min(p.step for p in self.pieces)


@dataclass
class Group:
    """The messages that bring one piece to this rank in one step, in the order of their sources.

    `done` counts the operations of their sum that the program has so far.
    """

    step: int
    messages: list[tuple[Message, Piece]]
    done: int = 0


# For each piece (chunk and segment) the steps in which it is sent, and with which message.
Reads = dict[tuple[int, int], list[tuple[int, Message]]]
# For each piece the messages that arrive for it, by step.
Writes = dict[tuple[int, int], list[Group]]


def list_messages(layout: Layout, rank: int) -> tuple[list[Message], list[Message]]:
    """Return the messages that a rank sends, then those that it receives, each in order of ticks.

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
                pieces_of[schedule.tick(transfer.step, part), sent, peer].append(
                    Piece(transfer.step, transfer.chunk, part, transfer.op == "reduce", lo, hi)
                )
    messages: dict[bool, list[Message]] = {True: [], False: []}
    numbers: dict[tuple[bool, int], Iterator[int]] = defaultdict(count)
    for (tick, sent, peer), pieces in sorted(pieces_of.items(), key=lambda item: item[0]):
        pieces.sort(key=lambda p: (p.adds, p.chunk, p.part))
        messages[sent].append(Message(sent, peer, next(numbers[sent, peer]), tick, pieces))
    return messages[True], messages[False]


def join_ranges(ranges: list[Range]) -> list[Range]:
    """Return the ranges [lo, hi) in the given order, joined where one begins at the last's end."""
    out: list[Range] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = out[-1][0], hi
        else:
            out.append((lo, hi))
    return out


def merge_pairs(pairs: list[tuple[Span, Span]]) -> tuple[tuple[Span, Span], ...]:
    """Return the pairs of spans, those joined that follow each other in both buffers."""
    out: list[tuple[Span, Span]] = []
    for into, other in pairs:
        if out:
            before, beside = out[-1]
            if (
                (before.buffer, beside.buffer) == (into.buffer, other.buffer)
                and before.end == into.start
                and beside.end == other.start
            ):
                out[-1] = (
                    Span(into.buffer, before.start, before.length + into.length),
                    Span(other.buffer, beside.start, beside.length + other.length),
                )
                continue
        out.append((into, other))
    return tuple(out)


class Encoder(Protocol):
    """Makes the instructions (Encode) that encode one rank's messages, in its program's order.

    A codec's Encoder compresses values. `slots` allocates bytes of the wire buffer.
    """

    slots: Slots

    def padded(self, message: Message) -> int:
        """Return the number of values that are encoded for a message, those of padding included."""

    def offset_of(self, message: Message, piece: Piece) -> int:
        """Return the number of values that are encoded before a piece of a message."""

    def take_room(self, message: Message) -> Span:
        """Reserve bytes of the wire buffer as the message's `slot`; return those that it uses."""

    def span_of(self, message: Message) -> Span:
        """Return the bytes of the wire buffer that a message uses in its slot."""

    def encode(self, message: Message) -> Encode:
        """Return the instruction that encodes a message's pieces, and reserve room for them."""

    def encode_unsent_sums(self) -> tuple[Message, Encode] | None:
        """Return the instruction that finally rounds the sums completed here and not sent since.

        With it comes a message of them that goes to no other rank, whose slot holds the bytes. By
        the second rule of synth/ir/addition_order.py, all receivers of a chunk that is copied
        anywhere end with a rounded value. None if there are no such sums.
        """


class MessageCodec(Protocol):
    """A compressed format, as far as the lowering to programs needs to know it."""

    def make_message_encoder(
        self, layout: Layout, rank: int, reads: Reads, writes: Writes
    ) -> Encoder:
        """Return what makes the encoding instructions of `rank`, whose chunks `layout` places.

        `reads` and `writes` list the steps in which each piece is sent and arrives.
        """
