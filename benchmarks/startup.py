"""What an installation without torch weighs, and how long each command takes to show its help.

    python -m benchmarks startup                  pip installs the checkout in a fresh environment
    python -m benchmarks startup --installed DIR  an environment that is there already
    python -m benchmarks startup --runs 21        more runs of each command

Sizes are of all files of the environment, in MB (1e6 bytes). pip also compiles every module to
bytecode, which uv and `pip install --no-compile` leave to the first import; it has a row of its own
and is not counted against the bar. Times are processor seconds in user mode, the median of the
runs; a first run, which may compile, is not counted. Exit code 1 where a figure is above its bar.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from harness import Table, make_parser

ROOT = Path(__file__).resolve().parents[1]
# Bars of issue 33: without torch's three quarters of a GB, and no wait that a person notices.
MOST_MB = 350.0
MOST_HELP_S = 0.1
_INSTALL_TIMEOUT_S = 900.0  # a slow package index
COLUMNS = [
    ("what", "what", "<30"),
    ("figure", "figure", ">8.3f"),
    ("unit", "unit", "<6"),
    ("most", "at most", ">8.3f"),
    ("fits", "fits", "<4"),
]


def main() -> int:
    """Measure, print the table and return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--installed", type=Path, metavar="DIR", help="an environment to measure")
    parser.add_argument("--runs", type=int, default=11, help="of each command (default 11)")
    args = parser.parse_args()
    table = Table(COLUMNS, as_json=args.json)
    with tempfile.TemporaryDirectory(prefix="topoplan-startup-") as name:
        folder = args.installed or make_environment(Path(name) / "venv")
        bytecode, rest = measure_sizes_MB(folder)
        add(table, "environment without bytecode", rest, "MB", MOST_MB)
        add(table, "bytecode", bytecode, "MB")
        for program in sorted((folder / "bin").glob("topo*")):
            figure = measure_help_s(program, args.runs)
            add(table, f"{program.name} --help", figure, "user s", MOST_HELP_S)
    table.end()
    return int(not all(row.get("fits", True) for row in table.rows))


def add(table: Table, what: str, figure: float, unit: str, most: float | None = None) -> None:
    """Add a row, with its bar where it has one."""
    row = {"what": what, "figure": figure, "unit": unit}
    table.add(row if most is None else {**row, "most": most, "fits": figure <= most})


def make_environment(folder: Path) -> Path:
    """Return a fresh environment with the checkout and what it requires.

    pip builds in a copy, as it would leave its files in the checkout.
    """
    source = folder.with_name("source")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    venv.create(folder, with_pip=True, symlinks=True)
    command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", str(source)]
    subprocess.run(command, check=True, timeout=_INSTALL_TIMEOUT_S)
    return folder


def measure_sizes_MB(folder: Path) -> tuple[float, float]:
    """Return the bytes of bytecode below a folder and those of all other files, in MB."""
    sizes = {True: 0, False: 0}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            sizes[path.suffix == ".pyc"] += path.stat().st_size
    return sizes[True] / 1e6, sizes[False] / 1e6


def measure_help_s(program: Path, runs: int) -> float:
    """Return the median of the seconds in user mode of `program --help`; the first is left out."""
    return statistics.median([_run_help_s(program) for _ in range(runs + 1)][1:])


def _run_help_s(program: Path) -> float:
    with subprocess.Popen([program, "--help"], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{program} --help ended with exit code {process.returncode}")
    return usage.ru_utime


if __name__ == "__main__":
    sys.exit(main())
