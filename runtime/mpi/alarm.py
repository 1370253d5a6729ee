"""Deadlines of calls that wait inside MPI, kept by one thread: it rings where one has passed.

Nothing but two stores and a comparison is added to a call: the lock that would be simpler costs a small one a twentieth.
"""

from __future__ import annotations

import threading
import time
from weakref import WeakSet

_LOOK_S = 0.2

_watched: WeakSet[Watched] = WeakSet()
_guard = threading.Lock()
_started: list[bool] = []


class Watched:
    """Something that waits inside MPI: until `deadline` (time.monotonic), while that is not 0.

    Once it has passed, another thread sets `struck` to it and calls `ring`, up to _LOOK_S late. Who waited sets `deadline`
    to 0, and calls `meet_ringer` where `struck` is the deadline: after that nobody rings for this call any more.
    """

    def __init__(self) -> None:
        self.deadline = self.struck = 0.0
        self._rung = threading.Event()
        with _guard:
            _watched.add(self)
            if not _started:
                _started.append(True)
                threading.Thread(target=_watch, name="topoplan-alarm", daemon=True).start()

    def ring(self) -> None:
        """End the wait; it may be over already."""
        raise NotImplementedError

    def meet_ringer(self) -> None:
        """Wait until `ring`, which was or is about to be called, has returned, or will not be called."""
        self._rung.wait()

    def look(self, now: float) -> None:
        """Ring if the deadline has passed.

        Each side first sets its own variable and then reads the other's, so at least one of them sees the other: either
        nobody rings, or who waited hears of it.
        """
        deadline = self.deadline
        if deadline and deadline < now and self.struck != deadline:
            self._rung.clear()
            self.struck = deadline
            try:
                if self.deadline == deadline:
                    self.ring()
            finally:
                self._rung.set()


def _watch() -> None:
    while True:
        time.sleep(_LOOK_S)
        with _guard:
            watched = list(_watched)
        now = time.monotonic()
        for one in watched:
            one.look(now)
        del watched
