"""topo-synth: a schedule for a collective on a topology, with its bound."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..topo.errors import InputError
from .common import Parser, run_command
from .sizes import parse_size, show_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..synth.certificate import Bound
    from ..synth.collective import Collective
    from ..synth.ksync.pareto import Front, Row
    from ..synth.plan import Plan
    from ..topo.graph import Topology

PROG = "topo-synth"
DEFAULT_SIZE = "1G"
DEFAULT_TIME_LIMIT_S = 60.0
WIDTH = 110
"""Columns of a table that is not printed to a terminal."""
EXAMPLES = """\
examples:
  topo-synth --collective allreduce --topology dgx1                    what is best at which size, and how far from perfect
  topo-synth --collective allreduce --topology topo.xml -o plan.json   write the plan, for topo-run and the DDP hook
  topo-synth --collective allgather --topology dgx1 --pareto           steps against rounds, the ends proved
  topo-synth --collective alltoall --topology dgx1 --instance 3,3,8    is there one with 3 chunks, 3 steps, 8 rounds?
  topo-synth --collective allreduce --topology mesh:8x8 --bound-only   how fast could anybody be?

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
    add("--strategy", default="auto", metavar="S", help="auto (default), exact, packing, ring, double-tree, "
        "recursive-doubling, halving-doubling, direct or one-shot")  # fmt: skip
    add("--size", default=DEFAULT_SIZE, metavar="BYTES", help=f"buffer size to report on (default {DEFAULT_SIZE})")
    add("--root", type=int, metavar="R", help="root of broadcast, reduce, gather and scatter (default 0)")
    add("--pareto", action="store_true", help="enumerate steps against rounds with exact synthesis")
    add("--max-steps", type=int, metavar="S", help="with --pareto: look no further than this many steps")
    add("--instance", action="append", metavar="C,S,R", help="decide one (chunks, steps, rounds); may be repeated")
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
    from ..topo.resolve import resolve

    started = time.monotonic()
    topology = resolve(args.topology)
    collective = collective_on(args.collective, topology, args.root)
    with _progress() as say:
        if args.bound_only:
            from ..synth.bounds import bound

            limit = bound(collective, topology, args.time_limit, say)
            return _report_bound(args, limit, collective, topology, time.monotonic() - started)
        front: Front | None = None
        declined: dict[str, str] = {}
        if args.pareto or args.instance:
            front = _front(args, collective, topology, say)
            plan = _plan_of_front(front, collective, topology)
        else:
            result = synthesize(collective, topology, args.strategy, args.time_limit, say)
            plan, declined = result.plan, result.declined
    seconds = time.monotonic() - started
    if args.output:
        if plan is None:
            raise InputError("-o: no schedule was found, so there is no plan to write")
        plan.save(args.output, overwrite=args.force)
    if args.json:
        print(json.dumps(_as_json(plan, front, collective, topology, size, seconds, declined)))
    else:
        _print_tables(plan, front, size, seconds, declined)
    if args.output:
        print(f"plan written to {args.output}", file=sys.stderr)
    return 0


def _check(args: argparse.Namespace) -> None:
    """What can be told to be wrong before any work is done."""
    from ..synth.strategies import strategy

    if args.strategy != "auto":
        strategy(args.strategy)
    if not args.time_limit > 0:
        raise InputError(f"--time-limit is {args.time_limit:g}; expected seconds above 0")
    if args.max_steps is not None and args.max_steps < 1:
        raise InputError(f"--max-steps is {args.max_steps}; expected at least 1")
    if (args.pareto or args.instance) and args.strategy not in ("auto", "exact"):
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
    return pareto(collective, topology, args.time_limit, args.max_steps, say)


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
    from ..synth.synthesize import plan_of

    schedules = [row.schedule for row in front.front if row.schedule is not None]
    return plan_of(collective, topology, front.bound, schedules) if schedules else None


# -- JSON ----------------------------------------------------------------------------------------------------------


