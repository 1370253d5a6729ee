"""topo-synth --spare links: plans for the loss of each link and NIC."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...topo.pictures.fit import print_table
from .job import Section, SynthRun, print_lines

if TYPE_CHECKING:
    from rich.console import Console

    from ...synth.plan import Plan
    from ...synth.planner.synthesize import Synthesis


def add_spares(job: SynthRun, result: Synthesis, say: Callable[[str], None]) -> Synthesis:
    """Return the synthesis with spares in its plan, if the job asks for them."""
    if job.args.spare is None:
        return result
    from ...synth.planner import spares

    left_s = job.args.time_limit - (time.monotonic() - job.started)
    return replace(result, plan=spares.add_spares(result.plan, left_s, say))


def describe_spares(job: SynthRun, plan: Plan) -> tuple[dict[str, Any], Section | None]:
    """Return the fields of --json on a plan's spares, and the section that lists them."""
    if job.args.spare is None:
        return {}, None
    from ...synth.planner.spares import list_losses

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
            row["gap"] = float(left.gap_of(left.entry_for(job.size)))
        rows.append(row)

    def section(console: Console) -> None:
        titles = ("loss of", "pairs lost", "bound GB/s", "of the whole", "gap")
        lines: list[tuple[tuple[str, ...], str | None]] = []
        for row in rows:
            figures = ("disconnects ranks", "", "") if row["disconnects"] else ("no plan", "", "")
            if row["gap"] is not None:
                figures = (
                    f"{row['bound_GBps']:.4g}",
                    f"{row['bound_ratio']:.1%}",
                    f"{row['gap']:.2%}" if row["gap"] > 1e-6 else "0",
                )
            cells = (", ".join(row["loss_of"]), str(row["unreached_pairs"]), *figures)
            lines.append((cells, None))
        if lines:
            print_table(console, titles, lines, ("of the whole",), ("loss of",), "spare plans")
        print_lines(
            console, f"{len(plan.spares)} spare plans; a loss that no pair of ranks uses needs none"
        )

    return {"spares": rows}, section
