"""One rank's program: what it posts, awaits, adds and copies, in one fixed order (`lowering.py` makes it of a schedule).

All chunks that a rank holds lie in its work buffer. For allreduce, broadcast and reduce that is the tensor itself; for
allgather, gather, reduce-scatter and scatter it has a block for every rank; for alltoall it holds just the chunks that
the rank ever has, relayed ones too. Element boundaries are floor(exact share * elements), the same on every rank, so
any length works: a piece without elements is skipped on both sides.

A piece is a segment of a chunk. What goes from one rank to another in one tick is one message, its pieces packed side
by side where they do not lie so already. There are two orders:

- flow: a message goes as soon as its own pieces are there. Receives are posted some ticks ahead, and a send waits for
  just those that bring or change what it carries (over gloo).
- rounds: a tick's messages are posted as one batch, and all of them are awaited before the next tick (over NCCL).

Sums are taken from the lowest source rank to the highest, the rank's own value in its place (see synth/order.py).

With compression messages are bytes: a send encodes its pieces, each in whole blocks of the codec, and a received message is
decoded to staging before anything is done with it. What is sent is rounded, by the rules of synth/rounded.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .layout import Move

Buffer = Literal["work", "staging", "wire"]


@dataclass(frozen=True)
class Place:
    """`length` elements from `at` on, of the work or the staging buffer; bytes of the wire buffer."""

    buffer: Buffer
    at: int
    length: int


@dataclass(frozen=True)
class Post:
    """Send `place` to rank `peer`, or receive from it into `place`. `number` counts the messages of that direction."""

    kind: Literal["send", "receive"]
    peer: int
    number: int
    tick: int
    step: int
    place: Place


@dataclass(frozen=True)
class Await:
    """Until the `post`-th Post of the program is through."""

    post: int


@dataclass(frozen=True)
class Pack:
    """Lay `parts` side by side at `into`."""

    parts: tuple[Place, ...]
    into: Place


@dataclass(frozen=True)
class Encode:
    """Write `parts` of the work buffer, encoded, to `into`. A part is laid at its offset among `padded` values; what no part
    covers is zero. `keeps` are those that become the rounded values themselves, `errors` those of which error feedback is
    to have what rounding took away.
    """

    parts: tuple[tuple[Place, int], ...]
    padded: int
    into: Place
    keeps: tuple[tuple[Place, int], ...]
    errors: tuple[tuple[Place, int], ...]


@dataclass(frozen=True)
class Decode:
    """Decode a received message into staging."""

    message: Place
    into: Place


@dataclass(frozen=True)
class Combine:
    """Add (or whatever the reduction is) each `other` to its `into`; none of them overlap, in any order."""

    pairs: tuple[tuple[Place, Place], ...]


@dataclass(frozen=True)
class Copy:
    """Copy each `other` to its `into`."""

    pairs: tuple[tuple[Place, Place], ...]


@dataclass(frozen=True)
class Exchange:
    """All of a tick's posts at once, and until all are through."""

    posts: tuple[Post, ...]


Instruction = Post | Await | Pack | Encode | Decode | Combine | Copy | Exchange


@dataclass(frozen=True)
class Program:
    """What one rank does. `fills` go from the input to the work buffer before, `drains` from work to output after."""

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
        out: list[Post] = []
        for step in self.instructions:
            if isinstance(step, Post):
                out.append(step)
            elif isinstance(step, Exchange):
                out += step.posts
        return out
