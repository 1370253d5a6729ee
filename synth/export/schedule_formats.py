"""The formats of topo-synth that hold a schedule of a plan, for other executors and simulators."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..plan import Plan
from ..sizes import show_size
from .astra_sim import write_traces
from .mscclpp.limits import MAX_CHANNELS, MAX_OPERATIONS
from .mscclpp.write import write_mscclpp

MSCCLPP, ASTRA_SIM = "mscclpp", "astra-sim"
# All formats.
FORMATS = (MSCCLPP, ASTRA_SIM)


@dataclass(frozen=True)
class ScheduleExport:
    """Files in one of FORMATS, with `figures` for programs and `lines` for people.

    `files` has the content by what follows the name that the user gives.
    """

    files: Mapping[str, str | bytes]
    figures: dict[str, Any]
    lines: tuple[str, ...]


def list_suffixes(format: str, ranks: int) -> list[str]:
    """Return what follows the given name in the name of each file of a format."""
    return [f".{rank}.et" for rank in range(ranks)] if format == ASTRA_SIM else [""]


def export_schedule(format: str, plan: Plan, size_bytes: int) -> ScheduleExport:
    """Return the plan's schedule for buffers of `size_bytes` in one of FORMATS.

    Raise InfeasibleError if the format cannot express it.
    """
    entry = plan.entry_for(size_bytes)
    schedule = entry.schedule
    what = (
        f"{schedule.label}: {len(schedule.chunks)} chunks, {schedule.steps} steps; gap "
        f"{float(plan.gap_of(entry)):.2%}"
    )
    number = plan.entries.index(entry) + 1
    figures: dict[str, Any] = {
        "strategy": schedule.strategy,
        "segments": schedule.segments,
        "chunks": len(schedule.chunks),
        "steps": schedule.steps,
        "gap": float(plan.gap_of(entry)),
        "plan_hash": plan.hash,
        "size_bytes": size_bytes,
    }
    if format == ASTRA_SIM:
        traces = write_traces(schedule, size_bytes)
        suffixes = list_suffixes(format, len(traces.files))
        fewer = (
            f", in {traces.segments} segments instead of {schedule.segments}"
            if traces.segments < schedule.segments
            else ""
        )
        return ScheduleExport(
            dict(zip(suffixes, traces.files, strict=True)),
            figures | {"messages": traces.messages, "segments": traces.segments},
            (what, f"{traces.messages} messages for {show_size(size_bytes)}{fewer}"),
        )
    made = write_mscclpp(schedule, plan.topology, size_bytes, entry.min_bytes, entry.max_bytes)
    rounded = " (rounded to 1/256, as the size is no multiple of them)" * made.is_rounded
    return ScheduleExport(
        {"": made.text},
        figures
        | {key: value for key, value in asdict(made).items() if key != "text"}
        | {"scratch_share": float(made.scratch_share)},
        (
            what + rounded,
            f"for messages of {show_size(made.min_bytes)} to {show_size(made.max_bytes)} that are "
            f"multiples of {made.step_bytes} bytes (range {number} of {len(plan.entries)} of the "
            "plan)",
            f"{made.blocks} thread blocks a GPU, which must all run at once, with at most "
            f"{made.operations} of {MAX_OPERATIONS} operations and {made.channels} of "
            f"{MAX_CHANNELS} channels each; scratch memory of {float(made.scratch_share):.3g} "
            "times the message",
        ),
    )
