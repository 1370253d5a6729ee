"""What processes of a test report, whoever started them: lines in a named pipe that the test reads.

A line may be written before anyone reads: `echo $$ > PATH` in a shell, `reports.tell(PATH, text)`
in a rank.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import patience


class Reports:
    """A named pipe that a test makes before it starts the processes."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # As a writer too: so it opens at once, and never looks closed.
        self._pipe = os.open(path, os.O_RDWR)
        self._unread: list[str] = []

    def __enter__(self) -> Reports:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._pipe)

    def read(self, lines: int, what: str, processes: Sequence[patience.Process] = ()) -> list[str]:
        """Return so many lines, when they have come; see `patience.wait_until`."""
        missing = lines - len(self._unread)
        if missing > 0:
            text = patience.read_until(
                self._pipe,
                lambda text: text.count("\n") >= missing and text.endswith("\n"),
                what,
                processes,
            )
            self._unread += text.splitlines()
        read, self._unread = self._unread[:lines], self._unread[lines:]
        return read


def tell(path: str | Path, text: str = "") -> None:
    """Write a line, which comes whole, into a pipe that another process reads."""
    with Path(path).open("w") as pipe:
        pipe.write(f"{text}\n")
