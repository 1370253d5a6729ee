"""The affine cost of a schedule on a topology: alpha-beta, with contention on shared links.

Time is affine in the buffer's size L: T(L) = alpha + beta L. A step takes the greatest latency
among its routes plus the time of its most loaded link (SCCL, section 3: S alpha + (R/C) L beta), or
more where its messages hold each other up (sharing.py). Chunks may be cut into m segments, equal
parts that follow each other through the steps. In a pipeline, segment j does step s at tick s + j,
so the loads of all steps of a tick add up, and the cost is summed over ticks. In a `stepwise`
schedule steps do not overlap: segment j does step s at tick s m + j.

Plans are chosen by the affine cost. What is predicted (`Cost.time_s`) may be a few percent less,
where the message that takes longest is not that of the greatest latency (Ticks).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from ...topo.routes import Router
from ..ir.schedule import Schedule
from .host_costs import step_us
from .loads import DirectedLink, Loads, step_loads
from .sharing import Sharing

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
# Stretches of loads are rounded by less, relatively.
ROUNDED = 1e-6


class Ticks:
    """The ticks of a schedule in a number of segments, and how much earlier they end than assumed.

    `sharing` has the messages of the schedule's steps. A tick ends when the last of its messages is
    there, which may be before its greatest latency and its longest time have both passed. This is
    computed when it is first asked for: planning compares schedules by the affine cost.
    """

    def __init__(self, schedule: Schedule, segments: int, sharing: Sharing) -> None:
        self._schedule, self._segments, self._sharing = schedule, segments, sharing

    @cached_property
    def _uneven(self) -> list[tuple[int, _Floats, _Floats]]:
        """The ticks of which another message may be the last than that of the greatest latency.

        For each kind of tick: how many there are, and of the messages that may be the last, their
        latencies in us, and their times in us per byte of buffer.
        """
        schedule, m, latency_us = self._schedule, self._segments, self._sharing.latency_us
        if len(set(latency_us.tolist())) < 2:
            return []
        count_of, kinds = Counter[int](), dict[int, tuple[_Ints, _Floats]]()
        for low, high, count in _list_windows(schedule, m):
            timed = self._sharing.time_paths(low, high)
            # Steps that do not overlap take their declared durations, if these are longer.
            is_apart = m == 1 or schedule.stepwise
            declared = float(schedule.step_s_per_GB[low]) if is_apart else 0.0
            if len(timed[0]) and declared <= timed[1].max() * (1 + ROUNDED):
                kinds[id(timed)] = timed
                count_of[id(timed)] += count
        out = []
        for kind, (paths, s_per_GB) in kinds.items():
            latency, us = latency_us[paths], s_per_GB * 1e-3 / m
            # Of messages with a latency as great or greater, only one that takes longest matters.
            order = np.lexsort((-us, -latency))
            longest = np.maximum.accumulate(us[order])
            last = order[np.append(True, longest[1:] > longest[:-1])]
            if len(last) > 1:
                out.append((count_of[kind], latency[last], us[last]))
        return out

    def find_early_us(self, size_bytes: int) -> float:
        """Return by how many microseconds the affine cost is too long at a size.

        That is over all ticks: each may end before the sum of latency and longest time.
        """
        return sum(
            count * float(latency.max() + us.max() * size_bytes - (latency + us * size_bytes).max())
            for count, latency, us in self._uneven
        )


@dataclass(frozen=True)
class Cost:
    """The affine cost T = `alpha_us` + `beta_s_per_GB` L for a buffer of L GB (1e9 bytes).

    Both terms are exact where no message holds up another; elsewhere, beta to six digits. What is
    predicted may be less, where ticks end before the sum of both.
    """

    alpha_us: Fraction
    beta_s_per_GB: Fraction

    def time_s(self, size_bytes: int) -> float:
        """Return the predicted time in seconds for a buffer of `size_bytes`."""
        return affine_s(self, size_bytes)


@dataclass(frozen=True)
class _CostOfTicks(Cost):
    """The affine cost of a schedule of which the ticks are known."""

    ticks: Ticks = field(compare=False, repr=False)

    def time_s(self, size_bytes: int) -> float:
        return affine_s(self, size_bytes) - self.ticks.find_early_us(size_bytes) * 1e-6


def affine_s(cost: Cost, size_bytes: int) -> float:
    """Return the affine time in seconds of a cost for a buffer of `size_bytes`.

    Plans are chosen by it.
    """
    return float(cost.alpha_us) * 1e-6 + float(cost.beta_s_per_GB) * size_bytes * 1e-9


def tighten(schedule: Schedule, topology: Topology) -> Schedule:
    """Return the schedule with each step's duration set to the time of its most loaded link.

    These durations replace its `step_s_per_GB`, in seconds per GB of buffer.
    """
    steps = int(schedule.transfers.step.max(initial=-1)) + 1
    loads = step_loads(schedule.chunks, schedule.transfers, steps, topology)
    longest = loads.seconds.max(axis=1, initial=0) if steps else []
    return replace(schedule, step_s_per_GB=tuple(Fraction(int(x), loads.scale) for x in longest))


def cost(schedule: Schedule, topology: Topology) -> Cost:
    """Return the affine cost of a schedule in its own number of segments.

    It consists of the latencies and loads of links; hosts' costs are not in it.
    """
    return costs(schedule, topology, [schedule.segments])[0]


def costs(schedule: Schedule, topology: Topology, segments: Sequence[int]) -> list[Cost]:
    """Return a schedule's `cost` for each number of segments in `segments`, in their order.

    The schedule's own number of segments does not matter.
    """
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    sharing = Sharing(schedule, loads, topology)
    before = np.zeros((len(loads.latency) + 1, len(loads.links)), dtype=loads.seconds.dtype)
    np.cumsum(loads.seconds, axis=0, out=before[1:])

    @cache
    def window(low: int, high: int) -> tuple[int, Fraction]:
        """Return the greatest latency of a tick that carries out steps low .. high - 1, and the
        time of its messages.
        """
        return (
            int(loads.latency[low:high].max(initial=0)),
            int((before[high] - before[low]).max(initial=0)) * sharing.find_stretch(low, high),
        )

    @cache
    def in_turn() -> Cost:
        """Return the cost of steps that do not overlap."""
        # They take their declared durations, which may exceed the time that the messages need.
        each = (
            max(declared, window(step, step + 1)[1] / loads.scale)
            for step, declared in enumerate(schedule.step_s_per_GB)
        )
        alpha_us = Fraction(int(sum(loads.latency)), loads.latency_scale)
        return Cost(alpha_us, sum(each, Fraction(0)))

    found = [
        in_turn() if m == 1 or schedule.stepwise else _cost_pipeline(schedule, loads, window, m)
        for m in segments
    ]
    return [
        _CostOfTicks(each.alpha_us, each.beta_s_per_GB, Ticks(schedule, m, sharing))
        for m, each in zip(segments, found, strict=True)
    ]


def costs_between_gpus(
    schedule: Schedule, topology: Topology, segments: Sequence[int]
) -> list[Cost]:
    """Return a schedule's cost for each number of segments, with NCCL's own time for each tick.

    That time (`step_us`) is 0 for graphs that are no real machine, and for topologies with host
    costs that calibration measured, which include it.
    """
    each_us = step_us(topology)
    return [
        replace(cost, alpha_us=cost.alpha_us + each_us * replace(schedule, segments=m).ticks)
        for m, cost in zip(segments, costs(schedule, topology, segments), strict=True)
    ]


def _cost_pipeline(
    schedule: Schedule,
    loads: Loads,
    window: Callable[[int, int], tuple[int, Fraction]],
    segments: int,
) -> Cost:
    alpha, beta = 0, Fraction(0)
    for low, high, count in _list_windows(schedule, segments):
        latency, seconds = window(low, high)
        alpha, beta = alpha + count * latency, beta + count * seconds
    return Cost(Fraction(alpha, loads.latency_scale), beta / (loads.scale * segments))


def _list_windows(schedule: Schedule, segments: int) -> Iterator[tuple[int, int, int]]:
    """Yield each tick's steps low .. high - 1, as (low, high, how many such ticks there are).

    Of steps in stepwise segments only the first ticks count, which pay latencies.
    """
    steps = schedule.steps
    if segments == 1 or schedule.stepwise:
        yield from ((step, step + 1, 1) for step in range(steps))
        return
    # While the pipeline fills and drains, the window grows and shrinks, so every tick differs. In
    # between, either all steps are active at every tick, so that one window repeats, or, with fewer
    # segments than steps, a window of constant width moves over the steps.
    for tick in (*range(min(segments, steps)), *range(max(segments, steps), steps + segments - 1)):
        yield max(0, tick - segments + 1), min(steps, tick + 1), 1
    yield from ((low, low + segments, 1) for low in range(1, steps - segments + 1))
    yield 0, steps, max(0, segments - steps)


def total_seconds(schedule: Schedule, topology: Topology) -> dict[DirectedLink, Fraction]:
    """Return how long each used link is busy in all steps together, in seconds per GB of buffer."""
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    total = loads.seconds.sum(axis=0, dtype=loads.seconds.dtype).tolist()
    return {link: Fraction(x, loads.scale) for link, x in zip(loads.links, total, strict=True)}


def bandwidth_s_per_GB(schedule: Schedule, topology: Topology) -> Fraction:
    """Return a schedule's time in seconds per GB of buffer with all latencies 0.

    The inverse is the bandwidth-only algbw in GB/s. The result is the sum of the steps' durations,
    or for a pipeline, in the limit of many segments, the whole load of the busiest link.
    """
    if schedule.segments == 1 or schedule.stepwise:
        return sum(schedule.step_s_per_GB, Fraction(0))
    return max(total_seconds(schedule, topology).values(), default=Fraction(0))


def shared_s_per_GB(schedule: Schedule, topology: Topology) -> Fraction:
    """Return a schedule's seconds per GB of buffer with all latencies 0, if messages share links.

    It is higher than `bandwidth_s_per_GB` where large messages share links equally with small ones.
    """
    if schedule.segments == 1 or schedule.stepwise:
        return cost(schedule, topology).beta_s_per_GB
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    stretch = Sharing(schedule, loads, topology).find_stretch(0, schedule.steps)
    return bandwidth_s_per_GB(schedule, topology) * stretch


def rounds(schedule: Schedule, router: Router) -> Fraction | None:
    """Return SCCL's R, the time of all steps in rounds; None if chunks differ in size.

    A round is the time that one chunk takes over one unit of link bandwidth.
    """
    shares = {c.share for c in schedule.chunks}
    if len(shares) != 1:
        return None
    return sum(schedule.step_s_per_GB, Fraction(0)) * router.unit_GBps / shares.pop()
