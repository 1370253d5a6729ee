"""From a collective and a topology to a verified plan: build candidates, cost them, keep the best for each size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from ..topo.errors import InfeasibleError, InputError, TimeLimitError
from ..topo.graph import Topology
from .bounds import bound, check_connected
from .certificate import Bound
from .collective import Collective
from .cost import Cost, costs
from .forest.plant import Limits
from .order import is_uniform
from .plan import Entry, Plan
from .schedule import Schedule
from .strategies import STRATEGIES, strategy
from .strategies.base import NotOfferedError, Request
from .verify import verify

AUTO = "auto"
_BOUND_SHARE = 0.3
_BYTES_PER_US_OVER_S_PER_GB = 1000
"""alpha_us / beta_s_per_GB in bytes: 1e-6 s / (1 s / 1e9 B)."""


@dataclass(frozen=True)
class Synthesis:
    """A plan, how long it took, why the strategies that gave nothing gave nothing, all candidates (verified), and the
    forests that packing met on the way (see strategies.base.Request.table).
    """

    plan: Plan
    seconds: float
    declined: dict[str, str]
    candidates: tuple[Schedule, ...]
    table: list[dict[str, Any]]


def collective_on(name: str, topology: Topology, root: int | None = None) -> Collective:
    """The collective over a topology's ranks. InputError where there are fewer than two."""
    n = len(topology.ranks)
    if n < 2:
        raise InputError(
            f"topology {topology.name!r} has {n} GPU{'' if n == 1 else 's'}; a collective needs at least two ranks"
        )
    rooted = name in ("broadcast", "reduce", "gather", "scatter")
    return Collective(name, n, (root or 0) if rooted else root)


def synthesize(
    collective: Collective,
    topology: Topology,
    strategy_name: str = AUTO,
    time_limit_s: float = 60.0,
    progress: Callable[[str], None] | None = None,
    limits: Limits | None = None,
) -> Synthesis:
    """The verified plan of one strategy, or of the best at each size (auto).

    Raises InfeasibleError where there is none, TimeLimitError where the time was over before there was one.
    """
    started = time.monotonic()
    deadline = started + time_limit_s
    names = list(STRATEGIES) if strategy_name == AUTO else [strategy_name]
    for name in names:
        strategy(name)
    check_connected(collective, topology)
    limit = bound(collective, topology, time_limit_s * _BOUND_SHARE, progress)
    candidates: list[Schedule] = []
    declined: dict[str, str] = {}
    table: list[dict[str, Any]] = []
    timed_out = False
    for number, name in enumerate(names):
        now = time.monotonic()
        turn = now + max(0.0, deadline - now) / (len(names) - number)
        if progress is not None:
            progress(f"{name} ...")
        try:
            request = Request(collective, topology, turn, progress, limit, limits or Limits(), table)
            candidates += strategy(name)(request)
        except (InfeasibleError, TimeLimitError) as error:
            if strategy_name != AUTO or not isinstance(error, NotOfferedError):
                declined[name] = str(error)
            timed_out = timed_out or isinstance(error, TimeLimitError)
    if not candidates:
        reasons = "; ".join(declined.values())
        raise TimeLimitError(reasons) if timed_out else InfeasibleError(reasons)
    plan = plan_of(collective, topology, limit, candidates)
    return Synthesis(plan, time.monotonic() - started, declined, tuple(candidates), table)


def plan_of(collective: Collective, topology: Topology, limit: Bound, candidates: Iterable[Schedule]) -> Plan:
    """The plan that takes, at each size, the candidate with the least predicted time. Candidates are verified.

    Schedules under which ranks would end with different bits (see synth/order.py) are left out if there are others.
    """
    everything = list(candidates)
    uniform = {replace(s, segments=1): None for s in everything}
    for schedule in list(uniform):
        if not is_uniform(schedule):
            del uniform[schedule]
    pool = [s for s in everything if replace(s, segments=1) in uniform] or everything
    pool.sort(key=lambda s: len(s.transfers))  # of schedules that cost the same, the one with fewest transfers
    for schedule in {replace(s, segments=1): None for s in pool}:
        verify(schedule, topology)
    cuts: dict[Schedule, list[int]] = {}
    for schedule in pool:
        cuts.setdefault(replace(schedule, segments=1), []).append(schedule.segments)
    known = {
        (base, m): found
        for base, segments in cuts.items()
        for m, found in zip(segments, costs(base, topology, segments), strict=True)
    }
    entries: list[Entry] = []
    for number, first in lower_envelope([known[replace(s, segments=1), s.segments] for s in pool]):
        if entries:
            entries[-1] = replace(entries[-1], max_bytes=first)
        entries.append(Entry(first, None, pool[number]))
    return Plan(topology, collective, tuple(entries), limit)


def lower_envelope(costs: list[Cost]) -> list[tuple[int, int]]:
    """(number of the cheapest cost, first size in bytes at which it is), by size from 0 up; exact."""
    current = min(range(len(costs)), key=lambda i: (costs[i].alpha_us, costs[i].beta_s_per_GB))
    out = [(current, 0)]
    while True:
        here = costs[current]
        crossings = [
            ((c.alpha_us - here.alpha_us) / (here.beta_s_per_GB - c.beta_s_per_GB), c.beta_s_per_GB, i)
            for i, c in enumerate(costs)
            if c.beta_s_per_GB < here.beta_s_per_GB
        ]
        if not crossings:
            return out
        ratio, _, current = min(crossings)
        size = ceil(ratio * _BYTES_PER_US_OVER_S_PER_GB)
        if size <= out[-1][1]:
            out.pop()
            size = out[-1][1] if out else 0
            out = out or []
        out.append((current, size))
