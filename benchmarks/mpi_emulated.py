"""Measure Open MPI's own allreduce on emulated machines, algorithm by algorithm.

    python -m benchmarks mpi_emulated                 dgx1, two hosts of 4, mesh 3x3, at 8 MiB (some
                                                      10 minutes)
    python -m benchmarks mpi_emulated dgx1 --size 1M  one of them, another size
    python -m benchmarks mpi_emulated mesh --algorithms 0,4 --order 0,1,2,5,4,3,6,7,8

Every algorithm of Open MPI's coll_tuned (0 is its own choice) is timed in rank order, in
topo-place's order for rings, and in the orders that are given; beside them the plan, over gloo and,
where topo-run has it, over MPI. Fractions are of the bound for one way a pair (`bound_one_way`), at
the emulated rates. Needs root, iproute2, Open MPI and mpi4py (see topo-emulate --mpi).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from harness import Table, make_parser
from wire_speed import MACHINES, run, synthesize_to_file, topo

from topoplan.cli.run import build_parser
from topoplan.runtime.extras.emulate import blueprint, parse_rate
from topoplan.synth.extras.place.placing import place
from topoplan.synth.plan import Plan
from topoplan.topo.loader.resolve import resolve

ALLREDUCE = Path(__file__).resolve().parents[1] / "examples" / "mpi_allreduce.py"
# The names of OMPI_MCA_coll_tuned_allreduce_algorithm's values.
ALGORITHMS = (
    "its choice",
    "basic linear",
    "nonoverlapping",
    "recursive doubling",
    "ring",
    "segmented ring",
    "Rabenseifner",
)
_LIMIT_S = 300


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "machines",
        nargs="*",
        help="those whose names begin so (default: dgx1, two-hosts and mesh:3x3)",
    )
    parser.add_argument("--size", default="8M")
    parser.add_argument("--rate", help="of the slowest link, instead of each machine's own")
    parser.add_argument("--algorithms", default="0,1,2,3,4,5,6", help="numbers of coll_tuned")
    parser.add_argument(
        "--order", action="append", default=[], help="a rank order to be tried as well"
    )
    parser.add_argument("-n", default="3", help="calls that are timed")
    args = parser.parse_args()
    numbers = [int(number) for number in args.algorithms.split(",")]
    names = [
        name
        for name in ("dgx1", "two-hosts", "mesh:3x3")
        if not args.machines or name.startswith(tuple(args.machines))
    ]
    table = Table(
        [
            ("machine", "machine", "<9s"),
            ("what", "what", ">32s"),
            ("order", "order", ">18s"),
            ("ms", "ms", ">9.0f"),
            ("algbw_MBps", "MB/s algbw", ">10.4g"),
            ("of_bound", "of bound", ">8.3f"),
            ("gain", "x Open MPI's best", ">17.2f"),
        ],
        as_json=args.json,
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            machine, rate = MACHINES[name]
            path = machine
            if isinstance(machine, dict):
                path = str(Path(folder) / "machine.json")
                Path(path).write_text(json.dumps(machine), encoding="utf-8")
            job = Job(name, path, args.rate or rate, args.size, args.n)
            measure(table, job, Path(folder), numbers, args.order)
    table.end(size=args.size)


@dataclass(frozen=True)
class Job:
    """A machine with the rate of its slowest link, the size of a call, and the number of calls."""

    name: str
    path: str
    rate: str | None
    size: str
    calls: str


def measure(table: Table, job: Job, folder: Path, algorithms: list[int], orders: list[str]) -> None:
    """Time every algorithm in every order, and the plan, and add a row each."""
    machine, size, calls = resolve(job.path), job.size, job.calls
    emulate = [*topo("emulate"), job.path, *(["--slowest", job.rate] if job.rate else [])]
    plan = synthesize_to_file(job.name, job.path, folder)
    built = blueprint(machine, parse_rate(job.rate) if job.rate else None)
    bound_GBps = float(Plan.load(plan).bound_one_way.algbw_GBps * built.scale)
    ring = ",".join(map(str, place(machine, target="ring").order))
    best_us = float("inf")
    for order in dict.fromkeys([",".join(map(str, range(len(machine.ranks)))), ring, *orders]):
        for number in algorithms:
            us = time_mpi([*emulate, "--order", order], size, calls, number)
            what = f"Open MPI {number}, {ALGORITHMS[number]}"
            add_row(table, job, what, order, us, bound_GBps)
            best_us = min(best_us, us or best_us)
    calibrated = folder / f"{job.name}.calibrated.json"
    run([*emulate, "--", *topo("run"), plan, "--calibrate", "-o", str(calibrated)], parse=False)
    plan = synthesize_to_file(job.name, str(calibrated), folder)
    for backend in list_backends():
        started = ["--mpi"] if backend == "mpi" else []
        options = ["--backend", backend, "-b", size, "-e", size, "-n", calls, "-w", "1", "--json"]
        us = run([*emulate, *started, "--", *topo("run"), plan, *options])[0]["plan_us"]
        what = f"plan over {backend}"
        add_row(table, job, what, "rank order", us, bound_GBps, gain=best_us / us)


def list_backends() -> list[str]:
    """Return the transports of topo-run that are to be timed here."""
    known = build_parser()._option_string_actions["--backend"].choices or ()
    if "mpi" not in known:
        print("topo-run has no --backend mpi here: gloo alone", file=sys.stderr)
    return [backend for backend in ("gloo", "mpi") if backend in known]


def time_mpi(emulate: list[str], size: str, calls: str, algorithm: int) -> float | None:
    """Return the microseconds of MPI's own allreduce, or None where it does not end in time."""
    chosen = {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": str(algorithm),
    }
    command = [*emulate, "--mpi", "--", sys.executable, str(ALLREDUCE), size, "-n", calls, "--json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S,
            env={**os.environ, **(chosen if algorithm else {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout)["us"])


def add_row(
    table: Table,
    job: Job,
    what: str,
    order: str,
    us: float | None,
    bound_GBps: float,
    gain: float | None = None,
) -> None:
    """Add one measurement."""
    row: dict[str, Any] = {"machine": job.name, "what": what, "order": order}
    if us is None:
        table.add(row, f"no end in {_LIMIT_S} s")
        return
    size_bytes = int(Fraction(job.size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[job.size[-1]])
    algbw_MBps = size_bytes / us
    rates = {"algbw_MBps": algbw_MBps, "of_bound": algbw_MBps / 1e3 / bound_GBps}
    table.add(row | {"ms": us / 1e3} | rates | {"bound_MBps": bound_GBps * 1e3, "gain": gain})


if __name__ == "__main__":
    main()
