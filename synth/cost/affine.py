"""What a schedule costs on a topology: alpha-beta, with contention on shared links.

Time is affine in the buffer's size: T(L) = alpha + beta L. A step takes the greatest latency among its routes plus the
time of its most loaded link (SCCL, section 3: S alpha + (R/C) L beta). A pipelined schedule is costed tick by tick,
the loads of the steps that are under way at once adding up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...topo.exact import fraction_gcd
from ...topo.graph import Topology
from ...topo.routes import Router, route_links
from ..ir.schedule import Schedule
from .loads import DirectedLink, Loads, step_loads

_ROUTED_RANKS = 64


@dataclass(frozen=True)
class Cost:
    """T(L) = `alpha_us` + `beta_s_per_GB` L, both exact."""

    alpha_us: Fraction
    beta_s_per_GB: Fraction

    def time_s(self, size_bytes: int) -> float:
        """Predicted seconds for a buffer of `size_bytes`."""
        return float(self.alpha_us) * 1e-6 + float(self.beta_s_per_GB) * size_bytes * 1e-9


def tighten(schedule: Schedule, topology: Topology) -> Schedule:
    """The same schedule with each step's duration set to what its most loaded link needs."""
    steps = int(schedule.transfers.step.max(initial=-1)) + 1
    loads = step_loads(schedule.chunks, schedule.transfers, steps, topology)
    longest = loads.seconds.max(axis=1, initial=0) if steps else []
    return replace(schedule, step_s_per_GB=tuple(Fraction(int(x), loads.scale) for x in longest))


def cost(schedule: Schedule, topology: Topology) -> Cost:
    """Alpha and beta of a schedule; see the module's docstring."""
    return costs(schedule, topology, [schedule.segments])[0]


def costs(schedule: Schedule, topology: Topology, segments: Sequence[int]) -> list[Cost]:
    """The costs of a schedule cut into each of several numbers of segments."""
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    one = Cost(
        Fraction(int(sum(loads.latency)), loads.latency_scale), sum(schedule.step_s_per_GB, Fraction(0))
    )  # the declared durations, which may be longer than the loads need
    windows = _Windows(loads)
    return [one if m == 1 or schedule.stepwise else windows.cost(m) for m in segments]


class _Windows:
    """Greatest latency and load of runs of consecutive steps, which are what the ticks of a pipeline do at once."""

    def __init__(self, loads: Loads) -> None:
        self.loads, self.steps = loads, len(loads.latency)
        zero = np.zeros((1, len(loads.links)), dtype=loads.seconds.dtype)
        self.before = np.concatenate([zero, np.cumsum(loads.seconds, axis=0, dtype=loads.seconds.dtype)])
        self.known: dict[tuple[int, int], tuple[int, int]] = {}

    def window(self, low: int, high: int) -> tuple[int, int]:
        """Of steps low .. high - 1: latency and seconds, both as whole numbers."""
        if (low, high) not in self.known:
            self.known[low, high] = (
                int(self.loads.latency[low:high].max(initial=0)),
                int((self.before[high] - self.before[low]).max(initial=0)),
            )
        return self.known[low, high]

    def cost(self, segments: int) -> Cost:
        """Ticks at which all steps are under way, or the pipeline's middle, are alike: each is counted, not repeated."""
        steps, alpha, beta = self.steps, 0, 0
        whole = max(0, segments - steps + 1)
        for tick in [*range(min(segments, steps) - 1), *range(max(segments, steps) - 1, steps + segments - 1)]:
            latency, seconds = self.window(max(0, tick - segments + 1), min(steps, tick + 1))
            alpha, beta = alpha + latency, beta + seconds
        if whole:
            latency, seconds = self.window(0, steps)
            repeats = whole - 1  # the last of them is among the ticks above
            alpha, beta = alpha + repeats * latency, beta + repeats * seconds
        else:
            for low in range(steps - segments):
                latency, seconds = self.window(low, low + segments)
                alpha, beta = alpha + latency, beta + seconds
        return Cost(Fraction(alpha, self.loads.latency_scale), Fraction(beta, self.loads.scale * segments))


def total_seconds(schedule: Schedule, topology: Topology) -> dict[DirectedLink, Fraction]:
    """How long each link that a schedule uses is busy over all of it, in s for each GB of buffer."""
    loads = step_loads(schedule.chunks, schedule.transfers, schedule.steps, topology)
    total: NDArray[Any] = loads.seconds.sum(axis=0, dtype=loads.seconds.dtype)
    return {link: Fraction(int(x), loads.scale) for link, x in zip(loads.links, total, strict=True)}


def bandwidth_s_per_GB(schedule: Schedule, topology: Topology) -> Fraction:
    """Seconds for each GB with all latencies 0: sum of the steps' durations, or, for a pipeline (which may be cut as
    finely as one likes), the whole load of the busiest link. 1 / this is the bandwidth-only algbw in GB/s.
    """
    if schedule.segments == 1 or schedule.stepwise:
        return sum(schedule.step_s_per_GB, Fraction(0))
    return max(total_seconds(schedule, topology).values(), default=Fraction(0))


@lru_cache(maxsize=64)
def unit_GBps(topology: Topology) -> Fraction:
    """The link unit: the greatest bandwidth of which every link that routes between GPUs cross is a whole multiple.

    With more than 64 GPUs, of which every link is one. A topology without links has unit 1.
    """
    links = set(topology.capacity_GBps)
    if len(topology.ranks) <= _ROUTED_RANKS:
        router = Router(topology)
        routes = (route for r in range(len(topology.ranks)) for route in router.routes_from(r).values())
        links = {link for route in routes for link in route_links(route)} or links
    return fraction_gcd(sorted({topology.capacity_GBps[link] for link in links})) if links else Fraction(1)


def rounds(schedule: Schedule, topology: Topology) -> Fraction | None:
    """SCCL's R: the steps' durations in units of one chunk over one unit of link; None where chunks differ in size."""
    shares = {c.share for c in schedule.chunks}
    if len(shares) != 1:
        return None
    return sum(schedule.step_s_per_GB, Fraction(0)) * unit_GBps(topology) / shares.pop()
