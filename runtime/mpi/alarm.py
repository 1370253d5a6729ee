"""Deadlines of calls that wait inside MPI, kept by a thread: it rings when one has passed.

A wait for messages is ended by one more message, from the process to itself; MPI's own collectives cannot be ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

_LOOK_S = 0.2

_set: dict[int, tuple[float, Callable[..., object], tuple[Any, ...]]] = {}
"""Deadlines (time.monotonic) of this process's calls, and what to call when they have passed, by thread."""
_started: list[bool] = []


def set_alarm(deadline: float, ring: Callable[..., object], arguments: tuple[Any, ...] = ()) -> None:
    """Have `ring` called with arguments by another thread, once,
    if this thread does not stop the alarm before `deadline` (time.monotonic).
    It may come _LOOK_S late, and even after the alarm was stopped.
    """
    if not _started:
        _started.append(True)
        threading.Thread(target=_watch, name="topoplan-alarm", daemon=True).start()
    _set[get_ident()] = deadline, ring, arguments


def stop_alarm() -> None:
    """Stop this thread's alarm, whether or not it has rung."""
    _set.pop(get_ident(), None)


def _watch() -> None:
    while True:
        time.sleep(_LOOK_S)
        for thread, (deadline, ring, arguments) in list(_set.items()):
            if time.monotonic() > deadline and _set.pop(thread, None) is not None:
                ring(*arguments)
