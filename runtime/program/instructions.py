"""The program of one rank: its posts, waits, additions and copies, in one fixed order.

`lowering.py` makes it from a schedule, which moves chunks (parts of the collective's buffer) from
rank to rank in steps; a tick is a step cut finer, in which a segment of a chunk moves. All chunks
that a rank holds are in its work buffer. For allreduce, broadcast and reduce that is the tensor
itself; for allgather, gather, reduce-scatter and scatter it has a block for every rank; for
alltoall it has just the chunks that the rank ever holds, relayed ones too. Element boundaries are
floor(exact share * elements), the same on every rank, so any length works: a piece without elements
is skipped on both sides. Received pieces wait in staging, a scratch buffer; encoded messages are in
the wire buffer.

A piece is a segment of a chunk. All pieces that one rank sends another in one tick are one message,
packed one after the other unless they are contiguous already. There are two orders:

- flow: a message is sent as soon as its own pieces are there. Receives are posted some ticks ahead,
  and a send waits for just those that bring or change its pieces (over gloo).
- batched: a tick's messages are posted as one batch, and all of them are awaited before the next
  tick (over NCCL).

Sums are taken from the lowest source rank to the highest, the rank's own value in its place (see
synth/ir/addition_order.py).

With compression messages are bytes: a send encodes its pieces, each in whole blocks of the codec,
and a received message is decoded to staging before it is used. Encoded values are rounded, by the
rules of synth/ir/addition_order.py.
"""

from dataclasses import dataclass
from typing import Final, Literal

from .layout import Move

# Names the errors that rounding left, one for each element of the work buffer. The program has no
# buffer for them: who feeds errors back keeps them.
ERRORS: Final = "errors"


@dataclass(frozen=True)
class Span:
    """`length` elements of one of a rank's buffers, from element `start` on.

    In the buffer "wire" both are bytes. "errors" stands for residuals that the caller keeps.
    """

    buffer: Literal["work", "staging", "wire", "errors"]
    start: int
    length: int

    @property
    def end(self) -> int:
        """The position after the last element."""
        return self.start + self.length


@dataclass(frozen=True)
class Post:
    """Begin a message (`kind`): send `span` to rank `peer`, or receive from it into `span`.

    `number` counts the messages with that peer in that direction; `step` and `tick` are when the
    schedule has the message.
    """

    kind: Literal["send", "receive"]
    peer: int
    number: int
    tick: int
    step: int
    span: Span


@dataclass(frozen=True)
class Await:
    """Wait for the end of the `post`-th Post of the program, counted from 0."""

    post: int


@dataclass(frozen=True)
class Pack:
    """Copy `parts` one after the other to `into`, to send them as one message."""

    parts: tuple[Span, ...]
    into: Span


@dataclass(frozen=True)
class Encode:
    """Encode `parts` of the work buffer to the bytes `into` of the wire buffer.

    Each part comes with its offset among the `padded` values that are encoded; the values between
    parts are zero. Parts in `keeps` are replaced by their rounded values; the rounding errors of
    parts in `errors` go to error feedback, which adds them to the next call.
    """

    parts: tuple[tuple[Span, int], ...]
    padded: int
    into: Span
    keeps: tuple[tuple[Span, int], ...]
    errors: tuple[tuple[Span, int], ...]


@dataclass(frozen=True)
class Decode:
    """Decode the received bytes `message` into the values `into` in staging."""

    message: Span
    into: Span


@dataclass(frozen=True)
class Combine:
    """Reduce the second span of each pair into the first, by the call's reduction.

    No spans overlap, so any order is right.
    """

    pairs: tuple[tuple[Span, Span], ...]


@dataclass(frozen=True)
class Copy:
    """Copy the second span of each pair to the first."""

    pairs: tuple[tuple[Span, Span], ...]


@dataclass(frozen=True)
class Divide:
    """Divide each span, which has just received the sum of all ranks, by the number of ranks."""

    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Exchange:
    """Post all of a tick's messages as one batch, and wait for all of them."""

    posts: tuple[Post, ...]


Instruction = Post | Await | Pack | Encode | Decode | Combine | Copy | Divide | Exchange


@dataclass(frozen=True)
class Program:
    """The instructions of one rank for one schedule and buffer size.

    `rank` is the rank's number in the schedule. `fills` copy the input to the work buffer before
    them, `drains` copy from it to the output after them, each Move a range of elements; collectives
    in place have neither. `work_numel` and `staging_numel` are elements of the work buffer and of
    staging, `wire_bytes` bytes of the wire buffer.
    """

    rank: int
    work_numel: int
    staging_numel: int
    wire_bytes: int
    fills: tuple[Move, ...]
    drains: tuple[Move, ...]
    instructions: tuple[Instruction, ...]

    @property
    def posts(self) -> list[Post]:
        """Every message, in the order in which they are posted."""
        return [
            post
            for x in self.instructions
            if isinstance(x, (Post, Exchange))
            for post in (x.posts if isinstance(x, Exchange) else (x,))
        ]
