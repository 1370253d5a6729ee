"""When each transfer of a schedule is predicted to begin and to end, segment by segment, under the
plan's own cost model.

Without host costs that is the affine cost: ticks come one after the other; within a tick a transfer
takes its route's latency and as long as the most loaded link of its route. With host costs the
messages are played (simulate.py), and the transfers of a message follow each other in it by their
bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...topo.errors import InputError
from ...topo.graph import Topology
from ...topo.routes import route_links
from ..ir.schedule import Schedule
from ..ir.transfers import Op
from .host_costs import HostCosts, step_us
from .loads import step_loads
from .simulate import MessageTime, play_messages

# Transfers times segments that are listed one by one; a trace of more is of no use to anybody.
MOST_TIMES = 400_000


@dataclass(frozen=True)
class TransferTime:
    """One segment of one transfer: `chunk` is a place in the schedule's chunks, `route` the devices
    between the ranks.
    """

    tick: int
    step: int
    segment: int
    src: int
    dst: int
    chunk: int
    op: Op
    route: tuple[str, ...]
    bytes: float
    begin_us: float
    end_us: float


def predict_times(
    schedule: Schedule, topology: Topology | None, size_bytes: int, host: HostCosts | None = None
) -> list[TransferTime]:
    """Return the predicted times of all transfers, in every segment, by tick.

    With `host` messages are played with these costs. Without a topology there are no links (ranks
    share a host's memory); then nothing is returned where there are too many messages to play.
    Raises InputError where there are more than MOST_TIMES.
    """
    count = len(schedule.transfers) * schedule.segments
    if count > MOST_TIMES:
        raise InputError(
            f"{schedule.label} at {size_bytes} bytes has {count:,} transfers and segments; at "
            f"most {MOST_TIMES:,} are "
            "listed one by one; name a smaller size"
        )
    played = None if host is None else play_messages(schedule, topology, host, size_bytes)
    if played is None:
        played = [] if topology is None else _time_ticks(schedule, topology, size_bytes)
    return list(_share_out(schedule, size_bytes, played)) if played else []


def _time_ticks(schedule: Schedule, topology: Topology, size_bytes: int) -> list[MessageTime]:
    """Return the times of messages by the affine cost, one tick after the other."""
    m = schedule.segments
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    # Microseconds that each link is busy in each step, all segments together; 1e-3 us a byte are 1
    # s for each GB.
    busy = loads.seconds.astype(float) / loads.scale * size_bytes * 1e-3
    latency = loads.latency.astype(float) / loads.latency_scale
    declared = np.array([float(x) for x in schedule.step_s_per_GB]) * size_bytes * 1e-3
    number = {link: i for i, link in enumerate(loads.links)}
    ways, way = schedule.transfers.ways()
    paths = [(topology.ranks[src], *route, topology.ranks[dst]) for src, dst, route in ways]
    crossed = [[number[link] for link in route_links(path)] for path in paths]
    latency_of = [
        sum(float(topology.latency_us[link]) for link in route_links(path)) for path in paths
    ]
    ways_of_step: dict[int, set[int]] = defaultdict(set)
    for step, of in zip(schedule.transfers.step.tolist(), way.tolist(), strict=True):
        ways_of_step[step].add(of)
    each = float(step_us(topology))
    out: list[MessageTime] = []
    now = 0.0
    for tick in range(schedule.ticks):
        steps = (
            [tick // m]
            if schedule.stepwise
            else range(max(0, tick - m + 1), min(schedule.steps, tick + 1))
        )
        low, high = steps[0], steps[-1] + 1
        load = busy[low:high].sum(axis=0) / m
        # A step that is cut stepwise pays its latency once, as its cost does.
        pays = not schedule.stepwise or tick % m == 0
        slowest = float(latency[low:high].max(initial=0.0)) if pays else 0.0
        # Steps that come one after the other last as long as is declared.
        length = (
            float(declared[low]) / m
            if m == 1 or schedule.stepwise
            else float(load.max(initial=0.0))
        )
        begin = now + each
        now = begin + slowest + length
        for of in set().union(*(ways_of_step[step] for step in steps)):
            took = (latency_of[of] if pays else 0.0) + max(
                (float(load[link]) for link in crossed[of]), default=0.0
            )
            out.append((tick, ways[of][0], ways[of][1], begin, min(now, begin + took)))
    return out


def _share_out(
    schedule: Schedule, size_bytes: int, played: Iterable[MessageTime]
) -> Iterable[TransferTime]:
    """Yield the times of transfers, those of a message one after the other by their bytes."""
    times = {(tick, src, dst): (begin, end) for tick, src, dst, begin, end in played}
    members: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    rows = list(schedule.transfers)
    for place, t in enumerate(rows):
        for segment in range(schedule.segments):
            members[schedule.tick(t.step, segment), t.src, t.dst].append((place, segment))
    for key in sorted(members):
        tick, src, dst = key
        begin, end = times[key]
        sizes = [
            float(schedule.chunks[rows[p].chunk].share) * size_bytes / schedule.segments
            for p, _ in members[key]
        ]
        whole, before = sum(sizes) or 1.0, 0.0
        for (place, segment), size in zip(members[key], sizes, strict=True):
            t = rows[place]
            from_us = begin + (end - begin) * before / whole
            before += size
            until_us = begin + (end - begin) * before / whole
            yield TransferTime(
                tick, t.step, segment, src, dst, t.chunk, t.op, t.route, size, from_us, until_us
            )
