"""Test the single-path bound: against a linear program over all trees, against schedules, and on
recorded machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from called import call_command
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import synthesize
from random_graphs import graphs, on
from scipy.optimize import linprog
from thorough import count_examples

from topoplan.synth.bounds.certificate import check_bound
from topoplan.synth.bounds.single_path import Bounds, find_bounds
from topoplan.synth.cost.affine import tighten
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.synth.ir.transfers import Transfers
from topoplan.synth.plan import Plan
from topoplan.synth.plan_text import hash_of
from topoplan.topo.errors import VerificationError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router, route_links

Edge = tuple[int, int]


@st.composite
def machines(draw: st.DrawFn, most: int = 5, two_way: bool = True) -> Topology:
    """A random machine of 3 to `most` GPUs and 1 to 3 switches, with several paths between GPUs."""
    return draw(
        graphs(most=most, two_way=two_way, switches=3).filter(
            lambda t: len(t.devices) > len(t.ranks)
        )
    )


def bounds_of(name: str, topology: Topology) -> Bounds:
    collective = on(name, topology)
    bounds = find_bounds(collective, Router(topology))
    check_bound(bounds.multipath, collective, topology)
    check_bound(bounds.single_path, collective, topology, Router(topology))
    assert bounds.single_path.s_per_GB >= bounds.multipath.s_per_GB
    return bounds


def out_trees(n: int, edges: set[Edge], root: int) -> list[list[Edge]]:
    """All trees of edges from the root to all others."""
    return [tree for tree in all_out_trees(n, root) if all(edge in edges for edge in tree)]


@cache
def all_out_trees(n: int, root: int) -> list[list[Edge]]:
    return list(list_out_trees(n, root))


def list_out_trees(n: int, root: int) -> Iterator[list[Edge]]:
    others = [v for v in range(n) if v != root]
    for parents in product(*([u for u in range(n) if u != v] for v in others)):
        parent = dict(zip(others, parents, strict=True))
        reached = {root}
        for _ in range(n):
            reached |= {v for v in others if parent[v] in reached}
        if len(reached) == n:
            yield [(parent[v], v) for v in others]


def simple_ways(n: int, edges: set[Edge], u: int, v: int) -> Iterator[list[Edge]]:
    """All ways from u to v through other ranks, none twice."""
    between = [w for w in range(n) if w not in (u, v)]
    for count in range(n - 1):
        for stops in permutations(between, count):
            hops = list(zip((u, *stops), (*stops, v), strict=True))
            if all(hop in edges for hop in hops):
                yield hops


def least_s_per_GB(name: str, topology: Topology) -> float:
    """The least time of all packings of trees, or ways, over the system's own routes: one linear
    programme over all.
    """
    n, router = len(topology.ranks), Router(topology)
    routes = {(u, v): router.route(u, v) for u in range(n) for v in range(n) if u != v}
    edges = {pair for pair, route in routes.items() if route is not None}
    turned = {(v, u) for u, v in edges}
    columns: list[
        tuple[tuple[int, object], list[Edge], Fraction]
    ] = []  # the part that it is of, what it sends, how large the part is
    if name == "allreduce":
        # What is brought together at a root is as much as what is spread from it: `split` adds the
        # amount of each root.
        for root in range(n):
            columns += [
                ((root, "in"), [(v, u) for u, v in t], Fraction(1))
                for t in out_trees(n, turned, root)
            ]
            columns += [((root, "out"), tree, Fraction(1)) for tree in out_trees(n, edges, root)]
    elif name in ("broadcast", "allgather"):
        roots = [0] if name == "broadcast" else range(n)
        columns += [
            ((r, None), t, Fraction(1, len(roots))) for r in roots for t in out_trees(n, edges, r)
        ]
    elif name in ("reduce", "reduce-scatter"):
        roots = [0] if name == "reduce" else range(n)
        ins = ((r, [(v, u) for u, v in tree]) for r in roots for tree in out_trees(n, turned, r))
        columns += [((r, None), tree, Fraction(1, len(roots))) for r, tree in ins]
    else:
        pairs = {
            "alltoall": [(u, v) for u in range(n) for v in range(n) if u != v],
            "scatter": [(0, v) for v in range(1, n)],
            "gather": [(v, 0) for v in range(1, n)],
        }[name]
        columns += [
            ((u, v), way, Fraction(1, n)) for u, v in pairs for way in simple_ways(n, edges, u, v)
        ]
    links = {link: i for i, link in enumerate(topology.capacity_GBps)}
    parts = {part: i for i, part in enumerate(dict.fromkeys(part for part, _, _ in columns))}
    split = n if name == "allreduce" else 0
    width = len(columns) + split + 1
    load = np.zeros((len(links), width))
    whole, right = np.zeros((len(parts), width)), np.ones(len(parts))
    if split:
        for (root, _), row in parts.items():
            whole[row, len(columns) + root], right[row] = -1, 0
        whole, right = (
            np.vstack([whole, [0] * len(columns) + [1] * split + [0]]),
            np.append(right, 1),
        )
    for j, (part, sends, size) in enumerate(columns):
        whole[parts[part], j] = 1
        for pair in sends:
            route = routes[pair]
            assert route is not None
            for link in route_links(route):
                load[links[link], j] += float(size)
    load[:, -1] = [-float(c) for c in topology.capacity_GBps.values()]
    cost = np.zeros(width)
    cost[-1] = 1
    solved = linprog(cost, load, np.zeros(len(links)), whole, right, method="highs")
    assert solved.status == 0
    return float(solved.fun)


@pytest.mark.long
@settings(max_examples=count_examples(4))
@given(machines(two_way=False))
def test_allreduce_in_both_directions_is_the_best_of_all_trees(topology: Topology) -> None:
    assert_is_least("allreduce", topology)


@settings(max_examples=count_examples(4))
@given(machines())
def test_allreduce_is_the_best_of_all_trees(topology: Topology) -> None:
    assert_is_least("allreduce", topology)


@settings(max_examples=count_examples(4))
@given(machines(two_way=False))
def test_allgather_is_the_best_of_all_trees(topology: Topology) -> None:
    assert_is_least("allgather", topology)


@pytest.mark.parametrize("name", [x for x in COLLECTIVES if x not in ("allreduce", "allgather")])
@settings(max_examples=count_examples(2))
@given(machines(most=4, two_way=False))
def test_the_others_are_the_best_of_all_trees_and_paths(name: str, topology: Topology) -> None:
    assert_is_least(name, topology)


def assert_is_least(name: str, topology: Topology) -> None:
    """Trees, or ways, of own routes take just the time that is proved."""
    found = bounds_of(name, topology).single_path
    assert float(found.s_per_GB) == pytest.approx(least_s_per_GB(name, topology), rel=1e-6)


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce", "scatter", "alltoall"])
@settings(max_examples=count_examples(2))
@given(topology=st.one_of(machines(two_way=False), machines()))
def test_packing_as_it_is_sent_reaches_the_bound(name: str, topology: Topology) -> None:
    plan = synthesize(on(name, topology), topology, "packing").plan
    gaps = [plan.gap_of(entry) for entry in plan.entries]
    assert 0 <= min(gaps) <= Fraction(1, 10**6)
    assert plan.gap_any_way_of(plan.entries[-1]) >= plan.gap_of(plan.entries[-1])
    router = Router(topology)
    for schedule in plan.schedules:
        for t in schedule.transfers:
            assert router.route(t.src, t.dst) == (
                topology.ranks[t.src],
                *t.route,
                topology.ranks[t.dst],
            )


def wire(a: str, b: str, GBps: int) -> tuple[Link, Link]:
    return both_directions(Link(a, b, Fraction(GBps)))


# Two GPUs with their own links, and a wider way over their CPUs that the system does not take.
SUPERCHIPS = Topology(
    "superchips",
    (Device("gpu0"), Device("gpu1"), Device("cpu0", "cpu"), Device("cpu1", "cpu")),
    (
        *wire("gpu0", "gpu1", 384),
        *wire("gpu0", "cpu0", 448),
        *wire("gpu1", "cpu1", 448),
        *wire("cpu0", "cpu1", 448),
    ),
)


@pytest.mark.parametrize(
    ("name", "any_way", "one_way"),
    [
        ("../inputs/nccl_graphs/oci-h100.topology.xml", Fraction(7536, 35), Fraction(7416, 35)),
        ("../inputs/nccl_xml/GB300MP-2hosts.xml", Fraction(94686, 175), Fraction(14436, 35)),
        (
            "../inputs/nccl_graphs/a100-one-bridge-missing.topology.xml",
            Fraction(54, 5),
            Fraction(54, 5),
        ),
        pytest.param(
            "smi/01-dgx1v-8xV100-mlx5x4_msccl-tools.txt",
            None,
            Fraction(3096, 35),
            marks=pytest.mark.long,
        ),
        pytest.param("nccl_xml/rccl/topo_8p_940.xml", None, Fraction(192), marks=pytest.mark.long),
        ("hwloc/nvidiaDGX2.xml", None, Fraction(80)),
    ],
)
def test_recorded_machines(
    name: str, any_way: Fraction | None, one_way: Fraction, recorded: Callable[[str], Path]
) -> None:
    bounds = bounds_of("allreduce", load_for_planning(recorded(name))[0])
    assert bounds.single_path.algbw_GBps == one_way
    assert bounds.multipath.algbw_GBps == (
        any_way if any_way is not None else bounds.multipath.algbw_GBps
    )


@pytest.mark.long
def test_where_pairs_have_a_single_path_anyway_the_bounds_are_the_same() -> None:
    for argument in ("dgx1", "switch:4", "pcie-2socket", "switch:130"):
        bounds = bounds_of("allreduce", preset(argument))
        assert bounds.single_path == bounds.multipath
    able = replace(
        SUPERCHIPS,
        devices=tuple(replace(d, can_reduce=d.kind == "cpu") for d in SUPERCHIPS.devices),
    )
    bounds = bounds_of("allreduce", able)  # where switches compute, only cuts are known
    assert bounds.single_path == bounds.multipath


class AroundRouter(Router):
    """Another rule of routes: none through the switch "near"."""

    def __init__(self, topology: Topology) -> None:
        links = tuple(link for link in topology.links if "near" not in (link.src, link.dst))
        super().__init__(replace(topology, links=links))
        self.topology = topology


def test_plans_and_bounds_follow_the_rule_of_routes_that_they_are_given() -> None:
    gpus = [f"gpu{i}" for i in range(3)]
    devices = [Device(gpu, "gpu") for gpu in gpus] + [Device(s, "switch") for s in ("near", "far")]
    links = [
        link
        for switch, rate, latency in (("near", 4, 1), ("far", 2, 5))
        for gpu in gpus
        for link in both_directions(Link(gpu, switch, Fraction(rate), Fraction(latency)))
    ]
    topology = Topology("two switches", tuple(devices), tuple(links))
    collective = on("allreduce", topology)
    usual = synthesize(collective, topology, "packing").plan
    around = synthesize(collective, topology, "packing", router=AroundRouter(topology)).plan
    assert {t.route for e in usual.entries for t in e.schedule.transfers} == {("near",)}
    assert {t.route for e in around.entries for t in e.schedule.transfers} == {("far",)}
    assert usual.bound == around.bound
    assert usual.bound_one_way.algbw_GBps == 2 * around.bound_one_way.algbw_GBps
    for plan in (usual, around):
        plan.verify()
        assert plan.gap_of(plan.entries[-1]) == 0
    with pytest.raises(VerificationError, match="the certificate proves"):
        check_bound(around.bound_one_way, collective, topology, Router(topology))


def make_plan(topology: Topology = SUPERCHIPS) -> Plan:
    return synthesize(on("allreduce", topology), topology, "packing").plan


def test_a_plan_keeps_both_bounds_and_its_gaps_are_of_what_is_sent(tmp_path: Path) -> None:
    plan = make_plan()
    assert plan.bound.algbw_GBps == 832 and plan.bound_one_way.algbw_GBps == 384
    last = plan.entries[-1]
    assert plan.gap_of(last) == 0 and plan.gap_any_way_of(last) == 1 - Fraction(384, 832)
    path = tmp_path / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan
    # What is planned over the CPUs is sent over the GPUs' own links all the same.
    sends = last.schedule.transfers
    way = {(0, 1): ("cpu0", "cpu1"), (1, 0): ("cpu1", "cpu0")}
    columns = (sends.step, sends.src, sends.dst, sends.chunk, sends.op, sends.src)
    moved = tighten(
        replace(last.schedule, transfers=Transfers(*columns, [way[0, 1], way[1, 0]])), SUPERCHIPS
    )
    wished = replace(plan, entries=(*plan.entries[:-1], replace(last, schedule=moved)))
    wished.verify()
    assert wished.gap_of(wished.entries[-1]) == plan.gap_of(last)
    assert wished.cost_of(wished.entries[-1]) == plan.cost_of(last)


def forged(plan: Plan, change: Callable[[dict[str, Any]], object]) -> str:
    """The plan's text, changed, with a hash that fits."""
    data = json.loads(json.dumps(plan.to_json()))
    del data["hash"]
    change(data)
    return json.dumps({**data, "hash": hash_of(data)})


