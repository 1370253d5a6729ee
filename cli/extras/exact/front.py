"""topo-synth --pareto and --instance: exact synthesis for numbers of chunks, steps and rounds."""

from __future__ import annotations

from typing import Any

from ....synth.bounds.in_network import bound_in_network
from ....synth.extras.exact.front import ParetoFront, find_front
from ....synth.extras.exact.picture import draw_front
from ....synth.extras.exact.search import FEASIBLE, INFEASIBLE
from ....synth.extras.exact.text import print_front
from ....synth.numeric.effort import Effort
from ....topo.errors import InfeasibleError, TimeLimitError
from ...synthesis.job import SynthRun, deliver, plan_json
from .options import parse_instance

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

    On the front are the schedules that no other beats in both steps and rounds per chunk. A chunk
    is a part of the buffer; in a round a link of n times the topology's unit bandwidth
    (`Router.unit_GBps`) carries n chunks. With --instance only the numbers given there are
    searched. The files are those that options request. Raise InfeasibleError or TimeLimitError,
    after printing, if no row has a schedule.
    """
    args, topology = job.args, job.topology
    instances = list(map(parse_instance, args.instance or ()))
    with job.search() as say:
        effort = Effort(args.time_limit)
        front = find_front(
            job.collective, job.router, effort, args.max_steps, args.slack, instances, say
        )
        job.cut_short += front.cut_short
        job.in_network = bound_in_network(job.collective, topology, front.bound, by_cut=True)

    def rows() -> list[dict[str, Any]]:
        return [{key: getattr(row, key) for key in _KEYS} for row in front.rows]

    def body() -> dict[str, Any]:
        fields = plan_json(job, front.plan, front.bound, front.bound_one_way)
        return fields | {
            "strategy": fields["strategy"] or "exact",
            "complete": front.complete,
            "least_ratio": str(front.least_ratio),
            "rows": rows(),
        }

    def picture() -> str:
        title = f"{front.collective.name} on {front.topology.name}"
        return draw_front(title, front.rows, front.least_ratio)

    deliver(
        job,
        front.plan,
        body,
        rows,
        ("the front is drawn in FILE", picture),
        first=lambda console: print_front(console, front),
    )
    _check_feasible(job, front)


def _check_feasible(job: SynthRun, front: ParetoFront) -> None:
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
