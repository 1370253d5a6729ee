"""The one way to wait in the tests: for an event, with one factor by which every deadline is
multiplied, so that none depends on the clock of a busy machine.

TOPOPLAN_TEST_PATIENCE sets it. Otherwise it follows what is waiting for the machine's cores:
deadlines are written for two busy processes a core, which is what the suite itself makes of them.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from stacks import end_with_stacks

VARIABLE = "TOPOPLAN_TEST_PATIENCE"
# What tests wait for takes seconds; a test may take 300 s (pytest-timeout), and pytest's own end
# would show no stacks of other processes.
LIMIT_S = 120.0
# For searches of tests: their work, which is counted, ends them after a second of an idle core. A
# longer limit would let them do more.
PLANNING_S = 60.0
_BUSY_PER_CORE = 2
_POLL_S = 0.02  # between looks at what no pipe or signal announces
_REST_S = 10.0  # to read the pipes of a process that has ended


class Process(Protocol):
    """What `subprocess.Popen` and `launch.EmulatedRank` have in common."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


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


def count_down(quiet: float) -> Callable[[], float]:
    """Return what tells the seconds that are left, from now on, of such a deadline; at least 0."""
    ends = time.monotonic() + seconds(quiet)
    return lambda: max(0.0, ends - time.monotonic())


def wait_until(
    holds: Callable[[], bool],
    what: str,
    processes: Sequence[Process] = (),
    quiet: float = LIMIT_S,
) -> None:
    """Wait until `holds()`, while `processes` run that are to bring it about.

    AssertionError that names `what` was awaited, with all that the processes printed and the stacks
    of those that still run, if one of them ends before, or time is over; they have ended then.
    """
    left = count_down(quiet)
    while not holds():
        in_vain = not left() or any(process.poll() is not None for process in processes)
        if in_vain and not holds():
            raise AssertionError(_explain(what, processes))
        time.sleep(_POLL_S)


def wait_for_ends(
    processes: Sequence[Process], what: str = "the end of all processes", quiet: float = LIMIT_S
) -> list[int]:
    """Wait until processes have ended, and return their exit codes; AssertionError as in
    `wait_until`.
    """
    left = count_down(quiet)
    try:
        return [process.wait(timeout=left()) for process in processes]
    except subprocess.TimeoutExpired:
        raise AssertionError(_explain(what, processes)) from None


def read_to_end(
    process: subprocess.Popen[str], what: str, beside: Sequence[Process] = ()
) -> tuple[str, str]:
    """Read a process's pipes to their end, and wait for its own; AssertionError as in `wait_until`,
    with the stacks of those `beside` it too. Return what came through both pipes.
    """
    try:
        return process.communicate(timeout=seconds(LIMIT_S))
    except subprocess.TimeoutExpired:
        said = _explain(what, [process, *beside])
        with suppress(subprocess.TimeoutExpired):  # something else has the pipes, and lives
            said = "\n".join([said, *filter(None, process.communicate(timeout=_REST_S))])
        raise AssertionError(said) from None


def read_until(
    pipe: int, is_enough: Callable[[str], bool], what: str, processes: Sequence[Process] = ()
) -> str:
    """Return what comes through a pipe, as soon as it is enough; AssertionError as in
    `wait_until`.
    """
    text = ""
    while not is_enough(text):
        wait_until(lambda: bool(select.select([pipe], [], [], 0)[0]), what, processes)
        piece = os.read(pipe, 1 << 16)
        assert piece, f"{what}: the pipe was closed, after:\n{text}"
        text += piece.decode()
    return text


def be_late(delay_s: float, why: str) -> None:
    """Wait so long where no event says when it is late enough; `why` says so to the reader."""
    time.sleep(delay_s)


def _explain(what: str, processes: Sequence[Process]) -> str:
    """Return what was awaited, and all that is known of the processes; end those that run."""
    lines = [f"waited in vain for {what} (the load allows {factor():.1f} times the usual time)"]
    for process in processes:
        code = process.poll()
        if code is not None:
            lines.append(f"process {process.pid} ended with {code}")
            output = getattr(process, "output", None)
            if isinstance(output, Path):  # of others, those who started them know what they printed
                lines.append(output.read_text(encoding="utf-8", errors="replace"))
    running = [process.pid for process in processes if process.poll() is None]
    return "\n".join([*lines, end_with_stacks(running)])


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
