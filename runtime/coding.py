"""Encoding and decoding inside a compiled program: the buffers, and each instruction with its views cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .codecs import Codec
from .program.instructions import Decode, Encode, Place, Program


class Coding:
    """The buffers that encoding takes: bytes on the wire, values to encode and decoded ones, and, with feedback, errors."""

    def __init__(self, program: Program, codec: Codec, device: torch.device, feedback: bool) -> None:
        most = max((x.padded for x in program.instructions if isinstance(x, Encode)), default=0)
        self.codec = codec
        self.wire = torch.empty(program.wire_bytes, dtype=torch.uint8, device=device)
        self.values = torch.empty(most, dtype=torch.float32, device=device)
        self.rounded = torch.empty(most, dtype=torch.float32, device=device)
        self.errors = torch.empty(program.work_numel if feedback else 0, dtype=torch.float32, device=device)

    @property
    def bytes(self) -> int:
        """What the buffers take."""
        return self.wire.nbytes + self.values.nbytes + self.rounded.nbytes + self.errors.nbytes

    def encoder(self, x: Encode, work: torch.Tensor) -> Callable[[], None]:
        """One Encode on a work buffer, with all views cut."""

        def views(of: torch.Tensor, rows: Sequence[tuple[Place, int]], *, laid: bool) -> list[torch.Tensor]:
            starts = [at if laid else place.at for place, at in rows]
            return [of[lo : lo + place.length] for lo, (place, _) in zip(starts, rows, strict=True)]

        ends = [(at + place.length, following) for (place, at), following in zip(
            x.parts, [*(at for _, at in x.parts[1:]), x.padded], strict=True)]  # fmt: skip
        pads = [self.values[lo:hi] for lo, hi in ends if lo < hi]
        given, laid = views(work, x.parts, laid=False), views(self.values, x.parts, laid=True)
        values, rounded = self.values[: x.padded], self.rounded[: x.padded]
        wire = self.wire[x.into.at : x.into.at + x.into.length]
        kept, keeps = views(self.rounded, x.keeps, laid=True), views(work, x.keeps, laid=False)
        felt = x.errors if len(self.errors) else ()
        lost, before = views(self.errors, felt, laid=False), views(work, felt, laid=False)
        after = views(self.rounded, felt, laid=True)
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

    def decoder(self, x: Decode, staging: torch.Tensor) -> Callable[[], None]:
        """One Decode."""
        wire = self.wire[x.message.at : x.message.at + x.message.length]
        values = staging[x.into.at : x.into.at + x.into.length]
        return lambda: self.codec.decode(wire, values)
