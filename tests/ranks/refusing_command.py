"""A command that starts three ranks, all of which fail, in an order that is its first argument."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from topoplan.runtime.ranks.launch import is_rank, launch


def main(arguments: list[str]) -> int:
    """Start the ranks, or be one of them. The second argument is a folder in which they wait for
    each other.
    """
    if not is_rank():
        return launch("ranks.refusing_command", arguments, 3)
    case, folder = arguments[0], Path(arguments[1])
    rank = int(os.environ["RANK"])
    (folder / f"{rank}.started").touch()
    while len(list(folder.glob("*.started"))) < 3:
        time.sleep(0.01)
    if case == "another fails first" and rank == 1:
        return fail("connection lost", 1)
    if rank == 0:
        time.sleep(60 if case == "rank 0 too late" else 0.1)
    return fail("bad input", 2)


def fail(line: str, code: int) -> int:
    """Say why, and return the exit code."""
    print(line, file=sys.stderr, flush=True)
    return code
