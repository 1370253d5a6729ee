"""Measure throughput-optimal synthesis on known machines (gap, seconds, memory).

    python -m benchmarks throughput                      the whole table (a few minutes on 2 cores)
    python -m benchmarks throughput dgx1 mesh:8x8        only rows whose topology is named
    python -m benchmarks throughput --json               the same as JSON lines

Each row is synthesized in a process of its own with the strategy packing, schedule, verification
and costs included; `seconds` leaves out the start of Python. "equal shards" is the best that
reduce-scatter followed by allgather can do (the two cut bounds one after the other), for allreduce.
Recorded machines are taken from ../shared/machines where present.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

from harness import make_parser

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "machines" / "nccl_xml"
SECOND_HALF = tuple(range(8, 16))
UNEVEN = {
    "format": "topoplan-topology",
    "version": 1,
    "name": "switch, one slow",
    "devices": [*({"id": f"gpu{i}"} for i in range(8)), {"id": "switch0", "kind": "switch"}],
    "links": [
        {
            "src": f"gpu{i}",
            "dst": "switch0",
            "bandwidth_GBps": 1 if i == 7 else 2,
            "bidirectional": True,
        }
        for i in range(8)
    ],
}

ROWS: list[dict[str, object]] = [
    *(
        {"topology": t}
        for t in ("dgx1", "mesh:3x3", "mesh:4x4", "mesh:5x5", "mesh:8x8", "path:8", "star:5")
    ),
    {"topology": "switch, one slow"},
    {"topology": "pcie-2socket"},
    {"topology": "pcie-2socket", "in_network": True},
    *({"topology": f"dgx-a100:{n}"} for n in (1, 2, 4, 16, 128)),
    {"topology": "rccl/topo_16p1h.xml"},
    {"topology": "rccl/topo_16p1h.xml", "without": SECOND_HALF},
    {"topology": "rccl/topo_16p1h.xml", "without": tuple(range(1, 16, 2))},
    {"topology": "rccl/topo_16p1h.xml", "without": (1, 2, 4, 7, 9, 10, 12, 15)},
    {"topology": "mi250"},
    {"topology": "mi250:2", "without": tuple(r + 16 * box for box in (0, 1) for r in SECOND_HALF)},
    {"topology": "torus:32x32", "collective": "allgather"},
    {"topology": "dgx-a100:16", "max_trees": 16, "max_depth": 10},
    {"topology": "mesh:8x8", "epsilon": "0.05"},
    {"topology": "mesh:8x8", "max_depth": 8},
    {"topology": "torus:8x8", "collective": "alltoall"},
    {"topology": "mesh:8x8", "collective": "allgather"},
    {"topology": "mesh:8x8", "collective": "broadcast"},
    {"topology": "torus:16x16", "collective": "allgather", "strategy": "greedy"},
    *({"topology": t, "bound_only": True} for t in ("dgx-a100:128", "torus:32x32", "mesh:32x32")),
]


def measure(row: dict[str, object]) -> dict[str, object]:
    from dataclasses import replace

    from planned import synthesize

    from topoplan.synth.bounds.multipath import bound
    from topoplan.synth.ir.collective import collective_on
    from topoplan.synth.numeric.effort import Effort
    from topoplan.synth.request import TreeLimits
    from topoplan.topo.derived.degrade import Change, degrade
    from topoplan.topo.graph import Topology
    from topoplan.topo.loader.resolve import resolve

    name = str(row["topology"])
    if name == UNEVEN["name"]:
        topology = Topology.from_json(UNEVEN)
    else:
        topology = resolve(str(RECORDED / name) if name.endswith(".xml") else name)
    if row.get("without"):
        topology = degrade(topology, Change(without_ranks=tuple(row["without"])))  # type: ignore[arg-type]
    if row.get("in_network"):
        capable = (
            d if d.kind == "gpu" else replace(d, can_reduce=True, can_copy=True)
            for d in topology.devices
        )
        topology = replace(topology, devices=tuple(capable))
    collective = collective_on(str(row.get("collective", "allreduce")), topology)
    started = time.monotonic()
    out: dict[str, object] = dict(row) | {"ranks": collective.ranks, "collective": collective.name}
    if row.get("bound_only"):
        best_bound = bound(collective, topology, Effort(300.0))
    else:
        epsilon = Fraction(str(row["epsilon"])) if row.get("epsilon") else None
        limits = TreeLimits(epsilon, row.get("max_trees"), row.get("max_depth"))  # type: ignore[arg-type]
        result = synthesize(
            collective, topology, str(row.get("strategy", "packing")), 300, limits=limits
        )
        best_bound = result.plan.bound_one_way
        best = min(
            result.plan.entries, key=lambda e: (result.plan.gap_of(e), e.schedule.trees or 0)
        )
        gap = result.plan.gap_of(best)
        out |= {
            "plan_GBps": float(best_bound.algbw_GBps * (1 - gap)),
            "gap": float(gap),
            "trees": best.schedule.trees,
            "depth": best.schedule.depth,
            "forests": result.table,
        }
    out |= {
        "bound_GBps": float(best_bound.algbw_GBps),
        "bound": str(best_bound.algbw_GBps),
        "seconds": time.monotonic() - started,
    }
    out["peak_MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if collective.name == "allreduce" and collective.ranks <= 256:
        halves = (
            bound(collective_on(half, topology), topology).s_per_GB
            for half in ("allgather", "reduce-scatter")
        )
        out["equal_shards_GBps"] = float(1 / sum(halves))
    return out


def format_row(out: dict[str, object]) -> str:
    asked = [
        f"--{key.replace('_', '-')} {out[key]}"
        for key in ("epsilon", "max_trees", "max_depth")
        if out.get(key)
    ]
    asked += ["in-network"] * bool(out.get("in_network")) + ["bound only"] * bool(
        out.get("bound_only")
    )
    asked += [f"without {len(out['without'])} ranks"] if out.get("without") else []  # type: ignore[arg-type]
    name = f"{out['topology']} {' '.join(asked)}".strip()
    gap = out.get("gap")
    cells = [
        f"{name:<46.46}",
        f"{out['ranks']:>5}",
        f"{out['collective']:<10}",
        f"{out['bound_GBps']:>9.5g}",
        f"{out['plan_GBps']:>9.5g}" if "plan_GBps" in out else " " * 9,
        " " * 8 if gap is None else f"{'0':>8}" if abs(gap) <= 1e-6 else f"{gap:>8.2%}",  # type: ignore[arg-type]
        f"{out['equal_shards_GBps']:>8.4g}" if "equal_shards_GBps" in out else " " * 8,
        f"{out.get('trees') or '':>6}",
        f"{out.get('depth') or '':>6}",
        f"{out['seconds']:>8.2f}",
        f"{out['peak_MB']:>6.0f}",
    ]
    return " ".join(cells)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("topologies", nargs="*")
    parser.add_argument(
        "--forests", action="store_true", help="also print all forests met on the way"
    )
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(json.loads(args.row))))
        return 0
    if not args.json:
        print(
            f"{'topology':<46} ranks collective     bound      plan      gap   equal  trees  "
            "depth  seconds     MB"
        )
        print(f"{'':<46}                       GB/s      GB/s            shards")
    for row in ROWS:
        if args.topologies and row["topology"] not in args.topologies:
            continue
        if (
            str(row["topology"]).endswith(".xml")
            and not (RECORDED / str(row["topology"])).is_file()
        ):
            print(f"{row['topology']}: recorded machine not here, left out", file=sys.stderr)
            continue
        command = [sys.executable, __file__, "--row", json.dumps(row)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        out = json.loads(done.stdout)
        print(json.dumps(out) if args.json else format_row(out), flush=True)
        if args.forests and not args.json:
            for forest in out.get("forests", []):
                print(
                    f"    {forest['trees']} trees, {forest['depth']} deep, gap "
                    f"{forest['gap']:.2%}: {forest['how']}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
