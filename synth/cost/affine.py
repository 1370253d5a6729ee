"""The affine cost of a schedule on a topology: alpha-beta, with contention on shared links.

Time is affine in the buffer's size: T(L) = alpha + beta L. A step takes the greatest latency among
its routes plus the time of its most loaded link (SCCL, section 3: S alpha + (R/C) L beta). A
pipelined schedule is costed tick by tick, the loads of the steps that are under way at once adding
up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from ...topo.routes import Router
from ..ir.schedule import Schedule
from .host_costs import step_us
from .loads import DirectedLink, Loads, step_loads


@dataclass(frozen=True)
class Cost:
    """T(L) = `alpha_us` + `beta_s_per_GB` L, both exact."""

    alpha_us: Fraction
    beta_s_per_GB: Fraction

    def time_s(self, size_bytes: int) -> float:
        """Return the predicted seconds for a buffer of `size_bytes`."""
        return float(self.alpha_us) * 1e-6 + float(self.beta_s_per_GB) * size_bytes * 1e-9


def tighten(schedule: Schedule, topology: Topology) -> Schedule:
    """Return the schedule with each step's duration set to what its most loaded link needs."""
    steps = int(schedule.transfers.step.max(initial=-1)) + 1
    loads = step_loads(schedule.chunks, schedule.transfers, steps, topology)
    longest = loads.seconds.max(axis=1, initial=0) if steps else []
    return replace(schedule, step_s_per_GB=tuple(Fraction(int(x), loads.scale) for x in longest))


def cost(schedule: Schedule, topology: Topology) -> Cost:
    """Return the alpha and beta of a schedule; see the module's docstring."""
    return costs(schedule, topology, [schedule.segments])[0]


def costs(schedule: Schedule, topology: Topology, segments: Sequence[int]) -> list[Cost]:
    """Return the costs of a schedule in each of several numbers of segments."""
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    # Steps that come one after the other last as long as is declared, which may be longer than the
    # loads need.
    alpha = Fraction(int(sum(loads.latency)), loads.latency_scale)
    sequential = Cost(alpha, sum(schedule.step_s_per_GB, Fraction(0)))
    windows = _Windows(loads)
    return [sequential if m == 1 or schedule.stepwise else windows.cost(m) for m in segments]


def costs_between_gpus(
    schedule: Schedule, topology: Topology, segments: Sequence[int]
) -> list[Cost]:
    """Return the costs of a schedule in each of several numbers of segments, with what each tick
    costs the hosts (see host_costs.step_us); the same as `costs` for abstract graphs.
    """
    each = step_us(topology)
    plain = costs(schedule, topology, segments)
    if not each:
        return plain
    ticks = (replace(schedule, segments=m).ticks for m in segments)
    return [
        replace(cost, alpha_us=cost.alpha_us + each * n)
        for cost, n in zip(plain, ticks, strict=True)
    ]


class _Windows:
    """Greatest latency and load of windows of consecutive steps: a tick of a pipeline carries out
    one window at once.
    """

    def __init__(self, loads: Loads) -> None:
        self.loads, self.steps = loads, len(loads.latency)
        zero = np.zeros((1, len(loads.links)), dtype=loads.seconds.dtype)
        self.load_before = np.concatenate(
            [zero, np.cumsum(loads.seconds, axis=0, dtype=loads.seconds.dtype)]
        )
        self.cache: dict[tuple[int, int], tuple[int, int]] = {}

    def window(self, low: int, high: int) -> tuple[int, int]:
        """Return the latency and seconds of steps low .. high - 1, both as whole numbers."""
        if (low, high) not in self.cache:
            self.cache[low, high] = (
                int(self.loads.latency[low:high].max(initial=0)),
                int((self.load_before[high] - self.load_before[low]).max(initial=0)),
            )
        return self.cache[low, high]

    def cost(self, segments: int) -> Cost:
        """Return the cost of a pipeline of so many segments, without visiting ticks that are alike
        one by one.
        """
        steps, alpha, beta = self.steps, 0, 0
        full_ticks = max(0, segments - steps + 1)  # ticks at which all steps are under way
        # The pipeline fills and drains through windows that grow and shrink: each differs.
        for tick in [
            *range(min(segments, steps) - 1),
            *range(max(segments, steps) - 1, steps + segments - 1),
        ]:
            latency, seconds = self.window(max(0, tick - segments + 1), min(steps, tick + 1))
            alpha, beta = alpha + latency, beta + seconds
        # In between, either all steps are under way at every tick, or, with fewer segments than
        # steps, a window of constant width moves over the steps.
        if full_ticks:
            latency, seconds = self.window(0, steps)
            repeats = full_ticks - 1  # the last of them is among the ticks above
            alpha, beta = alpha + repeats * latency, beta + repeats * seconds
        else:
            for low in range(steps - segments):
                latency, seconds = self.window(low, low + segments)
                alpha, beta = alpha + latency, beta + seconds
        return Cost(
            Fraction(alpha, self.loads.latency_scale), Fraction(beta, self.loads.scale * segments)
        )


def total_seconds(schedule: Schedule, topology: Topology) -> dict[DirectedLink, Fraction]:
    """Return how long each link that a schedule uses is busy in all steps together, in s for each
    GB of buffer.
    """
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    total: NDArray[Any] = loads.seconds.sum(axis=0, dtype=loads.seconds.dtype)
    return {link: Fraction(int(x), loads.scale) for link, x in zip(loads.links, total, strict=True)}


def bandwidth_s_per_GB(schedule: Schedule, topology: Topology) -> Fraction:
    """Return the seconds for each GB with all latencies 0; the inverse is the bandwidth-only algbw
    in GB/s.

    It is the sum of the steps' durations, or for a pipeline, in the limit of many segments, the
    busiest link's whole load.
    """
    if schedule.segments == 1 or schedule.stepwise:
        return sum(schedule.step_s_per_GB, Fraction(0))
    return max(total_seconds(schedule, topology).values(), default=Fraction(0))


def rounds(schedule: Schedule, router: Router) -> Fraction | None:
    """Return SCCL's R, the sum of the steps' durations, or None where chunks differ in size.

    The unit is the time that one chunk takes over one unit of link bandwidth.
    """
    shares = {c.share for c in schedule.chunks}
    if len(shares) != 1:
        return None
    return sum(schedule.step_s_per_GB, Fraction(0)) * router.unit_GBps / shares.pop()
