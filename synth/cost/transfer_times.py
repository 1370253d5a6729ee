"""Predict when each transfer of a schedule begins and ends, segment by segment.

A segment is one of m equal parts of each chunk, which follow each other through the steps. A tick
is the time slot of a step of one segment: segment j does step s at tick s + j, or, if the schedule
is `stepwise` (steps do not overlap), at tick s m + j. Times are predicted by the plan's own cost
model. Without host costs it is the affine cost: ticks follow each other; within a tick a transfer
takes its route's latency plus the time of its message, which shares links with others (sharing.py).
With host costs the messages are simulated (simulate.py), and the transfers of a message follow each
other by their bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

import numpy as np

from ...topo.errors import InputError
from ...topo.graph import Topology
from ...topo.grouping import group_by_key
from ..ir.schedule import Schedule
from ..ir.transfers import Transfer
from .affine import ROUNDED
from .host_costs import HostCosts, step_us
from .loads import step_loads
from .sharing import Sharing
from .simulate import MessageTime, simulate_messages

# Most times (transfers times segments) that are listed; viewers cannot show a larger trace.
MAX_TIMES = 400_000


@dataclass(frozen=True, kw_only=True)
class TransferTime(Transfer):
    """One segment of a transfer, with its tick, its size in bytes, and when it begins and ends.

    Times are in microseconds after the call began; `segment` is the segment's number from 0.
    """

    tick: int
    segment: int
    bytes: float
    begin_us: float
    end_us: float


def predict_times(
    schedule: Schedule, topology: Topology | None, size_bytes: int, host: HostCosts | None = None
) -> list[TransferTime]:
    """Return the predicted times of all transfers, in every segment, by tick.

    `size_bytes` is that of the buffer. With `host`, messages are simulated with these costs.
    Without a topology there are no links (ranks share a host's memory), and the list is empty if
    there are too many messages to simulate. Raise InputError if there are more than MAX_TIMES.
    """
    count = len(schedule.transfers) * schedule.segments
    if count > MAX_TIMES:
        raise InputError(
            f"{schedule.label} at {size_bytes} bytes has {count:,} transfers and segments; at "
            f"most {MAX_TIMES:,} are listed one by one; name a smaller size"
        )
    played = None if host is None else simulate_messages(schedule, topology, host, size_bytes)
    if played is None and topology is not None:
        played = _time_ticks(schedule, topology, size_bytes)
    return list(_share_out(schedule, size_bytes, played)) if played else []


def time_steps(schedule: Schedule, size_bytes: int) -> list[TransferTime]:
    """Return the times of all transfers, in one segment, if each step lasts as long as it may.

    That needs no topology. Latencies do not count, and each message takes its whole step.
    """
    uncut = schedule.uncut
    lengths_us = [float(x) * size_bytes * 1e-3 for x in uncut.step_s_per_GB]
    edges_us = list(accumulate(lengths_us, initial=0.0))
    messages = dict.fromkeys((t.step, t.src, t.dst) for t in uncut.transfers)
    played = [(step, a, b, edges_us[step], edges_us[step + 1]) for step, a, b in messages]
    return list(_share_out(uncut, size_bytes, played))


def _time_ticks(schedule: Schedule, topology: Topology, size_bytes: int) -> list[MessageTime]:
    """Return the times of messages by the affine cost, one tick after the other."""
    m = schedule.segments
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    sharing = Sharing(schedule, loads, topology)
    us = size_bytes * 1e-3  # 1 s per GB is 1e-3 us per byte
    latency_us = loads.latency.astype(float) / loads.latency_scale
    declared_us = np.array([float(x) for x in schedule.step_s_per_GB]) * us
    paths = schedule.transfers.paths()[0]
    latency_of = sharing.latency_us.tolist()
    time_paths = cache(sharing.time_paths)
    times: list[MessageTime] = []
    now = 0.0
    for tick in range(schedule.ticks):
        low, high = max(0, tick - m + 1), min(schedule.steps, tick + 1)
        if schedule.stepwise:
            low, high = tick // m, tick // m + 1
        sent, s_per_GB = time_paths(low, high)
        took_us = dict(zip(sent.tolist(), (s_per_GB * us / m).tolist(), strict=True))
        # A step in stepwise segments pays its latency once, as in its cost.
        pays = not schedule.stepwise or tick % m == 0
        begin = now + float(step_us(topology))
        ends = {
            path: begin + path_us + (latency_of[path] if pays else 0.0)
            for path, path_us in took_us.items()
        }
        now = max(ends.values(), default=begin)
        # Steps that do not overlap take their declared durations, if these are longer.
        if m == 1 or schedule.stepwise:
            length_us = float(declared_us[low]) / m
            if length_us > max(took_us.values(), default=0.0) * (1 + ROUNDED):
                slowest_us = float(latency_us[low:high].max(initial=0.0)) if pays else 0.0
                now = begin + slowest_us + length_us
        times += [(tick, *paths[path][:2], begin, end) for path, end in ends.items()]
    return times


def _share_out(
    schedule: Schedule, size_bytes: int, played: Iterable[MessageTime]
) -> Iterable[TransferTime]:
    """Yield the times of transfers; those of one message follow each other by their bytes."""
    times = {(tick, src, dst): (begin, end) for tick, src, dst, begin, end in played}
    members = group_by_key(
        ((schedule.tick(t.step, segment), t.src, t.dst), (segment, t))
        for t in schedule.transfers
        for segment in range(schedule.segments)
    )
    for key, sent in sorted(members.items(), key=lambda item: item[0]):
        begin, end = times[key]
        sizes = [
            float(schedule.chunks[t.chunk].share) * size_bytes / schedule.segments for _, t in sent
        ]
        whole = sum(sizes) or 1.0
        edges_us = [begin + (end - begin) * x / whole for x in accumulate(sizes, initial=0.0)]
        for (segment, t), size, span in zip(sent, sizes, pairwise(edges_us), strict=True):
            yield TransferTime(
                t.step, t.src, t.dst, t.chunk, t.op, t.route,
                tick=key[0], segment=segment, bytes=size, begin_us=span[0], end_us=span[1],
            )  # fmt: skip
