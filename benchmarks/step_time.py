"""Measure training steps of DDP: with a plan, the backend or compression, and stock.

    python -m benchmarks step_time                    loopback: 4 ranks, 1 and 25 million parameters
    python -m benchmarks step_time --ways stock,hook  some of the ways
    python -m benchmarks step_time --machine dgx1 --slowest 20Mbit
                                                      emulated; needs root and iproute2 (see
                                                      topo-emulate)
    python -m benchmarks step_time --machine two-hosts --slowest 25Mbit --repeats 1 \\
        --ways stock,hook,fp16,fp8,int8

On loopback all ways run in the same processes, in blocks of steps that take turns: a ratio is the
median, over the turns, of a block's time to that of the stock block of the same turn. On an
emulated machine stock has its ranks in the order that is best for a ring (see wire_speed.py) and
the plan in the topology's, so they are launches of their own, which take turns --repeats times; the
ratio is that of the medians. Compression runs in one launch with the plan, so its ratio is again
that of the turns. A block's time is the slowest rank's. Models are square linear layers. On
emulated machines communication dominates: the slower the links beside the cores, the more it does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import Table, make_parser
from wire_speed import MACHINES, find_best_order, run, synthesize_to_file, topo

LOOPBACK = "loopback"
LOOPBACK_PLAN = "switch:4"
# How many times as fast as the plan's own a compressed step must be where communication dominates.
COMPRESSED = {"fp16": 1.7, "bf16": 1.7, "fp8": 2.5, "fp8-e5m2": 2.5, "int8": 2.5}
# The most of the uncompressed bytes that may go over the wire; 16 bits: headers may add a
# hundredth.
BYTES = {"fp16": 0.5, "bf16": 0.5, "fp8": 0.27, "fp8-e5m2": 0.27, "int8": 0.27}
# How many times as fast as stock in its best order a step must be.
FASTER = {"two-hosts": 1.5, "dgx1": 2.5}
# The most that a step may take on loopback, in stock steps.
OWN_COST = 1.03
PARAMETERS = {LOOPBACK: (1_000_000, 25_000_000)}
_BATCH = 8
_WARM = 3


@dataclass(frozen=True)
class StepTime:
    """One way of averaging on one model: milliseconds a step, the ratio of times (`of` says which)
    and of bytes to those of the way it is compared with, and whether it meets its bar.
    """

    machine: str
    parameters: int
    way: str
    ms: float
    ratio: float | None
    of: str
    bar: str
    met: bool | None
    bytes_share: float | None = None
    note: str = ""


COLUMNS = (
    ("machine", "machine", ">10"),
    ("parameters", "parameters", ">10"),
    ("way", "method", ">9"),
    ("ms", "ms/step", ">9.2f"),
    ("ratio", "ratio", ">6.3f"),
    ("of", "", ">8"),
    ("bytes_share", "bytes", ">6.3f"),
    ("bar", "bar", ">22"),
    ("met", "met", ">3"),
    ("note", "schedules", ""),
)


def main() -> None:
    """Print the table, or the rows as JSON."""
    args = _arguments()
    if args.worker:
        work(args)
        return
    ways = args.ways.split(",")
    table = Table(COLUMNS, as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for parameters in args.params or PARAMETERS.get(args.machine, (1_000_000,)):
            measure = measure_on_loopback if args.machine == LOOPBACK else measure_emulated
            for row in measure(args, parameters, ways, folder):
                table.add(asdict(row))
    table.end()
    if not args.json:
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--machine",
        default=LOOPBACK,
        help=f"loopback (default), {', '.join(MACHINES)}, or a topology",
    )
    add(
        "--slowest",
        metavar="RATE",
        help="of the slowest link of an emulated machine, instead of its own",
    )
    add("--params", type=int, nargs="+", metavar="N", help="parameters of the model")
    add("--steps", type=int, help="in a block (default: as many as take about half a second)")
    add(
        "--turns",
        type=int,
        help="blocks of each way in a launch (default: 9 on loopback, 3 emulated)",
    )
    add("--repeats", type=int, default=2, help="launches of each rank order, emulated (default: 2)")
    add(
        "--ways",
        default="stock,hook,backend",
        help="stock, hook, backend, and compressions: fp16, fp8, int8, ...",
    )
    add("--choose", default="race", help="how the hook picks schedules (default: race)")
    add(
        "--uncalibrated",
        action="store_true",
        help="emulated: do not measure host costs before synthesizing",
    )
    add(
        "--views",
        action="store_true",
        help="DDP with gradient_as_bucket_view: stock divides in a pass of its own as well",
    )
    add("--error-feedback", action="store_true", help="with compression")
    add("--worker", metavar="PLAN", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.turns = args.turns or (9 if args.machine == LOOPBACK else 3)
    known = {"stock", "hook", "backend", *COMPRESSED}
    if unknown := set(args.ways.split(",")) - known:
        parser.error(f"--ways: {', '.join(sorted(unknown))} is none of {', '.join(sorted(known))}")
    return args


def measure_on_loopback(
    args: argparse.Namespace, parameters: int, ways: list[str], folder: Path
) -> list[StepTime]:
    """Measure all ways in one launch of four ranks."""
    plan = synthesize_to_file(LOOPBACK_PLAN, LOOPBACK_PLAN, folder)
    measured = _launch(_wrap_for_loopback, _worker_command(args, plan, parameters, ways))
    return [_compare(args, parameters, measured, way) for way in measured["s"]]


def measure_emulated(
    args: argparse.Namespace, parameters: int, ways: list[str], folder: Path
) -> list[StepTime]:
    """Measure stock in its best order and the others in the topology's, in launches that take
    turns.
    """
    from topoplan.topo.loader.resolve import resolve

    topology, own_rate = MACHINES.get(args.machine, (args.machine, None))
    if isinstance(topology, dict):
        path = folder / "topology.json"
        path.write_text(json.dumps(topology))
        topology = str(path)
    rate = args.slowest or own_rate
    inside = [*topo("emulate"), topology, *([] if rate is None else ["--slowest", rate])]
    plan = synthesize_to_file(args.machine, topology, folder)
    if not args.uncalibrated:
        calibrated = str(folder / "calibrated.json")
        run([*inside, "--", *topo("run"), plan, "--calibrate", "-o", calibrated], parse=False)
        plan = synthesize_to_file(args.machine, calibrated, folder)
    order = ",".join(map(str, find_best_order(resolve(topology))))
    planned = [way for way in ways if way != "stock"]
    both: dict[str, dict[str, Any]] = {}
    for _ in range(args.repeats):
        for listed, some in (
            ([], planned),
            (["--order", order], [way for way in ways if way == "stock"]),
        ):
            if some:
                command = _worker_command(args, plan, parameters, some)
                _append(
                    both, _launch(lambda c, listed=listed: [*inside, *listed, "--", *c], command)
                )  # type: ignore[misc]
    merged: dict[str, dict[str, Any]] = {"s": {}, "bytes": {}, "choices": {}}
    for measured in both.values():
        for key in merged:
            merged[key].update(measured[key])
    return [_compare(args, parameters, merged, way) for way in merged["s"]]


def _append(both: dict[str, dict[str, Any]], measured: dict[str, Any]) -> None:
    """Append a launch's blocks to those of earlier launches of the same ways."""
    key = ",".join(measured["s"])
    if key not in both:
        both[key] = measured
        return
    for way, seconds in measured["s"].items():
        both[key]["s"][way] += seconds


