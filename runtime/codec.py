"""What values may be sent in: the contract of codecs, which extras add (group `codecs`).

A codec encodes float32 values in bytes for a message, alike on all ranks. Encoding decoded values
again gives the same bytes: messages that ranks forward unchanged lose nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from ..extras import CODECS, ENCODERS, Names
from ..synth.cost.host_costs import HostCosts
from .program.instructions import Decode, Encode, Program
from .program.layout import Layout
from .program.messages import Encoder, Reads, Writes
from .scratch import Slicer

# The number of elements and the dtype of each buffer that a program needs for encoding.
BufferSizes = Sequence[tuple[int, torch.dtype]]


class Encoding(ABC):
    """A program's buffers for encoding, and what carries out its instructions on them.

    `wire` has the bytes of messages, `errors` receives the rounding errors of a call, and is empty
    without error feedback.
    """

    wire: torch.Tensor
    errors: torch.Tensor

    @abstractmethod
    def make_encoder(self, x: Encode, work: torch.Tensor) -> Callable[[], None]:
        """Return a function that carries out an instruction on the work buffer `work`."""

    @abstractmethod
    def make_decoder(self, x: Decode, staging: torch.Tensor) -> Callable[[], None]:
        """Return a function that carries out an instruction, which decodes into `staging`."""


class Codec(ABC):
    """A format in which float32 values are sent: a `program.messages.MessageCodec`.

    `block` values are encoded together, padded with zeros. `relative_error` bounds |decoded -
    value| as a fraction of the largest |value| of the block, for values far from the ends of the
    format's range.
    """

    name: str
    block: int
    relative_error: float

    @abstractmethod
    def nbytes(self, padded: int) -> int:
        """Return the bytes on the wire for `padded` values (whole blocks)."""

    @abstractmethod
    def room(self, padded: int) -> int:
        """Return the bytes to reserve for `padded` values: `nbytes`, rounded up for alignment."""

    @abstractmethod
    def add_costs(self, host: HostCosts) -> HostCosts:
        """Return the host costs plus those of encoding and decoding each message and byte."""

    @abstractmethod
    def list_buffers(self, program: Program, *, feedback: bool) -> BufferSizes:
        """Return the buffers that a program needs, with or without error `feedback`."""

    @abstractmethod
    def open(self, sizes: BufferSizes, slicer: Slicer) -> Encoding:
        """Return a program's buffers of the given sizes (`list_buffers`), cut from `slicer`'s
        memory.
        """

    def encode_messages(self, layout: Layout, rank: int, reads: Reads, writes: Writes) -> Encoder:
        """Return what encodes a rank's messages."""
        make: Callable[..., Encoder] = Names(ENCODERS).find("messages")
        return make(self, layout, rank, reads, writes)

    def padded(self, numel: int) -> int:
        """Return `numel` rounded up to whole blocks, the number of values that are encoded."""
        return -(-numel // self.block) * self.block


def find_codec(name: str) -> Codec:
    """Return the codec of a name. Raise InputError if nothing that is installed has it."""
    codec: Codec = Names(CODECS).find(name)
    return codec
