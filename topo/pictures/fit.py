"""Fit tables and lines to a terminal by dropping whole columns and wrapping between words.

Separate from `console`, which imports rich at once: commands that print no table start faster.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def choose_columns(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    leave_out: Sequence[str],
    width: int,
    gap: int = 2,
) -> list[int]:
    """Return the indices of the columns that fit in `width` characters, `gap` blanks between them.

    Columns named in `leave_out` are dropped in that order; all others always stay.
    """
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    kept = list(range(len(titles)))
    for title in leave_out:
        if sum(widths[i] for i in kept) + gap * (len(kept) - 1) <= width:
            break
        kept = [i for i in kept if titles[i] != title]
    return kept


def print_table(
    console: Console,
    titles: Sequence[str],
    rows: Sequence[tuple[Sequence[str], str | None]],
    leave_out: Sequence[str],
    left: Sequence[str],
    title: str | None = None,
) -> None:
    """Print a table with the columns `titles`, as many of them as fit the console.

    Of columns named in `leave_out`, the first ones are dropped until the others fit. Those named in
    `left` are left-aligned, all others right-aligned. A row is its cells, which may have rich's
    markup, and rich's style for all of them, None for none.
    """
    from rich.table import Table
    from rich.text import Text

    plain = [[Text.from_markup(cell).plain for cell in cells] for cells, _ in rows]
    kept = choose_columns(titles, plain, leave_out, console.width)
    table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
    for i in kept:
        table.add_column(titles[i], justify="left" if titles[i] in left else "right", no_wrap=True)
    for cells, style in rows:
        table.add_row(*(cells[i] for i in kept), style=style)
    console.print(table)


def wrap_line(line: str, width: int | None) -> list[str]:
    """Wrap a line between words at `width` characters.

    Continuation lines are indented by four more than the first. If `width` is None, the line is not
    wrapped.
    """
    if width is None or len(line) <= width:
        return [line]
    begin = line[: len(line) - len(line.lstrip())]
    wrapper = textwrap.TextWrapper(
        width,
        initial_indent=begin,
        subsequent_indent=begin + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(line.strip())


def wrap_text(text: str, width: int | None) -> str:
    """Wrap each line of a text with `wrap_line`."""
    return "\n".join(part for line in text.split("\n") for part in wrap_line(line, width))
