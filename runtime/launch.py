"""Starts the ranks of a command on this machine, and ends them together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RENDEZVOUS = "TOPOPLAN_RENDEZVOUS"
"""Environment variable: the file through which ranks that this module started find each other."""
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
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
        children: list[subprocess.Popen[bytes]] = []
        before = signal.signal(signal.SIGTERM, _terminated)
        logs = [Path(folder) / f"rank{rank}.err" for rank in range(ranks)]
        try:
            for rank in range(ranks):
                children.append(_start(command, rank, ranks, Path(folder) / "rendezvous", logs[rank]))
            failed = _wait(children)
        finally:
            _end(children)
            signal.signal(signal.SIGTERM, before)
        if failed is None:
            return 0
        code = children[failed].returncode
        if failed:
            sys.stderr.write(logs[failed].read_text(encoding="utf-8", errors="replace"))
        if code < 0:
            print(f"rank {failed} was ended by signal {-code}", file=sys.stderr)
            return 1
        return code


def _terminated(number: int, frame: object) -> None:
    """A request to end becomes an exception, so that the ranks are ended too."""
    raise SystemExit(128 + number)


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
    """Ask those that still run to stop, then make them."""
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
