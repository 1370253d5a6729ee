"""Formats of files that hold one schedule of a plan, for other executors and simulators.

Extras, the optional features that extras.py at the root lists, and installed packages add them to
the group `exports`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .plan import Entry, Plan


@dataclass(frozen=True)
class ScheduleFiles:
    """A schedule in some format: `figures` for JSON, `lines` to print for people.

    `files` maps what is appended to the name that the user gives, "" or a suffix such as ".0.et",
    to the content of that file. `remark` is appended to the line that describes the schedule.
    """

    files: Mapping[str, str | bytes]
    figures: dict[str, Any]
    lines: tuple[str, ...]
    remark: str = ""


@dataclass(frozen=True)
class ScheduleFormat:
    """A format: `write` is called with a plan, one of its entries and the buffer's size in bytes.

    It raises InfeasibleError if the format cannot express the schedule. `list_suffixes` returns
    what follows the given name in the name of each file, for a number of ranks.
    """

    write: Callable[[Plan, Entry, int], ScheduleFiles]
    list_suffixes: Callable[[int], list[str]] = lambda _: [""]


def export_schedule(format: ScheduleFormat, plan: Plan, size_bytes: int) -> ScheduleFiles:
    """Return the plan's schedule for buffers of `size_bytes` in a format.

    The plan's figures of the schedule, such as its gap to the bound, are put before those that the
    format returns, and a line that describes it before the format's lines. Nothing is written.
    Raise InfeasibleError if the format cannot express it.
    """
    entry = plan.entry_for(size_bytes)
    schedule = entry.schedule
    gap = float(plan.gap_of(entry))
    made = format.write(plan, entry, size_bytes)
    figures: dict[str, Any] = {
        "strategy": schedule.strategy,
        "segments": schedule.segments,
        "chunks": len(schedule.chunks),
        "steps": schedule.steps,
        "gap": gap,
        "plan_hash": plan.hash,
        "size_bytes": size_bytes,
    }
    what = f"{schedule.label}: {len(schedule.chunks)} chunks, {schedule.steps} steps; gap {gap:.2%}"
    return ScheduleFiles(made.files, figures | made.figures, (what + made.remark, *made.lines))
