"""Make tables and lines fit a terminal: whole columns are left out and lines broken between words; nothing is cut."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence


def choose_columns(
    titles: Sequence[str], rows: Iterable[Sequence[str]], leave_out: Sequence[str], width: int, gap: int = 2
) -> list[int]:
    """Return the numbers of the columns that fit in `width` characters with `gap` blanks between them.

    `leave_out` names those that may be missing, the first to go first; what it does not name stays in any case.
    """
    widths = [len(title) for title in titles]
    for row in rows:
        widths = [max(pair) for pair in zip(widths, map(len, row), strict=True)]
    kept = list(range(len(titles)))
    for title in leave_out:
        if sum(widths[i] for i in kept) + gap * (len(kept) - 1) <= width:
            break
        kept = [i for i in kept if titles[i] != title]
    return kept


def wrap_line(line: str, width: int | None, indent: str = "    ") -> list[str]:
    """Return a line as lines of at most `width` characters, words kept whole, those after the first further indented.

    Without a width it stays as it is.
    """
    if width is None or len(line) <= width:
        return [line]
    begin = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line.strip(), width, initial_indent=begin, subsequent_indent=begin + indent,
        break_long_words=False, break_on_hyphens=False)  # fmt: skip


def wrap_text(text: str, width: int | None) -> str:
    """Return a text, each line of which is wrapped by `wrap_line`."""
    return "\n".join(part for line in text.split("\n") for part in wrap_line(line, width))
