"""Bounds and plans of groups with helpers.

    python -m benchmarks group_bounds                 200 random machines, then plans of 4 machines
    python -m benchmarks group_bounds --seed 7 --runs 20 --machines "" --results groups.jsonl
    python -m benchmarks group_bounds --runs 0 --machines mi300x,dgx1

Random machines (machine_kinds.py): a random group of each, with all or some of the other GPUs as
helpers. `bound_one_way` must be the optimum of a linear program that shares no code with the
planner (single_path_lp.py). Flows prove it for path collectives; for trees they allow network
coding, and where they are faster than the bound, all trees are listed (up to 6 GPUs) or the row is
counted as `coding`. `bound_alone` must be the optimum of the machine of the members alone.

Plans: 2 to 7 of 8 GPUs, the first ones and random ones, of every collective. The gap is that of the
largest sizes to the bound with help, at most .03; a plan takes at most 60 s. With --results a
second start continues where the first one ended. Exit code 1 if anything is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from damage import COLLECTIVES
from harness import Results, Table, add_sample, make_parser
from machine_kinds import make_machine
from single_path_lp import find_least_s_per_GB, find_tree_s_per_GB

import topoplan
from topoplan.synth.bounds.certificate import Bound, check_bound
from topoplan.synth.bounds.group_bounds import SubMachine, find_group_bounds
from topoplan.synth.groups.ranks import group_on
from topoplan.synth.plan import Plan
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.graph import Topology
from topoplan.topo.hardware_rule import HARDWARE

MACHINES = "mi300x,dgx-a100,dgx1,pcie-2socket"
# Relative difference up to which two bounds are equal.
_EQUAL = 1e-6
_MAX_GAP, _MAX_S = 0.03, 60.0
_LISTED_GPUS = 6
# Members of a random group: those for which prices of trees are sought.
_MAX_MEMBERS = 7
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_BY_PATHS = ("alltoall", "gather", "scatter")
_BOUNDS = (
    ("number", "number", ">6"),
    ("kind", "kind", "<11"),
    ("gpus", "gpus", ">4"),
    ("group", "group", "<18"),
    ("collective", "collective", "<14"),
    ("least", "LP GB/s", ">10.6g"),
    ("bound", "bound", ">10.6g"),
    ("how", "", "<"),
)
_SUMMARY = (
    ("collective", "collective", "<14"),
    ("bounds", "bounds", ">6"),
    ("impossible", "impossible", ">10"),
    ("flows", "equal flows", ">11"),
    ("trees", "equal trees", ">11"),
    ("coding", "coding", ">6"),
    ("alone", "equal alone", ">11"),
    ("failed", "FAILED", ">6"),
    ("cpu_s", "cpu s", ">7.0f"),
)
_PLANS = (
    ("machine", "machine", "<13"),
    ("group", "group", "<16"),
    ("collective", "collective", "<14"),
    ("alone", "alone GB/s", ">10.5g"),
    ("bound", "with help", ">9.5g"),
    ("ratio", "ratio", ">5.3g"),
    ("gap", "gap", ">7.2%"),
    ("chunks", "chunks", ">6"),
    ("steps", "steps", ">5"),
    ("from_bytes", "help from", ">10"),
    ("s", "s", ">5.1f"),
    ("how", "", "<"),
)


def main() -> int:
    """Do what is not in the results yet; print rows with faults, sums, and the table of plans."""
    args = _parse_arguments()
    results = Results(args.results, ("machine", "group", "collective"))
    faults = Table(_BOUNDS, as_json=args.json)
    for key, topology, group, helpers in _list_groups(args):
        for collective in args.collectives:
            fields = {**key, "group": ",".join(map(str, group)), "collective": collective}
            if not results.has(**fields):
                row = {**fields, "gpus": len(topology.ranks)}
                results.add({**row, **judge_bounds(topology, collective, group, helpers)})
    judged = [row for row in results.rows if "kind" in row]
    for row in judged:
        if not row["met"]:
            faults.add(row)
    sums = Table(_SUMMARY, as_json=args.json)
    for collective in args.collectives:
        sums.add(_summarize(judged, collective))
    plans = Table(_PLANS, as_json=args.json)
    for machine, group in _list_known(args):
        for collective in args.collectives:
            fields = {"machine": machine, "group": ",".join(map(str, group))}
            fields |= {"collective": collective}
            if not results.has(**fields):
                results.add({**fields, **judge_plan(machine, collective, group)})
            plans.add(next(r for r in results.rows if all(r[k] == fields[k] for k in fields)))
    faults.end(summary=sums.rows, plans=plans.rows)
    return 0 if all(row["met"] for row in results.rows) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_sample(parser, 200, COLLECTIVES, files=False)
    parser.add_argument("--machines", default=MACHINES, help=f"of plans (default: {MACHINES})")
    return parser.parse_args()


def _list_groups(
    args: argparse.Namespace,
) -> Iterator[tuple[dict[str, Any], Topology, list[int], list[int]]]:
    """Yield the key of each random machine that has a part, with its group and helpers."""
    number, left = args.seed, args.runs
    while left:
        kind, topology = make_machine(number)
        chance, n = random.Random(f"group {number}"), len(topology.ranks)
        computes = any(d.can_copy or d.can_reduce for d in topology.devices if d.kind != "gpu")
        if n > 2 and not computes:
            order = chance.sample(range(n), n)
            size = chance.randint(2, min(n - 1, _MAX_MEMBERS))
            others = order[size:]
            helpers = others if chance.random() < 2 / 3 else others[: chance.randint(1, n - size)]
            key = {"number": number, "kind": kind, "machine": f"{number} {topology.name}"}
            yield key, topology, sorted(order[:size]), sorted(helpers)
            left -= 1
        number += 1


def _list_known(args: argparse.Namespace) -> Iterator[tuple[str, list[int]]]:
    """Yield the groups of known machines: the first ranks, and random ones."""
    for machine in filter(None, args.machines.split(",")):
        chance = random.Random(f"{args.seed} {machine}")
        for size in range(2, 8):
            first = list(range(size))
            yield machine, first
            other = sorted(chance.sample(range(8), size))
            if other != first:
                yield machine, other


def judge_bounds(
    topology: Topology, name: str, group: list[int], helpers: list[int]
) -> dict[str, Any]:
    """Return the bounds of a group beside those of linear programs, and in `how` what is wrong."""
    started = time.process_time()
    router = HARDWARE.on(topology)
    root = group[-1] if name in _ROOTED else None
    collective = group_on(name, topology, group, root)
    ranks = sorted((*group, *helpers))
    row: dict[str, Any] = {"helpers": helpers, "root": root}
    least_s = _solve(topology, ranks, name, group, root)
    alone_s = _solve(topology, group, name, group, root)
    try:
        bounds = find_group_bounds(collective, helpers, router)
    except InfeasibleError as error:
        faults = [] if least_s is None else [f"impossible: {error}"]
        return {**row, "impossible": True, "how": "; ".join(faults), "met": not faults}
    faults = [] if least_s else ["WRONG: a bound where the LP has no solution"]
    allowed = bounds.allowed
    machine = SubMachine.of(collective, router, ranks)
    check_bound(allowed.single_path, machine.collective, machine.router.topology, machine.router)
    row["bound"] = float(allowed.single_path.algbw_GBps)
    if allowed.multipath.s_per_GB > allowed.single_path.s_per_GB:
        faults.append("WRONG: the multipath bound is below the single-path bound")
    if least_s:
        row["least"], row["flows"] = 1 / least_s, _is_equal(allowed.single_path, least_s)
        if not row["flows"]:
            faults += _judge_trees(row, topology, ranks, name, group, root)
    row["alone"] = None
    if (alone_s is None) != (bounds.alone is None):
        faults.append(f"WRONG: alone {bounds.alone}, by the LP {alone_s}")
    elif alone_s is not None and bounds.alone is not None:
        row["alone"] = _is_equal(bounds.alone, alone_s)
        if not row["alone"]:
            faults.append(f"alone {bounds.alone}, by the LP {1 / alone_s:.6g}")
        if bounds.alone.s_per_GB < allowed.single_path.s_per_GB * (1 - _EQUAL):
            faults.append("WRONG: help makes the bound lower")
    row["cpu_s"] = time.process_time() - started
    return {**row, "how": "; ".join(faults), "met": not faults}


def _judge_trees(
    row: dict[str, Any],
    topology: Topology,
    ranks: list[int],
    name: str,
    group: list[int],
    root: int | None,
) -> list[str]:
    """Return what is wrong with a bound that is not that of flows; set `trees` or `coding`."""
    if row["bound"] > row["least"] * (1 + _EQUAL):
        return [f"bound weaker than the LP by {row['bound'] / row['least'] - 1:.3%}"]
    if name in _BY_PATHS:
        return [f"WRONG: bound stronger than the LP by {1 - row['bound'] / row['least']:.3%}"]
    if len(ranks) > _LISTED_GPUS:
        row["coding"] = True
        return []
    tree_s = _solve(topology, ranks, name, group, root, trees=True)
    assert tree_s is not None
    row["trees"] = abs(row["bound"] * tree_s - 1) <= _EQUAL
    return [] if row["trees"] else [f"WRONG: {row['bound']:.6g}, all trees {1 / tree_s:.6g}"]


def _solve(
    topology: Topology,
    ranks: list[int],
    name: str,
    group: list[int],
    root: int | None,
    *,
    trees: bool = False,
) -> float | None:
    """Return the optimum of a group's linear program on the machine of the GPUs `ranks` alone."""
    gone = {gpu for rank, gpu in enumerate(topology.ranks) if rank not in ranks}
    machine = replace(
        topology,
        devices=tuple(d for d in topology.devices if d.id not in gone),
        links=tuple(x for x in topology.links if not gone & {x.src, x.dst}),
    )
    members = [ranks.index(member) for member in group]
    solve = find_tree_s_per_GB if trees else find_least_s_per_GB
    return solve(name, machine, None if root is None else ranks.index(root), members)


