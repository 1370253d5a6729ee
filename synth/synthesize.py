"""From a collective and a topology to a verified plan: build candidates, cost them, keep the best
for each size.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from ..topo.errors import InfeasibleError, InputError, TimeLimitError, TopoplanError
from ..topo.graph import Topology
from ..topo.notes import explain_no_gpus
from ..topo.routes import HARDWARE, Router
from .bounds.certificate import Bound
from .bounds.multipath import check_connected
from .bounds.single_path import Bounds, find_bounds
from .cost.affine import Cost, bandwidth_s_per_GB, costs_between_gpus
from .cost.host_costs import HostCosts, host_of
from .cost.segmentation import as_sent, families, fastest, on_own_routes
from .effort import USUAL_LIMIT_S, Effort
from .forest.plant import AT_BOUND, Limits
from .forest.survey import survey
from .ir.addition_order import is_uniform
from .ir.collective import Collective
from .ir.schedule import Schedule
from .plan import Entry, Plan
from .registry import AUTO, find_strategy, list_strategies
from .reproducible.build import build_reproducible, choose_bracketing
from .reproducible.fitting import NAME as BRACKETED
from .request import NotOfferedError, Request
from .strategies import STRATEGIES, Strategy
from .verify import verify

log = logging.getLogger("topoplan")

# Work in seconds of a quiet core: for the bounds; in auto for packing, each other strategy, and
# exact where it is not asked to be thorough.
_BOUND_WORK_S, _FIRST_WORK_S, _OTHER_WORK_S, _QUICK_EXACT_WORK_S = 24.0, 21.0, 6.0, 3.0
# Of the time left, after which the clock stops the bound, or one strategy of several, so that some
# is left for others.
_BOUND_CLOCK, _STRATEGY_CLOCK = 0.3, 0.7
_EXACT_RANKS = 8
# Strategies that auto leaves out where packing is at the bound: they win nowhere then, and
# searching takes time.
_WHERE_PACKING_FALLS_SHORT = ("ring", "double-tree", "halving-doubling", "greedy")
_MENU_RANKS = 16
_MENU = 16
# Limits on a plan's alternatives: ranks, count, transfers each.
_MENU_TRANSFERS = 20_000
_PLAYED_SIZES = tuple(4**i for i in range(5, 16))
# alpha_us / beta_s_per_GB in bytes: 1e-6 s / (1 s / 1e9 B).
_BYTES_PER_US_OVER_S_PER_GB = 1000


@dataclass(frozen=True)
class Synthesis:
    """A plan, and how it came about.

    `declined` is the reason of each strategy that gave no schedule, `table` the forests that
    packing tried (see request.Request.table), `cut_short` the searches that the time limit stopped.
    """

    plan: Plan
    seconds: float
    declined: dict[str, str]
    candidates: tuple[tuple[Schedule, Cost], ...]
    table: list[dict[str, Any]]
    cut_short: tuple[str, ...] = ()


def collective_on(name: str, topology: Topology, root: int | None = None) -> Collective:
    """Return the collective over a topology's ranks. InputError where there are fewer than two."""
    n = len(topology.ranks)
    if n < 2:
        # A machine without GPUs that was probed says why none was found.
        why = None if n else explain_no_gpus(topology.notes)
        raise InputError(
            f"topology {topology.name!r} has {n} GPU{'' if n == 1 else 's'}; a collective needs "
            "at least two ranks" + (f" ({why})" if why else "")
        )
    return Collective.with_default_root(name, n, root)


