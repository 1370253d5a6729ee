"""Deadlines of calls that wait inside MPI, kept by one thread: it rings where one has passed.

Nothing but two stores and a comparison is added to a call: the lock that would be simpler costs a
small one a twentieth.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from weakref import WeakMethod, WeakSet

_LOOK_S = 0.2

_alarms: WeakSet[Alarm] = WeakSet()
_guard = threading.Lock()
_started: list[bool] = []


class Alarm:
    """The deadline of whoever waits inside MPI: `deadline` (time.monotonic) is set before, and
    `stop` is called after.

    In between, once the deadline has passed, another thread sets `struck` to it and calls `ring`, a
    method, which may find the wait over. It may come _LOOK_S late. The alarm does not keep the
    method's object.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self.deadline = self.struck = 0.0
        self._ring = WeakMethod(ring)
        self._rung = threading.Event()
        with _guard:
            _alarms.add(self)
            if not _started:
                _started.append(True)
                threading.Thread(target=_watch, name="topoplan-alarm", daemon=True).start()

    def stop(self, deadline: float) -> None:
        """End the watch over `deadline`. After this nobody rings for it any more."""
        self.deadline = 0.0
        if self.struck == deadline:
            self._rung.wait()

    def look(self, now: float) -> None:
        """Ring if the deadline has passed.

        Each side first sets its own variable and then reads the other's, so at least one of them
        sees the other: either nobody rings, or who stops the alarm waits for it.
        """
        deadline = self.deadline
        if deadline and deadline < now and self.struck != deadline:
            self._rung.clear()
            self.struck = deadline
            try:
                ring = self._ring()
                if self.deadline == deadline and ring is not None:
                    ring()
            finally:
                self._rung.set()


def _watch() -> None:
    while True:
        time.sleep(_LOOK_S)
        with _guard:
            alarms = list(_alarms)
        now = time.monotonic()
        for alarm in alarms:
            alarm.look(now)
        del alarms
