"""A schedule as text: its figures, and a row for each of its first transfers."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...topo.printable import printable
from .collective import spell_ranks

if TYPE_CHECKING:
    from .schedule import Schedule

# Greatest width of a described table in characters; smaller tables are narrower.
WIDTH = 200
# Transfers of a schedule that are listed: a longer list would hide its figures.
_MAX_ROWS = 64


def describe_schedule(schedule: Schedule) -> str:
    """Return a text with a schedule's figures, and a row for each of its first transfers."""
    from rich.table import Table

    from ...topo.pictures.console import SafeConsole

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("step", "from", "to", "chunk", "share", "operation", "through"):
        left = title in ("operation", "through")
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for t in schedule.transfers[:_MAX_ROWS]:
        table.add_row(
            *map(str, (t.step, t.src, t.dst, t.chunk, schedule.chunks[t.chunk].share, t.op)),
            ", ".join(t.route),
        )
    buffer = io.StringIO()
    SafeConsole(file=buffer, width=WIDTH, color_system=None, markup=False).print(table)
    helpers = spell_ranks(schedule.helpers)
    figures = [
        f"{schedule.label}: {schedule.collective}",
        *([f"helper{'s' if len(schedule.helpers) > 1 else ''} {helpers}"] if helpers else []),
        count(len(schedule.chunks), "chunk"),
        count(schedule.steps, "step"),
        count(len(schedule.transfers), "transfer"),
    ]
    if schedule.trees:
        figures.append(count(schedule.trees, "tree"))
    if schedule.segments > 1:
        how = "step by step" if schedule.stepwise else "as a pipeline"
        figures.append(f"each chunk in {schedule.segments} segments, {how}")
    left_out = len(schedule.transfers) - _MAX_ROWS
    more = [f"... and {left_out:,} more transfers"] if left_out > 0 else []
    return join_lines([", ".join(figures), *buffer.getvalue().splitlines(), *more])


def count(number: int, what: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1: "1 step", "2 steps"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def join_lines(lines: Iterable[str]) -> str:
    """Return printable lines as one text, without trailing blanks."""
    return "\n".join(printable(line.rstrip()) for line in lines)
