"""Plans for demands against their bounds.

    python -m benchmarks reshard                      200 random demands, named machines, 1,024 GPUs
    python -m benchmarks reshard --seed 7 --runs 20 --parts bounds --results reshard.jsonl
    python -m benchmarks reshard --parts machines,large

bounds: random pieces, with one to three holders and receivers each, on random machines
(machine_kinds.py) of at most 8 GPUs; every other machine has unicast pieces only. `bound_one_way`
must be the optimum of a program of flows over the hardware's routes, one flow for each piece and
receiver, that shares no code with the planner; and a schedule must reach the bound. Where a piece
goes to several ranks, flows may be faster than any trees, since they allow network coding: such
rows count as `coding` if a schedule reaches the bound, which proves it to be the optimum of trees.

machines: what plans reach if only bandwidth counts, as a share of the bound (.95 is asked for), and
as many times what an alltoall padded to the largest piece reaches.

large: 1,024 GPUs in 128 boxes: the seconds for a plan, of the clock, and its gap (60 s and .05 are
asked for). With --results a second start continues. Exit code 1 if anything is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from harness import Results, Table, list_of, make_parser
from machine_kinds import make_machine
from place import build_two_hosts
from planned import synthesize
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from topoplan.synth.cost.affine import bandwidth_s_per_GB
from topoplan.synth.extras.demands.reading import from_matrix
from topoplan.synth.ir.demands import Demand, Demands
from topoplan.synth.plan import Plan
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

PARTS = ("bounds", "machines", "large")
# Relative difference up to which two times are equal, and gap up to which a schedule reaches the
# bound: shares are rounded.
_EQUAL, _REACHED = 1e-6, 1e-5
_MAX_GPUS = 8
# What is asked for: shares of the bound on paper, and seconds and gap for 1,024 GPUs.
_SHARE, _LARGE_S, _LARGE_GAP = 0.95, 60.0, 0.05
_RANDOM = (
    ("number", "number", ">6"),
    ("kind", "kind", "<11"),
    ("gpus", "gpus", ">4"),
    ("pieces", "pieces", "<60"),
    ("flow_s", "LP s/GB", ">10.6g"),
    ("bound_s", "bound s/GB", ">10.6g"),
    ("how", "", "<"),
)
_SUMMARY = (
    ("demands", "demands", ">7"),
    ("impossible", "impossible", ">10"),
    ("equal", "equal", ">5"),
    ("coding", "coding", ">6"),
    ("failed", "FAILED", ">6"),
    ("gap", "largest gap", ">11.1e"),
)
_MACHINES = (
    ("case", "case", "<34"),
    ("alone", "alone GB/s", ">10.5g"),
    ("bound", "bound GB/s", ">10.5g"),
    ("share", "plan/bound", ">10.4f"),
    ("predicted", "predicted/bound", ">15.3f"),
    ("padded", "x padded", ">8.2f"),
    ("helpers", "helpers", ">7"),
    ("s", "s", ">5.1f"),
)
_LARGE = (
    ("case", "case", "<34"),
    ("pieces", "pieces", ">8"),
    ("bound", "bound GB/s", ">10.5g"),
    ("gap", "gap", ">7.4f"),
    ("steps", "steps", ">5"),
    ("transfers", "transfers", ">9"),
    ("s", "s", ">6.1f"),
)


def main() -> int:
    """Do what is not in the results yet, and print the tables of the parts."""
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="number of the first machine")
    parser.add_argument("--runs", type=int, default=200, help="random demands (default: 200)")
    parser.add_argument("--results", type=Path, help="JSON lines, continued by a second start")
    parser.add_argument("--parts", type=list_of(PARTS), default=list(PARTS), help="some of them")
    args = parser.parse_args()
    results = Results(args.results, ("part", "case"))
    tables: dict[str, list[dict[str, Any]]] = {}
    for part, columns, judge, cases in (
        ("bounds", _RANDOM, judge_bound, _list_numbers(args)),
        ("machines", _MACHINES, judge_machine, iter(_CASES)),
        ("large", _LARGE, judge_large, iter(_LARGE_CASES)),
    ):
        if part not in args.parts:
            continue
        table = Table(columns, as_json=args.json)
        for case in cases:
            if not results.has(part=part, case=case):
                results.add({"part": part, "case": case, **judge(case)})
            row = next(r for r in results.rows if (r["part"], r["case"]) == (part, case))
            if part != "bounds" or not row["met"]:
                table.add(row, "" if row["met"] else "MISSED")
        tables[part] = [row for row in results.rows if row["part"] == part]
    if "bounds" in tables:
        Table(_SUMMARY, as_json=args.json).add(_summarize(tables["bounds"]))
    Table((), as_json=args.json).end(**tables)
    return 0 if all(row["met"] for rows in tables.values() for row in rows) else 1


def _list_numbers(args: argparse.Namespace) -> Iterator[int]:
    number, left = args.seed, args.runs
    while left:
        _, topology = make_machine(number)
        computes = any(d.can_copy or d.can_reduce for d in topology.devices if d.kind != "gpu")
        if 2 < len(topology.ranks) <= _MAX_GPUS and not computes:
            yield number
            left -= 1
        number += 1


def draw_demands(topology: Topology, number: int) -> Demands:
    """Return random demands on a machine, the same for the same number."""
    chance, gpus = random.Random(f"reshard {number}"), len(topology.ranks)
    most = 1 if number % 2 else 3

    def draw() -> tuple[int, ...]:
        return tuple(chance.sample(range(gpus), chance.randint(1, min(most, gpus))))

    pieces = [
        Demand(chance.randint(1, 1 << 20), draw(), draw()) for _ in range(chance.randint(1, 9))
    ]
    first, second = chance.sample(range(gpus), 2)
    return Demands.of([*pieces, Demand(1 << 18, (first,), (second,))], gpus)


def find_flow_s_per_GB(demands: Demands, router: Router) -> float | None:
    """Return the optimum of the program of flows over the hardware's routes; None if impossible.

    Columns are the flow of each piece to each receiver over each pair of ranks with a route, what
    each piece sends over each pair (at least each of its flows), and the time of the busiest link.
    """
    topology = router.topology
    ranks = range(len(topology.ranks))
    pairs = [(u, v) for u in ranks for v in ranks if router.route(u, v) is not None]
    links = {link: i for i, link in enumerate(topology.capacity_GBps)}
    blocks = [(k, p, r) for k, p in enumerate(demands.pieces) for r in p.missing]
    flows, uses = len(blocks) * len(pairs), len(demands.pieces) * len(pairs)
    equal: list[tuple[int, int, float]] = []
    at_most: list[tuple[int, int, float]] = []
    right: list[float] = []
    rows = 0
    for b, (k, piece, receiver) in enumerate(blocks):
        place = {rank: i for i, rank in enumerate(r for r in ranks if r not in piece.holders)}
        for i, (u, v) in enumerate(pairs):
            for rank, sign in ((u, -1.0), (v, 1.0)):
                if rank in place:
                    equal.append((len(right) + place[rank], b * len(pairs) + i, sign))
            at_most += [
                (rows, b * len(pairs) + i, 1.0),
                (rows, flows + k * len(pairs) + i, -1.0),
            ]
            rows += 1
        right += [piece.size / demands.size * (rank == receiver) for rank in place]
    for i, (u, v) in enumerate(pairs):
        for link in pairwise(router.route(u, v) or ()):
            at_most += (
                (rows + links[link], flows + k * len(pairs) + i, 1.0)
                for k in range(len(demands.pieces))
            )
    at_most += (
        (rows + i, flows + uses, -float(topology.capacity_GBps[link])) for link, i in links.items()
    )
    size = flows + uses + 1
    objective = np.zeros(size)
    objective[-1] = 1.0

    def gather(entries: list[tuple[int, int, float]], height: int) -> Any:
        row, column, value = zip(*entries, strict=True)
        return coo_matrix((value, (row, column)), shape=(height, size)).tocsr()

    height = rows + len(links)
    solved = linprog(
        objective, gather(at_most, height), np.zeros(height), gather(equal, len(right)), right,
        method="highs",
    )  # fmt: skip
    return float(solved.fun) if solved.status == 0 else None


def find_limit(plan: Plan) -> Fraction:
    """Return the seconds per GB of the plan's best schedule if only bandwidth counts."""
    bases = [replace(s, segments=2, stepwise=False) for s in plan.schedules]
    return min(bandwidth_s_per_GB(base, plan.topology) for base in bases)


