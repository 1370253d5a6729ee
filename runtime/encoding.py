"""Buffers and operations for compression: values encoded for the wire, and decoded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .codecs import Codec
from .program.instructions import Decode, Encode, Program, Span
from .scratch import Slicer, count_aligned


@dataclass(frozen=True)
class EncodingSizes:
    """Sizes of the encoding buffers: bytes on the wire, float32 values to encode and decode, and
    errors (0 without feedback).
    """

    wire_bytes: int
    values: int
    errors: int

    @classmethod
    def of(cls, program: Program, *, feedback: bool) -> EncodingSizes:
        """Return the sizes for a program."""
        values = max((x.padded for x in program.instructions if isinstance(x, Encode)), default=0)
        return cls(program.wire_bytes, values, program.work_numel if feedback else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers in an arena."""
        sizes = (self.wire_bytes, *(4 * x for x in (self.values, self.values, self.errors)))
        return sum(map(count_aligned, sizes))


class EncodingBuffers:
    """The encoding buffers of one program, cut from scratch memory."""

    def __init__(self, codec: Codec, sizes: EncodingSizes, slicer: Slicer) -> None:
        self.codec = codec
        self.wire = slicer.take(sizes.wire_bytes, torch.uint8)
        self.values = slicer.take(sizes.values, torch.float32)
        self.rounded = slicer.take(sizes.values, torch.float32)
        self.errors = slicer.take(sizes.errors, torch.float32)

    def make_encoder(self, x: Encode, work: torch.Tensor) -> Callable[[], None]:
        """Return one Encode on a work buffer as a function, with all views sliced."""

        def slice_parts(of: torch.Tensor, rows: Sequence[tuple[Span, int]]) -> list[torch.Tensor]:
            return [of[span.start : span.start + span.length] for span, _ in rows]

        def slice_laid(of: torch.Tensor, rows: Sequence[tuple[Span, int]]) -> list[torch.Tensor]:
            return [of[start : start + span.length] for span, start in rows]

        starts = [start for _, start in x.parts]
        ends = [start + span.length for span, start in x.parts]
        # Codecs take whole blocks: between parts, and after the last, the values are zeros.
        gaps = zip(ends, [*starts[1:], x.padded], strict=True)
        pads = [self.values[lo:hi] for lo, hi in gaps if lo < hi]
        given, laid = slice_parts(work, x.parts), slice_laid(self.values, x.parts)
        values, rounded = self.values[: x.padded], self.rounded[: x.padded]
        wire = self.wire[x.into.start : x.into.start + x.into.length]
        kept, keeps = slice_laid(self.rounded, x.keeps), slice_parts(work, x.keeps)
        fed_back = x.errors if len(self.errors) else ()
        lost, before = slice_parts(self.errors, fed_back), slice_parts(work, fed_back)
        after = slice_laid(self.rounded, fed_back)
        codec = self.codec

        def encode() -> None:
            torch._foreach_copy_(laid, given)
            if pads:
                torch._foreach_zero_(pads)
            codec.encode(values, wire, rounded)
            if keeps or lost:
                codec.decode(wire, rounded)
            if lost:
                torch._foreach_add_(lost, before)
                torch._foreach_sub_(lost, after)
            if keeps:
                torch._foreach_copy_(keeps, kept)

        return encode

    def make_decoder(self, x: Decode, staging: torch.Tensor) -> Callable[[], None]:
        """Return one Decode as a function, with its views sliced."""
        wire = self.wire[x.message.start : x.message.start + x.message.length]
        values = staging[x.into.start : x.into.start + x.into.length]
        return lambda: self.codec.decode(wire, values)
