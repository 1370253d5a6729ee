"""A rich console on which text from files cannot control the terminal."""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from ..printable import printable, printable_lines
from .colour import is_terminal, wants_colour


class SafeConsole(Console):
    """A rich Console that escapes the strings it prints.

    It does not escape a rich Text; make that with `safe_text`. `colour` is whether to print colours
    and other styles (None: as `wants_colour` says); whether lines wrap depends on the stream alone.
    """

    def __init__(self, *, colour: bool | None = None, **options: Any) -> None:
        stream = options.get("file") or sys.stdout
        # rich takes FORCE_COLOR for a terminal, and wraps lines at its width.
        wraps = options.setdefault("force_terminal", is_terminal(stream))
        if colour is None:
            colour = wants_colour(stream)
        options.setdefault("color_system", ("auto" if wraps else "standard") if colour else None)
        # In a notebook rich displays what it prints, and writes nothing to a stream of ours.
        super().__init__(**{"force_jupyter": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape a string and render it; rich calls this for each string that it prints.

        Escaping comes first, since escapes change the width.
        """
        return super().render_str(printable_lines(text), **options)

    def print_line(self, line: str) -> None:
        """Print a line that a terminal wraps, and a file gets whole."""
        self.print(safe_text(line), soft_wrap=not self.is_terminal)


def safe_text(text: str, style: str = "") -> Text:
    """Return an escaped Text of one line; the caller must escape whatever it appends."""
    return Text(printable(text), style)
