"""Print joint plans as tables, for topo-synth and `describe()`.

A joint plan is for groups of ranks that run collectives at the same time and share the links; a
call is one group's collective with its bytes and weight (joint_calls.py).
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ....topo.printable import printable
from ...bounds.assumptions import join_assumptions, list_assumptions
from ...describe import show_us
from ...ir.collective import spell_ranks
from ...ir.schedule_text import WIDTH, count
from ...sizes import show_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from rich.console import Console

    from .bound import JointBound
    from .plan import JointPlan
    from .synthesize import Separate

_TITLES = (
    *("group", "collective", "size", "weight", "helpers", "trees", "steps", "segments"),
    *("ends at us, at least", "predicted us", "algbw GB/s"),
)
# Columns that a narrow terminal omits, in this order.
_LEAVE_OUT = ("steps", "segments", "trees", "weight", "helpers", "algbw GB/s")


def describe_joint(plan: JointPlan) -> str:
    """Return the table that `print_joint` prints, without a comparison, as text."""
    from ....topo.pictures.console import SafeConsole

    buffer = io.StringIO()
    print_joint(SafeConsole(file=buffer, width=WIDTH, color_system=None), plan, None)
    return "\n".join(printable(line.rstrip()) for line in buffer.getvalue().splitlines())


def print_joint(console: Console, plan: JointPlan, separate: Separate | None) -> None:
    """Print the joint bound, a row for each group, and when all calls end.

    `separate` is the comparison with separate plans, None to leave it out.
    """
    from rich.markup import escape

    from ....topo.pictures.fit import print_table

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)

    kinds = ", ".join(dict.fromkeys(call.kind for call in plan.calls))
    say(
        f"[bold]{escape(kinds)}[/bold] at once on [bold]{escape(plan.topology.name)}[/bold] "
        f"({count(len(plan.groups), 'group')} of {count(len(plan.topology.ranks), 'rank')}, "
        f"fingerprint {plan.topology.fingerprint[:12]}): {escape(_bounds_text(plan))}"
    )
    rows: list[tuple[Sequence[str], str | None]] = []
    for group in plan.groups:
        call, schedule = group.call, group.schedule
        cells = (
            call.name,
            call.collective.name,
            show_size(call.size_bytes),
            f"{float(call.weight):g}",
            spell_ranks(group.helpers),
            str(schedule.trees or ""),
            str(schedule.steps),
            str(schedule.segments),
            _us(group.limit_s),
            show_us(group.time_s),
            f"{call.size_bytes / group.time_s / 1e9:.4g}",
        )
        rows.append(([escape(cell) for cell in cells], None))
    print_table(console, _TITLES, rows, _LEAVE_OUT, ("group", "collective", "helpers"))
    weighted = any(call.weight != 1 for call in plan.calls)
    ended = "calls of weight 1" if weighted else "all"
    say(
        f"{ended} end at {_us(plan.limit_s)} us if only bandwidth counts, gap "
        f"{max(0.0, float(plan.gap)):.1%}; predicted {show_us(plan.time_s)} us"
    )
    if separate is not None:
        say(
            f"plans made for each group alone: {_us(separate.together_s)} us started together, "
            f"{_us(separate.in_turn_s)} us one kind after the other"
        )


def _us(time_s: Fraction) -> str:
    return show_us(float(time_s))


def _bounds_text(plan: JointPlan) -> str:
    """Return the joint bounds in words: one line if they are the same, else two."""

    def text(bound: JointBound) -> str:
        priced = len(bound.certificate["prices"])
        by = f"bound by prices on {count(priced, 'link')}, linear programming dual"
        assumed = join_assumptions(list_assumptions(bound, plan.topology))
        return f"at least {_us(bound.time_s)} us until all have ended{assumed}, {{}} ({by})"

    if plan.bound.time_s == plan.bound_one_way.time_s:
        return text(plan.bound).format("however links are used")
    return (
        text(plan.bound).format("however links are used")
        + "\n"
        + text(plan.bound_one_way).format("with one route per pair of GPUs, as hardware sends")
    )
