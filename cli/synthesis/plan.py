"""topo-synth: the plan for a machine, and its comparison with the machine before a change.

A change is what --without-link, --without-rank and --scale-link ask for. A SynthRun, called job, is
one run of topo-synth: the request, and what is found out about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...extras import ADDITIONS, Names
from ...synth.addition import Addition
from ...synth.bounds.in_network import bound_in_network
from ...synth.describe import limit_text, show_us
from ...synth.numeric.effort import Effort
from ...synth.plan import Plan
from ...synth.planner.synthesize import synthesize
from ...synth.planner.whole import Synthesis
from ...synth.request import Request
from ...synth.sizes import show_size
from ...topo.pictures.fit import print_table
from .bound import find_lost_help
from .job import NO_GAP, PrintedSection, SynthRun, at_size_json, deliver, plan_json, print_lines
from .options import list_promises, parse_limits

if TYPE_CHECKING:
    from rich.console import Console

# Share of the time limit for the changed machine; the rest is for the machine before the change,
# whose searches are often cached or simpler.
_CHANGED_SHARE = 0.6
# With more ranks a changed machine is not compared with the original one, since planning for that
# doubles the time.
_MAX_COMPARED_RANKS = 512


def run(job: SynthRun) -> None:
    """Synthesize a plan, print it and write the requested files: topo-synth's default mode.

    With --spare, an extra also plans for the loss of each link, and adds these plans.
    """
    addition: Addition | None = job.args.spare and Names(ADDITIONS).find("spare")
    with job.search() as say:
        result, healthy = synthesize_job(job, say)
        if addition is not None:
            left_s = job.args.time_limit - (time.monotonic() - job.started)
            result = replace(result, plan=addition.add(result.plan, left_s, say))
    more_json, more = ({}, None) if addition is None else addition.report(result.plan, job.size)
    report(
        job,
        result,
        healthy,
        with_forests=job.args.strategy == "packing",
        more_json=more_json,
        more=more,
    )


def synthesize_job(
    job: SynthRun, say: Callable[[str], None], *, thorough: bool = False
) -> tuple[Synthesis, Plan | None]:
    """Return the synthesis for a job's machine, and the plan for the machine before the change.

    That plan is None if the machine was not changed, or is not compared. With `thorough`,
    strategies that are expected to lose are tried too. `say` receives progress messages. The job's
    `cut_short` and `in_network` are set.
    """
    args = job.args
    is_compared = job.topology is not job.machine and len(job.machine.ranks) <= _MAX_COMPARED_RANKS
    seconds = args.time_limit * (_CHANGED_SHARE if is_compared else 1.0)
    wanted = Request(
        job.collective,
        job.topology,
        Effort(seconds),
        say,
        limits=parse_limits(args),
        router=job.router,
        strategy=args.strategy,
        thorough=thorough,
        reproducible=args.reproducible,
        helpers=job.helpers,
        promises=list_promises(args),
    )
    result = synthesize(wanted)
    job.cut_short += result.cut_short
    healthy = None
    if is_compared:
        before = synthesize(
            replace(
                wanted,
                collective=job.given,
                topology=job.machine,
                effort=Effort(args.time_limit - seconds),
                router=job.given_router,
                thorough=False,
            )
        )
        healthy = before.plan
        job.cut_short += before.cut_short
    usable = job.usable
    job.in_network = bound_in_network(
        usable.collective, usable.router.topology, result.plan.bound, by_cut=not thorough
    )
    find_lost_help(job, say)
    return result, healthy


def report(
    job: SynthRun,
    result: Synthesis,
    healthy: Plan | None,
    *,
    with_forests: bool,
    more_json: dict[str, Any] | None = None,
    more: PrintedSection | None = None,
) -> None:
    """Print the plan of `result` and write the requested files.

    `healthy` is the plan for the machine before a change, to compare with, or None. `with_forests`
    adds the forests (trees along which data is sent) that were tried, and the strategies that gave
    no schedule. `more_json` and `more` are further fields of --json and a further section of the
    text.
    """
    plan = result.plan

    def body() -> dict[str, Any]:
        more = {
            "forests": result.table,
            "healthy": healthy and _healthy_json(job, plan, healthy),
            **(more_json or {}),
            "declined": result.declined,
        }
        out = plan_json(job, plan, plan.bound, plan.bound_one_way)
        return out | {key: value for key, value in more.items() if value}

    def sections(console: Console) -> None:
        if healthy is not None:
            _print_healthy(console, job, plan, healthy)
        if result.table and with_forests:
            _print_forests(console, result.table)
        if more is not None:
            more(console)
        for name, reason in result.declined.items() if with_forests else ():
            what = "" if reason.startswith(name) else f"{name}: "
            print_lines(console, what + reason, style="dim")

    def curves() -> str:
        from ...synth.pictures.plan_curves import draw_plan_alone

        return draw_plan_alone(plan)

    deliver(
        job,
        plan,
        body,
        lambda: _list_rows(job, plan),
        ("curves written to FILE", curves),
        then=(sections,),
    )


def _healthy_json(job: SynthRun, plan: Plan, healthy: Plan) -> dict[str, Any]:
    """Return the figures of the original machine, and the ratios of the present figures to them.

    `bound_ratio` is None if the search for one of the two bounds was cut short.
    """
    entry = healthy.entry_for(job.size)
    time_s = healthy.time_s(entry, job.size)
    now_s = plan.time_s(plan.entry_for(job.size), job.size)
    now, before = plan.bound_one_way, healthy.bound_one_way
    is_known = not (now.is_cut_short or before.is_cut_short)
    return {
        "topology": healthy.topology.name,
        "bound_GBps": float(before.algbw_GBps),
        "strategy": entry.schedule.strategy,
        "predicted_time_s": time_s,
        "bound_ratio": float(now.algbw_GBps / before.algbw_GBps) if is_known else None,
        "time_ratio": now_s / time_s if time_s else None,
    }


def _print_healthy(console: Console, job: SynthRun, plan: Plan, healthy: Plan) -> None:
    figures = _healthy_json(job, plan, healthy)
    ratio = figures["bound_ratio"]
    share = "of unknown share" if ratio is None else f"{ratio:.1%} of that"
    print_lines(
        console,
        f"before the change, {figures['topology']}: at most {limit_text(healthy.bound_one_way)} "
        f"GB/s, {figures['strategy']} predicted {show_us(figures['predicted_time_s'])} us "
        f"at {show_size(job.size)}; now the bound is {share}, "
        f"the time {figures['time_ratio']:.3g} times as long",
    )


def _print_forests(console: Console, forests: list[dict[str, Any]]) -> None:
    titles = ("trees", "depth", "GB/s at most", "gap", "found by", "")
    lines: list[tuple[Sequence[str], str | None]] = []
    for row in forests:
        gap = "" if row["gap"] is None else "0" if row["gap"] <= NO_GAP else f"{row['gap']:.2%}"
        cells = (
            "" if row["trees"] is None else str(row["trees"]),
            str(row["depth"]),
            f"{row['algbw_GBps']:.4g}",
            gap,
            row["how"],
            "kept" * row["kept"],
        )
        lines.append((cells, None if row["kept"] else "dim"))
    left = ("found by", "")
    print_table(console, titles, lines, ("found by", "depth"), left, "trees considered")


def _list_rows(job: SynthRun, plan: Plan) -> list[dict[str, Any]]:
    """Return the rows of a plan's table for --csv, one per range of sizes."""
    rows = []
    for entry in plan.entries:
        schedule, limit = entry.schedule, plan.limit_GBps(entry)
        at = at_size_json(plan, entry, job.size)
        rows.append(
            {
                "collective": job.collective.name,
                "topology": job.topology.name,
                "ranks": job.collective.ranks,
                **({} if job.collective.has_all_gpus else {"helpers": len(schedule.helpers)}),
                "min_bytes": entry.min_bytes,
                "max_bytes": entry.max_bytes,
                "strategy": schedule.strategy,
                "chunks": len(schedule.chunks),
                "steps": schedule.steps,
                "trees": schedule.trees,
                "segments": schedule.segments,
                "latency_us": float(plan.cost_of(entry).alpha_us),
                "algbw_GBps_at_most": None if limit is None else float(limit),
                "bound_GBps": float(plan.bound_one_way.algbw_GBps),
                "gap": float(plan.gap_of(entry)),
                "size_bytes": at["size_bytes"],
                "predicted_algbw_GBps": at["algbw_GBps"],
            }
        )
    return rows
