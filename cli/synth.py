"""topo-synth: synthesize a plan for a collective on a topology, with its bound."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..topo.errors import InputError
from .common import Parser, run_command
from .sizes import parse_size
from .synth_output import Report, bound_json, head_json, synthesis_json
from .synth_tables import bounds_text, cut_text, print_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..synth.effort import Effort
    from ..synth.forest.plant import Limits
    from ..synth.ir.collective import Collective
    from ..synth.ksync.pareto import Front
    from ..synth.one_way import Bounds
    from ..synth.plan import Plan
    from ..topo.graph import Topology

PROG = "topo-synth"
DEFAULT_SIZE = "1G"
DEFAULT_TIME_LIMIT_S = 60.0
_CHANGED_SHARE = 0.6
"""Share of the time limit for the changed machine; the rest is for the one that it is compared with."""
EXAMPLES = """\
examples:
  topo-synth --collective allreduce --topology dgx1                    the fastest schedule for each size, and its gap
  topo-synth --collective allreduce --topology topo.xml -o plan.json   write the plan, for topo-run and the DDP hook
  topo-synth --collective allgather --topology dgx1 --pareto           the Pareto front of steps and rounds
  topo-synth --collective alltoall --topology dgx1 --instance 3,3,8    is there a schedule with 3 chunks, 3 steps, 8 rounds?
  topo-synth --collective allreduce --topology mesh:8x8 --bound-only   only the bound: how fast can any schedule be?
  topo-synth --collective allreduce --topology dgx1 --explain          the bottleneck, and which links to improve first
  topo-synth --collective allreduce --topology dgx1 --without-link 0:3 a plan for the machine without that link
  topo-synth --collective allreduce --topology dgx-a100:16 --strategy packing --max-trees 16     at most 16 trees

Reads a topology (a preset, a file of topoplan, NCCL, RCCL, hwloc or nvidia-smi, or `local`: this machine), builds schedules
for a collective, verifies each by an independent replay, and keeps the fastest for every range of sizes.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _parser().parse_args(argv)
    return run_command(PROG, lambda: _run(args))


def _parser() -> Parser:
    parser = Parser(PROG, EXAMPLES)
    add = parser.add_argument
    add("--collective", required=True, metavar="C", help="allreduce, allgather, reduce-scatter, broadcast, reduce, "
        "gather, scatter or alltoall")  # fmt: skip
    add("--topology", required=True, metavar="T", help="a preset (dgx1, mesh:4x4, ...), a file, or local")
    add("--strategy", default="auto", metavar="S", help="auto (default), packing, exact, hierarchical, greedy, ring, "
        "double-tree, recursive-doubling, halving-doubling, direct, one-shot or parameter-server")  # fmt: skip
    add("--size", default=DEFAULT_SIZE, metavar="BYTES", help=f"buffer size to report on (default {DEFAULT_SIZE})")
    add("--root", type=int, metavar="R", help="root of broadcast, reduce, gather and scatter (default 0)")
    add("--pareto", action="store_true", help="find the Pareto front of steps and rounds (R/C) by exact synthesis")
    add("--max-steps", type=int, metavar="S", help="with --pareto: at most this many steps")
    add("-k", "--slack", dest="slack", type=int, metavar="K", help="with --pareto: only k-synchronous rows, R <= S + K")
    add(
        "--instance",
        action="append",
        metavar="C,S,R",
        help="decide whether a schedule of so many chunks, steps and rounds exists; may be repeated",
    )
    add("--epsilon", metavar="E", help="packing: the fewest trees whose gap to the bound is at most this (0.05: 5 %%)")
    add("--max-trees", type=int, metavar="N", help="packing: at most this many trees")
    add(
        "--max-depth", type=int, metavar="N", help="packing: at most this many hops from any rank to the root of a tree"
    )
    add("--without-link", action="append", default=[], metavar="A:B", help="plan for the machine without this link (device "
        "ids or rank numbers), and compare with the whole machine; may be repeated, as the next two")  # fmt: skip
    add(
        "--without-rank",
        action="append",
        default=[],
        type=int,
        metavar="R",
        help="plan for the machine without this GPU",
    )
    add(
        "--scale-link",
        action="append",
        default=[],
        metavar="A:B=F",
        help="plan for the machine with this link at F times its bandwidth",
    )
    add("--explain", action="store_true", help="show the bottleneck, what every strategy reaches at 8 sizes, and which "
        "links to improve first")  # fmt: skip
    add("--bound-only", action="store_true", help="print only the bound and its certificate")
    add("--time-limit", type=float, default=DEFAULT_TIME_LIMIT_S, metavar="SECONDS",
        help=f"limit on the whole synthesis (default {DEFAULT_TIME_LIMIT_S:g}); with more, searches go "
        "further in proportion")  # fmt: skip
    add("--json", action="store_true", help="one JSON object on standard output")
    add("-o", "--output", metavar="PLAN", help="write the plan to this file")
    add("--force", action="store_true", help="let -o replace a file that exists")
    return parser


