"""Plan random machines and judge their bounds.

    python -m benchmarks random_machines            300 machines x 8 collectives (hours on 2 cores)
    python -m benchmarks random_machines --seed 7 --runs 20 --collectives allreduce,broadcast
    python -m benchmarks random_machines --results machines.jsonl
    python -m benchmarks random_machines --files ../shared/inputs/synth/copy-only.json

Each machine (machine_kinds.py) is written as JSON and planned by the command, most of them in this
process, one plan of fifty by a process of its own. A plan must end with exit code 0, or 3 where
some GPU cannot be reached, without a traceback and without a strategy that fails; its file must
load and verify; and `bound_one_way` must be the optimum of a linear program that shares no code
with the planner (single_path_lp.py). Where switches add or copy what a collective needs there is no
such program: there the bound must only be no lower than the plan. With --results a second start
continues where the first one ended. Exit code 1 if anything is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from damage import COLLECTIVES
from harness import Results, Table, add_sample, make_parser
from machine_kinds import make_machine
from single_path_lp import find_least_s_per_GB

from topoplan.cli.synth import main as run_synth
from topoplan.synth.plan import Plan
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load

# Relative difference up to which two bounds are equal.
_EQUAL = 1e-6
# One plan of this many is made by a process of its own.
_OWN_PROCESS_EVERY = 50
_INFEASIBLE, _TRACEBACK = 3, -1
# A strategy by name may find no schedule, or none in time.
_DECLINED = (_INFEASIBLE, 4)
# Collectives that are helped by switches that copy, and by those that add.
_COPIED = ("allreduce", "allgather", "broadcast")
_ADDED = ("allreduce", "reduce-scatter", "reduce")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
# What a strategy says if its linear program fails, which is not a reason to decline.
_FAILURES = ("no optimum",)
_COLUMNS = (
    ("number", "number", ">6"),
    ("kind", "kind", "<11"),
    ("gpus", "gpus", ">4"),
    ("collective", "collective", "<14"),
    ("exit", "exit", ">4"),
    ("least", "LP GB/s", ">10.6g"),
    ("bound", "bound", ">10.6g"),
    ("gap", "gap", ">8.3%"),
    ("cpu_s", "cpu s", ">6.1f"),
    ("how", "", "<"),
)
_SUMMARY = (
    ("collective", "collective", "<14"),
    ("plans", "plans", ">6"),
    ("impossible", "impossible", ">10"),
    ("judged", "with an LP", ">10"),
    ("equal", "equal", ">6"),
    ("weak", "weak", ">5"),
    ("wrong", "WRONG", ">5"),
    ("failed", "failed", ">6"),
    ("gaps", "gap > 1e-6", ">10"),
    ("worst", "worst gap", ">9.3%"),
    ("cpu_s", "cpu s", ">7.0f"),
)


def main() -> int:
    """Plan what is not in the results yet; print rows with faults, and a line per collective."""
    args = _parse_arguments()
    results = Results(args.results, ("number", "machine", "collective"))
    table = Table(_COLUMNS, as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        for number, kind, topology in _list_machines(args):
            for collective in args.collectives:
                key = {"number": number, "machine": topology.name, "collective": collective}
                if not results.has(**key):
                    row = {**key, "kind": kind, "gpus": len(topology.ranks)}
                    results.add({**row, **judge(Path(name), topology, number, collective, args)})
    for row in results.rows:
        if not row["met"]:
            table.add(row)
    summary = Table(_SUMMARY, as_json=args.json)
    for collective in args.collectives:
        summary.add(_summarize(results.rows, collective))
    table.end(summary=summary.rows)
    return 0 if all(row["met"] for row in results.rows) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_sample(parser, 300, COLLECTIVES)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per plan")
    parser.add_argument("--strategy", default="auto", help="by name, it may decline (exit 3 or 4)")
    return parser.parse_args()


def _list_machines(args: argparse.Namespace) -> Iterator[tuple[int, str, Topology]]:
    if args.files:
        yield from ((number, "file", load(name)) for number, name in enumerate(args.files))
        return
    for number in range(args.seed, args.seed + args.runs):
        yield (number, *make_machine(number))


def judge(
    folder: Path, topology: Topology, number: int, collective: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Plan one collective; return its figures, and in `how` what is wrong with them, else ""."""
    file, output = folder / "topology.json", folder / "plan.json"
    file.write_text(json.dumps(topology.to_json()), "utf-8")
    output.unlink(missing_ok=True)
    chance = random.Random(f"{number} {collective}")
    root = chance.randrange(len(topology.ranks)) if collective in _ROOTED else None
    command = ["--topology", str(file), "--collective", collective, "--json", "-o", str(output)]
    command += ["--time-limit", str(args.time_limit), "-q", "--strategy", args.strategy]
    command += [] if root is None else ["--root", str(root)]
    started = time.process_time()
    plan = _plan_apart if chance.randrange(_OWN_PROCESS_EVERY) == 0 else _plan_here
    code, text, errors = plan(command)
    row: dict[str, Any] = {"exit": code, "root": root, "cpu_s": time.process_time() - started}
    computes = any(
        d.kind != "gpu"
        and ((d.can_copy and collective in _COPIED) or (d.can_reduce and collective in _ADDED))
        for d in topology.devices
    )
    least_s = find_least_s_per_GB(collective, topology, root)
    if least_s is not None and not computes:
        row["least"] = 1 / least_s
    faults = [line for line in errors.splitlines() if "goes on without it" in line]
    if code == 0:
        out = json.loads(text)
        faults += _read_plan(row, out, output)
        faults += [] if least_s else ["WRONG: a plan where the LP has no solution"]
    elif (least_s is not None and args.strategy == "auto") or code not in _DECLINED:
        faults.append(f"exit {code}: {errors.strip()[-600:]}")
    return {**row, "how": "; ".join(faults), "met": not faults}


