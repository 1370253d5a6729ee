"""What a thread waits for over gloo, so that an extra can end waits that gloo would not end.

The extra is of the group `waits` of extras.py. Without it such a wait ends at its time limit.
"""

from functools import cache
from typing import Any

from ...extras import WAITS, Names

# A tag that no message has: gloo closes all connections when a wait for one times out.
NEVER_SENT = (1 << 31) - 1


class Waiting:
    """What a thread that waits for a message says of it, for a watch.

    `backend` is gloo's, or that over cables. `awaited` is the message's work and the other rank's
    number in the backend, None while the thread does not wait.
    """

    __slots__ = ("awaited", "backend")

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.awaited: tuple[Any, int] | None = None


class WaitWatch:
    """A watch over threads that wait for messages; this base class lets them wait."""

    def begin(self, waiting: Waiting) -> None:
        """Watch the waits of a thread from now on, until `end`."""

    def end(self, waiting: Waiting) -> None:
        """Watch the waits of a thread no longer."""

    def check_arrived(self, work: Any) -> None:
        """Return if the message of `work`, a wait that the watch ended, was received or sent.

        Raise RuntimeError if not.
        """


@cache
def find_watch() -> WaitWatch:
    """Return the watch of this process: the extra's, else one that does nothing."""
    added = Names(WAITS)
    return next((added.find(name) for name in added.describe()), WaitWatch())
