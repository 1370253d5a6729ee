"""Joint plans of several groups at once, and their bounds.

    python -m benchmarks joint                        100 random machines, then meshes on 3 machines
    python -m benchmarks joint --seed 7 --runs 20 --no-meshes --results joint.jsonl
    python -m benchmarks joint --runs 0

Random machines (machine_kinds.py) of at most 8 GPUs: two or three random groups make calls of
random collectives and sizes at the same time, with all other GPUs as helpers or without help.
`bound_one_way` must be the optimum of a linear program that shares no code with the planner
(single_path_lp.py), the plan must reach it, and certificates are checked. Flows stand in for trees;
where they are faster than the bound, since they allow network coding, all trees are listed (up to 6
GPUs), or the row counts as `coding`.

Meshes: allreduces of dp x tp = 2 x 4 and 4 x 2 on a DGX-1, two hosts of four GPUs with a thin link,
and eight GPUs behind two leaves with 2:1 oversubscription. Times are on paper: the joint bound,
what the joint plan reaches if only bandwidth counts and with latencies, and what plans take that
were made for each group alone: started together, and one kind of group after the other. With
--results a second start continues where the first one ended. Exit code 1 if anything is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from damage import COLLECTIVES
from harness import Results, Table, make_parser
from machine_kinds import make_machine
from place import build_boxes, build_two_hosts
from single_path_lp import find_joint_s

from topoplan.synth.extras.joint.joint_calls import JointCall, check_calls, list_mesh_calls
from topoplan.synth.extras.joint.synthesize import plan_jointly
from topoplan.synth.ir.collective import Collective
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.graph import Topology
from topoplan.topo.hardware_rule import HARDWARE
from topoplan.topo.presets import preset

# Relative difference up to which two times are equal.
_EQUAL = 1e-6
# Gap up to which a plan reaches the bound: shares are rounded.
_REACHED = 1e-5
_MAX_GPUS, _LISTED_GPUS = 8, 6
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_MIB = 1 << 20
_SIZES = (_MIB, 2 * _MIB, 16 * _MIB, 48 * _MIB)
_RANDOM = (
    ("number", "number", ">6"),
    ("kind", "kind", "<11"),
    ("gpus", "gpus", ">4"),
    ("calls", "calls", "<60"),
    ("least_ms", "LP ms", ">10.6g"),
    ("bound_ms", "bound ms", ">10.6g"),
    ("how", "", "<"),
)
_SUMMARY = (
    ("helped", "helped", "<6"),
    ("machines", "machines", ">8"),
    ("impossible", "impossible", ">10"),
    ("flows", "equal flows", ">11"),
    ("trees", "equal trees", ">11"),
    ("coding", "coding", ">6"),
    ("failed", "FAILED", ">6"),
    ("gap", "largest gap", ">11.1e"),
)
_MESHES = (
    ("machine", "machine", "<11"),
    ("mesh", "dp x tp", "<7"),
    ("sizes", "dp, tp MiB", "<10"),
    ("helpers", "helpers", "<7"),
    ("bound_ms", "bound ms", ">9.4g"),
    ("limit_ms", "plan ms", ">9.4g"),
    ("gap", "gap", ">6.1%"),
    ("predicted_ms", "predicted", ">9.4g"),
    ("together_ms", "apart, together", ">15.4g"),
    ("in_turn_ms", "apart, in turn", ">14.4g"),
    ("chunks", "chunks", ">6"),
    ("steps", "steps", ">5"),
    ("s", "s", ">5.1f"),
)


def main() -> int:
    """Do what is not in the results yet; print rows with faults, sums, and the table of meshes."""
    args = _parse_arguments()
    results = Results(args.results, ("number", "helped"))
    faults = Table(_RANDOM, as_json=args.json)
    for number, kind, topology in _list_machines(args):
        for helped in (True, False):
            if not results.has(number=number, helped=helped):
                key = {"number": number, "kind": kind, "helped": helped}
                results.add({**key, **judge_bound(topology, number, helped=helped)})
    for row in results.rows:
        if not row["met"]:
            faults.add(row)
    sums = Table(_SUMMARY, as_json=args.json)
    for helped in (True, False):
        sums.add(_summarize([row for row in results.rows if row["helped"] is helped], helped))
    meshes = Table(_MESHES, as_json=args.json)
    if args.meshes:
        for row in list_meshes():
            meshes.add(row)
    faults.end(summary=sums.rows, meshes=meshes.rows)
    met = all(row["met"] for row in (*results.rows, *meshes.rows))
    return 0 if met else 1


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="number of the first machine")
    parser.add_argument("--runs", type=int, default=100, help="random machines (default: 100)")
    parser.add_argument("--results", type=Path, help="JSON lines, continued by a second start")
    parser.add_argument(
        "--meshes", action=argparse.BooleanOptionalAction, default=True, help="plan the meshes too"
    )
    return parser.parse_args()


def _list_machines(args: argparse.Namespace) -> Iterator[tuple[int, str, Topology]]:
    number, left = args.seed, args.runs
    while left:
        kind, topology = make_machine(number)
        computes = any(d.can_copy or d.can_reduce for d in topology.devices if d.kind != "gpu")
        if 2 < len(topology.ranks) <= _MAX_GPUS and not computes:
            yield number, kind, topology
            left -= 1
        number += 1


def _draw_calls(topology: Topology, number: int) -> tuple[JointCall, ...]:
    """Return two or three calls of random groups, the same for the same machine's number."""
    chance, ranks = random.Random(f"joint {number}"), range(len(topology.ranks))
    calls = []
    for i in range(chance.randint(2, 3)):
        members = sorted(chance.sample(ranks, chance.randint(2, len(ranks))))
        name = chance.choice(COLLECTIVES)
        root = chance.choice(members) if name in _ROOTED else None
        one = Collective(name, len(members), root, members)
        calls.append(JointCall(f"kind{i}", one, chance.choice(_SIZES)))
    return check_calls(calls, topology)


