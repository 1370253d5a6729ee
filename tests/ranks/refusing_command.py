"""A command that starts three ranks, all of which fail, in an order that is its first argument."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import patience
from launch import lives
from torch._C._distributed_c10d import FileStore

from topoplan.runtime.ranks import launch


def main(arguments: list[str]) -> int:
    """Start the ranks, or be one of them. The second argument is a folder in which they find each
    other.
    """
    case, folder = arguments[0], Path(arguments[1])
    if not launch.is_rank():
        if case != "rank 0 too late":
            launch._LAST_WORDS_S = patience.seconds(60)
        return launch.launch("ranks.refusing_command", arguments, 3)
    rank, store = int(os.environ["RANK"]), FileStore(str(folder / "ranks"))
    store.set(str(rank), str(os.getpid()))
    pids = [int(store.get(str(other))) for other in range(3)]
    if case == "another fails first":
        if rank == 1:
            return fail("connection lost", 1)
        patience.wait_until(lambda: not lives(pids[1]), "the end of rank 1")
    elif rank == 0 and case == "rank 0 too late":
        signal.pause()
    elif rank == 0:
        patience.wait_until(lambda: not any(map(lives, pids[1:])), "the end of the other ranks")
    return fail("bad input", 2)


def fail(line: str, code: int) -> int:
    """Say why, and return the exit code."""
    print(line, file=sys.stderr, flush=True)
    return code