def synthesize(
    collective: Collective,
    topology: Topology,
    strategy_name: str = AUTO,
    time_limit_s: float = USUAL_LIMIT_S,
    progress: Callable[[str], None] | None = None,
    limits: Limits | None = None,
    *,
    thorough: bool = False,
    reproducible: bool = False,
    router: Router = HARDWARE,
) -> Synthesis:
    """Return the verified plan of one strategy, or of the best strategy at each size (auto).

    `thorough`: auto also tries the strategies that it expects to lose, and searches longer for the
    best placements. `reproducible`: all schedules of the plan add every element up in one
    bracketing (see synth/reproducible). The plan depends on the request alone, unless
    `time_limit_s` stops a search, which `cut_short` then names. A limit above a minute allows more
    work, in proportion. Raises InfeasibleError where there is no plan, TimeLimitError where the
    limit struck before there was one.
    """
    started = time.monotonic()
    effort = Effort(time_limit_s)
    # Input that is wrong is refused before any work is done.
    build_by: Mapping[str, Strategy] = (
        list_strategies()
        if strategy_name == AUTO
        else {strategy_name: find_strategy(strategy_name)}
    )
    names = list(build_by)
    if reproducible and not collective.reduces:
        raise InputError(
            f"{collective.name} adds nothing: its bits are the same by any plan; it needs no "
            "reproducible one"
        )
    check_connected(collective, topology)
    # Searches must not go on from an earlier request's: the same request shall give the same plan.
    survey.cache_clear()
    # The bound comes first: strategies stop where they reach it, and auto leaves out those that
    # cannot win then. Nothing is sent but on the system's own routes, so what a schedule can reach
    # is the bound for one way a pair.
    router = router.on(topology)
    bounds = find_bounds(collective, router, effort.grant(_BOUND_WORK_S, _BOUND_CLOCK), progress)
    limit = bounds.single_path
    quick = strategy_name == AUTO and not thorough
    request = Request(
        collective, topology, effort, progress, limit, limits or Limits(), quick, router=router
    )
    if reproducible and strategy_name == AUTO:
        build_by = {BRACKETED: build_reproducible}
        names = [BRACKETED]
    declined: dict[str, str] = {}
    timed_out = settled = False
    costed: list[tuple[Schedule, Cost]] = []
    for number, name in enumerate(names):
        if quick and _has_no_chance(name, collective, settled=settled, have_one=bool(costed)):
            continue
        # With a plan in hand the time limit ends the search; without one, the next strategy may
        # still be quick.
        if costed and effort.clock_s <= 0:
            declined[name] = "not tried: the time was over"
            effort.record_cut("strategies not tried")
            continue
        request.say(f"{name} ...")
        # A strategy that is asked for by name may do all there is time for.
        allowance = (
            effort
            if strategy_name != AUTO
            else _grant(effort, name, first=number == 0, quick=quick)
        )
        try:
            costed += cost_all(router, build_by[name](replace(request, effort=allowance)))
        except (InfeasibleError, TimeLimitError) as error:
            # That a strategy does not do this collective is news only where it was asked for.
            if strategy_name != AUTO or not isinstance(error, NotOfferedError):
                declined[name] = str(error)
            timed_out = timed_out or isinstance(error, TimeLimitError)
        except TopoplanError as error:
            # What is wrong with a user's own strategy does not keep auto from planning with the
            # others.
            if strategy_name != AUTO or name in STRATEGIES:
                raise
            declined[name] = str(error)
            log.warning("%s; auto goes on without it", error)
        # Packing is the first: at the bound, it leaves most others nothing to win.
        if number == 0:
            settled = _reaches_bound(topology, limit, costed)
    if not costed:
        reasons = "; ".join(declined.values())
        raise TimeLimitError(reasons) if timed_out else InfeasibleError(reasons)
    bracketing = None
    if reproducible:
        bracketing, costed = choose_bracketing(costed, router, host_of(topology))
    plan = plan_of(collective, router, bounds, costed, bracketing)
    seconds = time.monotonic() - started
    return Synthesis(plan, seconds, declined, tuple(costed), request.table, tuple(effort.cut_short))


def _has_no_chance(name: str, collective: Collective, *, settled: bool, have_one: bool) -> bool:
    """Return whether auto need not try a strategy, given that there is a schedule (`have_one`), at
    the bound (`settled`).
    """
    if name == "chains":  # beyond allreduce they are rings, which have a strategy of their own
        most = _EXACT_RANKS if settled else _MENU_RANKS
        return collective.name != "allreduce" or collective.ranks > most
    if name == "exact":
        return have_one and collective.ranks > _EXACT_RANKS
    many = collective.ranks > _MENU_RANKS or name == "greedy"
    return name in _WHERE_PACKING_FALLS_SHORT and settled and many


def _grant(effort: Effort, name: str, *, first: bool, quick: bool) -> Effort:
    """Return what one strategy of several may do: the first one most, as the others mostly have
    less to search.
    """
    work_s = (
        _FIRST_WORK_S
        if first
        else _QUICK_EXACT_WORK_S
        if quick and name == "exact"
        else _OTHER_WORK_S
    )
    return effort.grant(work_s, _STRATEGY_CLOCK)


def _reaches_bound(topology: Topology, limit: Bound, costed: list[tuple[Schedule, Cost]]) -> bool:
    """Return whether a pipelined schedule among them is at the bound (within AT_BOUND)."""
    enough = limit.s_per_GB * (1 + AT_BOUND)
    bases = {replace(s, segments=2) for s, _ in costed if s.segments > 1}
    return any(bandwidth_s_per_GB(base, topology) <= enough for base in bases)


def cost_all(router: Router, candidates: Iterable[Schedule]) -> list[tuple[Schedule, Cost]]:
    """Verify all candidates and return them, on the routes on which they are sent, with their
    costs.

    Schedules that differ only in their segments are verified and costed together, as their steps
    are the same.
    """
    segments_of: dict[Schedule, list[int]] = {}
    for schedule in candidates:
        segments_of.setdefault(replace(schedule, segments=1), []).append(schedule.segments)
    out: list[tuple[Schedule, Cost]] = []
    topology = router.topology
    for given, segments in segments_of.items():
        base = on_own_routes(given, router)
        verify(base, topology)
        costs_of_base = costs_between_gpus(base, topology, segments)
        out += [
            (replace(base, segments=m), c) for m, c in zip(segments, costs_of_base, strict=True)
        ]
    return out