def _run(args: argparse.Namespace) -> int:
    _check_options(args)
    size = parse_size(args.size)
    from ..synth.effort import Effort
    from ..synth.synthesize import collective_on, synthesize
    from ..topo.derived.degrade import Change, degrade
    from ..topo.derived.stripes import merge_nvswitches
    from ..topo.resolve import resolve

    started = time.monotonic()
    machine = merge_nvswitches(resolve(args.topology))
    change = Change(tuple(args.without_link), tuple(args.without_rank), tuple(args.scale_link))
    topology = degrade(machine, change) if change else machine
    collective = collective_on(args.collective, topology, args.root)
    report = Report(collective, topology, size)
    with _show_progress() as say:
        if args.bound_only:
            from ..synth.one_way import find_bounds

            effort = Effort(args.time_limit)
            bounds = find_bounds(collective, topology, effort, say)
            report.seconds, report.cut_short = time.monotonic() - started, effort.cut_short
            return _print_bound(args, bounds, report)
        if args.pareto or args.instance:
            from ..synth.one_way import Bounds, bound_one_way

            effort = Effort(args.time_limit)
            report.front = _find_front(args, collective, topology, effort, say)
            report.bounds = Bounds(
                report.front.bound, bound_one_way(collective, topology, report.front.bound, effort, say)
            )
            report.cut_short = effort.cut_short
            report.plan = _plan_for_front(report.front, report.bounds, collective, topology)
        else:
            seconds = args.time_limit * (_CHANGED_SHARE if change else 1.0)
            limits = _parse_limits(args)
            result = synthesize(collective, topology, args.strategy, seconds, say, limits, thorough=args.explain)
            report.plan, report.declined, report.table = result.plan, result.declined, result.table
            report.cut_short += result.cut_short
            if change:
                before = collective_on(args.collective, machine, args.root)
                seconds = args.time_limit - seconds
                healthy = synthesize(before, machine, args.strategy, seconds, say, limits)
                report.healthy = healthy.plan
                report.cut_short += healthy.cut_short
            if args.explain:
                from ..synth.explain import explain

                effort = Effort(started + args.time_limit - time.monotonic())
                report.explanation = explain(collective, topology, result.plan.bound_one_way, result.candidates, effort)
                report.cut_short += effort.cut_short
    report.seconds = time.monotonic() - started
    if args.output:
        if report.plan is None:
            raise InputError("-o: no schedule was found, so there is no plan to write")
        report.plan.save(args.output, overwrite=args.force)
    if args.json:
        print(json.dumps(synthesis_json(report)))
    else:
        print_tables(report, with_forests=args.strategy == "packing" or args.explain)
    if args.output:
        print(f"plan written to {args.output}", file=sys.stderr)
    return 0


