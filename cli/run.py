"""topo-run: run a plan on real processes, and compare it with the stock collective."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..topo.errors import ExecutionError, InputError, PlanMismatchError, VerificationError
from .shared.common import Example, Parser, file_name, run_command
from .shared.sizes import parse_size, show_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from ..runtime.communicator import Communicator
    from ..runtime.measuring.bench import BenchRow
    from ..runtime.measuring.bench_data import BenchSettings
    from ..runtime.measuring.bench_options import BenchOptions
    from ..synth.cost.host_costs import HostCosts
    from ..synth.plan import Plan
    from ..topo.graph import Topology

PROG = "topo-run"
EXAMPLES: tuple[Example, ...] = (
    ("topo-run plan.json", "start the plan's ranks on this host, 1 KiB to 1 MiB"),
    ("topo-run plan.json -b 4K -e 64M -f 4 -n 20 -w 5", "other sizes, 20 iterations after 5 of warm-up"),
    ("topo-run plan.json --dtype bf16 --op avg --json", "bfloat16; rows as JSON"),
    ("topo-run plan.json --csv rows.csv", "rows as CSV, beside the table"),
    ("topo-run plan.json --compress int8", "a quarter of the bytes: the gain, and the error"),
    ("torchrun --nproc-per-node 8 -m topoplan.cli.run plan.json", "join ranks that torchrun has started"),
    ("topo-run plan.json --calibrate -o machine.json", "fit host costs here; then topo-synth --topology machine.json"),
    ("topo-run --stock --nproc 8", "the stock allreduce alone, without a plan"),
)
ABOUT = """\
At each size the plan and the backend's own (stock) collective take turns. Every element of the results is checked, on random
data, against float64. Exit code 1 if any element is wrong.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    args = build_parser().parse_args(arguments)
    return run_command(PROG, lambda: _run(args, arguments), quiet=_leaves_errors_to_another_rank())


def build_parser() -> Parser:
    """Return the parser of topo-run's command line."""
    parser = Parser(PROG, EXAMPLES, ABOUT, "PLAN [-b MIN] [-e MAX] [-f FACTOR] [-n ITERS] [-w WARMUP] ...")
    add = parser.add_argument
    add("plan", nargs="?", metavar="PLAN", help="a plan written by topo-synth -o")
    add("--nproc", type=int, metavar="N", help="ranks to start (default: the plan's)")
    add("-b", dest="min_bytes", default="1K", metavar="MIN", help="smallest size (default 1K)")
    add("-e", dest="max_bytes", default="1M", metavar="MAX", help="largest size (default 1M)")
    add(
        "-f",
        dest="factor",
        type=int,
        default=4,
        metavar="FACTOR",
        help="ratio of each size to the one before (default 4)",
    )
    add(
        "-n",
        dest="iterations",
        type=int,
        default=10,
        metavar="ITERS",
        help="measured iterations of each size (default 10)",
    )
    add("-w", dest="warmup", type=int, default=2, metavar="WARMUP", help="warm-up iterations before them (default 2)")
    add("--dtype", default="float32", help="float32 (default), float64, float16, bfloat16, int8, uint8, int32, int64")
    add("--op", default="sum", help="sum (default), avg, prod, max or min")
    add("--backend", default="auto", choices=("auto", "gloo", "nccl"), help="auto: nccl with a GPU a rank, else gloo")
    add("--topology", metavar="T", help="fail unless the plan was made for this topology")
    add("--timeout", type=float, default=300.0, metavar="SECONDS", help="limit on any single wait (default 300)")
    add("--choose", default="race", choices=("race", "model", "plan", "same-bits"), help="how the schedule for a size is "
        "chosen: race (default: time the likeliest ones and the stock collective at the first call), model (the fastest "
        "predicted), plan (as the plan's size ranges say) or same-bits (race without the stock collective, with a plan of "
        "topo-synth --reproducible)")  # fmt: skip
    add(
        "--compress",
        metavar="CODEC",
        help="compress what is sent: fp16, bf16, fp8, fp8-e5m2 or int8; sums are in float32",
    )
    add("--reduction", default="hops", choices=("hops", "once"), help="with --compress: hops (default) rounds partial sums "
        "whenever they are sent, once rounds each contribution once and each complete sum once")  # fmt: skip
    add("--calibrate", action="store_true", help="measure what messages and bytes cost the hosts, and write the plan's "
        "topology with these costs: topo-synth and topo-run then predict with them")  # fmt: skip
    add(
        "-o",
        dest="output",
        type=file_name,
        metavar="FILE",
        help="with --calibrate: write the topology to this file (default: standard output)",
    )
    add("--trace", type=file_name, metavar="FILE", help="write when each transfer of a call of the largest size began and "
        "ended, beside what was predicted: a Chrome trace, which Perfetto (ui.perfetto.dev) opens")  # fmt: skip
    add("--plot", type=file_name, metavar="FILE", help="write curves of the measured bandwidth against size as SVG")
    add("--force", action="store_true", help="let -o, --trace and --plot replace a file that exists")
    add("--stock", action="store_true", help="time the stock collective alone, without a plan")
    add("--collective", default="allreduce", metavar="C", help="with --stock: the collective (default allreduce)")
    add("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _leaves_errors_to_another_rank() -> bool:
    """Whether another rank of this host says what is wrong with the arguments or the plan, to the same standard error."""
    from ..runtime.ranks.launch import has_own_log

    return os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) != "0" and not has_own_log()


