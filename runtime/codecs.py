"""Codecs for compression on the wire: they encode float32 values in fewer bytes, alike on every
rank, on CPUs and GPUs.

fp16 and bf16 round each value. int8 and the two fp8 kinds share a scale, a power of two, among
blocks of 32, as the formats MXINT8 and MXFP8 do (OCP Microscaling Formats v1.0, section 5): 33
bytes instead of 128. With powers of two, decoding what was encoded and encoding it again gives the
same values: what ranks hand on unchanged loses nothing more.

Infinities and NaN stay non-finite, in whole blocks, so that a gradient scaler sees them; fp16
overflows from 65520 on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ..synth.cost.host_costs import HostCosts
from ..topo.errors import InputError, suggest

BLOCK = 32
_ALIGN = 64
_EXPONENT_OF_NONE = 255
_MANTISSA_BITS, _BIAS = 23, 127
_INFINITE = 0x7F800000


@dataclass(frozen=True)
class Codec:
    """One way to encode values: each takes `width` bytes, and `block` of them share a scale of one
    byte (1: no scale).

    `relative_error` bounds |decoded - value| as a part of the block's largest |value| (of the value
    itself without blocks), for values far from the ends of the format's range. `call_us` and
    `value_ns` are what encoding and decoding cost a core: a message, and a value (measured, one
    thread of an AMD EPYC).
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

    def padded(self, numel: int) -> int:
        """Return the number of values that are encoded for `numel` of them: whole blocks."""
        return -(-numel // self.block) * self.block

    def nbytes(self, padded: int) -> int:
        """Return the bytes on the wire of `padded` values (whole blocks)."""
        return padded * self.width + (padded // self.block if self.block > 1 else 0)

    def room(self, padded: int) -> int:
        """Return the bytes to keep for `padded` values in a buffer, so that what follows is
        aligned.
        """
        return -(-self.nbytes(padded) // _ALIGN) * _ALIGN

    def add_costs(self, host: HostCosts) -> HostCosts:
        """Return the host costs with what encoding and decoding adds to each message and byte."""
        values_per_byte = self.block / self.nbytes(self.block)
        return replace(
            host,
            send_us=host.send_us + self.call_us[0],
            receive_us=host.receive_us + self.call_us[1],
            byte_ns=host.byte_ns + sum(self.value_ns) / 2 * values_per_byte,
        )

    def encode(self, values: torch.Tensor, wire: torch.Tensor, spare: torch.Tensor) -> None:
        """Encode flat float32 `values` (whole blocks), which are lost, into the bytes `wire`;
        `spare` is as long.
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
        """Decode the bytes `wire` into flat float32 `values`."""
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

    def _exponents(self, largest: torch.Tensor) -> torch.Tensor:
        """Return the biased exponent (int32) of the least power of two that brings `largest` into
        the format's range.
        """
        bits = largest.view(torch.int32)
        exponents = (
            ((bits + self.carry) >> _MANTISSA_BITS)
            .sub_(self.offset)
            .clamp_(1, _EXPONENT_OF_NONE - 1)
        )
        return exponents.masked_fill_(bits >= _INFINITE, _EXPONENT_OF_NONE)


def _cast(dtype: torch.dtype) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def pack(values: torch.Tensor, payload: torch.Tensor) -> None:
        payload.view(dtype).copy_(values)

    return pack


def _uncast(dtype: torch.dtype) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def unpack(payload: torch.Tensor, values: torch.Tensor) -> None:
        values.copy_(payload.view(dtype))

    return unpack


def _pack_int8(values: torch.Tensor, payload: torch.Tensor) -> None:
    payload.view(torch.int8).copy_(values.round_())


def _unpack_e4m3(payload: torch.Tensor, values: torch.Tensor) -> None:
    """Decode by shifting the bits into a float16, whose exponent reaches 8 lower: much faster than
    torch's cast on CPUs.
    """
    bits = payload.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(-0x4001)
    values.copy_(bits.view(torch.float16))
    values.mul_(256.0)


def _scaled(largest: float) -> dict[str, int]:
    """Return `offset` and `carry` of a format whose largest value is `largest`: exponent = (bits +
    carry >> 23) - offset.
    """
    bits = int(torch.tensor(largest, dtype=torch.float32).view(torch.int32).item())
    mantissa = bits & ((1 << _MANTISSA_BITS) - 1)
    return {
        "offset": (bits >> _MANTISSA_BITS) - _BIAS,
        "carry": (1 << _MANTISSA_BITS) - 1 - mantissa,
    }


_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec(
            "fp16", 2, 1, 2**-11, (5, 3), (0.2, 0.1), _cast(torch.float16), _uncast(torch.float16)
        ),
        Codec(
            "bf16", 2, 1, 2**-8, (5, 3), (0.2, 0.1), _cast(torch.bfloat16), _uncast(torch.bfloat16)
        ),
        Codec(
            "fp8",
            1,
            BLOCK,
            2**-4,
            (48, 29),
            (1.2, 0.5),
            _cast(_E4M3),
            _unpack_e4m3,
            **_scaled(448.0),
        ),
        Codec(
            "fp8-e5m2",
            1,
            BLOCK,
            2**-3,
            (48, 16),
            (1.1, 0.7),
            _cast(_E5M2),
            _uncast(_E5M2),
            **_scaled(57344.0),
        ),
        Codec(
            "int8",
            1,
            BLOCK,
            1 / 127,
            (48, 16),
            (0.8, 0.2),
            _pack_int8,
            _uncast(torch.int8),
            **_scaled(127.0),
        ),
    )
}


def find_codec(name: str) -> Codec:
    """Return the codec of a name. Raises InputError where there is none."""
    if name not in CODECS:
        raise InputError(
            f"compress={name!r}{suggest(name, CODECS)}: expected one of {', '.join(CODECS)}"
        )
    return CODECS[name]