def _compare(
    args: argparse.Namespace, parameters: int, measured: dict[str, Any], way: str
) -> StepTime:
    seconds: dict[str, list[float]] = measured["s"]
    base = "hook" if way in COMPRESSED else "stock"
    ms = statistics.median(seconds[way]) * 1e3
    note = "; ".join(
        f"{size} B: {label}" for size, label in measured["choices"].get(way, {}).items()
    )
    share = None
    if way == base or base not in seconds:
        return StepTime(args.machine, parameters, way, ms, None, "", "", None, share, note)
    if args.machine == LOOPBACK and way not in COMPRESSED:
        ratio = statistics.median(a / b for a, b in zip(seconds[way], seconds[base], strict=True))
        return StepTime(
            args.machine,
            parameters,
            way,
            ms,
            ratio,
            "of stock",
            f"<= {OWN_COST}",
            ratio <= OWN_COST,
            share,
            note,
        )
    if way in COMPRESSED:
        share = measured["bytes"][way] / measured["bytes"][base]
        ratio = statistics.median(b / a for a, b in zip(seconds[way], seconds[base], strict=True))
        fewer = share <= BYTES[way] + (0.01 if BYTES[way] == 0.5 else 0)
        bar = f">= {COMPRESSED[way]}, bytes <= {BYTES[way]}"
        met = None if args.machine == LOOPBACK else ratio >= COMPRESSED[way] and fewer
        return StepTime(args.machine, parameters, way, ms, ratio, "x hook", bar, met, share, note)
    ratio = statistics.median(seconds[base]) * 1e3 / ms
    least = FASTER.get(args.machine)
    bar = "" if least is None else f">= {least}"
    return StepTime(
        args.machine,
        parameters,
        way,
        ms,
        ratio,
        "x stock",
        bar,
        None if least is None else ratio >= least,
        share,
        note,
    )


