"""Compare plans with and without a limit on concurrent transfers where switches collapse.

    python -m benchmarks collapse [--results collapse.jsonl] [--json]

Emulated hosts (topo-emulate --collapse): while data of two or more flows runs through a switch, its
links have --factor of their rates (0.036: two flows get 2.7 GB/s together where one has 37, as the
board of rtx6kpro, hardware/collapse-report.md). Each row is one plan, made by topo-synth with or
without `--concurrent switch=1`, and run by topo-run (`--choose plan`): `plan s` is the median of
--iterations calls, `stock s` that of gloo's own collective in the same place, and `faster` the time
of the plan without a limit over that of this one. Needs root and iproute2 (see topo-emulate).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from harness import Results, Table, make_parser

import topoplan
from topoplan.topo.graph import Device, Link, Topology, both_directions

COLLECTIVES = ("alltoall", "allreduce", "allgather")
LIMITS = (None, "switch=1")
COLUMNS = (
    ("machine", "machine", "<10"), ("collective", "collective", "<11"), ("limit", "limit", "<9"),
    ("size_MB", "MB", ">3d"), ("plan_s", "plan s", ">8.3f"), ("stock_s", "stock s", ">8.3f"),
    ("faster", "faster", ">7.2f"), ("right", "right", ">6"),
)  # fmt: skip


def build_machine(switches: int, gpus: int) -> Topology:
    """Return a host of so many switches under one root, with so many GPUs each, at 37 GB/s."""
    devices = [Device(f"gpu{i}") for i in range(switches * gpus)]
    devices += [Device(f"plx{i}", "switch", "pcie") for i in range(switches)]
    ends = [(f"gpu{i}", f"plx{i // gpus}") for i in range(switches * gpus)]
    ends += [(f"plx{i}", "cpu0") for i in range(switches)] if switches > 1 else []
    devices += [Device("cpu0", "cpu")] if switches > 1 else []
    links = [x for a, b in ends for x in both_directions(Link(a, b, Fraction(37)))]
    return Topology(f"{switches}x{gpus}", tuple(devices), tuple(links))


def run(
    topology: Topology, plan: topoplan.Plan, options: Sequence[str], call: Sequence[str]
) -> dict[str, Any]:
    """Return topo-run's row for a plan on the emulated machine."""
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
        machine, file = Path(folder, "machine.json"), Path(folder, "plan.json")
        machine.write_text(topology.dumps(), encoding="utf-8")
        plan.save(file)
        python = [sys.executable, "-m"]
        ended = subprocess.run(
            [
                *(*python, "topoplan.cli.topoplan", "emulate", str(machine), *options, "--"),
                *(*python, "topoplan.cli.run", str(file), *call, "--choose", "plan", "--json"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    printed = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not printed:
        raise SystemExit(f"collapse: {ended.stdout}{ended.stderr}")
    row: dict[str, Any] = json.loads(printed[-1])["rows"][-1]
    return row


def main() -> None:
    """Run each plan on each machine, and print how they compare."""
    parser = make_parser(__doc__)
    parser.add_argument("--results", type=Path, help="JSON lines, continued by a second start")
    parser.add_argument("--factor", default="0.036", help="of a collapsed switch's links")
    parser.add_argument("--rate", default="200Mbit", help="of the slowest link")
    parser.add_argument("--size", type=int, default=4, help="MB of a call (default: 4)")
    parser.add_argument("--iterations", type=int, default=3, help="timed calls of each plan")
    parser.add_argument("--only", default="", help="collectives whose names contain this")
    args = parser.parse_args()
    results = Results(args.results, ("machine", "collective", "limit"))
    table = Table(COLUMNS, as_json=args.json)
    size = f"{args.size}M"
    call = ("-b", size, "-e", size, "-n", str(args.iterations), "-w", "1")
    for topology in (build_machine(1, 4), build_machine(2, 2)):
        switches = [d.id for d in topology.devices if d.kind == "switch"]
        options = ["--slowest", args.rate]
        options += [x for switch in switches for x in ("--collapse", f"{switch}={args.factor}")]
        for collective in (x for x in COLLECTIVES if args.only in x):
            free_s: float | None = None
            for limit in LIMITS:
                key = {"machine": topology.name, "collective": collective, "limit": limit}
                if not results.has(**key):
                    kept = {} if limit is None else {"concurrent": limit}
                    plan = topoplan.synthesize(collective, topology, size=size, constraints=kept)  # type: ignore[arg-type]
                    row = run(topology, plan, options, call)
                    found = {
                        **key,
                        "size_MB": args.size,
                        "plan_s": row["plan_us"] * 1e-6,
                        "stock_s": row["stock_us"] * 1e-6 if row["stock_us"] else None,
                        "right": row["wrong"] == 0,
                    }
                    found["faster"] = free_s and free_s / found["plan_s"]
                    results.add(found)
                found = next(x for x in results.rows if key.items() <= x.items())
                free_s = found["plan_s"] if limit is None else free_s
                table.add(found)
    table.end(factor=args.factor, rate=args.rate)


if __name__ == "__main__":
    main()