def _bound_json(limit: Bound) -> dict[str, Any]:
    return {
        "algbw_GBps": float(limit.algbw_GBps),
        "algbw_GBps_exact": str(limit.algbw_GBps),
        "kind": limit.kind,
        "certificate": dict(limit.certificate),
    }


def _head_json(collective: Collective, topology: Topology) -> dict[str, Any]:
    head = {"name": topology.name, "fingerprint": topology.fingerprint, "ranks": collective.ranks}
    return {"topology": head, "collective": collective.name, "root": collective.root}


def _as_json(
    plan: Plan | None,
    front: Front | None,
    collective: Collective,
    topology: Topology,
    size: int,
    seconds: float,
    declined: dict[str, str],
) -> dict[str, Any]:
    limit = plan.bound if plan is not None else front.bound if front is not None else None
    out = _head_json(collective, topology) | _chosen_json(plan, collective, topology, size)
    out["bound"] = _bound_json(limit) if limit is not None else None
    out["gap"] = float(plan.gap_of(plan.entry_for(size))) if plan is not None else None
    out["verified"] = plan is not None
    out["synthesis_s"] = seconds
    if plan is not None:
        out["plan_hash"] = plan.hash
        out["entries"] = [
            {
                "min_bytes": e.min_bytes,
                "max_bytes": e.max_bytes,
                "strategy": e.schedule.strategy,
                "segments": e.schedule.segments,
                "gap": float(plan.gap_of(e)),
            }
            for e in plan.entries
        ]
    if front is not None:
        out["complete"] = front.complete
        out["least_ratio"] = str(front.least_ratio)
        out["rows"] = [_row_json(row) for row in front.rows]
    if declined:
        out["declined"] = declined
    return out


def _chosen_json(plan: Plan | None, collective: Collective, topology: Topology, size: int) -> dict[str, Any]:
    """Of the schedule for the asked size; chunks in SCCL's units where they are even."""
    if plan is None:
        keys = ("chunks", "steps", "rounds", "trees", "segments", "predicted")
        return {"strategy": "exact", "size_bytes": size, **dict.fromkeys(keys)}
    from ..synth.cost import rounds

    schedule = plan.entry_for(size).schedule
    parts = len(collective.even_chunks(1))
    time_s = plan.cost_of(plan.entry_for(size)).time_s(size)
    algbw = size / time_s / 1e9 if time_s else 0.0
    total = rounds(schedule, topology)
    return {
        "strategy": schedule.strategy,
        "size_bytes": size,
        "chunks": len(schedule.chunks) // parts if len(schedule.chunks) % parts == 0 else len(schedule.chunks),
        "steps": schedule.steps,
        "rounds": None if total is None else int(total) if total.denominator == 1 else float(total),
        "trees": schedule.trees,
        "segments": schedule.segments,
        "predicted": {
            "time_s": time_s,
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * float(collective.bus_factor()),
        },
    }


def _row_json(row: Row) -> dict[str, Any]:
    keys = ("chunks", "steps", "rounds", "status", "latency_optimal", "bandwidth_optimal", "dominated", "form", "proof")
    return {**{key: getattr(row, key) for key in keys}, "synthesis_s": row.synthesis_s}


def _report_bound(
    args: argparse.Namespace, limit: Bound, collective: Collective, topology: Topology, seconds: float
) -> int:
    if args.output:
        raise InputError("-o: --bound-only makes no plan to write")
    if args.json:
        empty = dict.fromkeys(("strategy", "chunks", "steps", "rounds", "trees", "predicted", "gap"))
        body = _head_json(collective, topology) | empty
        body |= {
            "size_bytes": parse_size(args.size),
            "bound": _bound_json(limit),
            "verified": False,
            "synthesis_s": seconds,
        }
        print(json.dumps(body))
        return 0
    print(f"{collective.name} on {topology.name}, {collective.ranks} ranks: at most {_GBps(limit)} GB/s algbw")
    print(_why(limit))
    return 0


# -- for people ----------------------------------------------------------------------------------------------------


