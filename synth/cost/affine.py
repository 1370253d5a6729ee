"""The affine cost of a schedule on a topology: alpha-beta, with contention on shared links.

Time is affine in the buffer's size: T(L) = alpha + beta L. A step takes the greatest latency among
its routes plus the time of its most loaded link (SCCL, section 3: S alpha + (R/C) L beta), or more
where its messages hold each other up (sharing.py). A pipelined schedule is costed tick by tick: the
loads of all steps of a tick add up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np

from ...topo.graph import Topology
from ...topo.routes import Router
from ..ir.schedule import Schedule
from .host_costs import step_us
from .loads import DirectedLink, Loads, step_loads
from .sharing import Sharing


@dataclass(frozen=True)
class Cost:
    """The affine cost T = `alpha_us` + `beta_s_per_GB` L for a buffer of L GB (1e9 bytes).

    Both terms are exact where no message holds up another; elsewhere, beta to six digits.
    """

    alpha_us: Fraction
    beta_s_per_GB: Fraction

    def time_s(self, size_bytes: int) -> float:
        """Return the predicted time in seconds for a buffer of `size_bytes`."""
        return float(self.alpha_us) * 1e-6 + float(self.beta_s_per_GB) * size_bytes * 1e-9


def tighten(schedule: Schedule, topology: Topology) -> Schedule:
    """Return the schedule with each step's duration set to the time of its most loaded link.

    These durations, `step_s_per_GB`, replace those that it has.
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

    return [
        in_turn() if m == 1 or schedule.stepwise else _cost_pipeline(loads, window, m)
        for m in segments
    ]


def costs_between_gpus(
    schedule: Schedule, topology: Topology, segments: Sequence[int]
) -> list[Cost]:
    """Return the same as `costs`, plus the hosts' cost of each tick (`host_costs.step_us`).

    That is 0 for abstract graphs and calibrated topologies.
    """
    each_us = step_us(topology)
    return [
        replace(cost, alpha_us=cost.alpha_us + each_us * replace(schedule, segments=m).ticks)
        for m, cost in zip(segments, costs(schedule, topology, segments), strict=True)
    ]


def _cost_pipeline(
    loads: Loads, window: Callable[[int, int], tuple[int, Fraction]], segments: int
) -> Cost:
    steps = len(loads.latency)
    # While the pipeline fills and drains, the window grows and shrinks, so every tick differs. In
    # between, either all steps are active at every tick, so that one window repeats, or, with fewer
    # segments than steps, a window of constant width moves over the steps.
    ticks = [*range(min(segments, steps)), *range(max(segments, steps), steps + segments - 1)]
    windows = [window(max(0, tick - segments + 1), min(steps, tick + 1)) for tick in ticks]
    windows += [window(low, low + segments) for low in range(1, steps - segments + 1)]
    repeats, (latency, seconds) = max(0, segments - steps), window(0, steps)
    alpha = repeats * latency + sum(latency for latency, _ in windows)
    beta = repeats * seconds + sum((seconds for _, seconds in windows), Fraction(0))
    return Cost(Fraction(alpha, loads.latency_scale), beta / (loads.scale * segments))


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
    """Return the same as `bandwidth_s_per_GB` if messages share links equally.

    It is higher where large messages share links with small ones (sharing.py).
    """
    if schedule.segments == 1 or schedule.stepwise:
        return cost(schedule, topology).beta_s_per_GB
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    stretch = Sharing(schedule, loads, topology).find_stretch(0, schedule.steps)
    return bandwidth_s_per_GB(schedule, topology) * stretch


def rounds(schedule: Schedule, router: Router) -> Fraction | None:
    """Return SCCL's R, the sum of the steps' durations; None if chunks differ in size.

    The unit is the time that one chunk takes over one unit of link bandwidth.
    """
    shares = {c.share for c in schedule.chunks}
    if len(shares) != 1:
        return None
    return sum(schedule.step_s_per_GB, Fraction(0)) * router.unit_GBps / shares.pop()
