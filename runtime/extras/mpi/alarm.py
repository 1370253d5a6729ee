"""Enforce deadlines of calls that wait inside MPI, from one thread for all of them.

A call pays two stores and a comparison. A lock would be simpler, but cost a small call a twentieth.
"""

import threading
import time
from collections.abc import Callable
from weakref import WeakMethod, WeakSet

_LOOK_S = 0.2  # between looks, so a call may end this much after its deadline

# Alarms of callers that no longer exist drop out by themselves.
_alarms: WeakSet["Alarm"] = WeakSet()
_guard = threading.Lock()
_started: list[bool] = []


class Alarm:
    """The deadline of one thread that may wait inside MPI, whose calls have no time limit.

    The thread sets `deadline` (time.monotonic) before the wait and calls `stop` after it. If the
    deadline passes in between, another thread sets `struck` to it and calls `ring`, a method that
    ends the wait and must tolerate one already over. That may be up to _LOOK_S late. The alarm does
    not keep the method's object alive.
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
        """End the watch over `deadline`; once this returns, `ring` is not running and will not."""
        self.deadline = 0.0
        if self.struck == deadline:
            self._rung.wait()

    def look(self, now: float) -> None:
        """Call `ring` if the deadline has passed at `now` (time.monotonic). For the alarms' thread.

        Each side sets its own variable before it reads the other's, so at least one of them sees
        the other: either `ring` is not called, or `stop` waits for it.
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
        for alarm in alarms:
            alarm.look(time.monotonic())
        del alarms
