"""The encoding of messages in a rank's program.

It decides where pieces are encoded, and which values of the rank their rounding changes. The rules
are those of synth/ir/lossy.py. A message's pieces are encoded one after the other, each in whole
blocks of the codec.
"""

from __future__ import annotations

from typing import Protocol

from ...synth.ir.lossy import END, rounded
from .instructions import Encode, Span
from .layout import Layout
from .messages import Message, Piece, Reads, Slots, Writes


class Blocks(Protocol):
    """The sizes of a codec, which lowering needs: see codecs.Codec."""

    def padded(self, numel: int) -> int:
        """Return `numel` rounded up to whole blocks, the number of values that are encoded."""

    def nbytes(self, padded: int) -> int:
        """Return the bytes on the wire for `padded` values."""

    def room(self, padded: int) -> int:
        """Return the bytes to reserve in a buffer for `padded` values."""


class MessageEncoder:
    """Writes the Encode instructions of one rank.

    `reads` and `writes` list all uses of pieces; `slots` allocates room in the wire buffer.
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
        """Return the number of values that are encoded for a message."""
        return message.offset_of(None, self.codec.padded)

    def take_room(self, message: Message) -> Span:
        """Reserve room for a message's bytes, and return its place."""
        padded = self.padded(message)
        room = self.codec.room(padded)
        message.slot = self.slots, self.slots.take(room), room
        return self.span_of(message)

    def span_of(self, message: Message) -> Span:
        """Return the place of a message's bytes in the wire buffer."""
        return Span("wire", message.start, self.codec.nbytes(self.padded(message)))

    def encode(self, message: Message) -> Encode:
        """Return the instruction that encodes a message's pieces."""
        keeps, errors = [], []
        for piece in message.pieces:
            use = *piece.key, piece.step
            if self._goes_on_with(piece.key, piece.step):
                keeps.append(piece)
            is_echo = (self.rank, piece.chunk, piece.step) in self._rounded.echoes
            # Once, even if several sends of a step round the same values.
            if not is_echo and use not in self._fed_back:
                self._fed_back.add(use)
                errors.append(piece)
        return self._encode(message, keeps, errors)

    def encode_unsent_sums(self) -> tuple[Message, Encode] | None:
        """Return the instruction that finally rounds the sums completed here and not sent since.

        That is the second rule of synth/ir/lossy.py. None if there are no such sums.
        """
        schedule, unsent, errors = self.layout.schedule, [], []
        for c in sorted(self._rounded.copied):
            if self.rank not in schedule.collective.receivers(schedule.chunks[c]):
                continue
            for part in range(schedule.segments):
                lo, hi = self.layout.segment(self.rank, c, part)
                if lo < hi and self._is_unrounded((c, part)):
                    unsent.append(Piece(END, c, part, False, lo, hi))
                    if (self.rank, c, END) not in self._rounded.echoes:
                        errors.append(unsent[-1])
        if not unsent:
            return None
        message = Message(True, self.rank, 0, END, unsent)
        return message, self._encode(message, unsent, errors)

    def _encode(self, message: Message, keeps: list[Piece], errors: list[Piece]) -> Encode:
        def lay_out(pieces: list[Piece]) -> tuple[tuple[Span, int], ...]:
            return tuple(
                (Span("work", p.lo, p.hi - p.lo), message.offset_of(p, self.codec.padded))
                for p in pieces
            )

        return Encode(
            lay_out(message.pieces),
            self.padded(message),
            self.take_room(message),
            lay_out(keeps),
            lay_out(errors),
        )

    def _goes_on_with(self, key: tuple[int, int], step: int) -> bool:
        """Return whether a rank still needs a piece that it sends, and has not rounded it yet.

        It needs the piece if it adds to it after the step, or ends with it.
        """
        before = [group for group in self.writes[key] if group.step < step]
        since = before[-1].step if before else -1
        if (before and not before[-1].messages[0][1].adds) or any(
            since < s < step for s, _ in self.reads[key]
        ):
            return False
        after = next((group for group in self.writes[key] if group.step >= step), None)
        return after is None or after.messages[0][1].adds

    def _is_unrounded(self, key: tuple[int, int]) -> bool:
        if not self.writes[key]:
            return all(step <= END for step, _ in self.reads[key])
        last = self.writes[key][-1]
        return last.messages[0][1].adds and all(step <= last.step for step, _ in self.reads[key])