def judge_bound(number: int) -> dict[str, Any]:
    """Return a bound beside the optimum of the program of flows; in `how` what is wrong."""
    kind, machine = make_machine(number)
    topology, router = load_for_planning(machine)
    demands = draw_demands(topology, number)
    sizes = "; ".join(f"{p.size}: {p.holders} -> {p.receivers}" for p in demands.pieces)
    row = {"number": number, "kind": kind, "gpus": len(topology.ranks), "pieces": sizes[:60]}
    flow_s = find_flow_s_per_GB(demands, router)
    others = [rank for rank in range(len(topology.ranks)) if rank not in demands.members]
    try:
        plan = synthesize(demands, topology, router=router, helpers=others).plan
    except InfeasibleError as error:
        faults = [] if flow_s is None else [f"impossible: {error}"]
        return {**row, "impossible": True, "how": "; ".join(faults), "met": not faults}
    if flow_s is None:
        return {**row, "how": "WRONG: a plan where the LP has no solution", "met": False}
    bound_s = float(plan.bound_one_way.s_per_GB)
    gap = float(1 - plan.bound_one_way.s_per_GB / find_limit(plan))
    row |= {"flow_s": flow_s, "bound_s": bound_s, "gap": gap}
    faults = [f"gap {gap:.3g}"] if gap > _REACHED else []
    if plan.bound.s_per_GB > plan.bound_one_way.s_per_GB:
        faults.append("WRONG: the multipath bound is above the single-path bound")
    row["equal"] = abs(bound_s / flow_s - 1) <= _EQUAL
    row["coding"] = not row["equal"] and demands.spreads and bound_s > flow_s
    if not (row["equal"] or row["coding"]):
        faults.append(f"bound {bound_s / flow_s - 1:+.3%} off the LP")
    return {**row, "how": "; ".join(faults), "met": not faults}


