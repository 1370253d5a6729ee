"""A Pareto front as text: the table of `topo-synth --pareto`, and the text of `describe()`.

Chunks, steps and rounds are SCCL's: in one round a link carries one chunk for each unit of its
bandwidth, and a step lasts one round or more. Fewer steps mean less latency, fewer rounds per chunk
(R/C) more bandwidth.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....topo.pictures.console import SafeConsole
from ....topo.pictures.fit import print_table
from ...bounds.single_path import Bounds
from ...describe import bounds_text
from ...ir.schedule_text import WIDTH, join_lines

if TYPE_CHECKING:
    from rich.console import Console

    from .front import ParetoFront
    from .search import ParetoRow

TITLES = ("chunks", "steps", "rounds", "R/C", "status", "", "form", "proof", "seconds")


def describe_front(front: ParetoFront) -> str:
    """Return the table of `print_front`, and the bounds."""
    buffer = io.StringIO()
    console = SafeConsole(file=buffer, width=WIDTH, color_system=None)
    console.print(
        f"{front.collective.name} on {front.topology.name}: "
        f"{bounds_text(Bounds(front.bound, front.bound_one_way), front.topology)}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    print_front(console, front)
    return join_lines(buffer.getvalue().splitlines())


def print_front(console: Console, front: ParetoFront) -> None:
    """Print a row for each (chunks, steps, rounds), then the bound on R/C."""
    rows: list[tuple[Sequence[str], str | None]] = []
    for row in front.rows:
        dim = None if row.status == "feasible" else "dim"
        rows.append((list_cells(row), "green" if row.is_on_front else dim))
    left = ("status", "", "form", "proof")
    print_table(console, TITLES, rows, ("proof", "form", "seconds"), left)
    console.print(least_ratio_text(front), highlight=False)


def list_cells(row: ParetoRow) -> tuple[str, ...]:
    """Return a row of a front as texts, in the columns TITLES."""
    marks = [
        "front" * row.is_on_front,
        "fewest steps" * (row.latency_optimal and not row.dominated),
        "least R/C" * row.bandwidth_optimal,
        "dominated" * row.dominated,
    ]
    return (
        *map(str, (row.chunks, row.steps, row.rounds, row.ratio)),
        row.status,
        ", ".join(filter(None, marks)),
        row.form,
        row.proof,
        f"{row.synthesis_s:.2f}",
    )


def least_ratio_text(front: ParetoFront) -> str:
    """Return the line on the bound on rounds a chunk, and on an incomplete search."""
    partial = "" if front.complete else "; the search was not exhaustive"
    return f"lower bound on R/C of any schedule: {front.least_ratio}{partial}"
