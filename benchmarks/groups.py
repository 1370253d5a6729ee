"""Counts what a process group of two ranks costs: python benchmarks/groups.py

    python benchmarks/groups.py                 20 groups each, and how many fit 1,024 descriptors
    python benchmarks/groups.py --modes topo --groups 50 --json

Descriptors, threads, seconds and KiB (resident) per group, of the rank with more: before its first
call, and after a plan is in use (gloo: after calls of its own). Seconds of first calls include all
that they start. `fit` is how many groups, each used, two ranks make under `ulimit -n 1024`; those
are rows of a launch of their own, which ends by the first group that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness import Table, list_of, make_parser, run_ranks, start_ranks, wait_for_ranks

RANKS = 2
MODES = {
    "gloo": {},
    "race": {"TOPOPLAN_PLANS": "full:2"},
    "plan": {
        "TOPOPLAN_PLANS": "full:2",
        "TOPOPLAN_CHOOSE": "plan",
        "TOPOPLAN_LEAST_BYTES": "0",
    },
}
FIGURES = ("descriptors", "threads", "s", "KiB")
COLUMNS = [
    ("mode", "mode", ">5"),
    ("moment", "moment", ">10"),
    *((name, name, ">11.3f") for name in FIGURES),
]
# 16 KiB: a size that goes through plans by default.
_NUMEL = 4096
# Of each group, before what it has in use is counted.
_CALLS = 8
_LIMIT_S = 300.0
_FIT_LIMIT_S = 600.0
_TIMEOUT = timedelta(seconds=60)


def main() -> None:
    """Print the table, or the rows as JSON; or be a rank."""
    args = _arguments()
    if args.worker:
        work(args)
    table = Table(COLUMNS, as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        for mode in args.modes:
            for row in [*measure(args, mode, Path(name)), measure_fit(args, mode, Path(name))]:
                table.add(row, format_fit(row) if row["moment"] == "fit" else "")
    table.end()


def measure(args: argparse.Namespace, mode: str, folder: Path) -> list[dict[str, Any]]:
    """Return what a group costs when it is made, and when it is in use: medians over the runs."""
    arguments = ["--worker", "--modes", mode, "--groups", str(args.groups)]
    variables = {**MODES[mode], "TOPOPLAN_CACHE": str(folder / "cache")}
    runs = []
    for _ in range(args.runs):
        lines = run_ranks(__file__, arguments, RANKS, _LIMIT_S, variables)
        runs.append([json.loads(line) for line in lines])
    rows = []
    for moment in ("before use", "in use"):
        row: dict[str, Any] = {"mode": mode, "moment": moment}
        for figure in FIGURES:
            most = [max(rank[moment][figure] for rank in run) for run in runs]
            row[figure] = statistics.median(most)
        rows.append(row)
    return rows


def measure_fit(args: argparse.Namespace, mode: str, folder: Path) -> dict[str, Any]:
    """Return how many groups, each used, fit the descriptors, and what the next one said."""
    arguments = ["--worker", "--modes", mode, "--groups", str(args.most)]
    arguments += ["--descriptors", str(args.descriptors)]
    variables = {**MODES[mode], "TOPOPLAN_CACHE": str(folder / "cache")}
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        processes = start_ranks(__file__, arguments, RANKS, own, variables)
        codes = wait_for_ranks(processes, _FIT_LIMIT_S)
        lines = [(own / f"{rank}.out").read_text("utf-8").split("\n") for rank in range(RANKS)]
        files = sorted(own.glob("*.err"))
        errors = "\n".join(file.read_text("utf-8", "replace") for file in files)
    fit = min(sum(line == "made" for line in of_rank) for of_rank in lines)
    # A rank out of descriptors says so; the other one only that it lost its peer.
    said = sorted(
        (line for line in errors.splitlines() if "Error" in line or "open files" in line),
        key=lambda line: "open files" in line,
    )
    why = (said or errors.strip().splitlines() or ["it hung"])[-1] if any(codes) else ""
    return {"mode": mode, "moment": "fit", "fit": fit, "most": args.most, "why": why}


def format_fit(row: dict[str, Any]) -> str:
    """Format how many groups fit as text."""
    failed = f"then {row['why'][:120]}" if row["why"] else "none failed"
    return f"{row['fit']} of at most {row['most']}; {failed}"


def work(args: argparse.Namespace) -> None:
    """Be a rank: make groups and use them; print what each costs, or that it was made."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    mode = args.modes[0]
    if mode != "gloo":
        import topoplan.runtime.register  # noqa: F401  (as torch does)
    if args.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (args.descriptors, args.descriptors))
    dist.init_process_group("gloo" if mode == "gloo" else "topo", timeout=_TIMEOUT)
    tensor = torch.ones(_NUMEL)
    use(tensor, dist.group.WORLD)  # whatever the process has once, the first group brings
    if args.descriptors:
        for _ in range(args.groups):
            use(tensor, dist.new_group())
            print("made", flush=True)
        os._exit(0)
    start = count()
    groups = [dist.new_group() for _ in range(args.groups)]
    made = count()
    for group in groups:
        use(tensor, group)
    used = count()
    figures = {"before use": subtract(made, start), "in use": subtract(used, start)}
    per_group = {k: {f: n / args.groups for f, n in v.items()} for k, v in figures.items()}
    print(json.dumps(per_group), flush=True)
    dist.barrier()
    os._exit(0)  # what an interpreter's end makes of groups is not measured here


def use(tensor: Any, group: Any) -> None:
    """Make calls on a group, so that its plan, or gloo's algorithm, is in use."""
    import torch.distributed as dist

    for _ in range(_CALLS):
        dist.all_reduce(tensor.fill_(1), group=group)
        assert float(tensor[0]) == RANKS


def count() -> dict[str, float]:
    """Return what this process has now, and the time."""
    statm = Path("/proc/self/statm").read_text(encoding="ascii")
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "s": time.monotonic(),
        "KiB": int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024,
    }


def subtract(later: dict[str, float], earlier: dict[str, float]) -> dict[str, float]:
    """Return by how much each figure has grown."""
    return {name: later[name] - earlier[name] for name in later}


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--modes", type=list_of(MODES), default=list(MODES), help=f"some of {', '.join(MODES)}")
    add("--groups", type=int, default=20, help="of which the mean is taken (default: 20)")
    add("--most", type=int, default=250, help="groups tried under the limit (default: 250)")
    add("--runs", type=int, default=1, help="launches of each mode (default: 1)")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    add("--descriptors", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.worker:
        args.descriptors = 1024
    return args


if __name__ == "__main__":
    main()
