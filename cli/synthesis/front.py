"""topo-synth --pareto and --instance: exact synthesis for numbers of chunks, steps and rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...synth.bounds.in_network import bound_in_network
from ...synth.bounds.single_path import Bounds, find_single_path_bound
from ...synth.ksync.pareto import FEASIBLE, INFEASIBLE, Front, decide, pareto
from ...synth.numeric.effort import Effort
from ...synth.planner.synthesize import cost_all, plan_of
from ...topo.errors import InfeasibleError, TimeLimitError
from ...topo.pictures.fit import print_table
from .job import SynthRun, deliver, plan_json
from .options import parse_instance

if TYPE_CHECKING:
    from rich.console import Console

# Instances without a schedule that an error lists: more would not fit one line.
_MAX_LISTED = 4
_KEYS = (
    "chunks",
    "steps",
    "rounds",
    "status",
    "latency_optimal",
    "bandwidth_optimal",
    "dominated",
    "form",
    "proof",
    "synthesis_s",
)


def run(job: SynthRun) -> None:
    """Find the Pareto front of exact schedules, print it with their plan, and write the files.

    On the front are the schedules that no other beats in both steps and rounds per chunk. The files
    are those that options request. Raise InfeasibleError or TimeLimitError, after printing, if no
    row has a schedule.
    """
    collective, topology = job.collective, job.topology
    with job.search() as say:
        effort = Effort(job.args.time_limit)
        front = _find_front(job, effort, say)
        single_path = find_single_path_bound(collective, job.router, front.bound, effort, say)
        schedules = [row.schedule for row in front.front if row.schedule is not None]
        plan = None
        if schedules:
            bounds = Bounds(front.bound, single_path)
            plan = plan_of(collective, job.router, bounds, cost_all(job.router, schedules))
        job.cut_short += effort.cut_short
        job.in_network = bound_in_network(
            collective, topology, plan.bound if plan else front.bound, by_cut=True
        )

    def rows() -> list[dict[str, Any]]:
        return [{key: getattr(row, key) for key in _KEYS} for row in front.rows]

    def body() -> dict[str, Any]:
        bound, of_pairs = (plan.bound, plan.bound_one_way) if plan else (front.bound, single_path)
        return plan_json(job, plan, bound, of_pairs) | {
            "complete": front.complete,
            "least_ratio": str(front.least_ratio),
            "rows": rows(),
        }

    def picture() -> str:
        from ...synth.pictures.front import draw_front

        return draw_front(f"{collective.name} on {topology.name}", front, alone=True)

    deliver(
        job,
        plan,
        body,
        rows,
        ("the front is drawn in FILE", picture),
        first=lambda console: _print_front(console, front),
    )
    _check_feasible(job, front)


def _find_front(job: SynthRun, effort: Effort, say: Callable[[str], None]) -> Front:
    args = job.args
    if args.instance:
        instances = list(map(parse_instance, args.instance))
        return decide(job.collective, job.router, instances, effort, say)
    return pareto(job.collective, job.router, effort, args.max_steps, args.slack, say)


def _print_front(console: Console, front: Front) -> None:
    titles = ("chunks", "steps", "rounds", "R/C", "status", "", "form", "proof", "seconds")
    rows: list[tuple[Sequence[str], str | None]] = []
    for row in front.rows:
        marks = [
            "front" * (row in front.front),
            "fewest steps" * (row.latency_optimal and not row.dominated),
            "least R/C" * row.bandwidth_optimal,
            "dominated" * row.dominated,
        ]
        cells = (
            str(row.chunks),
            str(row.steps),
            str(row.rounds),
            str(row.ratio),
            row.status,
            ", ".join(filter(None, marks)),
            row.form,
            row.proof,
            f"{row.synthesis_s:.2f}",
        )
        dim = None if row.status == "feasible" else "dim"
        rows.append((cells, "green" if row in front.front else dim))
    left = ("status", "", "form", "proof")
    print_table(console, titles, rows, ("proof", "form", "seconds"), left)
    partial = "" if front.complete else "; the search was not exhaustive"
    console.print(
        f"lower bound on R/C of any schedule: {front.least_ratio}{partial}", highlight=False
    )


def _check_feasible(job: SynthRun, front: Front) -> None:
    """Raise InfeasibleError or TimeLimitError, with what was proved, if no row has a schedule."""
    if any(row.status == FEASIBLE for row in front.rows):
        return
    without = [row for row in front.rows if row.status == INFEASIBLE]
    undecided = [row for row in front.rows if row.status != INFEASIBLE]
    where = f"{job.collective.name} on {job.topology.name}"
    if undecided or not without:
        listed = "; ".join(f"{x.chunks},{x.steps},{x.rounds}: {x.proof}" for x in undecided)
        raise TimeLimitError(
            f"{where}: no schedule was found, and none was proved "
            f"impossible{listed and f' ({listed})'}"
        )
    listed = "; ".join(
        f"{x.chunks} chunks, {x.steps} steps and {x.rounds} rounds ({x.proof})"
        for x in without[:_MAX_LISTED]
    )
    more = " ..." * (len(without) > _MAX_LISTED)
    raise InfeasibleError(f"{where}: no schedule has {listed}{more}")
