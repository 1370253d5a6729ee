"""One factor by which every deadline of the tests is multiplied, so that none depends on the clock
of a busy machine.

TOPOPLAN_TEST_PATIENCE sets it. Otherwise it follows what is waiting for the machine's cores:
deadlines are written for two busy processes a core, which is what the suite itself makes of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

VARIABLE = "TOPOPLAN_TEST_PATIENCE"
_BUSY_PER_CORE = 2


def factor() -> float:
    """Return by how much deadlines are longer right now; at least 1."""
    if VARIABLE in os.environ:
        return max(1.0, float(os.environ[VARIABLE]))
    averaged_per_minute = os.getloadavg()[0]
    return max(1.0, max(averaged_per_minute, _runnable()) / (_BUSY_PER_CORE * _cores()))


def seconds(quiet: float) -> float:
    """Return the deadline, in seconds, for what takes at most `quiet` seconds on a quiet
    machine.
    """
    return quiet * factor()


def deadline(quiet: float) -> timedelta:
    """Return the same as torch.distributed takes it."""
    return timedelta(seconds=seconds(quiet))


def wait_until(event: Callable[[], bool], quiet: float, what: str) -> None:
    """Wait until `event()` holds; AssertionError that names `what` was awaited where it does not
    hold in time.
    """
    ends = time.monotonic() + seconds(quiet)
    while not event():
        assert time.monotonic() < ends, f"{what}: waited {seconds(quiet):.0f} s in vain"
        time.sleep(0.02)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _runnable() -> int:
    """Return how many tasks want a core this instant: a load that has just begun is not in the
    average yet.
    """
    try:
        return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0])
    except OSError:
        return 0
