"""Make tables and lines fit a terminal: whole columns are left out and lines broken between words;
nothing is cut.
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
    """Return the numbers of the columns that fit in `width` characters with `gap` blanks between
    them.

    `leave_out` names those that may be missing, the first to go first; what it does not name stays
    in any case.
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


def print_table(
    console: Console,
    columns: Sequence[tuple[str, bool]],
    rows: Sequence[tuple[Sequence[str], str | None]],
    leave_out: Sequence[str],
    title: str | None = None,
) -> None:
    """Print a table: `columns` are titles, and whether they are aligned to the left; rows are cells
    with rich's markup, and a style. It goes without columns of `leave_out` until it fits the
    console.
    """
    from rich.table import Table
    from rich.text import Text

    plain = [[Text.from_markup(cell).plain for cell in cells] for cells, _ in rows]
    kept = choose_columns([name for name, _ in columns], plain, leave_out, console.width)
    table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
    for i in kept:
        table.add_column(columns[i][0], justify="left" if columns[i][1] else "right", no_wrap=True)
    for cells, style in rows:
        table.add_row(*(cells[i] for i in kept), style=style)
    console.print(table)


def wrap_line(line: str, width: int | None, indent: str = "    ") -> list[str]:
    """Return a line as lines of at most `width` characters, words kept whole, those after the first
    further indented.

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