def _parse_limits(args: argparse.Namespace) -> Limits:
    from ..synth.forest.plant import Limits
    from ..topo.exact import parse_fraction

    epsilon = None
    if args.epsilon is not None:
        try:
            epsilon = parse_fraction(args.epsilon)
        except ValueError:
            raise InputError(f"--epsilon {args.epsilon}: expected a share of the bound, such as 0.05") from None
        if not 0 <= epsilon < 1:
            raise InputError(f"--epsilon {args.epsilon}: expected at least 0 and less than 1")
    return Limits(epsilon, args.max_trees, args.max_depth)


def _check_options(args: argparse.Namespace) -> None:
    """Raise InputError for whatever is wrong with the options before any work is done."""
    from ..synth.strategies import strategy

    if args.strategy != "auto":
        strategy(args.strategy)
    if not args.time_limit > 0:
        raise InputError(f"--time-limit is {args.time_limit:g}; expected seconds above 0")
    for flag, value in (("max-steps", args.max_steps), ("max-trees", args.max_trees), ("max-depth", args.max_depth)):
        if value is not None and value < 1:
            raise InputError(f"--{flag} is {value}; expected at least 1")
    exact = args.pareto or args.instance
    if exact and (args.explain or args.epsilon or args.max_trees or args.max_depth):
        raise InputError("--explain, --epsilon, --max-trees and --max-depth do not go with --pareto and --instance")
    if args.slack is not None and args.slack < 0:
        raise InputError(f"--slack is {args.slack}; expected 0 or more")
    if exact and args.strategy not in ("auto", "exact"):
        raise InputError(f"--pareto and --instance are exact synthesis; they do not go with --strategy {args.strategy}")
    if args.output and Path(args.output).exists() and not args.force:
        raise InputError(f"{args.output}: exists already and was left as it is; name another file, or give --force")


@contextmanager
def _show_progress() -> Iterator[Callable[[str], None] | None]:
    """Show a spinner with the latest message on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("synthesizing ...") as status:
        yield lambda message: status.update(message)


def _find_front(
    args: argparse.Namespace,
    collective: Collective,
    topology: Topology,
    effort: Effort,
    say: Callable[[str], None] | None,
) -> Front:
    from ..synth.ksync.pareto import decide, pareto

    if args.instance:
        return decide(collective, topology, [_parse_instance(text) for text in args.instance], effort, say)
    return pareto(collective, topology, effort, args.max_steps, args.slack, say)


def _parse_instance(text: str) -> tuple[int, int, int]:
    try:
        chunks, steps, rounds = (int(x) for x in text.split(","))
    except ValueError:
        raise InputError(
            f"--instance {text}: expected three whole numbers, chunks,steps,rounds, such as 6,3,7"
        ) from None
    if chunks < 1 or steps < 1 or rounds < steps:
        raise InputError(f"--instance {text}: expected chunks and steps of at least 1, and no fewer rounds than steps")
    return chunks, steps, rounds


def _plan_for_front(front: Front, bounds: Bounds, collective: Collective, topology: Topology) -> Plan | None:
    from ..synth.synthesize import cost_all, plan_of

    schedules = [row.schedule for row in front.front if row.schedule is not None]
    return plan_of(collective, topology, bounds, cost_all(topology, schedules)) if schedules else None


def _print_bound(args: argparse.Namespace, bounds: Bounds, report: Report) -> int:
    if args.output:
        raise InputError("-o: --bound-only produces no plan to write")
    if args.json:
        empty = dict.fromkeys(
            ("strategy", "chunks", "steps", "rounds", "trees", "depth", "predicted", "gap", "gap_any_way")
        )
        body = head_json(report.collective, report.topology) | empty
        body |= {
            "size_bytes": parse_size(args.size),
            "bound": bound_json(bounds.any_way),
            "bound_one_way": bound_json(bounds.one_way),
            "verified": False,
            "synthesis_s": report.seconds,
            "search_complete": not report.cut_short,
        }
        print(json.dumps(body))
        return 0
    collective, topology = report.collective, report.topology
    print(f"{collective.name} on {topology.name}, {collective.ranks} ranks: {bounds_text(bounds)}")
    if report.cut_short:
        print(cut_text(report.cut_short))
    return 0


if __name__ == "__main__":
    sys.exit(main())
