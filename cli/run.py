"""topo-run: carry out a plan on real processes, beside the stock collective."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..topo.errors import ExecutionError, InputError, PlanMismatchError
from .common import Parser, run_command
from .sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from ..runtime.communicator import Communicator
    from ..runtime.measuring.bench import BenchRow
    from ..runtime.measuring.bench_data import BenchSettings
    from ..synth.cost.host_costs import HostCosts
    from ..synth.plan import Plan
    from ..topo.graph import Topology

PROG = "topo-run"
EXAMPLES = """\
examples:
  topo-run plan.json                                  start the plan's ranks here, 1 KiB to 1 MiB
  topo-run plan.json -b 4K -e 64M -f 4 -n 20 -w 5     other sizes, 20 iterations after 5 to warm up
  topo-run plan.json --dtype bfloat16 --op avg --json rows as JSON
  topo-run plan.json --compress int8                  a quarter of the bytes: what that gains, and the error it brings
  torchrun --nproc-per-node 8 -m topoplan.cli.run plan.json        join ranks that torchrun has started
  topo-run plan.json --calibrate -o machine.json      fit host costs here; then topo-synth --topology machine.json
  topo-run --stock --nproc 8                          the stock allreduce alone, without a plan

Every size is run through the plan and through the backend's own collective, in turns; results are checked on random
data against float64. Exit code 1 if any element is wrong.
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(arguments)
    return run_command(PROG, lambda: _run(args, arguments), quiet=_is_follower())


