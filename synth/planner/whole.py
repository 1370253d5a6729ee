"""Synthesis of verified plans for collectives of all GPUs.

It builds candidates, costs them, and selects the best for each size.

Candidates are schedules that strategies return; costed ones come with their predicted cost. A
promise is what all schedules of a plan keep, such as one order of additions; a section is what the
plan's file says of it (section.py).
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from operator import le
from typing import Any

from ...extras import PROMISES, Names
from ...topo.errors import InfeasibleError, InputError, TimeLimitError, TopoplanError
from ...topo.grouping import group_by_key
from ...topo.routes import Router
from ..bounds.multipath import check_connected
from ..bounds.single_path import Bounds, find_bounds
from ..cost.affine import Cost, bandwidth_s_per_GB, costs_between_gpus
from ..cost.host_costs import HostCosts, host_of
from ..cost.segmentation import (
    families,
    fastest,
    list_omitted,
    reroute,
    reroute_unless_in_network,
)
from ..forest.candidates import AT_BOUND
from ..ir.addition_order import is_uniform
from ..ir.collective import Collective
from ..ir.schedule import Schedule
from ..packing.survey import survey  # what is known of a topology, cached
from ..plan import Entry, Plan
from ..request import Costed, Promise, Request, Strategy
from ..section import PlanSection
from ..strategies.built_in import LISTED_RANKS
from ..strategy_names import AUTO
from ..verify import verify
from .registry import find_strategy, list_strategies

log = logging.getLogger("topoplan")

# Work for the bounds, in seconds of an idle core, and the share of the time limit at which the
# clock stops them, so that some time is left for strategies.
_BOUND_WORK_S, _BOUND_CLOCK = 24.0, 0.3
# Share of the time left at which the clock stops one strategy of several.
_STRATEGY_CLOCK = 0.7
# Limit on the alternatives of a plan: the runtime chooses among all of them.
_MAX_ALTERNATIVES = 16
# Schedules with more transfers are neither simulated nor offered as alternatives: a schedule of
# 20,000 takes 0.6 MB of the plan's file.
_MAX_LISTED_TRANSFERS = 20_000
# Bytes at which schedules are simulated for a calibrated machine: 1 KiB to 1 GiB.
_SIMULATED_SIZES = tuple(4**i for i in range(5, 16))
# alpha_us / beta_s_per_GB in bytes: 1e-6 s / (1 s / 1e9 B).
_BYTES_PER_US_OVER_S_PER_GB = 1000


@dataclass(frozen=True)
class Synthesis:
    """A plan, and how the search for it went.

    `seconds` is how long the search took. `declined` has the reason of each strategy that gave no
    schedule, by its name, `candidates` the schedules that the plan was chosen from, with their
    costs, `table` a row of figures for each forest of trees that was tried, `cut_short` the
    searches that the time limit stopped.
    """

    plan: Plan
    seconds: float
    declined: dict[str, str]
    candidates: tuple[tuple[Schedule, Cost], ...]
    table: list[dict[str, Any]]
    cut_short: tuple[str, ...] = ()


def synthesize_whole(request: Request) -> Synthesis:
    """Return the verified plan of one strategy, or of the best strategy at each size (auto).

    The collective is of all GPUs. The plan depends on the request alone, unless its effort's clock
    stops a search, which `cut_short` then names. A time limit above a minute allows more work, in
    proportion. Raise InfeasibleError if there is no plan, TimeLimitError if the time ended before
    one was found, InputError for a request that contradicts itself.
    """
    started = time.monotonic()
    collective, topology, router = request.collective, request.topology, request.router
    effort = request.effort
    # Wrong input is refused before any work is done.
    auto = request.strategy == AUTO
    strategies = [*list_strategies().values()] if auto else [find_strategy(request.strategy)]
    if request.reproducible and not collective.reduces:
        raise InputError(
            f"{collective.name} adds nothing: its bits are the same by any plan; it needs no "
            "reproducible one"
        )
    promises = _list_promises(request)
    if promises and auto:
        strategies = [promise.strategy for promise in promises]
    check_connected(collective, topology)
    # Searches must not continue from those of an earlier request: the same request must always give
    # the same plan.
    survey.cache_clear()
    # The bound comes first: strategies stop when they reach it, and auto then omits those that
    # cannot win. Data is sent on the hardware's routes alone, so schedules are measured against the
    # single-path bound.
    granted = effort.grant(_BOUND_WORK_S, _BOUND_CLOCK)
    bounds = find_bounds(collective, router, granted, request.progress)
    request = replace(
        request, bound=bounds.single_path, quick=auto and not request.thorough, table=[]
    )
    search = _Search(request, auto=auto)
    for strategy in strategies:
        search.run(strategy)
    if not search.costed:
        reasons = "; ".join(search.declined.values())
        raise (TimeLimitError if search.is_timed_out else InfeasibleError)(reasons)
    sections, costed = keep_promises(request, search.costed)
    return Synthesis(
        plan_of(collective, router, bounds, costed, sections),
        time.monotonic() - started,
        search.declined,
        tuple(costed),
        request.table,
        tuple(effort.cut_short),
    )


def keep_promises(request: Request, costed: Costed) -> tuple[tuple[PlanSection, ...], Costed]:
    """Return the plan's sections on what a request asks to be promised, and schedules that keep it.

    The schedules are of `costed` or made from them, each with its cost. If no promise is asked for,
    there is no section, and all of `costed` are returned. Raise InfeasibleError if no candidate
    keeps the promise, InputError if more than one is asked for.
    """
    sections: list[PlanSection] = []
    for promise in _list_promises(request):
        section, costed = promise.choose(costed, request.router, host_of(request.topology))
        sections.append(section)
    return tuple(sections), costed


def _list_promises(request: Request) -> list[Promise]:
    """Return what all schedules of a plan have to keep; raise InputError if that is too much."""
    asked: list[Promise] = [Names(PROMISES).find("reproducible")] if request.reproducible else []
    asked += request.promises
    if len(asked) > 1:
        raise InputError("a plan keeps one promise; ask for one of them")
    return asked


class _Search:
    """A run of strategies that collects their verified schedules with costs."""

    def __init__(self, request: Request, *, auto: bool) -> None:
        self.request, self.auto = request, auto
        self.costed: Costed = []
        self.declined: dict[str, str] = {}
        self.is_timed_out = False
        self._at_bound: bool | None = None

    def run(self, strategy: Strategy) -> None:
        """Add a strategy's schedules, or the reason why it has none, unless auto can skip it."""
        name, effort, collective = strategy.name, self.request.effort, self.request.collective
        if self.auto and collective.name not in strategy.collectives:
            return
        if self.request.quick and not strategy.may_win(
            collective, have_one=bool(self.costed), at_bound=bool(self._at_bound)
        ):
            return
        # Once there is a plan, the time limit ends the search; without one, the next strategy may
        # still be quick.
        if self.costed and effort.clock_s <= 0:
            self.declined[name] = "not tried: the time was over"
            effort.record_cut("strategies not tried")
            return
        self.request.say(f"{name} ...")
        # A strategy requested by name may use all of the time.
        if self.auto:
            quick_s = strategy.quick_work_s if self.request.quick else None
            if self.request.quick and self._at_bound:
                quick_s = strategy.at_bound_work_s or quick_s
            effort = effort.grant(quick_s or strategy.work_s, _STRATEGY_CLOCK)
        try:
            self.costed += cost_all(
                self.request.router, strategy(replace(self.request, effort=effort))
            )
        except (InfeasibleError, TimeLimitError) as error:
            self.declined[name] = str(error)
            self.is_timed_out |= isinstance(error, TimeLimitError)
        except TopoplanError as error:
            # A fault of one strategy does not prevent auto from planning with the others.
            if not self.auto:
                raise
            self.declined[name] = str(error)
            log.warning("strategy %s: %s; auto goes on without it", name, error)
        # Only the first strategy decides this: later ones are omitted if it reached the bound.
        if self._at_bound is None:
            self._at_bound = self._reaches_bound()

    def _reaches_bound(self) -> bool:
        """Return whether a pipelined schedule is at the bound (within AT_BOUND)."""
        assert self.request.bound is not None
        limit = self.request.bound.s_per_GB * (1 + AT_BOUND)
        bases = {replace(s, segments=2) for s, _ in self.costed if s.segments > 1}
        return any(bandwidth_s_per_GB(base, self.request.topology) <= limit for base in bases)


