"""Measure the first steps of unmodified training scripts.

    python -m benchmarks first_steps                             DDP and FSDP2, loopback and dgx1
    python -m benchmarks first_steps --machines dgx1 --scripts fsdp2 --backends topo --runs 10

On loopback with four ranks, and on machines that topo-emulate makes (dgx1 at 50 Mbit/s; needs root
and iproute2), on gloo and on the backend, each launch with an empty cache. For each: the seconds of
the first step; the step (counted from 0) after which no size is settled any more, and whether all
ranks settled each size after the same step; the steady step, a median of the last five. Ratios are
to gloo's medians. A launch that takes --limit seconds is counted as hung, and its ranks' stacks are
printed. Bars: a first step of at most twice gloo's, all sizes settled by step 20, none hung.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Table, list_of, make_parser, start_ranks, wait_for_ranks

LOOPBACK, LOOPBACK_RANKS = "loopback", 4
# The rate of the slowest link of each emulated machine.
MACHINES = {LOOPBACK: "", "dgx1": "50Mbit", "pcie-2socket": "50Mbit"}
SCRIPTS = ("ddp", "fsdp2")
BACKENDS = ("gloo", "topo")
FIRST_BAR, SETTLED_BAR = 2.0, 20
COLUMNS = (
    ("machine", "machine", ">12"),
    ("script", "script", ">6"),
    ("backend", "backend", ">7"),
    ("runs", "runs", ">4"),
    ("hung", "hung", ">4"),
    ("first_s", "first s", ">8.2f"),
    ("first_ratio", "x gloo", ">6.2f"),
    ("settled_step", "settled", ">7d"),
    ("alike", "alike", ">5"),
    ("steady_s", "steady s", ">8.3f"),
    ("gain", "gain", ">5.2f"),
    ("met", "met", ">3"),
)
# Steps at the end that the steady time is of.
_STEADY = 5
# From the ranks' stacks to the end of a launch that hangs.
_END_S = 15.0
# Sizes are settled by powers of two; none here is larger.
_BITS = range(1, 40)
_WIDTH, _BATCH, _BUCKET_MB = 512, 4, 2


def main() -> int:
    """Print the table, or the rows as JSON; or be a rank."""
    args = _arguments()
    if args.worker:
        work(args)
    table = Table(COLUMNS, as_json=args.json)
    for machine in args.machines:
        for script in args.scripts:
            for backend in args.backends:
                runs = [launch(args, machine, script, backend) for _ in range(args.runs)]
                table.add(summarize(machine, script, backend, runs, table.rows))
    table.end()
    return 1 if any(row["met"] is False for row in table.rows) else 0


def launch(
    args: argparse.Namespace,
    machine: str,
    script: str,
    backend: str,
) -> list[dict[str, Any]]:
    """Run a script once; return what its ranks report, nothing where they hung."""
    arguments = ["--worker", "--scripts", script, "--backends", backend]
    arguments += ["--steps", str(args.steps), "--limit", str(args.limit)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = {"TOPOPLAN_CACHE": str(folder / "cache")}
        if machine == LOOPBACK:
            ranks = start_ranks(__file__, arguments, LOOPBACK_RANKS, folder, own)
            codes = wait_for_ranks(ranks, args.limit + _END_S)
            printed = "".join(_read(path) for path in sorted(folder.glob("*.out")))
            errors = "".join(_read(path) for path in sorted(folder.glob("*.err")))
        else:
            rate = args.slowest or MACHINES[machine]
            inside = [
                sys.executable,
                "-m",
                "topoplan.cli.extras.emulate",
                machine,
                "--slowest",
                rate,
                "--",
            ]
            command = [*inside, sys.executable, __file__, *arguments]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, **own},
            )
            codes, printed, errors = [done.returncode], done.stdout, done.stderr
    if not any(codes):
        return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    if "Timeout (" not in errors:
        raise SystemExit(f"{machine}, {script}, {backend}: exit codes {codes}\n{errors[-3000:]}")
    print(f"{machine}, {script}, {backend} hung:\n{errors}", file=sys.stderr, flush=True)
    return []


def summarize(
    machine: str,
    script: str,
    backend: str,
    runs: list[list[dict[str, Any]]],
    earlier: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the row of some launches; `earlier` has gloo's."""
    ended = [run for run in runs if run]
    firsts = [max(rank["s"][0] for rank in run) for run in ended]
    steadies = [max(statistics.median(rank["s"][-_STEADY:]) for rank in run) for run in ended]
    settled = [step for run in ended for rank in run for step in rank["settled"].values()]
    row: dict[str, Any] = {"machine": machine, "script": script, "backend": backend}
    row |= {"runs": len(runs), "hung": len(runs) - len(ended)}
    row["first_s"] = statistics.median(firsts) if firsts else None
    row["steady_s"] = statistics.median(steadies) if steadies else None
    row["settled_step"] = max(settled, default=None)
    row["alike"] = all(rank["settled"] == run[0]["settled"] for run in ended for rank in run)
    row["sizes"] = ended[0][0]["settled"] if ended else {}
    row["chosen"] = ended[0][0]["chosen"] if ended else {}
    row["steps_s"] = [run[0]["s"] for run in ended]
    row["sums"] = [run[0]["sum"] for run in ended]
    place = (machine, script, "gloo")
    base = [one for one in earlier if (one["machine"], one["script"], one["backend"]) == place]
    compared = bool(base and firsts and base[0]["first_s"])
    row["first_ratio"] = row["first_s"] / base[0]["first_s"] if compared else None
    row["gain"] = base[0]["steady_s"] / row["steady_s"] if compared else None
    row["met"] = None if backend == "gloo" else _meets(row)
    return row


