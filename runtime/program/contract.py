"""The contract of players, the operations that they play, and what observers of calls are told.

A program is one rank's list of instructions for a schedule; a player runs it. A Post begins a send
or a receive, a batch is the messages that NCCL sends together. The work buffer has all chunks of
the collective's buffer that the rank holds during a call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .instructions import Post
from .layout import Move

SEND, RECEIVE, AWAIT, EXCHANGE, LOCAL = range(5)
# One of the codes above, two operands, and a number.
#
# A send or receive has a list of one view, the peer, and the tag; AWAIT the number of the post;
# EXCHANGE batches, and their instruction; LOCAL a function (see players/local.py), and the bytes
# that it works on as the number.
Operation = tuple[int, Any, Any, int]


# Called for each send when it is about to be posted, and for each receive when its message has
# arrived.
Stamp = Callable[[Post], object]


class PlayError(Exception):
    """Raised by a player whose program cannot continue.

    `post` is the message that failed or did not end, `posted` are all messages that were begun,
    `reason` is the backend's error.
    """

    def __init__(self, post: Post, posted: Sequence[Post], reason: str) -> None:
        super().__init__(reason)
        self.post, self.posted = post, posted


class Player(Protocol):
    """What runs one program, repeatedly, on one set of buffers."""

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once; on CPUs it has ended when this returns, on GPUs it is on a stream.

        Raise PlayError, at `deadline` (time.monotonic) at the latest. `stamp` is called for each
        send when it is about to be posted and for each receive when it has arrived; then the host
        waits for the device around each batch.
        """


class PlayedProgram(Protocol):
    """What the owner of a program's buffers must know of it; extras have their own kinds."""

    @property
    def rank(self) -> int:
        """The rank's number in the schedule."""

    @property
    def work_numel(self) -> int:
        """The number of elements of the work buffer."""

    @property
    def instructions(self) -> Sequence[object]:
        """The instructions, in order."""

    @property
    def fills(self) -> tuple[Move, ...]:
        """The copies (Move) from the input to the work buffer, before the instructions."""

    @property
    def drains(self) -> tuple[Move, ...]:
        """The copies from the work buffer to the output, after the instructions."""


@dataclass(frozen=True)
class ObservedCalls:
    """Calls of one kind, for observers: one collective on buffers of one size.

    `call` describes them, `label` names what carries them out (a candidate's label, or "stock"),
    `size_bytes` is the size of a buffer as it is sent. `sent_bytes` is what this rank sends in a
    call, 0 if no program carries it out; `crosses_links` says whether messages cross the machine's
    links, which may become slow.
    """

    call: str
    label: str
    size_bytes: int
    sent_bytes: int = 0
    crosses_links: bool = False


class Listener(Protocol):
    """What an observer returns for calls of one kind, to be told of each of them."""

    def begin(self) -> Stamp | None:
        """Note that a call begins; return a function to call with each message, or None.

        Of calls that cross no links perhaps only the end is told.
        """

    def end(self, number: int | None, /) -> None:
        """Note that the call begun last has ended well.

        `number` is its number in the group, None if unknown.
        """


class Observer(Protocol):
    """What an extra, an optional part of topoplan, adds to measure or count calls."""

    def listen(self, calls: ObservedCalls, /) -> Listener | None:
        """Return the listener for calls of one kind, None if they are of no interest.

        Asked once, when what carries them out is made.
        """

    def begin_anew(self, size_bytes: int, /) -> None:
        """Forget the calls of a size (bytes) so far: they timed candidates (schedules, and the
        backend's own collective) in a race, which has ended.
        """


class Observed:
    """The base of what carries out calls that can be observed; `observers` are told of each."""

    observers: tuple[Observer, ...] = ()

    def observe(self, observer: Observer) -> None:
        """Let an observer listen, too, to the calls that are prepared from now on."""
        self.observers = (*self.observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Let an observer listen to no call that is prepared from now on."""
        self.observers = tuple(x for x in self.observers if x is not observer)

    def listen(self, calls: ObservedCalls) -> tuple[Listener, ...]:
        """Return the observers' listeners for calls of one kind; mostly none."""
        listeners = (observer.listen(calls) for observer in self.observers)
        return tuple(listener for listener in listeners if listener is not None)
