"""What a thread waits for over gloo, so that an extra can end waits that gloo would not end.

The extra is of the group `waits` of extras.py. Without it such a wait ends at its deadline.
"""

from functools import cache
from typing import Any

from ...extras import WAITS, Names

# A tag that no message has: gloo closes all connections when a wait for one times out.
NEVER_SENT = (1 << 31) - 1


class Waiting:
    """Which message over `backend`, gloo's or that over cables, a thread waits for.

    `awaited` is its work and the other rank's number in the backend, None at other times.
    """

    __slots__ = ("awaited", "backend")

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.awaited: tuple[Any, int] | None = None


class WaitWatch:
    """What looks at the waits in progress of this process; this one leaves them alone."""

    def begin(self, waiting: Waiting) -> None:
        """Look at a thread's waits from now on; see `end`."""

    def end(self, waiting: Waiting) -> None:
        """Look at them no more."""

    def check_arrived(self, work: Any) -> None:
        """Return if the message of a wait that was ended has arrived, or gone.

        Raise RuntimeError if not.
        """


@cache
def find_watch() -> WaitWatch:
    """Return what looks at the waits of this process."""
    added = Names(WAITS)
    return next((added.find(name) for name in added.describe()), WaitWatch())