def _meets(row: dict[str, Any]) -> bool:
    quick = row["first_ratio"] is None or row["first_ratio"] <= FIRST_BAR
    last = row["settled_step"]
    return quick and not row["hung"] and row["alike"] and last is not None and last <= SETTLED_BAR


def work(args: argparse.Namespace) -> None:
    """Be a rank: train, and print the time of each step and when sizes were settled."""
    import torch
    import torch.distributed as dist

    faulthandler.dump_traceback_later(args.limit, exit=True)
    torch.set_num_threads(1)
    if args.backends[0] == "topo":
        import topoplan.runtime.register  # noqa: F401  (as torch does)
    dist.init_process_group(args.backends[0])
    torch.manual_seed(0)
    model, parameters = {"ddp": _make_ddp, "fsdp2": _make_fsdp2}[args.scripts[0]]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    seconds: list[float] = []
    settled: dict[str, int] = {}
    chosen: dict[str, str] = {}
    for step in range(args.steps):
        begin = time.monotonic()
        optimizer.zero_grad()
        model(torch.randn(_BATCH, _WIDTH, generator=generator)).square().mean().backward()
        optimizer.step()
        seconds.append(time.monotonic() - begin)
        for size, label in list_settled().items():
            settled.setdefault(size, step)
            chosen[size] = label
    own = torch.stack([p.double().sum() for p in parameters()]).sum()
    if args.scripts[0] == "fsdp2":  # each rank has its share
        dist.all_reduce(own)
    found = {"s": seconds, "settled": settled, "chosen": chosen, "sum": own.item()}
    sys.stdout.write(json.dumps(found) + "\n")  # at once: ranks share the pipe
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def list_settled() -> dict[str, str]:
    """Return what is used at the sizes settled by now, as group, collective and size name them."""
    import torch.distributed as dist

    found = {}
    for number, group in enumerate(dist.distributed_c10d._world.pg_map):
        for (name, *_), communicator in getattr(group, "communicators", {}).items():
            for bits in _BITS if communicator is not None else ():
                choice = communicator.choice((1 << bits) - 1)
                if choice is not None:
                    found[f"group {number} {name} from {1 << (bits - 1)} B"] = choice.label
    return found


def _make_ddp() -> tuple[Any, Callable[[], Any]]:
    from torch import nn

    middle = nn.Linear(_WIDTH, 2 * _WIDTH)
    layers = [nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), middle, nn.ReLU(), nn.Linear(2 * _WIDTH, 256)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=_BUCKET_MB)
    return model, lambda: [p.detach() for p in model.parameters()]


def _make_fsdp2() -> tuple[Any, Callable[[], Any]]:
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*blocks)
    for part in (*blocks, model):
        fully_shard(part, mesh=mesh)
    return model, lambda: [_take_share(p) for p in model.parameters()]


def _take_share(parameter: Any) -> Any:
    return parameter.detach().to_local()


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace")


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    names = ", ".join(MACHINES)
    machines = [LOOPBACK, "dgx1"]
    add("--machines", type=list_of(MACHINES), default=machines, help=f"some of {names}")
    add("--scripts", type=list_of(SCRIPTS), default=SCRIPTS, help="ddp, fsdp2 (default: both)")
    add("--backends", type=list_of(BACKENDS), default=BACKENDS, help="gloo, topo (default: both)")
    add("--slowest", metavar="RATE", help="of the slowest link of an emulated machine")
    add("--steps", type=int, default=26, help="of each launch (default: 26)")
    add("--runs", type=int, default=1, help="launches of each (default: 1)")
    add("--limit", type=float, default=240.0, help="seconds after which one hangs (default: 240)")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps <= _STEADY:
        parser.error(f"--steps {args.steps}: expected more than {_STEADY}")
    return args


if __name__ == "__main__":
    sys.exit(main())
