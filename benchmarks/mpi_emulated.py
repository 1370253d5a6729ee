"""Measures Open MPI's own allreduce on emulated machines, algorithm by algorithm: python
benchmarks/mpi_emulated.py

    python benchmarks/mpi_emulated.py                 dgx1, two hosts of 4, mesh 3x3, at 8 MiB (some
                                                      10 minutes)
    python benchmarks/mpi_emulated.py dgx1 --size 1M  one of them, another size
    python benchmarks/mpi_emulated.py mesh --algorithms 0,4 --order 0,1,2,5,4,3,6,7,8

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
from fractions import Fraction
from pathlib import Path

from harness import make_parser
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
    parser = make_parser(__doc__, json=False)
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
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            machine, rate = MACHINES[name]
            path = machine
            if isinstance(machine, dict):
                path = str(Path(folder) / "machine.json")
                Path(path).write_text(json.dumps(machine), encoding="utf-8")
            measure(
                name, path, args.rate or rate, Path(folder), args.size, args.n, numbers, args.order
            )


def measure(
    name: str,
    path: str,
    rate: str | None,
    folder: Path,
    size: str,
    calls: str,
    algorithms: list[int],
    orders: list[str],
) -> None:
    """Time every algorithm in every order, and the plan, and print a row each."""
    machine = resolve(path)
    emulate = [*topo("emulate"), path, *(["--slowest", rate] if rate else [])]
    plan = synthesize_to_file(name, path, folder)
    built = blueprint(machine, parse_rate(rate) if rate else None)
    bound_GBps = float(Plan.load(plan).bound_one_way.algbw_GBps * built.scale)
    rates = [r for cable in built.cables for r in (cable.rate_ab, cable.rate_ba) if r]
    print(
        f"\n{name}, {size}: {min(rates) / 1e6:.4g} to {max(rates) / 1e6:.4g} Mbit/s, bound "
        f"{bound_GBps * 1e3:.4g} MB/s algbw"
    )
    print(f"{'what':>32} {'order':>18} {'ms':>9} {'MB/s algbw':>10} {'of bound':>8}")
    ring = ",".join(map(str, place(machine, target="ring").order))
    best_us = float("inf")
    for order in dict.fromkeys([",".join(map(str, range(len(machine.ranks)))), ring, *orders]):
        for number in algorithms:
            us = time_mpi([*emulate, "--order", order], size, calls, number)
            print_row(f"Open MPI {number}, {ALGORITHMS[number]}", order, us, size, bound_GBps)
            best_us = min(best_us, us or best_us)
    calibrated = folder / f"{name}.calibrated.json"
    run([*emulate, "--", *topo("run"), plan, "--calibrate", "-o", str(calibrated)], parse=False)
    plan = synthesize_to_file(name, str(calibrated), folder)
    for backend in list_backends():
        started = ["--mpi"] if backend == "mpi" else []
        options = ["--backend", backend, "-b", size, "-e", size, "-n", calls, "-w", "1", "--json"]
        us = run([*emulate, *started, "--", *topo("run"), plan, *options])[0]["plan_us"]
        print_row(
            f"plan over {backend}",
            "rank order",
            us,
            size,
            bound_GBps,
            f"{best_us / us:.2f}x Open MPI's best",
        )


def list_backends() -> list[str]:
    """Return the transports of topo-run that are to be timed here."""
    known = build_parser()._option_string_actions["--backend"].choices or ()
    if "mpi" not in known:
        print("(topo-run has no --backend mpi here: the plan is timed over gloo alone)")
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


def print_row(
    what: str, order: str, us: float | None, size: str, bound_GBps: float, more: str = ""
) -> None:
    """Print one measurement."""
    if us is None:
        print(f"{what:>32} {order:>18} no end in {_LIMIT_S} s", flush=True)
        return
    algbw_GBps = int(Fraction(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]]) / us / 1e3
    print(
        f"{what:>32} {order:>18} {us / 1e3:>9.0f} {algbw_GBps * 1e3:>10.4g} "
        f"{algbw_GBps / bound_GBps:>8.3f} {more}",
        flush=True,
    )


if __name__ == "__main__":
    main()
