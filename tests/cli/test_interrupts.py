"""Ctrl-C in real processes, at several moments: one line, exit code 130, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import patience
import pytest
from stacks import VARIABLES

ENTRY = "import sys; from topoplan.cli import entry; sys.exit(getattr(entry, sys.argv.pop(1))())"


def list_session(leader: int) -> list[int]:
    """Return the processes of a session that still run."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):  # it has just ended
            continue
        if int(session) == leader and state not in "ZX":
            running.append(int(path.parent.name))
    return running


def interrupt(line: str, says: str, times: int, *, whole_group: bool) -> list[str]:
    """Send Ctrl-C to a command when it has reported so often what contains `says`.

    As from a terminal, the whole group of processes gets it, else the first one alone. Return the
    lines of its standard error that follow progress.
    """
    command, *arguments = line.split()
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY, command, *arguments, "-v"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **VARIABLES},
    ) as process:
        assert process.stderr is not None
        try:
            patience.read_until(
                process.stderr.fileno(),
                lambda text: text.count(says) >= times and text.endswith("\n"),
                f"{times} times {says!r}",
                [process],
            )
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
            _, rest = patience.read_to_end(process, "the end of the command")
            patience.wait_until(lambda: not list_session(process.pid), "the end of all processes")
        finally:
            for left in list_session(process.pid):
                os.kill(left, signal.SIGKILL)
    assert process.returncode == 130, rest
    progress = f"topo-{command}: "
    return [x for x in rest.splitlines() if not x.startswith(progress) or x.endswith("interrupted")]


def test_a_search_ends_at_once() -> None:
    line = "synth allreduce torus:8x8"
    assert interrupt(line, " left: ", 1, whole_group=True) == ["topo-synth: interrupted"]


@pytest.mark.long
@pytest.mark.parametrize("whole_group", [True, False])
def test_ranks_end_with_the_command_that_started_them(
    whole_group: bool, plans: Callable[..., str]
) -> None:
    pytest.importorskip("torch")
    # The line of a size that follows another line at once is left out, so there are several.
    line = f"run {plans('ring:2')} -b 1K -e 64M -n 3000"
    assert interrupt(line, "bytes ...", 1, whole_group=whole_group) == ["topo-run: interrupted"]
