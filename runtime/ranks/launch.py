"""Starts the ranks of a command on this machine, and ends them together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RENDEZVOUS = "TOPOPLAN_RENDEZVOUS"
"""Environment variable: the file through which ranks that this module started find each other."""
EMULATED = "TOPOPLAN_EMULATED"
"""Environment variable: the file with the topology whose rates the links of an emulated machine have (topo-emulate)."""
_POLL_S = 0.02
_GRACE_S = 5.0


def inside_a_launch() -> bool:
    """Whether this process is a rank already: started by `launch`, torchrun, or whoever sets RANK and WORLD_SIZE."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def init_method() -> str:
    """What init_process_group should use to find the other ranks."""
    path = os.environ.get(RENDEZVOUS)
    return f"file://{path}" if path else "env://"


def launch(command: list[str], ranks: int) -> int:
    """Run `command` once a rank; return 0, or the exit code of the first rank that failed.

    Rank 0 has this process's output; what others print to standard error is shown if they are the ones that failed.
    When one fails the others are ended, and on any exception all are.
    """
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder, ending_on_signals():
        logs = [Path(folder) / f"rank{rank}.err" for rank in range(ranks)]
        rendezvous = Path(folder) / "rendezvous"
        failed, code = ended_together(lambda rank: _start(command, rank, ranks, rendezvous, logs[rank]), ranks)
        if failed is None:
            return 0
        if failed:
            sys.stderr.write(logs[failed].read_text(encoding="utf-8", errors="replace"))
        if code < 0:
            print(f"rank {failed} was ended by signal {-code}", file=sys.stderr)
            return 1
        return code


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """A request to end (SIGTERM, SIGHUP) becomes SystemExit, so that what was started is ended too."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended_together(start: Callable[[int], subprocess.Popen[bytes]], ranks: int) -> tuple[int | None, int]:
    """Start all ranks and wait: (None, 0) when all are done, or the first rank that failed and its return code.

    When one fails the others are ended, and on any exception all are.
    """
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            children.append(start(rank))
        failed = _wait(children)
    finally:
        _end(children)
    return failed, 0 if failed is None else int(children[failed].returncode)


def _start(command: list[str], rank: int, ranks: int, rendezvous: Path, log: Path) -> subprocess.Popen[bytes]:
    environment = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        RENDEZVOUS: str(rendezvous),
    }
    if rank == 0:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    with log.open("wb") as errors:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )


def _wait(children: list[subprocess.Popen[bytes]]) -> int | None:
    """The number of the first rank seen to fail, or None when all are done."""
    while True:
        codes = [child.poll() for child in children]
        for rank, code in enumerate(codes):
            if code:
                return rank
        if all(code == 0 for code in codes):
            return None
        time.sleep(_POLL_S)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    """Ask those that still run to stop, then make them; whole sessions where a rank leads one."""
    running = [child for child in children if child.poll() is None]
    # A rank that fails takes its peers with it a moment later; give them the time to say so themselves.
    deadline = time.monotonic() + (0.5 if running else 0.0)
    while any(child.poll() is None for child in running) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for child in running:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + _GRACE_S
    for child in running:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for child in children:
        with suppress(ProcessLookupError, PermissionError):  # not a session's leader, or nothing is left of the session
            os.killpg(child.pid, signal.SIGKILL)
