"""Progress and messages on standard error: on a terminal or with -v, and never with -q."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...topo.printable import printable
from .common import print_error, shown_name

if TYPE_CHECKING:
    import argparse

    from rich.console import Console, ConsoleOptions, RenderResult

Say = Callable[[str], None]
# Shortest time in seconds between two lines of progress with -v, so that they do not flood a log.
_PAUSE_S = 0.5


class ProgressReporter:
    """A printer of a command's progress and messages, according to -v, -q and the terminal.

    `prog` is the command's name; `speaks` says whether this process prints at all: of several
    ranks, one does.
    """

    def __init__(self, prog: str, args: argparse.Namespace, speaks: bool = True) -> None:
        self.prog, self.speaks, self.quiet = shown_name(prog), speaks, args.quiet or not speaks
        self.is_live = not self.quiet and sys.stderr is not None and sys.stderr.isatty()
        self.has_lines = not self.quiet and not self.is_live and args.verbose

    def tell(self, message: str) -> None:
        """Print a message on standard error, even if that is no terminal, unless -q is given."""
        if not self.quiet:
            print_error(message)

    @contextmanager
    def follow(self, what: str, limit_s: float | None = None) -> Iterator[Work]:
        """Show progress while the context lasts: on one line of a terminal, or with -v on many.

        `what` is the first message; the caller updates it through the Work yielded. `limit_s` is
        the time limit in seconds; None if there is none.
        """
        work = Work(what, limit_s)
        if self.is_live:
            from rich.console import Console

            with Console(stderr=True).status(work):
                yield work
        else:
            if self.has_lines:
                work.print_line = lambda line: print_error(f"{self.prog}: {line}")
            yield work


class Work:
    """The progress of some work: its message, and the share that is done.

    `what` is the first message; `limit_s` is the time limit in seconds, None if there is none.
    """

    def __init__(self, what: str, limit_s: float | None = None) -> None:
        self.message, self.limit_s = what, limit_s
        self.done, self.total = 0.0, 0.0
        self.print_line: Say | None = None
        self._began, self._last_line = time.monotonic(), float("-inf")

    def say(self, message: str) -> None:
        """Set the message that describes the present work."""
        is_new, self.message, now = message != self.message, message, time.monotonic()
        if self.print_line is not None and is_new and now - self._last_line >= _PAUSE_S:
            self._last_line = now
            self.print_line(self.describe())

    def advance(self, message: str, done: float, total: float) -> None:
        """Set the message, and that `done` of `total` units of work are done, in any unit."""
        self.done, self.total = done, total
        self.say(message)

    def restart(self, began: float) -> None:
        """Measure the elapsed time from `began`, a time.monotonic() value in seconds.

        For work whose earlier part (such as a warm-up) does not predict the rest.
        """
        self._began = began

    def describe(self) -> str:
        """Return the elapsed time, the time left if it can be estimated, and the message."""
        spent_s = time.monotonic() - self._began
        left = ""
        if 0 < self.done < self.total:
            left = f", about {show_seconds(spent_s * (self.total - self.done) / self.done)} left"
        elif self.limit_s is not None:
            left = f", at most {show_seconds(max(0.0, self.limit_s - spent_s))} left"
        return f"{show_seconds(spent_s)}{left}: {self.message}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(printable(self.describe()), no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Any, options: Any) -> Any:
        from rich.measure import Measurement

        return Measurement(10, options.max_width - 2)


def show_seconds(seconds: float) -> str:
    """Format a duration in seconds: 7 s, 2 min 05 s, 1 h 02 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