def _GBps(limit: Bound) -> str:
    exact = limit.algbw_GBps
    return f"{float(exact):.4g}" + (
        f" (exactly {exact})" if exact.denominator != 1 and exact.denominator < 10**6 else ""
    )


def _why(limit: Bound) -> str:
    if limit.kind == "cut":
        inside = limit.certificate["inside"]
        listed = ", ".join(inside[:10]) + (" ..." if len(inside) > 10 else "")
        return f"bound by the cut around {{{listed}}}"
    return f"bound by prices on {len(limit.certificate['prices'])} links (linear programming dual)"


def _print_tables(plan: Plan | None, front: Front | None, size: int, seconds: float, declined: dict[str, str]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if front is not None:
        _print_front(console, front)
    if plan is not None:
        _print_plan(console, plan, size)
    for name, reason in declined.items():
        console.print(f"[dim]{name}: {reason}[/dim]", highlight=False, soft_wrap=True)
    console.print(f"synthesized and verified in {seconds:.2f} s", highlight=False)


def _print_plan(console: Any, plan: Plan, size: int) -> None:
    from rich.table import Table

    from ..synth.cost import rounds

    collective, topology = plan.collective, plan.topology
    console.print(
        f"[bold]{collective.name}[/bold] on [bold]{topology.name}[/bold] ({collective.ranks} ranks, fingerprint "
        f"{topology.fingerprint[:12]}): at most [bold]{_GBps(plan.bound)} GB/s[/bold] algbw; {_why(plan.bound)}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, left in (("sizes from", 0), ("to", 0), ("strategy", 1), ("chunks", 0), ("steps", 0), ("rounds", 0),
                        ("trees", 0), ("segments", 0), ("latency us", 0), ("GB/s at most", 0), ("gap", 0)):  # fmt: skip
        table.add_column(title, justify="left" if left else "right")
    for entry in plan.entries:
        s, cost = entry.schedule, plan.cost_of(entry)
        total = rounds(s, topology)
        table.add_row(
            show_size(entry.min_bytes), show_size(entry.max_bytes) if entry.max_bytes is not None else "",
            s.strategy, str(len(s.chunks)), str(s.steps), "" if total is None else f"{float(total):g}",
            str(s.trees or ""), str(s.segments if s.segments > 1 else ""), f"{float(cost.alpha_us):.3g}",
            f"{1 / float(cost.beta_s_per_GB):.4g}", f"{max(0.0, float(plan.gap_of(entry))):.1%}",
            style="green" if entry.covers(size) else None,
        )  # fmt: skip
    console.print(table)
    entry = plan.entry_for(size)
    time_s = plan.cost_of(entry).time_s(size)
    algbw = size / time_s / 1e9 if time_s else 0.0
    console.print(
        f"at {show_size(size)}: {entry.schedule.strategy}, predicted {time_s * 1e6:.4g} us, algbw {algbw:.4g} GB/s, "
        f"busbw {algbw * float(collective.bus_factor()):.4g} GB/s", highlight=False, soft_wrap=True,
    )  # fmt: skip


def _print_front(console: Any, front: Front) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("chunks", "steps", "rounds", "R/C", "status", "", "form", "proof", "seconds"):
        table.add_column(title, justify="left" if title in ("status", "", "form", "proof") else "right")
    for row in front.rows:
        marks = [
            "front" * (row in front.front),
            "fewest steps" * (row.latency_optimal and not row.dominated),
            "least R/C" * row.bandwidth_optimal,
            "dominated" * row.dominated,
        ]
        table.add_row(
            str(row.chunks), str(row.steps), str(row.rounds), str(row.ratio), row.status,
            ", ".join(m for m in marks if m), row.form, row.proof, f"{row.synthesis_s:.2f}",
            style="green" if row in front.front else "dim" if row.status != "feasible" else None,
        )  # fmt: skip
    console.print(table)
    console.print(
        f"least R/C that any schedule can have: {front.least_ratio}"
        + ("" if front.complete else "; the search was not exhaustive"), highlight=False,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