def cost_all(router: Router, candidates: Iterable[Schedule]) -> Costed:
    """Verify all candidates and return (schedule, cost) pairs, moved to the hardware's routes.

    If switches add or copy data, the given routes are kept. Schedules that differ only in the
    number of segments, into which their chunks are cut, are verified and costed together, as their
    steps are the same. Those that send between ranks without a route are omitted. Raise
    VerificationError if a candidate is wrong.
    """
    segments_of = group_by_key(
        (replace(schedule, segments=1), schedule.segments)
        for schedule in candidates
        if not list_omitted(schedule, router)
    )
    out: Costed = []
    for given, segments in segments_of.items():
        base = reroute_unless_in_network(given, router)
        verify(base, router.topology)
        out += [
            (replace(base, segments=m), c)
            for m, c in zip(
                segments, costs_between_gpus(base, router.topology, segments), strict=True
            )
        ]
    return out


def plan_of(
    collective: Collective,
    router: Router,
    bounds: Bounds,
    costed: Iterable[tuple[Schedule, Cost]],
    sections: tuple[PlanSection, ...] = (),
) -> Plan:
    """Return the plan that uses, at each size, the candidate with the least predicted time.

    Candidates are the schedules in `costed`, verified and each with its cost on the router's
    topology. Those under which ranks would end with different bits are omitted if there are others.
    The plan has the `bounds`, and the `sections`, whose promises all candidates must keep. A bound
    that the plan reaches is the best one, so a search that was cut short would not have lowered it:
    its `is_cut_short` is then reset.
    """
    # In this order, the schedule with the fewest transfers wins among those of equal cost.
    pool = sorted(_prefer_uniform(list(costed)), key=lambda item: len(item[0].transfers))
    # On a calibrated machine schedules are simulated with its host costs; elsewhere times are lines
    # in the size.
    entries: list[Entry] = []
    host = host_of(router.topology)
    # What is simulated is cut into segments, and messages do not wait for what a runner keeps.
    is_simulated = host is not None and all(section.runner is None for section in sections)
    ranges = _choose_by_simulation(pool, router, host) if host and is_simulated else []
    for schedule, first in ranges or (
        (pool[i][0], first) for i, first in lower_envelope([c for _, c in pool])
    ):
        if entries:
            entries[-1] = replace(entries[-1], max_bytes=first)
        entries.append(Entry(first, None, schedule))
    plan = Plan(
        router.topology.for_plans(),
        collective,
        tuple(entries),
        bounds.multipath,
        bounds.single_path,
        _list_alternatives(collective, pool, entries, router),
        router,
        extensions=sections,
    )
    if bounds.multipath.is_cut_short and min(map(plan.gap_any_way_of, entries)) <= 0:
        plan = replace(plan, bound=replace(bounds.multipath, is_cut_short=False))
    if bounds.single_path.is_cut_short and min(map(plan.gap_of, entries)) <= 0:
        plan = replace(plan, bound_one_way=replace(bounds.single_path, is_cut_short=False))
    return plan


