"""Report the spares of a plan (its plans for lost links) in topo-synth --spare."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....topo.pictures.fit import print_table
from ...plan import Plan
from .planning import list_losses

if TYPE_CHECKING:
    from rich.console import Console


def report_spares(plan: Plan, size: int) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """Return the JSON fields on a plan's spares, and a function that prints the table of them.

    Gaps are those of the plans' schedules for a buffer of `size` bytes.
    """
    by_lost = {spare.lost: plan.use_spare(spare) for spare in plan.spares}
    whole, rows = plan.bound_one_way.algbw_GBps, []
    for loss in list_losses(plan.topology):
        left = by_lost.get(tuple(loss.lost))
        row: dict[str, Any] = {
            "loss_of": loss.of,
            "lost_links": [list(link) for link in loss.lost],
            "unreached_pairs": len(loss.unreached),
            "disconnects": loss.disconnects,
            "bound_GBps": None,
            "bound_ratio": None,
            "gap": None,
        }
        if left is not None:
            bound = left.bound_one_way.algbw_GBps
            row["bound_GBps"], row["bound_ratio"] = float(bound), float(bound / whole)
            row["gap"] = float(left.gap_of(left.entry_for(size)))
        rows.append(row)

    def show(console: Console) -> None:
        titles = ("loss of", "pairs lost", "bound GB/s", "of the whole", "gap")
        lines = [(_list_cells(row), None) for row in rows]
        if lines:
            print_table(console, titles, lines, ("of the whole",), ("loss of",), "spare plans")
        console.print(
            f"{len(plan.spares)} spare plans; a loss that no pair of ranks uses needs none",
            highlight=False,
            soft_wrap=not console.is_terminal,
            markup=False,
        )

    return {"spares": rows}, show


def _list_cells(row: dict[str, Any]) -> tuple[str, ...]:
    figures = ("disconnects ranks", "", "") if row["disconnects"] else ("no plan", "", "")
    if row["gap"] is not None:
        figures = (
            f"{row['bound_GBps']:.4g}",
            f"{row['bound_ratio']:.1%}",
            f"{row['gap']:.2%}" if row["gap"] > 1e-6 else "0",
        )
    return ", ".join(row["loss_of"]), str(row["unreached_pairs"]), *figures
