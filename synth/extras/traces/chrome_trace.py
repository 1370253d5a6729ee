"""A schedule's transfers as a Chrome trace (Trace Event Format), for Perfetto and chrome://tracing.

Each rank is a process. It has two threads for each rank that it sends to: predicted and measured
transfers. An event is one segment of one transfer, with its bytes, step, tick (the step of a
segment: in a pipeline segment j does step s at tick s + j) and route. Events of a thread never
overlap: a transfer that is posted during an earlier one begins when that one ends, as on a link.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ...cost.host_costs import describe_host, host_of
from ...cost.segmentation import reroute_unless_in_network
from ...cost.transfer_times import TransferTime, predict_times
from ...ir.schedule import Schedule
from ...plan import Plan

PREDICTED, MEASURED = "predicted", "measured"
# The order of the two threads.
_PLACE = {PREDICTED: 0, MEASURED: 1}


def write(
    topology: Topology, times: Mapping[str, Sequence[TransferTime]], about: Mapping[str, Any]
) -> str:
    """Return transfers as a Chrome trace: JSON text with one event per line.

    `times` has the times of each segment of each transfer under PREDICTED, MEASURED or both;
    `about` describes the run (see `describe_run`).
    """
    ranks = topology.ranks
    lines: list[dict[str, Any]] = []
    for rank, device in enumerate(ranks):
        lines += [
            _name("process_name", rank, 0, {"name": f"rank {rank} ({device})"}),
            _name("process_sort_index", rank, 0, {"sort_index": rank}),
        ]
    events: list[dict[str, Any]] = []
    for kind in sorted(times, key=_PLACE.__getitem__):
        channels = group_by_key(((time.src, time.dst), time) for time in times[kind])
        for (src, dst), channel in sorted(channels.items()):
            # Some viewers take thread 0 of a process for its main thread, so threads begin at 1.
            thread = 1 + 2 * dst + _PLACE[kind]
            lines += [
                _name("thread_name", src, thread, {"name": f"to {dst} ({ranks[dst]}), {kind}"}),
                _name("thread_sort_index", src, thread, {"sort_index": thread}),
            ]
            events += _list_events(channel, thread, kind)
    events.sort(key=lambda event: event["ts"])
    rows = ",\n".join(json.dumps(event, separators=(",", ":")) for event in (*lines, *events))
    head = json.dumps({"displayTimeUnit": "ms", "otherData": dict(about)})
    return f'{head[:-1]}, "traceEvents": [\n{rows}\n]}}\n'


def _name(what: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _list_events(channel: Sequence[TransferTime], thread: int, kind: str) -> list[dict[str, Any]]:
    out, free = [], 0
    for time in sorted(channel, key=lambda x: (x.begin_us, x.tick, x.step, x.chunk, x.segment)):
        begin = max(free, round(time.begin_us * 1000))
        free = max(begin, round(time.end_us * 1000))
        out.append(
            {
                "ph": "X",
                "name": f"{'add' if time.op == 'reduce' else 'copy'} chunk {time.chunk}",
                "cat": kind,
                "pid": time.src,
                "tid": thread,
                "ts": begin / 1000,
                "dur": (free - begin) / 1000,
                "args": {
                    "bytes": round(time.bytes),
                    "link": " > ".join(time.route) or "direct",
                    "to": time.dst,
                    "step": time.step,
                    "tick": time.tick,
                    "chunk": time.chunk,
                    "segment": time.segment,
                },
            }
        )
    return out


def write_plan_trace(plan: Plan, size_bytes: int) -> str:
    """Return the Chrome trace of the plan's schedule for a size.

    Raise InputError if the schedule has too many transfers to list.
    """
    topology, entry = plan.topology, plan.entry_for(size_bytes)
    # Transfers are sent on the hardware's routes, and their times were predicted for these.
    schedule = reroute_unless_in_network(entry.schedule, plan.router)
    about = describe_run(schedule, topology, size_bytes) | {
        "predicted_us": plan.time_s(entry, size_bytes) * 1e6,
        "plan": plan.hash,
    }
    return write(
        topology,
        {PREDICTED: predict_times(schedule, topology, size_bytes, host_of(topology))},
        about,
    )


def describe_run(schedule: Schedule, topology: Topology, size_bytes: int) -> dict[str, Any]:
    """Return the facts about a run that its trace contains: `about` of `write`.

    Keys are topology, fingerprint, collective, ranks, schedule, size_bytes, transfers, segments and
    host_costs.
    """
    return {
        "topology": topology.name,
        "fingerprint": topology.fingerprint,
        "collective": schedule.collective.name,
        "ranks": schedule.collective.ranks,
        "schedule": schedule.label,
        "size_bytes": size_bytes,
        "transfers": len(schedule.transfers),
        "segments": schedule.segments,
        "host_costs": describe_host(topology),
    }
