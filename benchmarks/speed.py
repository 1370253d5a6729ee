"""Measure what topo-synth takes on machines of 8 to 4,096 GPUs.

    python -m benchmarks speed                      the table (some minutes on 2 cores)
    python -m benchmarks speed --runs 5 dgx-a100    medians of five runs, rows with that word
    python -m benchmarks speed --json

Each run is the command, with `--json`, and `-o` where the row limits the plan's file. `cpu_s` is
its own figure: processor time from parsed arguments to output, without the start of Python. The
bars are processor seconds, the gap, and for the largest machine memory and the file's size.
Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness import Table, make_parser

# A run that takes longer has missed its bar by far.
_LIMIT_S = 600


@dataclass(frozen=True)
class Row:
    """A command, and its bars: processor seconds, gap, GB of memory and MB of the plan's file."""

    topology: str
    strategy: str
    cpu_s: float
    gap: float
    collective: str = "allreduce"
    memory_GB: float | None = None
    file_MB: float | None = None
    front: bool = False


ROWS = (
    Row("dgx-a100:2", "packing", 0.2, 0.0),
    Row("dgx-a100:2", "auto", 0.4, 0.0),
    Row("dgx-a100:4", "packing", 0.25, 0.0),
    Row("dgx-a100:16", "packing", 1.5, 0.0),
    Row("dgx-a100:128", "packing", 8, 0.008),
    Row("dgx-a100:128", "auto", 30, 0.008),
    Row("dgx-a100:512", "packing", 120, 0.01, memory_GB=4, file_MB=20),
    Row("dgx1", "packing", 0.2, 0.0, collective="allgather", front=True),
)
_COLUMNS = (
    ("topology", "machine", "<14"),
    ("collective", "collective", "<10"),
    ("strategy", "strategy", "<8"),
    ("cpu_s", "cpu s", ">8.2f"),
    ("bar_cpu_s", "bar", ">6.2f"),
    ("synthesis_s", "wall s", ">8.2f"),
    ("gap", "gap", ">8.2%"),
    ("memory_GB", "GB", ">5.1f"),
    ("file_MB", "file MB", ">7.1f"),
    ("met", "met", ">4"),
)


def main() -> int:
    """Print the table; return 1 if a bar is missed."""
    args = _parse_arguments()
    table = Table(_COLUMNS, as_json=args.json)
    for row in ROWS:
        if all(word in f"{row.topology} {row.strategy} {row.collective}" for word in args.words):
            table.add(measure(row, args.runs))
    table.end()
    return 0 if all(row["met"] for row in table.rows) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("words", nargs="*", help="only rows that contain all of these words")
    parser.add_argument("--runs", type=int, default=3, help="runs per row (default: 3)")
    return parser.parse_args()


def measure(row: Row, runs: int) -> dict[str, Any]:
    """Return a row's medians beside its bars."""
    listed = [_run(row) for _ in range(runs)]
    found = {
        key: median(values) if (values := [run[key] for run in listed if key in run]) else None
        for key in ("cpu_s", "synthesis_s", "gap", "memory_GB", "file_MB")
    }
    bars = {"cpu_s": row.cpu_s, "gap": row.gap, "memory_GB": row.memory_GB, "file_MB": row.file_MB}
    met = all(
        (value := found[key]) is not None and value <= bar * (1 + 1e-9) + 1e-9
        for key, bar in bars.items()
        if bar is not None and not (row.front and key == "gap")
    )
    names = {"topology": row.topology, "strategy": "front" if row.front else row.strategy}
    return {**names, "collective": row.collective, "bar_cpu_s": row.cpu_s, **found, "met": met}


def _run(row: Row) -> dict[str, float]:
    """Return the figures of one run; none if the command failed or took too long."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        command = [sys.executable, "-m", "topoplan.cli.synth", "--topology", row.topology]
        command += ["--collective", row.collective, "--json"]
        command += ["--pareto"] if row.front else ["--strategy", row.strategy]
        command += ["-o", str(file)] if row.file_MB is not None else []
        try:
            ended = subprocess.run(command, capture_output=True, timeout=_LIMIT_S * 2, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{row.topology}: {error}", file=sys.stderr)
            return {}
        out = json.loads(ended.stdout)
        figures = {key: out[key] for key in ("cpu_s", "synthesis_s", "gap") if key in out}
        # The largest of all children so far: rows come in the order of their sizes.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        if file.exists():
            figures["file_MB"] = file.stat().st_size / 1e6
        return figures | {"memory_GB": peak}


if __name__ == "__main__":
    sys.exit(main())