def _run(args: argparse.Namespace, arguments: list[str]) -> int:
    options = _options(args)
    plan = _plan(args)
    ranks = plan.collective.ranks if plan is not None else args.nproc
    from ..runtime.ranks.launch import is_rank, launch

    if not is_rank():
        if plan is not None and args.nproc is not None and args.nproc != ranks:
            raise InputError(
                f"--nproc {args.nproc}: the plan is for {ranks} ranks; leave --nproc out, or synthesize for {args.nproc}"
            )
        options.check(plan, ranks)
        package = (__package__ or "topoplan.cli").rpartition(".")[0]
        imports = [f"{package}.runtime.communicator", f"{package}.runtime.measuring.bench"]
        return launch(f"{package}.cli.run", arguments, ranks, imports)
    world = int(os.environ["WORLD_SIZE"])
    if plan is not None and world != ranks:
        raise PlanMismatchError(f"the plan is for {ranks} ranks, {world} were started; start {ranks}")
    options.check(plan, world)
    return _run_rank(args, options, plan, world)


def _options(args: argparse.Namespace) -> BenchOptions:
    from ..runtime.measuring.bench_options import BenchOptions

    low, high = parse_size(args.min_bytes), parse_size(args.max_bytes)
    if low > high or low < 1:
        raise InputError(
            f"-b {args.min_bytes} -e {args.max_bytes}: expected a smallest size from 1 byte to the largest"
        )
    return BenchOptions(
        low, high, args.factor, args.iterations, args.warmup, args.dtype, args.op, args.backend, args.choose,
        args.compress, args.reduction, args.timeout, args.collective,
    )  # fmt: skip


def _plan(args: argparse.Namespace) -> Plan | None:
    """Read and verify the plan; return None with --stock alone."""
    if args.output is not None and not args.calibrate:
        raise InputError("-o without --calibrate: there is no topology to write; the table goes to standard output")
    for name in (args.trace, args.plot):
        if name is not None and Path(name).exists() and not args.force:
            raise InputError(f"{name}: exists already and was left as it is; name another file, or give --force")
    if args.plot is not None and args.calibrate:
        raise InputError("--plot with --calibrate: nothing is measured by size then; leave one of them out")
    if args.trace is not None:
        if args.plan is None or args.calibrate:
            raise InputError("--trace: there is no call of a plan to trace; name a plan, and leave --calibrate out")
        if Path(args.trace).exists() and not args.force:
            raise InputError(f"{args.trace}: exists already and was left as it is; name another file, or give --force")
    if args.plan is None:
        if args.compress:
            raise InputError(
                f"--compress {args.compress} without a plan: the stock collective does not compress; name a plan"
            )
        if args.calibrate:
            raise InputError(
                "--calibrate without a plan; name a file written by topo-synth -o, whose schedules are to be run"
            )
        if not args.stock:
            raise InputError("no plan given; name a file written by topo-synth -o, or give --stock --nproc N")
        if args.nproc is None and "WORLD_SIZE" not in os.environ:
            raise InputError("--stock without a plan needs --nproc")
        if args.nproc is not None and args.nproc < 1:
            raise InputError(f"--nproc {args.nproc}: expected at least 1")
        return None
    from ..synth.plan import Plan

    plan = Plan.load(args.plan)
    if args.topology is not None:
        from ..topo.derived.stripes import merge_nvswitches
        from ..topo.resolve import resolve

        plan.check_topology(merge_nvswitches(resolve(args.topology)))
    return plan