def judge_bound(topology: Topology, number: int, *, helped: bool) -> dict[str, Any]:
    """Return a joint bound beside the optimum of the linear program; in `how` what is wrong."""
    calls = _draw_calls(topology, number)
    ranks = range(len(topology.ranks))
    row: dict[str, Any] = {"gpus": len(ranks), "calls": "; ".join(map(str, calls))}
    least_s = _solve(topology, calls, helped=helped, listed=False)
    try:
        plan = plan_jointly(calls, HARDWARE.on(topology), ranks if helped else ()).plan
    except InfeasibleError as error:
        faults = [] if least_s is None else [f"impossible: {error}"]
        return {**row, "impossible": True, "how": "; ".join(faults), "met": not faults}
    if least_s is None:
        return {**row, "how": "WRONG: a plan where the LP has no solution", "met": False}
    bound_s, gap = float(plan.bound_one_way.time_s), float(plan.gap)
    row |= {"least_ms": least_s * 1e3, "bound_ms": bound_s * 1e3, "gap": gap}
    faults = [f"gap {gap:.3g}"] if gap > _REACHED else []
    if plan.bound.time_s > plan.bound_one_way.time_s:
        faults.append("WRONG: the multipath bound is above the single-path bound")
    row["flows"] = abs(bound_s / least_s - 1) <= _EQUAL
    if bound_s < least_s * (1 - _EQUAL):
        faults.append(f"bound weaker than the LP by {1 - bound_s / least_s:.3%}")
    elif not row["flows"] and len(ranks) > _LISTED_GPUS:
        row["coding"] = True
    elif not row["flows"]:
        tree_s = _solve(topology, calls, helped=helped, listed=True)
        assert tree_s is not None
        row["trees"] = abs(bound_s / tree_s - 1) <= _EQUAL
        if not row["trees"]:
            faults.append(f"WRONG: all trees take {tree_s * 1e3:.6g} ms")
    return {**row, "how": "; ".join(faults), "met": not faults}


def _solve(
    topology: Topology, calls: tuple[JointCall, ...], *, helped: bool, listed: bool
) -> float | None:
    rows = [
        (c.collective.name, c.collective.root, list(c.collective.members), float(c.demand_GB))
        for c in calls
    ]
    return find_joint_s(rows, topology, helped=helped, listed=listed)


def _summarize(rows: list[dict[str, Any]], helped: bool) -> dict[str, Any]:
    def count(key: str) -> int:
        return sum(bool(row.get(key)) for row in rows)

    return {
        "helped": "yes" if helped else "no",
        "machines": len(rows),
        **{key: count(key) for key in ("impossible", "flows", "trees", "coding")},
        "failed": sum(not row["met"] for row in rows),
        "gap": max((row.get("gap", 0.0) for row in rows), default=0.0),
    }


def build_machines() -> dict[str, Topology]:
    """Return the machines of the meshes, of 8 GPUs each."""
    return {
        "dgx1": preset("dgx1"),
        "two-hosts": build_two_hosts(),
        "leaf-spine": build_boxes(8, 1, 4, leaf_GBps=100),
    }


def list_meshes() -> Iterator[dict[str, Any]]:
    """Yield the figures of each mesh on each machine, with and without helpers."""
    for name, topology in build_machines().items():
        router = HARDWARE.on(topology)
        for dp, tp in ((2, 4), (4, 2)):
            mesh = [[row * tp + i for i in range(tp)] for row in range(dp)]
            for dp_MiB, tp_MiB in ((64, 64), (256, 64)):
                wanted = [("tp", "allreduce", tp_MiB * _MIB), ("dp", "allreduce", dp_MiB * _MIB)]
                calls = check_calls(list_mesh_calls(mesh, ("dp", "tp"), wanted), topology)
                for helpers in ("rest", "none"):
                    row = {"machine": name, "mesh": f"{dp}x{tp}", "helpers": helpers}
                    row["sizes"] = f"{dp_MiB}, {tp_MiB}"
                    chosen = range(8) if helpers == "rest" else ()
                    try:
                        result = plan_jointly(calls, router, chosen)
                    except InfeasibleError:  # groups that only other GPUs connect
                        yield {**row, "met": helpers == "none"}
                        continue
                    plan, apart = result.plan, result.separate
                    yield {
                        **row,
                        "bound_ms": float(plan.bound_one_way.time_s) * 1e3,
                        "limit_ms": float(plan.limit_s) * 1e3,
                        "gap": float(plan.gap),
                        "predicted_ms": plan.time_s * 1e3,
                        "together_ms": float(apart.together_s) * 1e3,
                        "in_turn_ms": float(apart.in_turn_s) * 1e3,
                        "chunks": max(len(group.schedule.chunks) for group in plan.groups),
                        "steps": max(group.schedule.steps for group in plan.groups),
                        "s": result.seconds,
                        "met": plan.gap <= _REACHED,
                    }


if __name__ == "__main__":
    sys.exit(main())
