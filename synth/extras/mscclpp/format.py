"""How topo-synth writes execution plans of MSCCL++."""

from dataclasses import asdict

from ...plan import Entry, Plan
from ...schedule_format import ScheduleFiles, ScheduleFormat
from ...sizes import show_size
from .limits import MAX_CHANNELS, MAX_OPERATIONS
from .write import write_mscclpp


def _write(plan: Plan, entry: Entry, size_bytes: int) -> ScheduleFiles:
    made = write_mscclpp(
        entry.schedule, plan.topology, size_bytes, entry.min_bytes, entry.max_bytes
    )
    number = plan.entries.index(entry) + 1
    return ScheduleFiles(
        {"": made.text},
        {key: value for key, value in asdict(made).items() if key != "text"}
        | {"scratch_share": float(made.scratch_share)},
        (
            f"for messages of {show_size(made.min_bytes)} to {show_size(made.max_bytes)} that are "
            f"multiples of {made.step_bytes} bytes (range {number} of {len(plan.entries)} of the "
            "plan)",
            f"{made.blocks} thread blocks a GPU, which must all run at once, with at most "
            f"{made.operations} of {MAX_OPERATIONS} operations and {made.channels} of "
            f"{MAX_CHANNELS} channels each; scratch memory of {float(made.scratch_share):.3g} "
            "times the message",
        ),
        " (rounded to 1/256, as the size is no multiple of them)" * made.is_rounded,
    )


FORMAT = ScheduleFormat(_write)