def _summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts = {k: sum(bool(r.get(k)) for r in rows) for k in ("impossible", "equal", "coding")}
    gap = max((row.get("gap", 0.0) for row in rows), default=0.0)
    failed = sum(not row["met"] for row in rows)
    return {"demands": len(rows), **counts, "failed": failed, "gap": gap}


def build_hosts(count: int) -> Topology:
    """Return hosts of four GPUs, each GPU with a NIC of 25 GB/s: the nodes of verl's issue 7167."""
    devices, links = [Device("net", "switch", family="network")], list[Link]()
    for host in range(count):
        devices.append(Device(f"nvswitch{host}", "switch", family="nvswitch"))
        for place in range(4):
            gpu, nic = f"gpu{4 * host + place}", f"nic{4 * host + place}"
            devices += [Device(gpu, "gpu"), Device(nic, "nic")]
            for a, b, rate in ((gpu, f"nvswitch{host}", 300), (gpu, nic, 64), (nic, "net", 25)):
                links += [Link(a, b, Fraction(rate)), Link(b, a, Fraction(rate))]
    return Topology(f"{count} hosts", tuple(devices), tuple(links))


def _broadcast(gpus: int) -> Demands:
    """One rank of the first half has the weights, and all of the second half need them."""
    return Demands.of([Demand(1 << 30, (0,), tuple(range(gpus // 2, gpus)))], gpus)


def _shard(gpus: int) -> Demands:
    """Each host of the first half has an equal part at its first rank, which every host of the
    second half needs, at the rank of that number.
    """
    half = gpus // 2
    holders = range(0, half, 4)
    pieces = (
        Demand(1 << 28, (rank,), tuple(range(half + i % 4, gpus, 4)))
        for i, rank in enumerate(holders)
    )
    return Demands.of(pieces, gpus)


def _heat(gpus: int) -> Demands:
    matrix = np.full((gpus, gpus), 1 << 20)
    matrix[:, gpus // 2] *= 10
    return from_matrix(matrix, gpus)


_CASES: dict[str, tuple[Callable[[], Topology], Callable[[int], Demands]]] = {
    "verl 7167: one rank to four, 2 hosts": (lambda: build_hosts(2), _broadcast),
    "verl 7167: 4 hosts to 4, sharded": (lambda: build_hosts(8), _shard),
    "verl 7167: one rank to 4 hosts": (lambda: build_hosts(8), _broadcast),
    "hot expert, two hosts of 4": (build_two_hosts, _heat),
    "hot expert, dgx1": (lambda: preset("dgx1"), _heat),
    "hot expert, dgx-a100:4": (lambda: preset("dgx-a100:4"), _heat),
}


def judge_machine(case: str) -> dict[str, Any]:
    """Return what the plan of a case reaches, as a share of its bound."""
    build, draw = _CASES[case]
    topology, router = load_for_planning(build())
    gpus = len(topology.ranks)
    demands = draw(gpus)
    helpers = [rank for rank in range(gpus) if rank not in demands.members]
    started = time.monotonic()
    plan = synthesize(demands, topology, router=router, helpers=helpers).plan
    seconds = time.monotonic() - started
    limit, bound = find_limit(plan), plan.bound_one_way
    time_s = plan.time_s(plan.entry_for(demands.size), demands.size)
    row: dict[str, Any] = {
        "alone": plan.bound_alone and float(plan.bound_alone.algbw_GBps),
        "bound": float(bound.algbw_GBps),
        "share": float(bound.s_per_GB / limit),
        "predicted": float(bound.s_per_GB) * demands.size / 1e9 / time_s,
        "helpers": len(plan.used_helpers),
        "s": seconds,
    }
    if demands.name == "alltoallv":
        largest = max(piece.size for piece in demands.pieces)
        even = from_matrix(np.full((gpus, gpus), largest), gpus)
        padded = find_limit(synthesize(even, topology, router=router).plan)
        row["padded"] = float(padded * even.size / (limit * demands.size))
    return {**row, "met": row["share"] >= _SHARE}


def _list_fsdp(gpus: int) -> Demands:
    """A part on each rank of the first half; replicas of eight ranks in the second half."""
    half = gpus // 2
    pieces = (
        Demand(1 << 24, (i,), tuple(range(half + 8 * i // half, gpus, 8))) for i in range(half)
    )
    return Demands.of(pieces, gpus)


def _list_hsdp(gpus: int) -> Demands:
    """All parts in each box of the first half; replicas of four ranks in the second half."""
    half = gpus // 2
    pieces = (
        Demand(1 << 24, tuple(range(i, half, 8)), tuple(range(half + i // 2, gpus, 4)))
        for i in range(8)
    )
    return Demands.of(pieces, gpus)


def _list_uneven(gpus: int) -> Demands:
    """A few pieces of random sizes from every rank to random others."""
    draws = np.random.default_rng(1)
    return Demands.of(
        (
            Demand(int(draws.integers(1, 1 << 24)), (i,), (int(j),))
            for i in range(gpus)
            for j in draws.choice(gpus, 8, replace=False)
            if i != j
        ),
        gpus,
    )


_LARGE_CASES: dict[str, Callable[[int], Demands]] = {
    "512 to 512, sharded to replicas": _list_fsdp,
    "512 to 512, replicas to replicas": _list_hsdp,
    "one rank to 512": _broadcast,
    "uneven, 8 receivers each": _list_uneven,
}


def judge_large(case: str) -> dict[str, Any]:
    """Return the time and the gap of a plan for 1,024 GPUs."""
    topology, router = load_for_planning(preset("dgx-a100:128"))
    gpus = len(topology.ranks)
    started = time.monotonic()
    demands = _LARGE_CASES[case](gpus)
    members = set(demands.members)
    helpers = [rank for rank in range(gpus) if rank not in members]
    plan = synthesize(demands, topology, router=router, helpers=helpers).plan
    seconds = time.monotonic() - started
    schedule = plan.entries[-1].schedule
    gap = float(1 - plan.bound_one_way.s_per_GB / find_limit(plan))
    return {
        "pieces": len(demands.pieces),
        "bound": float(plan.bound_one_way.algbw_GBps),
        "gap": gap,
        "steps": schedule.steps,
        "transfers": len(schedule.transfers),
        "s": seconds,
        "met": seconds <= _LARGE_S and gap <= _LARGE_GAP,
    }


if __name__ == "__main__":
    sys.exit(main())
