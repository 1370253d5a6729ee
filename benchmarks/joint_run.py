"""Measures joint plans on emulated machines against stock gloo: python benchmarks/joint_run.py

    python benchmarks/joint_run.py                     dp x tp = 2 x 4 and 4 x 2 on three machines
                                                       (about 6 minutes on 2 cores)
    python benchmarks/joint_run.py --machines dgx1 --meshes 4x2 --dp 64M --helpers none

Needs root and iproute2 (see topo-emulate). All groups of both dimensions make an allreduce at the
same time; times are until the last one has ended: by the joint plan, and by the
stock collectives of all groups. "of bound" is the joint bound over the
plan's time. Exit code 1 if a result was wrong or the plan slower than stock.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from harness import Table, list_of, make_parser
from joint import build_machines
from wire_speed import run_text, topo

COLUMNS = [
    ("machine", "machine", "<11"),
    ("mesh", "dp x tp", "<7"),
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
    parser.add_argument("--dp", default="16M", help="bytes of the allreduces of dp")
    parser.add_argument("--tp", default="8M", help="bytes of the allreduces of tp")
    parser.add_argument("--helpers", default="rest")
    parser.add_argument("--rate", default="50Mbit", help="of the slowest link")
    parser.add_argument("-n", default="3")
    args = parser.parse_args()
    table, is_fine = Table(COLUMNS, as_json=args.json), True
    with tempfile.TemporaryDirectory() as folder:
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
                table.add({**answer, "machine": machine, "mesh": mesh, "wrong": wrong})
    table.end()
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
