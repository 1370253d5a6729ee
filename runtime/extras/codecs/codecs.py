"""Codecs that encode float32 values in fewer bytes for sending, and the buffers of encoding.

All ranks encode identically, on CPUs and GPUs. fp16 and bf16 round each value. int8 and the two fp8
kinds share a scale, a power of two, among blocks of 32, as the formats MXINT8 and MXFP8 do (OCP
Microscaling Formats v1.0, section 5): 33 bytes instead of 128. With powers of two, decoding encoded
values and encoding them again gives the same values: messages that ranks forward unchanged lose
nothing more.

Infinities and NaN stay non-finite, in whole blocks, so that a gradient scaler sees them; fp16
overflows from 65520 on.

A program is one rank's instructions for a schedule. It encodes parts of its work buffer to the wire
buffer, which holds the bytes of messages, and decodes those received to staging memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ....synth.cost.host_costs import HostCosts
from ...codec import BufferSizes, Codec, Encoding
from ...program.instructions import Decode, Encode, Program, Span
from ...scratch import Slicer

# Values that share a scale, as in MXINT8 and MXFP8.
BLOCK = 32
# Bytes to which encoded messages are aligned in the wire buffer: a cache line.
_ALIGN_BYTES = 64
# Float32: bits of the mantissa, the bias of the exponent, and the bits of infinity. A biased
# exponent of 255 is infinity or NaN, as for a scale in the OCP formats.
_MANTISSA_BITS, _BIAS = 23, 127
_INFINITE, _NON_FINITE_EXPONENT = 0x7F800000, 255


@dataclass(frozen=True)
class ScaledCodec(Codec):
    """A format of `width` bytes per value, in which `block` values share a one-byte scale.

    A `block` of 1 has no scale. `relative_error` bounds the rounding error as a fraction of the
    block's largest value. `call_us` and `value_ns` are the core time of (encoding, decoding), in
    microseconds per message and nanoseconds per value, measured on one thread of an AMD EPYC.
    `pack` and `unpack` convert (source, target) tensors; `offset` and `carry` round a block's
    largest exponent up to its scale.
    """

    name: str
    width: int
    block: int
    relative_error: float
    call_us: tuple[float, float]
    value_ns: tuple[float, float]
    pack: Callable[[torch.Tensor, torch.Tensor], None]
    unpack: Callable[[torch.Tensor, torch.Tensor], None]
    offset: int = 0
    carry: int = 0

    def nbytes(self, padded: int) -> int:
        """Return the bytes on the wire for `padded` values (whole blocks)."""
        return padded * self.width + (padded // self.block if self.block > 1 else 0)

    def room(self, padded: int) -> int:
        """Return the bytes to reserve for `padded` values: `nbytes`, rounded up to alignment."""
        return -(-self.nbytes(padded) // _ALIGN_BYTES) * _ALIGN_BYTES

    def add_costs(self, host: HostCosts) -> HostCosts:
        """Return the host costs plus those of encoding and decoding each message and byte."""
        return replace(
            host,
            send_us=host.send_us + self.call_us[0],
            receive_us=host.receive_us + self.call_us[1],
            byte_ns=host.byte_ns + sum(self.value_ns) / 2 * (self.block / self.nbytes(self.block)),
        )

    def encode(self, values: torch.Tensor, wire: torch.Tensor, spare: torch.Tensor) -> None:
        """Encode flat float32 `values` (whole blocks) into `wire`, a flat uint8 tensor of `nbytes`.

        `values` are overwritten; `spare` is scratch memory of the same length.
        """
        payload = wire[: len(values) * self.width]
        if self.block > 1:
            blocks = values.view(-1, self.block)
            torch.abs(blocks, out=spare.view(-1, self.block))
            scale = self._exponents(torch.amax(spare.view(-1, self.block), dim=1))
            wire[len(payload) :].copy_(scale)
            inverse = (
                (2 * _BIAS - scale)
                .clamp_(min=0)
                .bitwise_left_shift_(_MANTISSA_BITS)
                .view(torch.float32)
            )
            blocks.mul_(inverse[:, None])
        self.pack(values, payload)

    def decode(self, wire: torch.Tensor, values: torch.Tensor) -> None:
        """Decode `wire`, a flat uint8 tensor, into flat float32 `values` (whole blocks)."""
        payload = wire[: len(values) * self.width]
        self.unpack(payload, values)
        if self.block > 1:
            scale = (
                wire[len(payload) :]
                .to(torch.int32)
                .bitwise_left_shift_(_MANTISSA_BITS)
                .view(torch.float32)
            )
            values.view(-1, self.block).mul_(scale[:, None])

    def list_buffers(self, program: Program, *, feedback: bool) -> BufferSizes:
        """Return the numbers of elements, and their types, of the buffers that encoding needs.

        In this order: the encoded bytes, the values before encoding, the rounded values, and, with
        `feedback`, the rounding errors.
        """
        values = max((x.padded for x in program.instructions if isinstance(x, Encode)), default=0)
        errors = program.work_numel if feedback else 0
        return [
            (program.wire_bytes, torch.uint8),
            *((numel, torch.float32) for numel in (values, values, errors)),
        ]

    def open(self, sizes: BufferSizes, slicer: Slicer) -> EncodingBuffers:
        """Return a program's buffers, with the `sizes` of `list_buffers`, out of scratch memory."""
        return EncodingBuffers(self, sizes, slicer)

    def _exponents(self, largest: torch.Tensor) -> torch.Tensor:
        """Return the exponent of the least power of two that brings `largest` into the range.

        The exponent is biased (int32); the range is the format's.
        """
        bits = largest.view(torch.int32)
        exponents = (
            ((bits + self.carry) >> _MANTISSA_BITS)
            .sub_(self.offset)
            .clamp_(1, _NON_FINITE_EXPONENT - 1)
        )
        return exponents.masked_fill_(bits >= _INFINITE, _NON_FINITE_EXPONENT)