def _run_rank(args: argparse.Namespace, options: BenchOptions, plan: Plan | None, world: int) -> int:
    """Join the other ranks, measure or calibrate with them, and print on rank 0; return the exit code."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from ..runtime.communicator import Communicator
    from ..runtime.measuring.bench import run_benchmark
    from ..runtime.ranks.faults import first_line
    from ..runtime.ranks.launch import init_method, keep_output_clean, meet_before_leaving
    from ..topo.files import write_whole

    # All that needs no other rank comes first, so that bad input ends every rank before any of them connects.
    settings = options.settings_for(options.collective_over(plan, world))
    backend = options.resolve_backend(world)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    timeout = timedelta(seconds=options.timeout_s)
    rank = int(os.environ["RANK"])
    with keep_output_clean():
        try:
            dist.init_process_group(backend, init_method=init_method(), rank=rank, world_size=world, timeout=timeout)
        except RuntimeError as error:
            raise ExecutionError(
                f"rank {rank}: the ranks did not find each other: {first_line(error)}; were all {world} started, and with the "
                "same rendezvous?"
            ) from error
        try:
            say = _say if rank == 0 and sys.stderr.isatty() else lambda _: None
            communicator = None
            if plan is not None:
                communicator = Communicator(plan, None, timeout, options.choose, options.compress, options.reduction)
            host = _host_costs(args, communicator, timeout, say)
            calibrated = (
                None if communicator is None else communicator.engine.machine.topology or communicator.plan.topology
            )
            rows = [] if args.calibrate else run_benchmark(settings, communicator, say)
            trace = None
            if args.trace is not None and communicator is not None:
                from ..runtime.measuring.trace import trace_largest

                trace = trace_largest(settings, communicator)
            communicator = None  # nothing may hold on to a group when it is destroyed: gloo may abort at exit otherwise
            dist.barrier()
        except (InputError, VerificationError):
            meet_before_leaving(world)
            raise
        finally:
            dist.destroy_process_group()
    if rank == 0 and args.calibrate and calibrated is not None and host is not None:
        _write_calibrated(args, calibrated, host)
    elif rank == 0:
        _print(args, plan, settings, backend, rows)
        if args.plot is not None:
            from ..runtime.measuring.bench_curves import draw_rows

            write_whole(args.plot, draw_rows(settings.collective.name, rows), overwrite=args.force)
            print(f"curves written to {args.plot}", file=sys.stderr)
        if trace is not None:
            write_whole(args.trace, trace, overwrite=args.force)
            print(f"trace written to {args.trace}; open it at ui.perfetto.dev", file=sys.stderr)
    return 1 if any(row.wrong for row in rows) else 0


def _host_costs(
    args: argparse.Namespace, communicator: Communicator | None, timeout: timedelta, say: Callable[[str], None]
) -> HostCosts | None:
    """Measure what sending costs the hosts, where --calibrate asks for it or the plan's topology does not say; else None."""
    from ..runtime.communicator import Communicator
    from ..runtime.measuring.calibrate import calibrate
    from ..synth.cost.host_costs import host_of

    if communicator is None or not (args.calibrate or host_of(communicator.plan.topology) is None):
        return None
    if communicator.engine.codec is None:
        return calibrate(communicator, say)
    # Without the codec: what encoding costs is known, and added to these costs where messages are encoded.
    costs = calibrate(Communicator(communicator.plan, None, timeout), say)
    communicator.engine.set_host_costs(costs)
    return costs


def _write_calibrated(args: argparse.Namespace, topology: Topology, host: HostCosts) -> None:
    """Write the topology (an emulated one with its own rates) and its host costs to a file or to standard output."""
    from ..synth.cost.host_costs import with_host
    from ..topo.files import write_whole

    text = with_host(topology, host).dumps()
    if args.output is None:
        print(text, end="")
    else:
        write_whole(args.output, text, overwrite=args.force)
        print(f"topology with host costs written to {args.output}; give it to topo-synth --topology", file=sys.stderr)


