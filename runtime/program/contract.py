"""The contract of players, the operations that they play, and what observers of calls are told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ObservedCalls:
    """Calls of one kind as observers see them: what is carried out, for buffers of one size.

    `call` describes them, `label` what carries them out, and `size_bytes` is that of a buffer as it
    is sent. This rank sends `sent_bytes` in a call; `crosses_links` says whether messages cross
    links.
    """

    call: str
    label: str
    size_bytes: int
    sent_bytes: int = 0
    crosses_links: bool = False


class Listener(Protocol):
    """What an observer has told of calls of one kind."""

    def begin(self) -> Stamp | None:
        """Take note that a call begins; return what is to be called with each message, if any.

        Of calls that cross no links only the end is told.
        """

    def end(self, number: int | None, /) -> None:
        """Take note that the call begun last has ended well, the group's call `number` if known."""


class Observer(Protocol):
    """An observer of calls; runners know observers by these names alone."""

    def listen(self, calls: ObservedCalls, /) -> Listener | None:
        """Return the listener for calls of one kind, None if they are of no interest.

        Asked once, when what carries them out is made.
        """

    def begin_anew(self, size_bytes: int, /) -> None:
        """Take note that the calls of a size so far were those of a race, which has ended."""


class Observed:
    """Something whose calls can be observed."""

    observers: tuple[Observer, ...] = ()

    def observe(self, observer: Observer) -> None:
        """Let an observer listen to the calls made from now on, too."""
        self.observers = (*self.observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Let an observer listen to no further call."""
        self.observers = tuple(x for x in self.observers if x is not observer)

    def listen(self, calls: ObservedCalls) -> tuple[Listener, ...]:
        """Return the observers' listeners for calls of one kind; mostly none."""
        listeners = (observer.listen(calls) for observer in self.observers)
        return tuple(listener for listener in listeners if listener is not None)
