"""Measure joint plans on emulated machines against stock gloo.

    python -m benchmarks joint_run                     dp x tp = 2 x 4 and 4 x 2 on three machines
                                                       (about 8 minutes on 2 cores)
    python -m benchmarks joint_run --machines dgx1 --meshes 4x2 --dp 64M --helpers none

Needs root and iproute2 (see topo-emulate). All groups of both dimensions make an allreduce at the
same time; times are until the last one has ended: by what the race of the whole plan chose, and by
the stock collectives of all groups. "raced" is the fastest number of segments in that race ("plan":
those that the plan states), in which nothing is cached; "uses" is stock where that was at most 5 %
slower. "of bound" is the joint bound over the time of what is used. Exit code 1 if a result was
wrong or slower than stock.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from harness import Table, list_of, make_parser
from joint import build_machines
from wire_speed import run_text, topo

COLUMNS = [
    ("machine", "machine", "<11"),
    ("mesh", "dp x tp", "<7"),
    ("raced", "raced", ">5"),
    ("best_us", "raced us", ">10.0f"),
    ("uses", "uses", ">5"),
    ("plan_us", "us", ">10.0f"),
    ("stock_us", "stock us", ">10.0f"),
    ("ratio", "x stock", ">8.2f"),
    ("bound_fraction", "of bound", ">8.3f"),
    ("wrong", "wrong", ">5"),
]
# Of small noise between two medians of the same.
_AS_FAST = 0.97


def main() -> int:
    """Print the table; return the exit code."""
    parser = make_parser(__doc__)
    machines = build_machines()
    parser.add_argument("--machines", type=list_of(machines), default=list(machines))
    parser.add_argument("--meshes", type=list_of(("2x4", "4x2")), default=["2x4", "4x2"])
    parser.add_argument("--dp", default="4M", help="bytes of the allreduces of dp")
    parser.add_argument("--tp", default="4M", help="bytes of the allreduces of tp")
    parser.add_argument("--helpers", default="rest")
    parser.add_argument("--rate", default="50Mbit", help="of the slowest link")
    parser.add_argument("-n", default="3")
    args = parser.parse_args()
    table, is_fine = Table(COLUMNS, as_json=args.json), True
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TOPOPLAN_CACHE"] = str(Path(folder) / "cache")
        for machine in args.machines:
            path = Path(folder) / f"{machine}.json"
            path.write_text(machines[machine].dumps(), encoding="utf-8")
            for mesh in args.meshes:
                dp, tp = map(int, mesh.split("x"))
                rows = ["|".join(f"{i * tp}-{i * tp + tp - 1}" for i in range(dp))]
                rows += ["|".join(",".join(map(str, range(i, 8, tp))) for i in range(tp))]
                groups = f"tp:allreduce:{args.tp}={rows[0]} dp:allreduce:{args.dp}={rows[1]}"
                plan = str(Path(folder) / f"{machine}-{mesh}.json")
                planned = ["--groups", groups, "--helpers", args.helpers, "-o", plan]
                run_text([*topo("synth"), "allreduce", str(path), *planned])
                emulated = [*topo("emulate"), str(path), "--slowest", args.rate, "--"]
                ran = ["-n", args.n, "-w", "2", "--json"]
                answer = json.loads(run_text([*emulated, *topo("run"), plan, *ran]))
                wrong = sum(group["wrong"] for group in answer["groups"])
                is_fine &= not wrong and answer["ratio"] >= _AS_FAST
                raced = next(label for label in answer["raced_us"] if label != "stock")
                is_stock = {group["schedule"] for group in answer["groups"]} == {"stock"}
                row = {"machine": machine, "mesh": mesh, "wrong": wrong, "raced": raced}
                row["best_us"] = answer["raced_us"][raced]
                table.add({**answer, **row, "uses": "stock" if is_stock else "plan"})
    table.end()
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
