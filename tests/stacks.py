"""What processes do that are waited for in vain: all that they printed, and the stacks of all their
threads.

Python's faulthandler writes the stacks to a process's standard error at SIGABRT, which then ends
it. It is on in every rank and command that `launch` starts.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import BinaryIO

# So that a Python that a test executes has its faulthandler on.
VARIABLES = {"PYTHONFAULTHANDLER": "1"}
_LAST_WORDS_S = 30.0  # for processes to write their stacks, which takes milliseconds
_SHOWN_BYTES = 1 << 16  # the end of what was printed to a file


def list_descendants(pid: int) -> list[int]:
    """Return the processes that a process started, those that these started, and so on."""
    children: list[int] = []
    with suppress(OSError):  # it has just ended
        for file in list(Path(f"/proc/{pid}/task").glob("*/children")):
            with suppress(OSError):  # so has this thread
                children += map(int, file.read_text().split())
    return children + [one for child in children for one in list_descendants(child)]


def end_with_stacks(pids: Iterable[int]) -> str:
    """End processes and all that they started, and return what they printed to files, their stacks
    included.

    Processes that have no faulthandler are left as they are; what was printed to pipes is for their
    readers.
    """
    everyone = [one for pid in pids for one in (pid, *list_descendants(pid))]
    names = ", ".join(map(_describe, everyone)) or "none"
    with ExitStack() as opened:
        printed: dict[tuple[int, int], tuple[str, BinaryIO]] = {}
        for path in (Path(f"/proc/{pid}/fd/{number}") for pid in everyone for number in (1, 2)):
            with suppress(OSError):  # closed
                status = path.stat()
                key = status.st_dev, status.st_ino
                if stat.S_ISREG(status.st_mode) and key not in printed:
                    printed[key] = str(path.readlink()), opened.enter_context(path.open("rb"))
        _abort(everyone)
        files = [(name, _read_end(file)) for name, file in printed.values()]
    shown = [f"---- {name}:\n{text}" for name, text in files if text]
    return "\n".join([f"processes that still ran: {names}", *shown])


def _abort(pids: Iterable[int]) -> None:
    """Have processes write their stacks, and wait until they have ended.

    One after the other, since they may write to one file, a line in pieces; all are stopped before,
    so that none goes on because another has ended.
    """
    with ExitStack() as opened:
        stopped: list[tuple[int, int]] = []
        for pid in filter(_has_faulthandler, pids):
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                opened.callback(os.close, handle)
                os.kill(pid, signal.SIGSTOP)
                stopped.append((pid, handle))
        for pid, handle in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
                os.kill(pid, signal.SIGCONT)
                wait([handle], _LAST_WORDS_S)


def _has_faulthandler(pid: int) -> bool:
    return bool(int(_read_status(pid).get("SigCgt", "0"), 16) >> signal.SIGABRT - 1 & 1)


def _describe(pid: int) -> str:
    status = _read_status(pid)
    return f"{pid} ({status.get('Name', 'gone')}, {status.get('State', 'gone')})"


def _read_status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:  # it has ended
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read_end(file: BinaryIO) -> str:
    file.seek(max(0, os.fstat(file.fileno()).st_size - _SHOWN_BYTES))
    lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.startswith("Extension modules: "))
