"""What a schedule costs on a topology: alpha-beta, with contention on shared links.

Time is affine in the buffer's size: T(L) = alpha + beta L. A step takes the greatest latency among its routes plus the
time of its most loaded link (SCCL, section 3: S alpha + (R/C) L beta). A pipelined schedule is costed tick by tick,
the loads of the steps that are under way at once adding up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import lcm

from ..topo.exact import fraction_gcd
from ..topo.graph import Topology
from ..topo.routes import Router, route_links
from .schedule import Schedule, Transfer

DirectedLink = tuple[str, str]
_ROUTED_RANKS = 64


@dataclass(frozen=True)
class Cost:
    """T(L) = `alpha_us` + `beta_s_per_GB` L, both exact."""

    alpha_us: Fraction
    beta_s_per_GB: Fraction

    def time_s(self, size_bytes: int) -> float:
        """Predicted seconds for a buffer of `size_bytes`."""
        return float(self.alpha_us) * 1e-6 + float(self.beta_s_per_GB) * size_bytes * 1e-9


def full_route(topology: Topology, transfer: Transfer) -> tuple[str, ...]:
    """Devices that a transfer passes, both GPUs included."""
    return (topology.ranks[transfer.src], *transfer.route, topology.ranks[transfer.dst])


def link_shares(schedule: Schedule, topology: Topology, transfers: Iterable[Transfer]) -> dict[DirectedLink, Fraction]:
    """Share of the buffer that each directed link carries over `transfers`."""
    scale = lcm(*(c.share.denominator for c in schedule.chunks))
    whole = [int(c.share * scale) for c in schedule.chunks]
    load: dict[DirectedLink, int] = defaultdict(int)
    for t in transfers:
        for link in route_links(full_route(topology, t)):
            load[link] += whole[t.chunk]
    return {link: Fraction(n, scale) for link, n in load.items()}


def busiest_s_per_GB(shares: Mapping[DirectedLink, Fraction], topology: Topology) -> Fraction:
    """Seconds for each GB of buffer that the most loaded link needs."""
    return max((s / topology.capacity_GBps[link] for link, s in shares.items()), default=Fraction(0))


def tighten(schedule: Schedule, topology: Topology) -> Schedule:
    """The same schedule with each step's duration set to what its most loaded link needs."""
    by_step: dict[int, list[Transfer]] = defaultdict(list)
    for t in schedule.transfers:
        by_step[t.step].append(t)
    steps = max(by_step, default=-1) + 1
    costs = (busiest_s_per_GB(link_shares(schedule, topology, by_step[s]), topology) for s in range(steps))
    return replace(schedule, step_s_per_GB=tuple(costs))


def cost(schedule: Schedule, topology: Topology) -> Cost:
    """Alpha and beta of a schedule; see the module's docstring."""
    latency = [
        max((_latency_us(topology, t) for t in transfers), default=Fraction(0)) for transfers in schedule.by_step
    ]
    if schedule.segments == 1:
        return Cost(sum(latency, Fraction(0)), sum(schedule.step_s_per_GB, Fraction(0)))
    loads = [link_shares(schedule, topology, transfers) for transfers in schedule.by_step]
    alpha, beta = Fraction(0), Fraction(0)
    steps, segments = schedule.steps, schedule.segments
    windows: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
    for tick in range(steps + segments - 1):
        window = max(0, tick - segments + 1), min(steps, tick + 1)
        if window not in windows:
            windows[window] = max(latency[slice(*window)]), _together(loads[slice(*window)], topology)
        alpha += windows[window][0]
        beta += windows[window][1] / segments
    return Cost(alpha, beta)


def _latency_us(topology: Topology, transfer: Transfer) -> Fraction:
    return sum((topology.latency_us[link] for link in route_links(full_route(topology, transfer))), Fraction(0))


def _together(loads: list[dict[DirectedLink, Fraction]], topology: Topology) -> Fraction:
    total: dict[DirectedLink, Fraction] = defaultdict(Fraction)
    for load in loads:
        for link, share in load.items():
            total[link] += share
    return busiest_s_per_GB(total, topology)


def bandwidth_s_per_GB(schedule: Schedule, topology: Topology) -> Fraction:
    """Seconds for each GB with all latencies 0: sum of the steps' durations, or, for a pipeline (which may be cut as
    finely as one likes), the whole load of the busiest link. 1 / this is the bandwidth-only algbw in GB/s.
    """
    if schedule.segments == 1:
        return sum(schedule.step_s_per_GB, Fraction(0))
    return busiest_s_per_GB(link_shares(schedule, topology, schedule.transfers), topology)


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
