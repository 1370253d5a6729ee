"""A rank's messages, tick by tick: their pieces, peers, staging places and encoding.

The rules of encoding are those of synth/ir/addition_order.py. A message's pieces are encoded one
after the other, each in whole blocks of the codec.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Protocol

from ...synth.ir.addition_order import END, rounded
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

    It is at elements [`lo`, `hi`) of this rank's work buffer. `step` is its transfer's; `adds` says
    whether it is added to the receiver's own value.
    """

    step: int
    chunk: int
    part: int
    adds: bool
    lo: int
    hi: int

    @property
    def key(self) -> tuple[int, int]:
        """The numbers of its chunk and, in the chunk, of its segment."""
        return self.chunk, self.part


@dataclass
class Message:
    """A message that this rank sends to `peer` (`sent`) or receives from it in `tick`.

    `number` counts the messages with that peer and direction. While it is staged, `slot` is its
    place: the Slots, the start and the length; None if it is not, or is in the work buffer.
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
        """The first element of its slot in the buffer; only while it has one."""
        assert self.slot is not None
        return self.slot[1]

    def offset_of(self, piece: Piece | None, padded: Callable[[int], int] | None) -> int:
        """Return the number of elements in the message before `piece` (None: in all pieces).

        `padded` gives the length that a piece of a number of elements takes when encoded; None if
        nothing is encoded.
        """
        lengths = (p.hi - p.lo for p in takewhile(lambda p: p is not piece, self.pieces))
        return sum(lengths if padded is None else map(padded, lengths))

    @property
    def step(self) -> int:
        """The smallest step of its pieces."""
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
    """Return the sorted ranges [lo, hi), those joined of which one begins where the other ends."""
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


class Blocks(Protocol):
    """The sizes of a codec's messages, which lowering needs; codec.Codec implements it."""

    def padded(self, numel: int) -> int:
        """Return `numel` rounded up to whole blocks, the number of values that are encoded."""

    def nbytes(self, padded: int) -> int:
        """Return the bytes on the wire for `padded` values, a number of whole blocks."""

    def room(self, padded: int) -> int:
        """Return the bytes to reserve in a buffer for `padded` values, alignment included."""


class MessageEncoder:
    """Makes the Encode instructions of one rank, in the order of its program.

    `reads` and `writes` list the steps in which each piece is sent and arrives; `slots` allocates
    bytes of the wire buffer.
    """

    def __init__(
        self, layout: Layout, rank: int, codec: Blocks, reads: Reads, writes: Writes
    ) -> None:
        self.layout, self.rank, self.codec = layout, rank, codec
        self.reads, self.writes = reads, writes
        self.slots = Slots()
        self._rounded = rounded(layout.schedule.uncut)
        self._fed_back: set[tuple[int, int, int]] = set()

    def padded(self, message: Message) -> int:
        """Return the number of values that are encoded for a message, those of padding included."""
        return message.offset_of(None, self.codec.padded)

    def take_room(self, message: Message) -> Span:
        """Reserve room in the wire buffer as the message's `slot`, and return the bytes it uses."""
        room = self.codec.room(self.padded(message))
        message.slot = self.slots, self.slots.take(room), room
        return self.span_of(message)

    def span_of(self, message: Message) -> Span:
        """Return the bytes of the wire buffer that a message uses in its slot."""
        return Span("wire", message.start, self.codec.nbytes(self.padded(message)))

    def encode(self, message: Message) -> Encode:
        """Return the instruction that encodes a message's pieces, and reserve room for them."""
        errors = []
        for piece in message.pieces:
            use = *piece.key, piece.step
            # Once, even if several sends of a step round the same values.
            if (
                use not in self._fed_back
                and (self.rank, piece.chunk, piece.step) not in self._rounded.echoes
            ):
                self._fed_back.add(use)
                errors.append(piece)
        return self._encode(
            message, [p for p in message.pieces if self._goes_on_with(p.key, p.step)], errors
        )

    def encode_unsent_sums(self) -> tuple[Message, Encode] | None:
        """Return the instruction that finally rounds the sums completed here and not sent since.

        With it comes a message of them that goes to no other rank, whose slot holds the bytes. That
        is the second rule of synth/ir/addition_order.py. None if there are no such sums.
        """
        schedule, unsent = self.layout.schedule, []
        for c in sorted(self._rounded.copied):
            if self.rank not in schedule.collective.receivers(schedule.chunks[c]):
                continue
            for part in range(schedule.segments):
                lo, hi = self.layout.segment(self.rank, c, part)
                if lo < hi and self._is_unrounded((c, part)):
                    unsent.append(Piece(END, c, part, False, lo, hi))
        if not unsent:
            return None
        errors = [p for p in unsent if (self.rank, p.chunk, END) not in self._rounded.echoes]
        message = Message(True, self.rank, 0, END, unsent)
        return message, self._encode(message, unsent, errors)

    def _encode(self, message: Message, keeps: list[Piece], errors: list[Piece]) -> Encode:
        parts, kept, fed_back = (
            tuple(
                (Span("work", p.lo, p.hi - p.lo), message.offset_of(p, self.codec.padded))
                for p in pieces
            )
            for pieces in (message.pieces, keeps, errors)
        )
        return Encode(parts, self.padded(message), self.take_room(message), kept, fed_back)

    def _goes_on_with(self, key: tuple[int, int], step: int) -> bool:
        """Return whether a rank still needs a piece that it sends, and has not rounded it yet.

        It needs the piece if it adds to it after the step, or ends with it.
        """
        before = [group for group in self.writes[key] if group.step < step]
        since = before[-1].step if before else -1
        if (before and not before[-1].messages[-1][1].adds) or any(
            since < s < step for s, _ in self.reads[key]
        ):
            return False
        after = next((group for group in self.writes[key] if group.step >= step), None)
        return after is None or after.messages[-1][1].adds

    def _is_unrounded(self, key: tuple[int, int]) -> bool:
        if not self.writes[key]:
            return all(step <= END for step, _ in self.reads[key])
        last = self.writes[key][-1]
        return last.messages[-1][1].adds and all(step <= last.step for step, _ in self.reads[key])
