"""The contract of players, the operations that they play, and what observers of calls are told."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .instructions import Post
from .layout import Move

SEND, RECEIVE, AWAIT, EXCHANGE, LOCAL = range(5)
# One of the codes above, two operands, and a number.
#
# A send or receive has a list of one view, the peer, and the tag; AWAIT the number of the post;
# EXCHANGE batches, and their instruction; LOCAL a function (see local.py), and the bytes that it
# works on as the number.
Operation = tuple[int, Any, Any, int]


# Called for each send when it is about to be posted, and for each receive when its message has
# arrived.
Stamp = Callable[[Post], object]


class PlayError(Exception):
    """Raised by a player whose program cannot continue.

    `post` is the message that failed or did not end, `posted` are all messages that were begun.
    """

    def __init__(self, post: Post, posted: Sequence[Post], reason: str) -> None:
        super().__init__(reason)
        self.post, self.posted = post, posted


class Player(Protocol):
    """What runs a program repeatedly on one set of buffers."""

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once; on CPUs it has ended when this returns.

        Raise PlayError, at `deadline` (time.monotonic) at the latest. `stamp` is called for each
        send when it is about to be posted and for each receive when it has arrived; then the host
        waits for the device around each batch.
        """


class PlayedProgram(Protocol):
    """What a rank's program says of its buffers; `work_numel` elements are its work buffer.

    `fills` copy the input to it, `drains` the result from it.
    """

    @property
    def rank(self) -> int:
        """The rank's number in the schedule."""

    @property
    def work_numel(self) -> int:
        """The elements of the work buffer."""

    @property
    def instructions(self) -> Sequence[object]:
        """The instructions, in order."""

    @property
    def fills(self) -> tuple[Move, ...]:
        """The parts of the input."""

    @property
    def drains(self) -> tuple[Move, ...]:
        """The parts of the result."""


class ObservedProgram(Protocol):
    """A compiled program as observers see it.

    `call` describes its calls, `sent_bytes` are those that this rank sends in one, and
    `crosses_links` says whether messages cross links.
    """

    call: str
    sent_bytes: int
    crosses_links: bool


class Observer(Protocol):
    """What an executor tells of its calls; it knows observers by these names alone."""

    def wants(self, program: ObservedProgram, /) -> bool:
        """Return whether calls of a program are of interest; asked once, when it is compiled."""

    def begin(self, program: ObservedProgram, /) -> Stamp | None:
        """Take note that a call begins; return what is to be called with each message, if any."""

    def end(self, program: ObservedProgram, number: int, /) -> None:
        """Take note that the call begun last has ended well, the group's call `number`."""