def _read_plan(row: dict[str, Any], out: dict[str, Any], output: Path) -> list[str]:
    """Add the figures of a plan to its row; return what is wrong with it."""
    plan = Plan.load(output)
    plan.verify()
    row["bound"] = out["bound_one_way"]["algbw_GBps"]
    row["gap"] = float(min(map(plan.gap_of, plan.entries)))
    row["cpu_s"] = out["cpu_s"]
    row["cut_short"] = out.get("cut_short", [])
    declined = out.get("declined", {})
    faults = [f"{k}: {v}" for k, v in declined.items() if any(f in v for f in _FAILURES)]
    if row["gap"] < 0:
        faults.append(f"WRONG: the plan is {-row['gap']:.3g} faster than the bound")
    if out["bound"]["algbw_GBps"] < row["bound"]:
        faults.append("WRONG: the multipath bound is below the single-path bound")
    # A bound on algbw proves too much below the optimum, and too little above it.
    if "least" in row:
        off = row["bound"] / row["least"] - 1
        row["off"] = off
        if off > _EQUAL:
            faults.append(f"bound weaker than the LP by {off:.3%}")
        elif off < -_EQUAL:
            faults.append(f"WRONG: bound stronger than the LP by {-off:.3%}")
    return faults


def _plan_here(command: list[str]) -> tuple[int, str, str]:
    """Return exit code, standard output and errors of the command, run in this process."""
    output, errors = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(errors)
    logging.getLogger("topoplan").addHandler(handler)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = run_synth(command)
    except Exception:
        # A traceback of the command is a result of this benchmark.
        errors.write(traceback.format_exc())
        code = _TRACEBACK
    finally:
        logging.getLogger("topoplan").removeHandler(handler)
    return code, output.getvalue(), errors.getvalue()


def _plan_apart(command: list[str]) -> tuple[int, str, str]:
    """Return exit code, standard output and errors of the command as a process of its own."""
    module = [sys.executable, "-m", "topoplan.cli.synth", *command]
    ended = subprocess.run(module, capture_output=True, text=True)
    return ended.returncode, ended.stdout, ended.stderr


def _summarize(rows: list[dict[str, Any]], collective: str) -> dict[str, Any]:
    """Return the line of one collective."""
    rows = [row for row in rows if row["collective"] == collective]
    judged = [row for row in rows if "off" in row]
    gaps = [row["gap"] for row in rows if "gap" in row]
    weak = sum(row["off"] > _EQUAL for row in judged)
    wrong = sum("WRONG" in row["how"] for row in rows)
    return {
        "collective": collective,
        "plans": len(gaps),
        "impossible": sum(row["exit"] == _INFEASIBLE and row["met"] for row in rows),
        "judged": len(judged),
        "equal": sum(abs(row["off"]) <= _EQUAL for row in judged),
        "weak": weak,
        "wrong": wrong,
        "failed": sum(not row["met"] for row in rows) - weak - wrong,
        "gaps": sum(gap > _EQUAL for gap in gaps),
        "worst": max(gaps, default=None),
        "cpu_s": sum(row["cpu_s"] for row in rows),
    }


if __name__ == "__main__":
    sys.exit(main())