def _prefer_uniform(costed: Costed) -> Costed:
    """Return the schedules under which all ranks end with the same bits, or all if there are none.

    See synth/ir/addition_order.py.
    """
    uniform = {base: is_uniform(base) for base in {replace(s, segments=1) for s, _ in costed}}
    return [item for item in costed if uniform[replace(item[0], segments=1)]] or costed


def _choose_by_simulation(
    pool: Costed, router: Router, host: HostCosts
) -> list[tuple[Schedule, int]]:
    """Return the schedules that are fastest when simulated, for a calibrated machine.

    Each comes with the first size in bytes at which it is the fastest.
    """
    listed = families((s for s, _ in pool if len(s.transfers) <= _MAX_LISTED_TRANSFERS), router)
    out: list[tuple[Schedule, int]] = []
    for size in _SIMULATED_SIZES if listed else ():
        best = fastest(listed, router.topology, host, size)[0][1]
        if not out or best != out[-1][0]:
            # Between two simulated sizes the ranges meet halfway on a logarithmic scale.
            out.append((best, size // 2 if out else 0))
    return out


def _list_alternatives(
    collective: Collective, pool: Costed, entries: list[Entry], router: Router
) -> tuple[Schedule, ...]:
    """Return the schedules of each strategy that are on its Pareto front, except those of the plan.

    The front is over steps, transfers and bandwidth on the hardware's routes.
    """
    if collective.ranks > LISTED_RANKS:
        return ()
    figures: dict[Schedule, tuple[float, ...]] = {}
    for base in dict.fromkeys(schedule.uncut for schedule, _ in pool):
        if len(base.transfers) <= _MAX_LISTED_TRANSFERS:
            sent = reroute(base, router)
            # In a pipeline, the busiest link counts over all steps; in one segment, the busiest
            # link of each step counts.
            piped = bandwidth_s_per_GB(replace(sent, segments=2), router.topology)
            alone = bandwidth_s_per_GB(sent, router.topology)
            figures[base] = (base.steps, len(base.transfers), float(piped), float(alone))

    def is_beaten(base: Schedule) -> bool:
        return any(
            rival != figures[base] and all(map(le, rival, figures[base]))
            for other, rival in figures.items()
            if other.strategy == base.strategy
        )

    taken = {entry.schedule.uncut for entry in entries}
    left = [base for base in figures if base not in taken and not is_beaten(base)]
    return tuple(sorted(left, key=lambda base: figures[base][2])[:_MAX_ALTERNATIVES])


def lower_envelope(costs: list[Cost]) -> list[tuple[int, int]]:
    """Return (index of the cheapest cost, first size in bytes at which it is cheapest), by size.

    Times are lines in the size. Sizes begin at 0, and the result is exact.
    """
    current = min(range(len(costs)), key=lambda i: (costs[i].alpha_us, costs[i].beta_s_per_GB))
    out = [(current, 0)]
    # A line that is cheaper from some size on has a lower beta; the next line is the one with the
    # first crossing.
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
        # If several crossings round to the same byte, the earlier line is cheapest at no size.
        if size <= out[-1][1]:
            size = out.pop()[1]
        out.append((current, size))
