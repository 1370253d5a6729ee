"""Collect a report's contents within a time limit.

These are the doctor's findings (what is wrong with the machine), and for the main collectives the
bounds, plans, and predictions for the stock collective: what NCCL, RCCL or gloo does without a
plan.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ....topo.errors import InfeasibleError, InputError, TimeLimitError
from ....topo.extras.doctor import Examination, examine
from ....topo.graph import Topology
from ....topo.loader.resolve import load_for_planning
from ....topo.routes import Router
from ...bounds.certificate import Bound
from ...bounds.group_bounds import SubMachine
from ...bounds.in_network import bound_in_network
from ...bounds.single_path import Bounds, find_bounds
from ...cost.affine import Cost
from ...ir.collective import Collective, collective_on
from ...ir.schedule import Schedule
from ...numeric.effort import Effort
from ...plan import Plan
from ...planner.synthesize import synthesize
from ...request import Request
from ...strategy_names import AUTO
from ..explain.explain import Explanation, explain
from ..stock.stock_ring import StockRing, stock_of
from . import USUAL_LIMIT_S
from .recoveries import RecoveryRow

# Share of the time limit for each collective; unused time goes to the next ones.
_SHARES = {
    "allreduce": 0.4,
    "allgather": 0.2,
    "reduce-scatter": 0.2,
    "broadcast": 0.12,
    "alltoall": 0.06,
}
# With more GPUs than the first, only allreduce is planned, by packing alone; with more than the
# second, only if there is enough time.
_LARGE_RANKS, _PLANNED_RANKS = 64, 256
# Seconds that a plan for more than _PLANNED_RANKS GPUs needs.
_LARGE_PLAN_S = 30
# Share of a collective's time for its plan; the bound and the bottleneck get the rest.
_PLAN_SHARE = 0.8
# With more GPUs the bottleneck is not analysed: that takes several times as long as the bound.
_EXPLAINED_RANKS = 128


@dataclass
class Section:
    """A report's results for one collective.

    `in_network` is the bound if all switches add that can, `candidates` are schedules with their
    costs. `explanation` has the bottleneck and what each strategy reaches, `stock` predicts the
    stock collective. `missing` is the reason if there is no plan; `cut_short` lists the searches
    that the time limit stopped. What is not known is None.
    """

    collective: Collective
    bounds: Bounds | None = None
    in_network: Bound | None = None
    plan: Plan | None = None
    candidates: tuple[tuple[Schedule, Cost], ...] = ()
    explanation: Explanation | None = None
    stock: StockRing | None = None
    missing: str | None = None
    cut_short: list[str] = field(default_factory=list)


@dataclass
class Report:
    """The contents of a report: a machine, findings on its health, a section per collective.

    `machine` is the topology as given, `topology` the one that was planned for, with equal parallel
    switches merged. `examination` has the findings. `plan_file` names the plan if the report is on
    one. `seconds` is the time that the report took. `recoveries` are the faults in a run of the
    plan, None without a run.
    """

    topology: Topology
    machine: Topology
    examination: Examination
    sections: list[Section]
    plan_file: str | None = None
    seconds: float = 0.0
    recoveries: Sequence[RecoveryRow] | None = None


def gather_report(
    machine: Topology, time_limit_s: float = USUAL_LIMIT_S, say: Callable[[str], None] | None = None
) -> Report:
    """Return the report on a machine, with plans and bounds of the main collectives.

    These are allreduce, allgather, reduce-scatter, broadcast and alltoall; with more than 64 GPUs
    allreduce alone, with fewer than two none. Searches stop after `time_limit_s` seconds in all,
    and sections list those cut short; `say` is given lines about the progress.
    """
    started = time.monotonic()
    topology, router = load_for_planning(machine)
    report = Report(topology, machine, examine(machine), [])
    if len(topology.ranks) < 2:
        return report
    left, rest = time_limit_s, sum(_SHARES.values())
    # On a large machine allreduce is the only collective, so it gets all the time.
    large = len(topology.ranks) > _LARGE_RANKS
    for name, share in list(_SHARES.items())[: 1 if large else None]:
        begun = time.monotonic()
        if say is not None:
            say(f"{name} ...")
        seconds = left if large else max(0.2, left * share / rest)
        report.sections.append(_gather_section(name, router, seconds))
        left -= time.monotonic() - begun
        rest -= share
    report.seconds = time.monotonic() - started
    return report


def report_plan(plan: Plan, where: str, time_limit_s: float = USUAL_LIMIT_S) -> Report:
    """Return the report on a plan, its machine and its collective; `where` names the plan's file.

    Searches stop after `time_limit_s` seconds in all.
    """
    started = time.monotonic()
    section = Section(
        plan.collective,
        Bounds(plan.bound, plan.bound_one_way),
        plan=plan,
        candidates=tuple((entry.schedule, plan.cost_of(entry)) for entry in plan.entries),
    )
    _complete(section, plan.router, Effort(time_limit_s / 2), plan.participants)
    report, seconds = examine(plan.topology), time.monotonic() - started
    return Report(plan.topology, plan.topology, report, [section], where, seconds)


def _gather_section(name: str, router: Router, seconds: float) -> Section:
    topology, effort = router.topology, Effort(seconds)
    section, n = Section(collective_on(name, topology)), len(topology.ranks)
    if n > _PLANNED_RANKS and seconds < _LARGE_PLAN_S:
        section.missing = (
            f"with {n:,} GPUs it takes longer than this report may ({seconds:g} s); a report with "
            "a time limit of 60 s has one"
        )
    else:
        try:
            strategy, limit_s = "packing" if n > _LARGE_RANKS else AUTO, seconds * _PLAN_SHARE
            made = synthesize(
                Request(
                    section.collective,
                    topology,
                    Effort(limit_s),
                    router=router,
                    strategy=strategy,
                )
            )
            section.plan, section.candidates = made.plan, made.candidates
            section.cut_short += made.cut_short
            section.bounds = Bounds(made.plan.bound, made.plan.bound_one_way)
        except (InfeasibleError, TimeLimitError) as error:
            section.missing = str(error)
    _complete(section, router, effort)
    return section


def _complete(
    section: Section, router: Router, effort: Effort, participants: Sequence[int] | None = None
) -> None:
    """Add missing bounds, the bound with adding switches, the bottleneck, and the stock ring.

    `participants` are the ranks that a plan for a part of the GPUs may use; None: all.
    """
    collective, plan = section.collective, section.plan
    if participants is not None:
        usable = SubMachine.of(collective, router, participants)
        collective, router = usable.collective, usable.router
    topology = router.topology
    try:
        bounds = section.bounds or find_bounds(collective, router, effort)
        section.bounds = bounds
        section.in_network = bound_in_network(collective, topology, bounds.multipath, effort)
        if len(topology.ranks) <= _EXPLAINED_RANKS and plan is not None:
            # The candidates of the plan contain the rate of each strategy.
            section.explanation = explain(
                collective, router, bounds.single_path, section.candidates, effort
            )
    except (InfeasibleError, TimeLimitError) as error:
        section.missing = section.missing or str(error)
    if plan is not None:
        section.stock = stock_of(plan)
    else:
        with suppress(InfeasibleError, InputError):
            section.stock = StockRing(collective, router)
    section.cut_short = list(dict.fromkeys([*section.cut_short, *effort.cut_short]))