def _worker_command(
    args: argparse.Namespace, plan: str, parameters: int, ways: list[str]
) -> list[str]:
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--worker",
        plan,
        "--params",
        str(parameters),
    ]
    command += ["--ways", ",".join(ways), "--turns", str(args.turns), "--choose", args.choose]
    command += [] if args.steps is None else ["--steps", str(args.steps)]
    command += ["--views"] if args.views else []
    return command + (["--error-feedback"] if args.error_feedback else [])


def _wrap_for_loopback(command: list[str]) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        *command[1:],
    ]


def _launch(around: Callable[[list[str]], list[str]], command: list[str]) -> dict[str, Any]:
    """Launch ranks and return what rank 0 printed."""
    done = subprocess.run(around(command), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def work(args: argparse.Namespace) -> None:
    """Train one model for each way, block after block; rank 0 prints seconds a step, bytes a step,
    and choices.
    """
    import torch
    import torch.distributed as dist

    from topoplan.runtime.ranks.launch import init_method
    from topoplan.runtime.ranks.timing import find_slowest_s, time_call_s

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=init_method(), rank=rank, world_size=world)
    cpu = torch.device("cpu")
    ways = {name: Way(name, args) for name in args.ways.split(",")}
    for way in ways.values():
        for _ in range(_WARM):  # buckets are rebuilt, races run
            way.step()
    once = min(
        find_slowest_s(
            [time_call_s(way.step, dist.barrier, cpu) for way in ways.values()], None, cpu
        )
    )
    steps = args.steps or max(1, int(0.5 / once))
    sent = {name: way.wire_bytes for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(args.turns):
        order = list(ways) if turn % 2 == 0 else list(ways)[::-1]
        block = find_slowest_s(
            [time_call_s(lambda n=n: ways[n].steps(steps), dist.barrier, cpu) for n in order],
            None,
            cpu,
        )  # type: ignore[misc]
        for name, s in zip(order, block, strict=True):
            seconds[name].append(s / steps)
    if rank == 0:
        bytes_a_step = {
            name: (way.wire_bytes - sent[name]) / (steps * args.turns) for name, way in ways.items()
        }
        choices = {name: way.choices for name, way in ways.items()}
        print(json.dumps({"s": seconds, "bytes": bytes_a_step, "choices": choices}), flush=True)
    dist.barrier()
    os._exit(
        0
    )  # gloo may abort an interpreter that ends while something still holds on to a process group


class Way:
    """A model that is trained in one way of averaging."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        self.communicator, group = None, None
        if name == "backend":
            from topoplan.runtime.backend.options import backend_options
            from topoplan.runtime.register import register

            register()
            group = dist.new_group(
                backend="topo", pg_options=backend_options(args.worker, args.choose)
            )
        layers = _layers(args.params[0])
        torch.manual_seed(0)
        self.model = DistributedDataParallel(
            torch.nn.Sequential(*layers), process_group=group, gradient_as_bucket_view=args.views
        )
        self.sizes = [4 * sum(p.numel() for p in self.model.parameters())]
        if name not in ("stock", "backend"):
            from topoplan import ddp_hook

            more = (
                {} if name == "hook" else {"compress": name, "error_feedback": args.error_feedback}
            )
            hook = ddp_hook(args.worker, choose=args.choose, **more)
            self.communicator = hook.communicator
            self.model.register_comm_hook(None, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.rows = torch.randn(_BATCH, layers[0].in_features)

    def step(self) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        self.model(self.rows).square().mean().backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        """Make `count` steps."""
        for _ in range(count):
            self.step()

    @property
    def wire_bytes(self) -> int:
        """Bytes that rank 0 has sent through the plan."""
        return 0 if self.communicator is None else self.communicator.wire_bytes

    @property
    def choices(self) -> dict[int, str]:
        """The schedules chosen at the powers of two at which the gradient's buckets may be."""
        if self.communicator is None:
            return {}
        choices = {1 << k: self.communicator.choice(1 << k) for k in range(10, 28)}
        return {size: choice.label for size, choice in choices.items() if choice is not None}


def _layers(parameters: int) -> list[Any]:
    """Return square linear layers, 512 or 1024 wide, about `parameters` in all."""
    import torch

    width = 512 if parameters < 4_000_000 else 1024
    return [
        torch.nn.Linear(width, width)
        for _ in range(max(1, round(parameters / (width * width + width))))
    ]


if __name__ == "__main__":
    main()
