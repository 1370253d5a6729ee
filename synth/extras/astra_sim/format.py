"""How topo-synth writes Chakra traces, the input of ASTRA-sim: a file FILE.0.et, ... per rank."""

from ...plan import Entry, Plan
from ...schedule_format import ScheduleFiles, ScheduleFormat
from ...sizes import show_size
from .traces import write_traces


def _list_suffixes(ranks: int) -> list[str]:
    return [f".{rank}.et" for rank in range(ranks)]


def _write(plan: Plan, entry: Entry, size_bytes: int) -> ScheduleFiles:
    schedule = entry.schedule
    traces = write_traces(schedule, size_bytes)
    fewer = (
        f", in {traces.segments} segments instead of {schedule.segments}"
        if traces.segments < schedule.segments
        else ""
    )
    return ScheduleFiles(
        dict(zip(_list_suffixes(len(traces.files)), traces.files, strict=True)),
        {"messages": traces.messages, "segments": traces.segments},
        (f"{traces.messages} messages for {show_size(size_bytes)}{fewer}",),
    )


FORMAT = ScheduleFormat(_write, _list_suffixes)
