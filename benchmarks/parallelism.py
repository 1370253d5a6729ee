"""Time training scripts of six kinds, on gloo and on the backend.

    python -m benchmarks parallelism                  all scripts, emulated dgx1 and pcie-2socket
    python -m benchmarks parallelism --machines dgx1 --scripts ddp,zero --runs 3
    python -m benchmarks parallelism --results parallelism.jsonl

The scripts in benchmarks/parallel/ are plain torch: DDP, FSDP2, HSDP, tensor parallelism, ZeRO and
expert parallelism. They run twice on machines that topo-emulate makes (needs root and iproute2),
with `init_process_group("gloo")` and `("topo")`, each with an empty cache. A step's time is the
median of the last five, of the slowest rank, and the first step's is shown beside it; "speedup" and
"first" are ratios to gloo's. The parameters of each rank at the end must be those of the same rank
on gloo, within 1e-6 of the largest one: additions have another order. `--seed` is that of the first
run's data, and each run has the next one; with --results a second start continues where the first
one ended. Exit code 1 if parameters differ or a first step takes over twice gloo's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import Results, Table, list_of, make_parser

FOLDER = Path(__file__).resolve().parent / "parallel"
SCRIPTS = ("ddp", "fsdp2", "hsdp", "tensor_parallel", "zero", "expert_parallel")
MACHINES = ("dgx1", "pcie-2socket")
BACKENDS = ("gloo", "topo")
FIRST_BAR, EQUAL = 2.0, 1e-6
COLUMNS = (
    ("machine", "machine", "<12"),
    ("script", "script", "<15"),
    ("runs", "runs", ">4"),
    ("gloo_s", "gloo s", ">7.3f"),
    ("topo_s", "topo s", ">7.3f"),
    ("speedup", "speedup", ">7.2f"),
    ("gloo_first_s", "first s", ">8.2f"),
    ("topo_first_s", "topo's", ">7.2f"),
    ("first", "first", ">5.2f"),
    ("difference", "difference", ">10.1e"),
    ("met", "met", ">3"),
)
# Steps at the end of which the median is a step's time: by then all sizes are settled.
_STEADY = 5
_LIMIT_S = 600


def main() -> int:
    """Run what is not in the results yet, and print a row per machine and script."""
    args = _parse_arguments()
    keys = ("machine", "slowest", "script", "seed", "steps")
    results, table = Results(args.results, keys), Table(COLUMNS, as_json=args.json)
    seeds = range(args.seed, args.seed + args.runs)
    for machine in args.machines:
        for script in args.scripts:
            for seed in seeds:
                case = dict(
                    zip(keys, (machine, args.slowest, script, seed, args.steps), strict=True)
                )
                if not results.has(**case):
                    results.add({**case, **compare(case)})
            rows = [
                row
                for row in results.rows
                if row["seed"] in seeds
                and all(row[key] == case[key] for key in keys if key != "seed")
            ]
            table.add(summarize(rows))
    table.end()
    return 0 if all(row["met"] for row in table.rows) else 1


def compare(case: dict[str, Any]) -> dict[str, Any]:
    """Run a script on each backend; return its times, and how far the parameters are apart."""
    import torch

    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for backend in BACKENDS:
            Path(name, backend).mkdir()
            times = run(case, backend, Path(name, backend))
            row[f"{backend}_first_s"] = max(rank[0] for rank in times)
            row[f"{backend}_s"] = max(statistics.median(rank[-_STEADY:]) for rank in times)
            row[f"{backend}_steps_s"] = times[0]
        stock, planned = (
            [torch.load(Path(name, backend, f"{rank}.pt")) for rank in range(len(times))]
            for backend in BACKENDS
        )
    largest = max(shard.abs().max().item() for shard in stock)
    distances = [(a - b).abs().max().item() for a, b in zip(stock, planned, strict=True)]
    return {**row, "difference": max(distances) / largest}


def run(case: dict[str, Any], backend: str, folder: Path) -> list[list[float]]:
    """Run a script on an emulated machine; return the seconds of each step, by rank."""
    script = [sys.executable, str(FOLDER / f"{case['script']}.py"), "--save", str(folder)]
    script += ["--steps", str(case["steps"]), "--seed", str(case["seed"])]
    emulate = [sys.executable, "-m", "topoplan.cli.extras.emulate", case["machine"]]
    command = [*emulate, "--slowest", case["slowest"], "--", *script]
    own = {"BACKEND": backend, "TOPOPLAN_CACHE": str(folder / "cache")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **own},
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise SystemExit(f"{case}, {backend}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line["step_s"] for line in lines]


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over the runs of one script on one machine."""
    times = [f"{backend}{which}_s" for backend in BACKENDS for which in ("", "_first")]
    row = {key: statistics.median(row[key] for row in rows) for key in times}
    row |= {"machine": rows[0]["machine"], "script": rows[0]["script"], "runs": len(rows)}
    row["speedup"] = row["gloo_s"] / row["topo_s"]
    row["first"] = row["topo_first_s"] / row["gloo_first_s"]
    row["difference"] = max(row["difference"] for row in rows)
    row["met"] = row["difference"] <= EQUAL and row["first"] <= FIRST_BAR
    return row


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    names, scripts = ", ".join(MACHINES), ", ".join(SCRIPTS)
    add("--machines", type=list_of(MACHINES), default=MACHINES, help=f"some of {names}")
    add("--scripts", type=list_of(SCRIPTS), default=SCRIPTS, help=f"some of {scripts}")
    add("--slowest", metavar="RATE", default="50Mbit", help="of the slowest link (50Mbit)")
    add("--steps", type=int, default=26, help="of each launch (default: 26)")
    add("--seed", type=int, default=1, help="of the first run's data (default: 1)")
    add("--runs", type=int, default=1, help="of each script (default: 1)")
    add("--results", type=Path, help="JSON lines, continued by a second start")
    args = parser.parse_args()
    if args.steps <= _STEADY:
        parser.error(f"--steps {args.steps}: expected more than {_STEADY}")
    return args


if __name__ == "__main__":
    sys.exit(main())
