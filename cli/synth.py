"""topo-synth: a schedule for a collective on a topology, with its bound."""

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
from .synth_tables import limit_text, print_tables, why_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..synth.certificate import Bound
    from ..synth.forest.plant import Limits
    from ..synth.ir.collective import Collective
    from ..synth.ksync.pareto import Front
    from ..synth.plan import Plan
    from ..topo.graph import Topology

PROG = "topo-synth"
DEFAULT_SIZE = "1G"
DEFAULT_TIME_LIMIT_S = 60.0
_CHANGED_SHARE = 0.6
"""Of the time limit, for the changed machine; the rest is for the one that it is compared with."""
EXAMPLES = """\
examples:
  topo-synth --collective allreduce --topology dgx1                    what is best at which size, and how far from perfect
  topo-synth --collective allreduce --topology topo.xml -o plan.json   write the plan, for topo-run and the DDP hook
  topo-synth --collective allgather --topology dgx1 --pareto           steps against rounds, the ends proved
  topo-synth --collective alltoall --topology dgx1 --instance 3,3,8    is there one with 3 chunks, 3 steps, 8 rounds?
  topo-synth --collective allreduce --topology mesh:8x8 --bound-only   how fast could anybody be?
  topo-synth --collective allreduce --topology dgx1 --explain          where the bottleneck is, and what to improve first
  topo-synth --collective allreduce --topology dgx1 --without-link 0:3 a plan for the machine with a broken link
  topo-synth --collective allreduce --topology dgx-a100:16 --strategy packing --max-trees 16     few trees instead of many

Reads a machine (a preset, a topology file of NCCL, RCCL or topoplan, or `local`), builds schedules for a collective,
verifies each by an independent replay, and keeps the fastest for every range of sizes.
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
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
    add("--pareto", action="store_true", help="enumerate steps against rounds with exact synthesis")
    add("--max-steps", type=int, metavar="S", help="with --pareto: look no further than this many steps")
    add("-k", "--slack", dest="slack", type=int, metavar="K", help="with --pareto: only k-synchronous rows, R <= S + K")
    add("--instance", action="append", metavar="C,S,R", help="decide one (chunks, steps, rounds); may be repeated")
    add(
        "--epsilon", metavar="E", help="packing: the fewest trees that come within this share of the bound (0.05: 5 %%)"
    )
    add("--max-trees", type=int, metavar="N", help="packing: at most so many trees")
    add("--max-depth", type=int, metavar="N", help="packing: no rank farther than so many hops from its root")
    add("--without-link", action="append", default=[], metavar="A:B", help="plan for the machine without that link (device "
        "ids or rank numbers), and say what that costs; may be repeated, as the next two")  # fmt: skip
    add(
        "--without-rank",
        action="append",
        default=[],
        type=int,
        metavar="R",
        help="plan for the machine without that GPU",
    )
    add(
        "--scale-link",
        action="append",
        default=[],
        metavar="A:B=F",
        help="plan with that link at F times its bandwidth",
    )
    add("--explain", action="store_true", help="the bottleneck, what every strategy would reach at 8 sizes, and which "
        "links to improve first")  # fmt: skip
    add("--bound-only", action="store_true", help="only the bound and its certificate")
    add("--time-limit", type=float, default=DEFAULT_TIME_LIMIT_S, metavar="SECONDS",
        help=f"for the whole synthesis (default {DEFAULT_TIME_LIMIT_S:g})")  # fmt: skip
    add("--json", action="store_true", help="one JSON object on standard output")
    add("-o", "--output", metavar="PLAN", help="write the plan to this file")
    add("--force", action="store_true", help="let -o replace a file that exists")
    return parser


def _run(args: argparse.Namespace) -> int:
    _check(args)
    size = parse_size(args.size)
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
    with _progress() as say:
        if args.bound_only:
            from ..synth.bounds import bound

            limit = bound(collective, topology, args.time_limit, say)
            return _report_bound(args, limit, collective, topology, time.monotonic() - started)
        if args.pareto or args.instance:
            report.front = _front(args, collective, topology, say)
            report.plan = _plan_of_front(report.front, collective, topology)
        else:
            seconds = args.time_limit * (_CHANGED_SHARE if change else 1.0)
            limits = _limits(args)
            result = synthesize(collective, topology, args.strategy, seconds, say, limits, thorough=args.explain)
            report.plan, report.declined, report.table = result.plan, result.declined, result.table
            if change:
                before = collective_on(args.collective, machine, args.root)
                seconds = args.time_limit - seconds
                report.healthy = synthesize(before, machine, args.strategy, seconds, say, limits).plan
            if args.explain:
                from ..synth.explain import explain

                left = max(0.0, started + args.time_limit - time.monotonic())
                report.explanation = explain(collective, topology, result.plan.bound, result.candidates, left)
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


def _limits(args: argparse.Namespace) -> Limits:
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


def _check(args: argparse.Namespace) -> None:
    """What can be told to be wrong before any work is done."""
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
def _progress() -> Iterator[Callable[[str], None] | None]:
    """A spinner with the latest message on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("synthesizing ...") as status:
        yield lambda message: status.update(message)


def _front(
    args: argparse.Namespace, collective: Collective, topology: Topology, say: Callable[[str], None] | None
) -> Front:
    from ..synth.ksync.pareto import decide, pareto

    if args.instance:
        return decide(collective, topology, [_instance(text) for text in args.instance], args.time_limit, say)
    return pareto(collective, topology, args.time_limit, args.max_steps, args.slack, say)


def _instance(text: str) -> tuple[int, int, int]:
    try:
        chunks, steps, rounds = (int(x) for x in text.split(","))
    except ValueError:
        raise InputError(
            f"--instance {text}: expected three whole numbers, chunks,steps,rounds, such as 6,3,7"
        ) from None
    if chunks < 1 or steps < 1 or rounds < steps:
        raise InputError(f"--instance {text}: expected chunks and steps of at least 1, and no fewer rounds than steps")
    return chunks, steps, rounds


def _plan_of_front(front: Front, collective: Collective, topology: Topology) -> Plan | None:
    from ..synth.synthesize import cost_all, plan_of

    schedules = [row.schedule for row in front.front if row.schedule is not None]
    return plan_of(collective, topology, front.bound, cost_all(topology, schedules)) if schedules else None


def _report_bound(
    args: argparse.Namespace, limit: Bound, collective: Collective, topology: Topology, seconds: float
) -> int:
    if args.output:
        raise InputError("-o: --bound-only makes no plan to write")
    if args.json:
        empty = dict.fromkeys(("strategy", "chunks", "steps", "rounds", "trees", "depth", "predicted", "gap"))
        body = head_json(collective, topology) | empty
        body |= {
            "size_bytes": parse_size(args.size),
            "bound": bound_json(limit),
            "verified": False,
            "synthesis_s": seconds,
        }
        print(json.dumps(body))
        return 0
    print(f"{collective.name} on {topology.name}, {collective.ranks} ranks: at most {limit_text(limit)} GB/s algbw")
    print(why_text(limit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
