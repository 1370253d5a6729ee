"""topo-synth: synthesize a plan for a collective on a topology, with its bound."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ..topo.errors import InfeasibleError, TimeLimitError
from ..topo.pictures.cables import describe_rates
from ..topo.printable import printable_lines
from .shared.common import run_command
from .shared.outputs import write_rows
from .shared.progress import Progress, Say
from .shared.sizes import parse_size
from .synthesis.options import PLAN, PROG, build_parser, check_options, parse_instance, parse_limits
from .synthesis.output import (
    Report,
    bound_json,
    export_json,
    head_json,
    list_rows,
    switches_json,
    synthesis_json,
)
from .synthesis.tables import (
    bounds_text,
    cut_text,
    print_export,
    print_tables,
    root_text,
    switch_lines,
)

if TYPE_CHECKING:
    from ..synth.bounds.single_path import Bounds
    from ..synth.effort import Effort
    from ..synth.ir.collective import Collective
    from ..synth.ksync.pareto import Front
    from ..synth.place.placement import Placement
    from ..synth.plan import Plan
    from ..topo.graph import Topology
    from ..topo.routes import Router

# How many rows without a schedule a message names.
_LISTED = 4
# Share of the time limit for the changed machine; the rest is for the one that it is compared with.
_CHANGED_SHARE = 0.6
# --explain says in which order of ranks the stock collective is fastest: up to so many GPUs, in so
# many seconds at most.
_ORDERED_RANKS, _ORDERING_S = 128, 10.0
# With more GPUs, a changed machine is not compared with the one before: that takes as long as its
# own plan.
_COMPARED_RANKS = 512


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(PROG, lambda: _run(build_parser().parse_args(argv)))


def _run(args: argparse.Namespace) -> int:
    check_options(args)
    size = parse_size(args.size)
    from ..synth.bounds.in_network import bound_in_network
    from ..synth.effort import Effort
    from ..synth.planner.machine import load_for_planning
    from ..synth.planner.synthesize import collective_on, synthesize
    from ..topo.derived.degrade import Change, degrade, move_root

    started = time.monotonic()
    machine, routes_before = load_for_planning(args.topology)
    change = Change(tuple(args.without_link), tuple(args.without_rank), tuple(args.scale_link))
    topology = degrade(machine, change) if change else machine
    router = routes_before.on(topology) if change else routes_before
    # Checked against the machine as given, whose numbering --root is in.
    before = collective_on(args.collective, machine, args.root)
    collective = collective_on(args.collective, topology, move_root(args.root, machine, topology))
    if change and collective.root is not None:
        before = replace(before, root=machine.ranks.index(topology.ranks[collective.root]))
    report = Report(collective, topology, size, root_as_given=before.root)
    progress = Progress(PROG, args)
    with progress.follow("synthesizing ...", args.time_limit) as work:
        say = work.say
        if args.bound_only:
            from ..synth.bounds.single_path import find_bounds

            effort = Effort(args.time_limit)
            bounds = find_bounds(collective, router, effort, say)
            report.in_network = bound_in_network(collective, topology, bounds.multipath, effort)
            report.seconds, report.cut_short = time.monotonic() - started, effort.cut_short
            return _print_bound(args, bounds, report)
        if args.format != PLAN:
            return _export(args, report, router, progress, say, started)
        if args.pareto or args.instance:
            from ..synth.bounds.single_path import Bounds, find_single_path_bound

            effort = Effort(args.time_limit)
            report.front = _find_front(args, collective, router, effort, say)
            report.bounds = Bounds(
                report.front.bound,
                find_single_path_bound(collective, router, report.front.bound, effort, say),
            )
            report.cut_short = effort.cut_short
            report.plan = _plan_for_front(report.front, report.bounds, collective, router)
        else:
            compared = bool(change) and len(machine.ranks) <= _COMPARED_RANKS
            seconds = args.time_limit * (_CHANGED_SHARE if compared else 1.0)
            limits = parse_limits(args)
            result = synthesize(
                collective, topology, args.strategy, seconds, say, limits,
                thorough=args.explain, reproducible=args.reproducible, router=router,
            )  # fmt: skip
            report.plan, report.declined, report.table = result.plan, result.declined, result.table
            report.cut_short += result.cut_short
            if compared:
                seconds = args.time_limit - seconds
                healthy = synthesize(
                    before,
                    machine,
                    args.strategy,
                    seconds,
                    say,
                    limits,
                    reproducible=args.reproducible,
                    router=routes_before,
                )
                report.healthy = healthy.plan
                report.cut_short += healthy.cut_short
            if args.explain:
                from ..synth.explain import explain

                effort = Effort(started + args.time_limit - time.monotonic())
                report.explanation = explain(
                    collective, router, result.plan.bound_one_way, result.candidates, effort
                )
                report.cut_short += effort.cut_short
                report.placement = _try_orders(collective, topology)
    source = report.plan or report.front
    if source is not None:
        report.in_network = bound_in_network(collective, topology, source.bound)
    report.seconds = time.monotonic() - started
    if args.output and report.plan is not None:
        report.plan.save(args.output, overwrite=args.force)
    _write_pictures(args, report, size, progress)
    if args.json:
        print(json.dumps(synthesis_json(report)))
    else:
        print_tables(report, with_forests=args.strategy == "packing" or args.explain)
    if args.output and report.plan is not None:
        progress.tell(f"plan written to {args.output}")
    if args.csv:
        write_rows(args.csv, list_rows(report), overwrite=args.force)
        progress.tell(f"rows written to {args.csv}")
    if report.front is not None:
        _report_missing(report.front, report)
    return 0


def _try_orders(collective: Collective, topology: Topology) -> Placement | None:
    """Return in which order of ranks the stock collective is fastest; None where that is not known
    of it.
    """
    from ..synth.place.patterns import COLLECTIVES, STOCK
    from ..synth.place.placing import place

    if len(topology.ranks) > _ORDERED_RANKS or collective.name not in COLLECTIVES:
        return None
    traffic = (
        f"all={collective.name}:1G"  # any size: which order is fastest depends on bandwidths alone
    )
    return place(topology, traffic=traffic, target=STOCK, time_limit_s=_ORDERING_S)


def _write_pictures(
    args: argparse.Namespace, report: Report, size: int, progress: Progress
) -> None:
    """Write the trace of the plan that was asked for, and its curves, or the front."""
    from ..topo.files import write_whole

    plan = report.plan
    if args.trace and plan is not None:
        from ..synth.pictures.plan_trace import write_plan_trace

        write_whole(args.trace, write_plan_trace(plan, size), overwrite=args.force)
        progress.tell(f"trace written to {args.trace}; open it at ui.perfetto.dev")
    if args.plot and report.front is not None:
        from ..synth.pictures.front import draw_front

        title = f"{report.collective.name} on {report.topology.name}"
        write_whole(args.plot, draw_front(title, report.front, alone=True), overwrite=args.force)
        progress.tell(f"the front is drawn in {args.plot}")
    elif args.plot and plan is not None:
        from ..synth.report.curves import draw_plan_alone

        write_whole(args.plot, draw_plan_alone(plan), overwrite=args.force)
        progress.tell(f"curves written to {args.plot}")


def _export(
    args: argparse.Namespace,
    report: Report,
    router: Router,
    progress: Progress,
    say: Say,
    started: float,
) -> int:
    """Write what --format names to the file of -o, or print it."""
    from ..synth.effort import Effort
    from ..synth.export.formats import export
    from ..synth.export.nccl_version import NEWEST, parse_nccl_version
    from ..topo.files import write_whole

    version = parse_nccl_version(args.nccl_version) if args.nccl_version else NEWEST
    effort = Effort(args.time_limit)
    made = export(
        args.format,
        report.collective,
        router,
        effort,
        say,
        version=version,
        measured=args.measured,
    )
    report.seconds, report.cut_short = time.monotonic() - started, effort.cut_short
    if args.output:
        write_whole(args.output, made.text, overwrite=args.force)
    if args.json:
        print(json.dumps(export_json(report, made)))
    else:
        # Without -o the text itself is the output; what is said of it stays out of its way.
        lines = sys.stdout if args.output else sys.stderr
        print_export(report, made, lines)
        if not args.output:
            print(made.text, end="")
    if args.output:
        progress.tell(f"{args.format} written to {args.output}")
    return 0


def _find_front(
    args: argparse.Namespace,
    collective: Collective,
    router: Router,
    effort: Effort,
    say: Say,
) -> Front:
    from ..synth.ksync.pareto import decide, pareto

    if args.instance:
        return decide(
            collective, router, [parse_instance(text) for text in args.instance], effort, say
        )
    return pareto(collective, router, effort, args.max_steps, args.slack, say)


def _report_missing(front: Front, report: Report) -> None:
    """Say in one line what has no schedule. Raises InfeasibleError or TimeLimitError where nothing
    has one.
    """
    from ..synth.ksync.pareto import FEASIBLE, INFEASIBLE

    without = [row for row in front.rows if row.status == INFEASIBLE]
    undecided = [row for row in front.rows if row.status not in (FEASIBLE, INFEASIBLE)]
    where = f"{report.collective.name} on {report.topology.name}"
    if any(row.status == FEASIBLE for row in front.rows):
        return
    if undecided or not without:
        listed = "; ".join(
            f"{row.chunks},{row.steps},{row.rounds}: {row.proof}" for row in undecided
        )
        raise TimeLimitError(
            f"{where}: no schedule was found, and none was proved "
            f"impossible{listed and f' ({listed})'}"
        )
    listed = "; ".join(
        f"{row.chunks} chunks, {row.steps} steps and {row.rounds} rounds ({row.proof})"
        for row in without[:_LISTED]
    )
    raise InfeasibleError(f"{where}: no schedule has {listed}" + " ..." * (len(without) > _LISTED))


def _plan_for_front(
    front: Front, bounds: Bounds, collective: Collective, router: Router
) -> Plan | None:
    from ..synth.planner.synthesize import cost_all, plan_of

    schedules = [row.schedule for row in front.front if row.schedule is not None]
    return plan_of(collective, router, bounds, cost_all(router, schedules)) if schedules else None


def _print_bound(args: argparse.Namespace, bounds: Bounds, report: Report) -> int:
    if args.json:
        empty = dict.fromkeys(
            (
                "strategy",
                "chunks",
                "steps",
                "rounds",
                "trees",
                "depth",
                "predicted",
                "gap",
                "gap_any_way",
            )
        )
        body = head_json(report) | empty
        body |= {
            "size_bytes": parse_size(args.size),
            "bound": bound_json(bounds.multipath),
            "bound_one_way": bound_json(bounds.single_path),
            **switches_json(report),
            "verified": False,
            "synthesis_s": report.seconds,
            "search_complete": not report.cut_short,
        }
        print(json.dumps(body))
        return 0
    collective, topology = report.collective, report.topology
    head = f"{collective.name} on {topology.name}, {collective.ranks} ranks: {bounds_text(bounds)}"
    roots = [] if collective.root is None else [root_text(report)]
    for line in [head, *switch_lines(report), *describe_rates(topology), *roots]:
        print(printable_lines(line))
    if report.cut_short:
        print(cut_text(report.cut_short))
    return 0


if __name__ == "__main__":
    sys.exit(main())
