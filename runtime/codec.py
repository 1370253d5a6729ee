"""The contract of codecs, which compress the values of messages; extras add them (group `codecs`).

A codec encodes float32 values in bytes for a message, alike on all ranks. Encoding decoded values
again gives the same values: messages that ranks forward unchanged lose nothing more. A program is
one rank's list of instructions for a schedule; received values are decoded to staging memory, and
encoded ones are in the wire buffer. An Encoder writes the instructions that encode messages
(Encode) and an Encoding carries them out. Error feedback adds a call's rounding errors to the next
input.
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

    `wire` holds the bytes of messages; `errors` receives the rounding errors of a call (float32),
    and is empty without error feedback.
    """

    wire: torch.Tensor
    errors: torch.Tensor

    @abstractmethod
    def make_encoder(self, x: Encode, work: torch.Tensor) -> Callable[[], None]:
        """Return a function that encodes the parts of the work buffer which instruction `x` names.

        It writes their bytes to `wire`.
        """

    @abstractmethod
    def make_decoder(self, x: Decode, staging: torch.Tensor) -> Callable[[], None]:
        """Return a function that decodes the bytes that instruction `x` names into `staging`."""


class Codec(ABC):
    """A format in which float32 values are sent.

    `block` values are encoded together, padded with zeros. `relative_error` bounds |decoded -
    value| as a fraction of the largest |value| of the block, for values far from the ends of the
    format's range.
    """

    name: str
    block: int
    relative_error: float

    @abstractmethod
    def nbytes(self, padded: int) -> int:
        """Return the bytes of a message that encodes `padded` values (whole blocks)."""

    @abstractmethod
    def room(self, padded: int) -> int:
        """Return the bytes to reserve for `padded` values: `nbytes`, rounded up for alignment."""

    @abstractmethod
    def add_costs(self, host: HostCosts) -> HostCosts:
        """Return the host's costs per message and byte plus those of encoding and decoding."""

    @abstractmethod
    def list_buffers(self, program: Program, *, feedback: bool) -> BufferSizes:
        """Return the sizes of buffers that a program needs, with or without error `feedback`."""

    @abstractmethod
    def open(self, sizes: BufferSizes, slicer: Slicer) -> Encoding:
        """Return a program's buffers, with sizes of `list_buffers`, cut from `slicer`'s memory."""

    def make_message_encoder(
        self, layout: Layout, rank: int, reads: Reads, writes: Writes
    ) -> Encoder:
        """Return the Encoder that writes the Encode instructions for what `rank` sends.

        `layout` has the places of chunks in the work buffer; `reads` and `writes` list, for each
        piece (the part of a chunk that a message carries), the steps in which it is sent and in
        which it arrives. Raise InputError if the extra that encodes messages is not installed.
        """
        make: Callable[..., Encoder] = Names(ENCODERS).find("messages")
        return make(self, layout, rank, reads, writes)

    def padded(self, numel: int) -> int:
        """Return `numel` rounded up to whole blocks: the number of values that are encoded."""
        return -(-numel // self.block) * self.block


def find_codec(name: str) -> Codec:
    """Return the codec of a name. Raise InputError if nothing that is installed has it."""
    codec: Codec = Names(CODECS).find(name)
    return codec
