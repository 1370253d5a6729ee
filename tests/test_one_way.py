"""The bound for one way a pair: against a linear programme over all trees, against schedules, and on recorded machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, on
from scipy.optimize import linprog

from topoplan.synth.certificate import check_bound
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.synth.one_way import Bounds, find_bounds
from topoplan.synth.plan import Plan
from topoplan.synth.synthesize import synthesize
from topoplan.topo.errors import InfeasibleError, VerificationError
from topoplan.topo.graph import Device, Link, Topology, both_ways
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router, route_links

Edge = tuple[int, int]


@st.composite
def machines(draw: st.DrawFn, most: int = 5, two_way: bool = True) -> Topology:
    """A random machine of 3 to `most` GPUs and 1 to 3 switches, with several ways between GPUs."""
    return draw(graphs(most=most, two_way=two_way, switches=3).filter(lambda t: len(t.devices) > len(t.ranks)))


def bounds_of(name: str, topology: Topology) -> Bounds:
    collective = on(name, topology)
    bounds = find_bounds(collective, topology)
    check_bound(bounds.any_way, collective, topology)
    check_bound(bounds.one_way, collective, topology, one_way=True)
    assert bounds.one_way.s_per_GB >= bounds.any_way.s_per_GB
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
    """The least time of all packings of trees, or ways, over the system's own routes: one linear programme over all."""
    n, router = len(topology.ranks), Router(topology)
    routes = {(u, v): router.route(u, v) for u in range(n) for v in range(n) if u != v}
    edges = {pair for pair, route in routes.items() if route is not None}
    turned = {(v, u) for u, v in edges}
    columns: list[tuple[tuple[int, object], list[Edge], Fraction]] = []  # the part that it is of, what it sends, how large the part is
    if name == "allreduce":
        # What is brought together at a root is as much as what is spread from it: `split` adds the amount of each root.
        for root in range(n):
            columns += [((root, "in"), [(v, u) for u, v in t], Fraction(1)) for t in out_trees(n, turned, root)]
            columns += [((root, "out"), tree, Fraction(1)) for tree in out_trees(n, edges, root)]
    elif name in ("broadcast", "allgather"):
        roots = [0] if name == "broadcast" else range(n)
        columns += [((r, None), t, Fraction(1, len(roots))) for r in roots for t in out_trees(n, edges, r)]
    elif name in ("reduce", "reduce-scatter"):
        roots = [0] if name == "reduce" else range(n)
        ins = ((r, [(v, u) for u, v in tree]) for r in roots for tree in out_trees(n, turned, r))
        columns += [((r, None), tree, Fraction(1, len(roots))) for r, tree in ins]
    else:
        pairs = {"alltoall": [(u, v) for u in range(n) for v in range(n) if u != v],
                 "scatter": [(0, v) for v in range(1, n)], "gather": [(v, 0) for v in range(1, n)]}[name]  # fmt: skip
        columns += [((u, v), way, Fraction(1, n)) for u, v in pairs for way in simple_ways(n, edges, u, v)]
    links = {link: i for i, link in enumerate(topology.capacity_GBps)}
    parts = {part: i for i, part in enumerate(dict.fromkeys(part for part, _, _ in columns))}
    split = n if name == "allreduce" else 0
    width = len(columns) + split + 1
    load = np.zeros((len(links), width))
    whole, right = np.zeros((len(parts), width)), np.ones(len(parts))
    if split:
        for (root, _), row in parts.items():
            whole[row, len(columns) + root], right[row] = -1, 0
        whole, right = np.vstack([whole, [0] * len(columns) + [1] * split + [0]]), np.append(right, 1)
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


@settings(max_examples=100)
@given(machines(two_way=False))
def test_allreduce_in_both_directions_is_the_best_of_all_trees(topology: Topology) -> None:
    assert_is_least("allreduce", topology)


@settings(max_examples=100)
@given(machines())
def test_allreduce_is_the_best_of_all_trees(topology: Topology) -> None:
    assert_is_least("allreduce", topology)


@settings(max_examples=100)
@given(machines(two_way=False))
def test_allgather_is_the_best_of_all_trees(topology: Topology) -> None:
    assert_is_least("allgather", topology)


@pytest.mark.parametrize("name", [x for x in COLLECTIVES if x not in ("allreduce", "allgather")])
@settings(max_examples=15)
@given(machines(most=4, two_way=False))
def test_the_others_are_the_best_of_all_trees_and_ways(name: str, topology: Topology) -> None:
    assert_is_least(name, topology)


def assert_is_least(name: str, topology: Topology) -> None:
    """Trees, or ways, of own routes take just the time that is proved."""
    found = bounds_of(name, topology).one_way
    assert float(found.s_per_GB) == pytest.approx(least_s_per_GB(name, topology), rel=1e-6)


@pytest.mark.parametrize("name", COLLECTIVES)
@settings(max_examples=15)
@given(machines(most=5, two_way=False))
def test_packing_as_it_is_sent_reaches_the_bound(name: str, topology: Topology) -> None:
    plan = synthesize(on(name, topology), topology, "packing").plan
    gaps = [plan.gap_of(entry) for entry in plan.entries]
    assert 0 <= min(gaps) <= Fraction(1, 10**6)
    assert plan.gap_any_way_of(plan.entries[-1]) >= plan.gap_of(plan.entries[-1])
    router = Router(topology)
    for schedule in plan.schedules:
        for t in schedule.transfers:
            assert router.route(t.src, t.dst) == (topology.ranks[t.src], *t.route, topology.ranks[t.dst])
