"""A rich console that writes text from files as `printable` shows it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from ..printable import printable, printable_lines


class SafeConsole(Console):
    """A Console that escapes the strings that it is given; for a Text, use `safe_text`."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as the Text that is laid out; escapes come first, since they take
        room.
        """
        return super().render_str(printable_lines(text), **options)


def safe_text(text: str, style: str = "") -> Text:
    """Return a Text of one line; what is appended to it the caller must escape."""
    return Text(printable(text), style)