def test_older_files_have_one_bound_and_false_ones_are_refused() -> None:
    plan = make_plan()
    older = Plan.loads(forged(plan, lambda data: data.pop("bound_one_way")))
    assert older.bound_one_way == older.bound == plan.bound
    for change, says in (
        (lambda data: data["bound_one_way"].update(s_per_GB="1/383"), "not the claimed 1/383"),
        (lambda data: data["bound_one_way"]["certificate"].update(prices=[]), "prices are zero"),
        (
            lambda data: data.update(bound=data["bound_one_way"]),
            "bound.kind: expected one of cut, prices, tree-prices",
        ),
    ):
        with pytest.raises(VerificationError, match=says):
            Plan.loads(forged(plan, change))
    with pytest.raises(VerificationError, match="proves nothing for any use of the links"):
        check_bound(plan.bound_one_way, plan.collective, plan.topology)


def test_topo_synth_prints_one_line_or_two(tmp_path: Path) -> None:
    path = tmp_path / "superchips.json"
    path.write_text(SUPERCHIPS.dumps())

    def synth(topology: str, *args: str) -> str:
        done = call_command("synth", "--collective", "allreduce", "--topology", topology, *args)
        assert (done.returncode, done.stderr) == (0, "")
        return str(done.stdout)

    lines = synth(str(path), "--bound-only").splitlines()
    assert "at most 832 GB/s" in lines[0] and "over all routes" in lines[0]
    assert "at most 384 GB/s" in lines[1] and "one route per pair" in lines[1]
    assert len(synth("pcie-2socket", "--bound-only").splitlines()) == 1
    out = json.loads(synth(str(path), "--bound-only", "--json"))
    assert (out["bound"]["algbw_GBps"], out["bound_one_way"]["algbw_GBps"]) == (832, 384)
    assert (out["bound_one_way"]["kind"], out["gap_any_way"]) == ("route-prices", None)
    out = json.loads(synth(str(path), "--json", "--strategy", "packing"))
    assert (out["gap"], out["gap_any_way"]) == (0, pytest.approx(1 - 384 / 832))
    (reached,) = (
        e["at_size"]["algbw_GBps"] for e in out["entries"] if e["at_size"]["size_bytes"] == 1 << 30
    )
    assert reached == pytest.approx(out["predicted"]["algbw_GBps"]) and 0 < reached < 384
    header, *rows = synth(str(path), "--strategy", "packing").splitlines()[2:]
    assert header.split()[-3:] == ["gap", "at", "size"]
    assert sum(" at 1G" in row for row in rows) == 1