def _parser() -> Parser:
    parser = Parser(PROG, EXAMPLES)
    add = parser.add_argument
    add("plan", nargs="?", metavar="PLAN", help="a plan written by topo-synth -o")
    add("--nproc", type=int, metavar="N", help="ranks to start (default: the plan's)")
    add("-b", dest="min_bytes", default="1K", metavar="MIN", help="smallest size (default 1K)")
    add("-e", dest="max_bytes", default="1M", metavar="MAX", help="largest size (default 1M)")
    add("-f", dest="factor", type=int, default=4, metavar="FACTOR", help="each size is the last times this (default 4)")
    add("-n", dest="iterations", type=int, default=10, metavar="ITERS", help="iterations that count (default 10)")
    add("-w", dest="warmup", type=int, default=2, metavar="WARMUP", help="iterations before them (default 2)")
    add("--dtype", default="float32", help="float32 (default), float64, float16, bfloat16, int8, uint8, int32, int64")
    add("--op", default="sum", help="sum (default), avg, prod, max or min")
    add("--backend", default="auto", choices=("auto", "gloo", "nccl"), help="auto: nccl with a GPU a rank, else gloo")
    add("--topology", metavar="T", help="refuse the plan unless it is for this topology")
    add("--timeout", type=float, default=300.0, metavar="SECONDS", help="for any single wait (default 300)")
    add("--choose", default="race", choices=("race", "model", "plan"), help="how a schedule is picked for a size: race the "
        "likely ones and stock at its first call (default), predict, or take the plan's own ranges")  # fmt: skip
    add("--compress", metavar="CODEC", help="how values travel: fp16, bf16, fp8, fp8-e5m2 or int8, summed in float32")
    add("--reduction", default="hops", choices=("hops", "once"), help="with --compress: round partial sums too whenever they "
        "are sent (default), or each contribution once and the whole sum once")  # fmt: skip
    add("--calibrate", action="store_true", help="fit what a message and a byte cost the hosts, and write the plan's topology "
        "with it: topo-synth and topo-run then predict with that")  # fmt: skip
    add("-o", dest="output", metavar="FILE", help="with --calibrate: where to (default: standard output)")
    add("--force", action="store_true", help="overwrite FILE")
    add("--stock", action="store_true", help="without a plan: time the stock collective alone")
    add("--collective", default="allreduce", metavar="C", help="with --stock: which (default allreduce)")
    add("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _is_follower() -> bool:
    """A rank other than 0: what is wrong with the arguments or the plan, rank 0 says for all."""
    return os.environ.get("RANK", "0") != "0"


def _run(args: argparse.Namespace, arguments: list[str]) -> int:
    sizes = _checked_sizes(args)
    plan = _plan(args)
    ranks = plan.collective.ranks if plan is not None else args.nproc
    from ..runtime.ranks.launch import inside_a_launch, launch

    if not inside_a_launch():
        if plan is not None and args.nproc is not None and args.nproc != ranks:
            raise InputError(
                f"--nproc {args.nproc}: the plan is for {ranks} ranks; leave --nproc out, or synthesize for {args.nproc}"
            )
        package = (__package__ or "topoplan.cli").rpartition(".")[0]
        return launch([sys.executable, "-m", f"{package}.cli.run", *arguments], ranks)
    world = int(os.environ["WORLD_SIZE"])
    if plan is not None and world != ranks:
        raise PlanMismatchError(f"the plan is for {ranks} ranks, {world} were started; start {ranks}")
    return _as_rank(args, plan, sizes, world)


def _checked_sizes(args: argparse.Namespace) -> tuple[int, int]:
    low, high = parse_size(args.min_bytes), parse_size(args.max_bytes)
    if low > high or low < 1:
        raise InputError(
            f"-b {args.min_bytes} -e {args.max_bytes}: expected a smallest size from 1 byte to the largest"
        )
    if args.factor < 2:
        raise InputError(f"-f {args.factor}: expected a factor of at least 2")
    if args.iterations < 1 or args.warmup < 0:
        raise InputError(
            f"-n {args.iterations} -w {args.warmup}: expected at least 1 iteration, and no less than 0 before"
        )
    if not args.timeout > 0:
        raise InputError(f"--timeout {args.timeout:g}: expected seconds above 0")
    return low, high


def _plan(args: argparse.Namespace) -> Plan | None:
    """The plan, read and verified; None with --stock alone."""
    if args.output is not None and not args.calibrate:
        raise InputError("-o without --calibrate: there is no topology to write; the table goes to standard output")
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
        from ..topo.derived.stripes import striped
        from ..topo.resolve import resolve

        plan.check_topology(striped(resolve(args.topology)))
    return plan


def _as_rank(args: argparse.Namespace, plan: Plan | None, sizes: tuple[int, int], world: int) -> int:
    """What each rank does."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from ..runtime.communicator import Communicator
    from ..runtime.measuring.bench import run_benchmark
    from ..runtime.measuring.bench_data import DTYPES, OPS, BenchSettings
    from ..runtime.ranks.faults import first_line
    from ..runtime.ranks.launch import init_method
    from ..synth.ir.collective import Collective

    if args.dtype not in DTYPES:
        raise InputError(f"--dtype {args.dtype}: expected one of {', '.join(DTYPES)}")
    if args.op not in OPS:
        raise InputError(f"--op {args.op}: expected one of {', '.join(OPS)}")
    rooted = args.collective in ("broadcast", "reduce", "gather", "scatter")
    collective = plan.collective if plan is not None else Collective(args.collective, world, 0 if rooted else None)
    settings = BenchSettings(collective, *sizes, args.factor, args.iterations, args.warmup, DTYPES[args.dtype], args.op)
    if collective.reduces:
        from ..runtime.executor import check_op

        check_op(OPS[args.op], settings.dtype)
    backend = _backend(args.backend, world)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    timeout = timedelta(seconds=args.timeout)
    rank = int(os.environ["RANK"])
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
            communicator = Communicator(plan, None, timeout, args.choose, args.compress, args.reduction)
        host = _host_costs(args, communicator, timeout, say)
        calibrated = None if communicator is None else communicator.machine.topology or communicator.plan.topology
        rows = [] if args.calibrate else run_benchmark(settings, communicator, say)
        communicator = None
        dist.barrier()
    finally:
        dist.destroy_process_group()  # when nothing holds on to a group any more: gloo may abort at exit otherwise
    if rank == 0 and args.calibrate and calibrated is not None and host is not None:
        _write_calibrated(args, calibrated, host)
    elif rank == 0:
        _print(args, plan, settings, backend, rows)
    return 1 if any(row.wrong for row in rows) else 0


def _host_costs(
    args: argparse.Namespace, communicator: Communicator | None, timeout: timedelta, say: Callable[[str], None]
) -> HostCosts | None:
    """What sending costs the hosts: fitted now where that is asked for, or where the plan's topology does not say."""
    from ..runtime.communicator import Communicator
    from ..runtime.measuring.calibrate import calibrate
    from ..synth.cost.host_costs import host_of

    if communicator is None or not (args.calibrate or host_of(communicator.plan.topology) is None):
        return None
    if communicator.codec is None:
        return calibrate(communicator, say)
    found = calibrate(Communicator(communicator.plan, None, timeout), say)  # costs without a codec's own, which it adds
    communicator.set_host(found)
    return found


def _write_calibrated(args: argparse.Namespace, topology: Topology, host: HostCosts) -> None:
    """The topology (an emulated one with its own rates) with the host costs, to a file or to standard output."""
    from ..synth.cost.host_costs import with_host
    from ..topo.files import write_whole

    text = with_host(topology, host).dumps()
    if args.output is None:
        print(text, end="")
    else:
        write_whole(args.output, text, overwrite=args.force)
        print(f"topology with host costs written to {args.output}; give it to topo-synth --topology", file=sys.stderr)


def _backend(asked: str, world: int) -> str:
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    if asked == "nccl" and not gpus:
        raise InputError("--backend nccl: there is no CUDA GPU here; use gloo")
    return asked if asked != "auto" else "nccl" if gpus >= local else "gloo"


def _say(message: str) -> None:
    print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


def _print(
    args: argparse.Namespace, plan: Plan | None, settings: BenchSettings, backend: str, rows: list[BenchRow]
) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if args.json:
        print(json.dumps(_as_json(plan, settings, backend, args, rows)))
        return
    where = f" on {plan.topology.name}" if plan is not None else ""
    print(f"# {settings.collective.name}{where}, {settings.collective.ranks} ranks, {backend}, {args.dtype}, {args.op}")
    if args.compress:
        how = "partial sums too" if args.reduction == "hops" else "contributions once, whole sums once"
        print(f"# {args.compress} on the wire, rounded when sent: {how}; sums in float32")
    if plan is not None:
        print(f"# plan {plan.hash[:16]}, bound {float(plan.bound.algbw_GBps):.4g} GB/s algbw on its topology")
    print(f"# median of {settings.iterations} iterations; ratio = stock / plan, above 1 the plan is faster")
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
    print(f"# wrong elements: {sum(row.wrong for row in rows)}")


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
