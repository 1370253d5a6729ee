"""What compression adds to a rank's program: which pieces are encoded where, and what their rounding means to the rank.

The rules are those of synth/rounded.py. A message's pieces are encoded side by side, each in whole blocks of the codec.
"""

from __future__ import annotations

from typing import Protocol

from ...synth.ir.lossy import END, rounded
from .instructions import Encode, Place
from .layout import Layout
from .messages import Message, Piece, Reads, Writes
from .slots import Slots


class Blocks(Protocol):
    """What lowering must know of a codec: see compress.Codec."""

    def padded(self, numel: int) -> int:
        """Values that are encoded for `numel` of them."""

    def nbytes(self, padded: int) -> int:
        """Bytes of so many values."""

    def room(self, padded: int) -> int:
        """Bytes to keep for them."""


class Coder:
    """Encodes one rank's messages. `reads` and `writes` say what else becomes of pieces; `room` is in the wire buffer."""

    def __init__(self, layout: Layout, rank: int, codec: Blocks, reads: Reads, writes: Writes) -> None:
        self.layout, self.rank, self.codec, self.reads, self.writes = layout, rank, codec, reads, writes
        self.room = Slots()
        self._rounded = rounded(layout.schedule.uncut)
        self._felt: set[tuple[int, int, int]] = set()

    def padded(self, message: Message) -> int:
        """Values that are encoded for a message."""
        return message.before(None, self.codec.padded)

    def place(self, message: Message) -> Place:
        """Room for a message's bytes, which is the message's until it is given back."""
        padded = self.padded(message)
        room = self.codec.room(padded)
        message.slot = self.room, self.room.take(room), room
        return self.received(message)

    def received(self, message: Message) -> Place:
        """Where a message's bytes are."""
        return Place("wire", message.at, self.codec.nbytes(self.padded(message)))

    def encoded(self, message: Message) -> Encode:
        """What makes a message of its pieces."""
        keeps, errors = [], []
        for piece in message.pieces:
            (chunk, _), step = piece.key, piece.step
            if self._goes_on_with(piece.key, step):
                keeps.append(piece)
            if (self.rank, chunk, step) not in self._rounded.echoes and (*piece.key, step) not in self._felt:
                self._felt.add((*piece.key, step))
                errors.append(piece)
        return self._encode(message, keeps, errors)

    def rest(self) -> tuple[Message, Encode] | None:
        """The second rule: what was added up here last, and not sent since, is rounded in the end. None: nothing was."""
        schedule, rest, errors = self.layout.schedule, [], []
        for c in sorted(self._rounded.copied):
            if self.rank not in schedule.collective.receivers(schedule.chunks[c]):
                continue
            for part in range(schedule.segments):
                lo, hi = self.layout.segment(self.rank, c, part)
                if lo < hi and self._is_unrounded((c, part)):
                    rest.append(Piece(END, c, part, False, lo, hi))
                    if (self.rank, c, END) not in self._rounded.echoes:
                        errors.append(rest[-1])
        if not rest:
            return None
        message = Message(True, self.rank, 0, END, rest)
        return message, self._encode(message, rest, errors)

    def _encode(self, message: Message, keeps: list[Piece], errors: list[Piece]) -> Encode:
        def laid(pieces: list[Piece]) -> tuple[tuple[Place, int], ...]:
            return tuple((Place("work", p.lo, p.hi - p.lo), message.before(p, self.codec.padded)) for p in pieces)

        return Encode(laid(message.pieces), self.padded(message), self.place(message), laid(keeps), laid(errors))

    def _goes_on_with(self, key: tuple[int, int], step: int) -> bool:
        """Whether a rank that sends a piece in a step adds to it later, or ends with it; not if it is rounded already."""
        before = [group for group in self.writes[key] if group.step < step]
        since = before[-1].step if before else -1
        if (before and not before[-1].messages[0][1].adds) or any(since < s < step for s, _ in self.reads[key]):
            return False
        after = next((group for group in self.writes[key] if group.step >= step), None)
        return after is None or after.messages[0][1].adds

    def _is_unrounded(self, key: tuple[int, int]) -> bool:
        last = self.writes[key][-1] if self.writes[key] else None
        if last is not None and not last.messages[0][1].adds:
            return False
        return all(step <= (END if last is None else last.step) for step, _ in self.reads[key])
