"""Write the predicted trace of a plan at a size; runtime/measuring/trace.py adds measurements."""

from __future__ import annotations

from typing import Any

from ...topo.graph import Topology
from ..cost.host_costs import describe_host, host_of
from ..cost.segmentation import on_own_routes
from ..cost.transfer_times import predict_times
from ..ir.schedule import Schedule
from ..plan import Plan
from . import chrome_trace


def write_plan_trace(plan: Plan, size_bytes: int) -> str:
    """Return the Chrome trace of the plan's schedule for a size.

    Raises InputError if the schedule has too many transfers to list.
    """
    topology = plan.topology
    entry = plan.entry_for(size_bytes)
    # As it is sent, which is what was costed.
    schedule = on_own_routes(entry.schedule, plan.router)
    times = predict_times(schedule, topology, size_bytes, host_of(topology))
    about = describe_run(schedule, topology, size_bytes) | {
        "predicted_us": plan.time_s(entry, size_bytes) * 1e6,
        "plan": plan.hash,
    }
    return chrome_trace.write(topology, {chrome_trace.PREDICTED: times}, about)


def describe_run(schedule: Schedule, topology: Topology, size_bytes: int) -> dict[str, Any]:
    """Return the description of a schedule that its traces contain."""
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