def _is_equal(bound: Bound, least_s: float) -> bool:
    return abs(float(bound.s_per_GB) / least_s - 1) <= _EQUAL


def judge_plan(machine: str, name: Any, group: list[int]) -> dict[str, Any]:
    """Return the figures of a group's plan on a known machine, and in `how` what is wrong."""
    started = time.monotonic()
    root = group[-1] if name in _ROOTED else None
    plan = topoplan.synthesize(name, machine, group=group, root=root)
    seconds = time.monotonic() - started
    plan.verify()
    entry = min(plan.entries, key=plan.gap_of)
    helped, alone = plan.bound_one_way.algbw_GBps, plan.bound_alone
    gap = float(plan.gap_of(entry))
    faults = [f"gap above {_MAX_GAP}"] if gap > _MAX_GAP else []
    faults += [f"over {_MAX_S:g} s"] if seconds > _MAX_S else []
    return {
        "alone": None if alone is None else float(alone.algbw_GBps),
        "bound": float(helped),
        "ratio": None if alone is None else float(helped / alone.algbw_GBps),
        "gap": gap,
        "chunks": len(entry.schedule.chunks),
        "steps": entry.schedule.steps,
        "from_bytes": _find_help(plan),
        "s": seconds,
        "how": "; ".join(faults),
        "met": not faults,
    }


def _find_help(plan: Plan) -> int | None:
    """Return the least size in bytes at which a plan uses helpers."""
    return min((e.min_bytes for e in plan.entries if e.schedule.helpers), default=None)


def _summarize(rows: list[dict[str, Any]], collective: str) -> dict[str, Any]:
    """Return the line of one collective."""
    rows = [row for row in rows if row["collective"] == collective]
    return {
        "collective": collective,
        "bounds": sum("bound" in row for row in rows),
        "impossible": sum(row.get("impossible", False) and row["met"] for row in rows),
        **{
            key: sum(bool(row.get(key)) for row in rows)
            for key in ("flows", "trees", "coding", "alone")
        },
        "failed": sum(not row["met"] for row in rows),
        "cpu_s": sum(row.get("cpu_s", 0.0) for row in rows),
    }


if __name__ == "__main__":
    sys.exit(main())