def _prefer_uniform(costed: list[tuple[Schedule, Cost]]) -> list[tuple[Schedule, Cost]]:
    """Return the schedules without those under which ranks would end with different bits (see
    synth/ir/addition_order.py), if there are others.
    """
    uniform = {base: is_uniform(base) for base in {replace(s, segments=1) for s, _ in costed}}
    return [item for item in costed if uniform[replace(item[0], segments=1)]] or costed


def plan_of(
    collective: Collective,
    router: Router,
    bounds: Bounds,
    costed: Iterable[tuple[Schedule, Cost]],
    bracketing: str | None = None,
) -> Plan:
    """Return the plan that takes, at each size, the candidate with the least predicted time.

    Schedules under which ranks would end with different bits (see synth/ir/addition_order.py) are
    left out if there are others. The plan promises a `bracketing` that all candidates have.
    """
    topology = router.topology
    # In this order, of schedules that cost the same the one with fewest transfers is taken.
    pool = sorted(_prefer_uniform(list(costed)), key=lambda item: len(item[0].transfers))
    # On a calibrated machine schedules are simulated with its host costs; elsewhere times are lines
    # in the size.
    entries: list[Entry] = []
    host = host_of(topology)
    ranges = _choose_by_playing(pool, router, host) if host is not None else []
    for schedule, first in ranges or (
        (pool[i][0], first) for i, first in lower_envelope([c for _, c in pool])
    ):
        if entries:
            entries[-1] = replace(entries[-1], max_bytes=first)
        entries.append(Entry(first, None, schedule))
    return Plan(
        topology.for_plans(),
        collective,
        tuple(entries),
        bounds.multipath,
        bounds.single_path,
        _list_alternatives(collective, pool, entries, router),
        bracketing,
        router,
    )


def _choose_by_playing(
    pool: list[tuple[Schedule, Cost]], router: Router, host: HostCosts
) -> list[tuple[Schedule, int]]:
    """Return, for a calibrated machine, the schedules that are fastest when played, each with the
    first size in bytes at which it is.
    """
    cut_families = families((s for s, _ in pool if len(s.transfers) <= _MENU_TRANSFERS), router)
    out: list[tuple[Schedule, int]] = []
    for size in _PLAYED_SIZES if cut_families else ():
        best = fastest(cut_families, router.topology, host, size)[0][1]
        if not out or best != out[-1][0]:
            out.append((best, size // 2 if out else 0))
    return out


def _list_alternatives(
    collective: Collective,
    pool: list[tuple[Schedule, Cost]],
    entries: list[Entry],
    router: Router,
) -> tuple[Schedule, ...]:
    """Return, of each strategy, the schedules on the Pareto front of steps, transfers and bandwidth
    (as sent), without those that the plan has already.
    """
    if collective.ranks > _MENU_RANKS:
        return ()
    taken = {entry.schedule.uncut for entry in entries}
    figures: dict[Schedule, tuple[float, ...]] = {}
    for schedule, _ in pool:
        base = schedule.uncut
        if len(base.transfers) <= _MENU_TRANSFERS and base not in figures:
            sent = as_sent(base, router)
            # Pipelined, the busiest link counts over all steps; as one segment, the busiest link of
            # each step.
            piped = bandwidth_s_per_GB(replace(sent, segments=2), router.topology)
            alone = bandwidth_s_per_GB(sent, router.topology)
            figures[base] = (base.steps, len(base.transfers), float(piped), float(alone))
    unbeaten = []
    for base, figure in figures.items():
        rivals = [
            f
            for other, f in figures.items()
            if other.strategy == base.strategy and other is not base
        ]
        if not any(
            f != figure and all(x <= y for x, y in zip(f, figure, strict=True)) for f in rivals
        ):
            unbeaten.append((figure, base))
    ranked = [
        base for _, base in sorted(unbeaten, key=lambda item: item[0][2]) if base not in taken
    ]
    return tuple(ranked[:_MENU])


def lower_envelope(costs: list[Cost]) -> list[tuple[int, int]]:
    """Return (number of the cheapest cost, first size in bytes at which it is cheapest), by size
    from 0 up; exact.
    """
    current = min(range(len(costs)), key=lambda i: (costs[i].alpha_us, costs[i].beta_s_per_GB))
    out = [(current, 0)]
    # A line that is cheaper from some size on has a lower beta; the next is the one that crosses
    # first.
    while True:
        cheapest = costs[current]
        crossings = [
            (
                (c.alpha_us - cheapest.alpha_us) / (cheapest.beta_s_per_GB - c.beta_s_per_GB),
                c.beta_s_per_GB,
                i,
            )
            for i, c in enumerate(costs)
            if c.beta_s_per_GB < cheapest.beta_s_per_GB
        ]
        if not crossings:
            return out
        ratio, _, current = min(crossings)
        size = ceil(ratio * _BYTES_PER_US_OVER_S_PER_GB)
        # Crossings that fall on one whole byte leave no size at which the earlier line is cheapest.
        if size <= out[-1][1]:
            out.pop()
            size = out[-1][1] if out else 0
        out.append((current, size))
