"""The program of one rank: its posts, waits, additions and copies, in one fixed order.

`lowering.py` makes it from a schedule. All chunks that a rank holds are in its work buffer. For
allreduce, broadcast and reduce that is the tensor itself; for allgather, gather, reduce-scatter and
scatter it has a block for every rank; for alltoall it has just the chunks that the rank ever holds,
relayed ones too. Element boundaries are floor(exact share * elements), the same on every rank, so
any length works: a piece without elements is skipped on both sides.

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

# The rounding errors of the work buffer's elements, which are in no buffer of the program.
ERRORS: Final = "errors"


@dataclass(frozen=True)
class Span:
    """`length` elements of a buffer from `start` on.

    The buffer is the work or the staging buffer, or the wire buffer, counted in bytes.
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
    """Send `span` to rank `peer`, or receive from it into `span`.

    `number` counts the messages of that direction.
    """

    kind: Literal["send", "receive"]
    peer: int
    number: int
    tick: int
    step: int
    span: Span


@dataclass(frozen=True)
class Await:
    """Wait for the `post`-th Post of the program."""

    post: int


@dataclass(frozen=True)
class Pack:
    """Pack `parts` one after the other at `into`."""

    parts: tuple[Span, ...]
    into: Span


@dataclass(frozen=True)
class Encode:
    """Write `parts` of the work buffer, encoded, to `into`.

    Each part is placed at its offset among `padded` values; the rest is zero. `keeps` are the parts
    that receive their rounded values themselves, `errors` those whose rounding errors go to error
    feedback.
    """

    parts: tuple[tuple[Span, int], ...]
    padded: int
    into: Span
    keeps: tuple[tuple[Span, int], ...]
    errors: tuple[tuple[Span, int], ...]


@dataclass(frozen=True)
class Decode:
    """Decode a received message into staging."""

    message: Span
    into: Span


@dataclass(frozen=True)
class Combine:
    """Reduce each `other` into its `into`, by addition or another reduction.

    None of them overlap, so any order is right.
    """

    pairs: tuple[tuple[Span, Span], ...]


@dataclass(frozen=True)
class Copy:
    """Copy each `other` to its `into`."""

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
    """The instructions of one rank.

    `fills` copy input to the work buffer before them, `drains` copy from it to the output after
    them.
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