def _pack_int8(values: torch.Tensor, payload: torch.Tensor) -> None:
    payload.view(torch.int8).copy_(values.round_())


def _unpack_e4m3(payload: torch.Tensor, values: torch.Tensor) -> None:
    """Decode by shifting the bits into a float16, whose exponent reaches 8 lower.

    This is much faster than torch's cast on CPUs.
    """
    bits = payload.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(-0x4001)
    values.copy_(bits.view(torch.float16))
    values.mul_(256.0)


def _make_codec(
    name: str,
    dtype: torch.dtype,
    relative_error: float,
    call_us: tuple[float, float],
    value_ns: tuple[float, float],
    largest: float = 0.0,
    pack: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
    unpack: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
) -> ScaledCodec:
    """Return a codec to `dtype`.

    It has blocks with a scale if `largest`, the format's largest value, is given.
    """

    def cast(values: torch.Tensor, payload: torch.Tensor) -> None:
        payload.view(dtype).copy_(values)

    def uncast(payload: torch.Tensor, values: torch.Tensor) -> None:
        values.copy_(payload.view(dtype))

    offset = carry = 0
    if largest:  # exponent = (bits + carry >> 23) - offset, rounded up to hold the largest value
        (bits,) = struct.unpack("<I", struct.pack("<f", largest))
        offset = (bits >> _MANTISSA_BITS) - _BIAS
        carry = ~bits & ((1 << _MANTISSA_BITS) - 1)
    return ScaledCodec(
        name,
        dtype.itemsize,
        BLOCK if largest else 1,
        relative_error,
        call_us,
        value_ns,
        pack or cast,
        unpack or uncast,
        offset,
        carry,
    )


# Costs per message and per value, to encode and to decode (see ScaledCodec).
FP16 = _make_codec("fp16", torch.float16, 2**-11, (5, 3), (0.2, 0.1))
BF16 = _make_codec("bf16", torch.bfloat16, 2**-8, (5, 3), (0.2, 0.1))
FP8 = _make_codec(
    "fp8", torch.float8_e4m3fn, 2**-4, (48, 29), (1.2, 0.5), 448.0, unpack=_unpack_e4m3
)
FP8_E5M2 = _make_codec("fp8-e5m2", torch.float8_e5m2, 2**-3, (48, 16), (1.1, 0.7), 57344.0)
INT8 = _make_codec("int8", torch.int8, 1 / 127, (48, 16), (0.8, 0.2), 127.0, pack=_pack_int8)


class EncodingBuffers(Encoding):
    """The memory in which a program encodes and decodes messages, sized by `list_buffers`.

    `wire` holds the bytes of messages, `values` a message's values before encoding, `rounded` those
    after it. `errors` sums up a call's rounding errors (value minus rounded value), by position in
    the work buffer; it is empty without error feedback.
    """

    def __init__(self, codec: ScaledCodec, sizes: BufferSizes, slicer: Slicer) -> None:
        self.codec = codec
        self.wire, self.values, self.rounded, self.errors = (slicer.take(*size) for size in sizes)

    def make_encoder(self, x: Encode, work: torch.Tensor) -> Callable[[], None]:
        """Return a function that carries out the instruction `x` on the work buffer `work`.

        All tensor views are made once, here.
        """

        def slice_parts(of: torch.Tensor, rows: Sequence[tuple[Span, int]]) -> list[torch.Tensor]:
            return [of[span.start : span.start + span.length] for span, _ in rows]

        def slice_laid(of: torch.Tensor, rows: Sequence[tuple[Span, int]]) -> list[torch.Tensor]:
            return [of[start : start + span.length] for span, start in rows]

        # Codecs take whole blocks: between parts, and after the last, the values are zeros.
        ends = [start + span.length for span, start in x.parts]
        starts = [*(start for _, start in x.parts[1:]), x.padded]
        pads = [self.values[lo:hi] for lo, hi in zip(ends, starts, strict=True) if lo < hi]
        given, laid = slice_parts(work, x.parts), slice_laid(self.values, x.parts)
        values, rounded = self.values[: x.padded], self.rounded[: x.padded]
        wire = self.wire[x.into.start : x.into.start + x.into.length]
        kept, keeps = slice_laid(self.rounded, x.keeps), slice_parts(work, x.keeps)
        fed_back = x.errors if len(self.errors) else ()
        lost, before = slice_parts(self.errors, fed_back), slice_parts(work, fed_back)
        after = slice_laid(self.rounded, fed_back)

        def encode() -> None:
            torch._foreach_copy_(laid, given)
            if pads:
                torch._foreach_zero_(pads)
            self.codec.encode(values, wire, rounded)
            if keeps or lost:
                self.codec.decode(wire, rounded)
            if lost:
                torch._foreach_add_(lost, before)
                torch._foreach_sub_(lost, after)
            if keeps:
                torch._foreach_copy_(keeps, kept)

        return encode

    def make_decoder(self, x: Decode, staging: torch.Tensor) -> Callable[[], None]:
        """Return a function that carries out the instruction `x` into the tensor `staging`."""
        wire = self.wire[x.message.start : x.message.start + x.message.length]
        values = staging[x.into.start : x.into.start + x.into.length]
        return lambda: self.codec.decode(wire, values)