def _say(message: str) -> None:
    print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


def _print(
    args: argparse.Namespace, plan: Plan | None, settings: BenchSettings, backend: str, rows: list[BenchRow]
) -> None:
    from ..synth.bounds.in_network import describe_assumption, describe_possible, list_possible

    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if args.json:
        print(json.dumps(_as_json(plan, settings, backend, args, rows)))
        return
    where = f" on {plan.topology.name}" if plan is not None else ""
    print(f"# {settings.collective.name}{where}, {settings.collective.ranks} ranks, {backend}, {args.dtype}, {args.op}")
    if args.compress:
        how = "partial sums too" if args.reduction == "hops" else "each contribution once, each complete sum once"
        print(f"# {args.compress} on the wire, rounded when sent: {how}; sums in float32")
    if plan is not None:
        print(f"# plan {plan.hash[:16]}, bound {float(plan.bound_one_way.algbw_GBps):.4g} GB/s algbw on its topology")
        if list_possible(plan.topology):
            print(f"# that bound assumes that {describe_assumption(plan.topology)}; {describe_possible(plan.topology)}")
    print(f"# medians of {settings.iterations} iterations; ratio = stock / plan: above 1 the plan is faster")
    print(
        f"#{'size':>11} {'count':>11} {'type':>9} {'schedule':>19} {'plan':>11} {'stock':>11} {'ratio':>6} "
        f"{'predicted':>11} {'algbw':>9} {'busbw':>9} {'bound':>7} {'#wrong':>7}"
        + (f" {'on the wire':>12} {'error':>8}" if args.compress else "")
    )
    print(
        f"#{'(B)':>11} {'(elements)':>11} {'':>9} {'':>19} {'(us)':>11} {'(us)':>11} {'':>6} {'(us)':>11} {'(GB/s)':>9} "
        f"{'(GB/s)':>9} {'(%)':>7}" + (f" {'':>7} {'(B)':>12} {'(rms)':>8}" if args.compress else "")
    )
    element = settings.dtype.itemsize
    for row in rows:
        fraction = None if row.bound_fraction is None else row.bound_fraction * 100
        print(
            f" {row.size_bytes:>11} {row.size_bytes // element:>11} {args.dtype:>9} {row.schedule:>19} "
            f"{_number(row.plan_us, 1):>11} {_number(row.stock_us, 1):>11} {_number(row.ratio, 2):>6} "
            f"{_number(row.predicted_us, 1):>11} {row.algbw_GBps:>9.4g} {row.busbw_GBps:>9.4g} {_number(fraction, 2):>7} "
            f"{row.wrong:>7}" + (f" {row.wire_bytes or 0:>12} {row.rms_error:>8.1e}" if args.compress else "")
        )
    above = _above_bound_text(rows)
    if above:
        print(f"# {above}")
    print(f"# wrong elements: {sum(row.wrong for row in rows)}")


def _above_bound_text(rows: list[BenchRow]) -> str:
    """Return why rows may show more than the bound, in a line; empty where none does."""
    above = [row.size_bytes for row in rows if row.bound_fraction is not None and row.bound_fraction > 1]
    if not above:
        return ""
    sizes = ", ".join(show_size(size) for size in above[:4]) + (" ..." if len(above) > 4 else "")
    return (
        f"above 100 % at {sizes}: the bound is for links at their declared rates; an emulated link lets a first burst through "
        "at once, and data in a cache, or a link that is wider than declared, is faster as well"
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _as_json(
    plan: Plan | None, settings: BenchSettings, backend: str, args: argparse.Namespace, rows: list[BenchRow]
) -> dict[str, Any]:
    topology = None
    if plan is not None:
        topology = {
            "name": plan.topology.name,
            "fingerprint": plan.topology.fingerprint,
            "ranks": settings.collective.ranks,
        }
    return {
        "collective": settings.collective.name,
        "ranks": settings.collective.ranks,
        "backend": backend,
        "dtype": args.dtype,
        "op": args.op,
        "compress": args.compress,
        "topology": topology,
        "plan_hash": None if plan is None else plan.hash,
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
