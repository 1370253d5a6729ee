"""Compile the encoding of a program's messages: which values, where in the buffer of encoded bytes.

A message is what one rank sends another in one tick; a piece is a segment of a chunk in it. The
pieces of a message are encoded one after the other, each padded to whole blocks of the codec.

Values are rounded by the rules of synth/ir/addition_order.py: a rank that sends a value goes on
with the rounded value itself, and at the end each receiver of a chunk that is copied anywhere
rounds its own. Error feedback adds the errors of a call's roundings to the next call's input. If
one value is rounded several times, by several ranks or again by one, one of these roundings feeds
its error back; the others are its echoes.
"""

from itertools import takewhile
from typing import Protocol

from ....synth.ir.addition_order import END, rounded
from ...program.instructions import Encode, Span
from ...program.layout import Layout
from ...program.messages import Message, Piece, Reads, Slots, Writes


class Blocks(Protocol):
    """The sizes of a codec's encoded messages."""

    def padded(self, numel: int) -> int:
        """Return `numel` rounded up to whole blocks, the number of values that are encoded."""

    def nbytes(self, padded: int) -> int:
        """Return the bytes on the wire for `padded` values, a number of whole blocks."""

    def room(self, padded: int) -> int:
        """Return the bytes to reserve in a buffer for `padded` values, alignment included."""


class MessageEncoder:
    """Makes the instructions that encode the messages of `rank`, and reserves room for their bytes.

    `layout` has the places of chunks in the rank's work buffer, in elements. `reads` maps a piece,
    as (chunk, segment), to the steps in which the rank sends it, each with the message; `writes`
    maps it to the groups of messages that bring it, one group for each step. `codec` has the sizes
    of encoded values. `slots` allocates the bytes of the wire buffer, which holds encoded messages.
    """

    def __init__(
        self, codec: Blocks, layout: Layout, rank: int, reads: Reads, writes: Writes
    ) -> None:
        self.layout, self.rank, self.codec = layout, rank, codec
        self.reads, self.writes = reads, writes
        self.slots = Slots()
        # The effects of rounding: its `echoes`, and its `copied`, the chunks copied anywhere.
        self._rounded = rounded(layout.schedule.uncut)
        # (chunk, segment, step) of the roundings whose errors are fed back.
        self._fed_back: set[tuple[int, int, int]] = set()

    def padded(self, message: Message) -> int:
        """Return the number of values that are encoded for a message, padding included."""
        return sum(self.codec.padded(p.hi - p.lo) for p in message.pieces)

    def offset_of(self, message: Message, piece: Piece) -> int:
        """Return the number of values, with padding, that precede `piece` in its message."""
        before = takewhile(lambda p: p is not piece, message.pieces)
        return sum(self.codec.padded(p.hi - p.lo) for p in before)

    def take_room(self, message: Message) -> Span:
        """Reserve bytes of the wire buffer as the message's `slot`; return those that it uses.

        The slot is (`slots`, start, length), in bytes, padded for alignment.
        """
        room = self.codec.room(self.padded(message))
        message.slot = self.slots, self.slots.take(room), room
        return self.span_of(message)

    def span_of(self, message: Message) -> Span:
        """Return the bytes of the wire buffer that a message uses in its slot; it must have one."""
        return Span("wire", message.start, self.codec.nbytes(self.padded(message)))

    def encode(self, message: Message) -> Encode:
        """Reserve room for a message, and return the instruction that encodes its pieces.

        The instruction also replaces by their rounded values those pieces in the work buffer that
        the rank goes on with (`keeps`), and feeds back the errors of pieces that are no echoes
        (`errors`). Call it in the program's order: of several sends of a piece in one step, the
        first feeds the error back.
        """
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
        """Return the instruction that rounds sums completed here and not sent; None if none.

        Without it this rank would keep more exact values than the others receive. The message that
        comes with it goes to no rank: it holds the pieces, and the slot that encoding them takes.
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
            tuple((Span("work", p.lo, p.hi - p.lo), self.offset_of(message, p)) for p in pieces)
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
