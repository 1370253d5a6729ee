"""Rings and chains: the best free shares, equal channels, their sequence, and the strategy that
offers them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import synthesize
from random_graphs import graphs, on
from scipy.optimize import linprog
from thorough import count_examples

from topoplan.synth.channels.channels import (
    CHAIN,
    RING,
    SHAPES,
    Channels,
    algbw_GBps,
    schedule_channels,
)
from topoplan.synth.channels.columns import find_exact_rates, pack_orders
from topoplan.synth.channels.orders import hops
from topoplan.synth.channels.rounding import LOSS, find_channels
from topoplan.synth.cost.affine import bandwidth_s_per_GB, shared_s_per_GB
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.numeric.circuits import cheapest_circuits, near_circuits, search_circuit
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.planner.whole import Synthesis
from topoplan.synth.request import Request
from topoplan.synth.verify import verify
from topoplan.topo.errors import InfeasibleError, InputError
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router, route_links

MACHINES = st.one_of(graphs(5, switches=2), graphs(5, two_way=False, switches=2))


def request_of(topology: Topology, name: str = "allreduce") -> Request:
    return Request(on(name, topology), topology, Effort())


def list_loads(topology: Topology, shape: str, name: str) -> list[dict[tuple[str, str], Fraction]]:
    """What every ring, or chain, sends over each link for a GB of the collective's buffer."""
    n, router = len(topology.ranks), Router(topology)
    routes = {(u, v): router.route(u, v) for u in range(n) for v in range(n) if u != v}
    share = (
        Fraction(1) if shape == CHAIN else Fraction(n - 1, n) * (2 if name == "allreduce" else 1)
    )
    out = []
    for order in permutations(range(n)):
        if order[0] != 0 if shape == RING else order[0] > order[-1]:
            continue
        load: dict[tuple[str, str], Fraction] = {}
        for hop in hops(shape, order):
            route = routes[hop]
            if route is None:
                break
            for link in route_links(route):
                load[link] = load.get(link, Fraction(0)) + share
        else:
            out.append(load)
    return out


def most_GBps(topology: Topology, columns: list[dict[tuple[str, str], Fraction]]) -> float:
    """What all these orders carry together at most."""
    links = list(topology.capacity_GBps)
    matrix = [[float(column.get(link, 0)) for column in columns] for link in links]
    capacity = [float(topology.capacity_GBps[link]) for link in links]
    solved = linprog(-np.ones(len(columns)), matrix, capacity, method="highs")
    assert solved.status == 0
    return -float(solved.fun)


@pytest.mark.long
@settings(max_examples=count_examples(8))
@given(topology=MACHINES, name=st.sampled_from(["allreduce", "allgather", "reduce-scatter"]))
def test_free_shares_are_the_best_of_all_rings_and_chains(topology: Topology, name: str) -> None:
    listed = {
        shape: list_loads(topology, shape, name)
        for shape in (SHAPES if name == "allreduce" else [RING])
    }
    wanted = [[shape] for shape in listed] + ([[*listed]] if all(listed.values()) else [])
    for shapes in wanted:
        columns = [load for shape in shapes for load in listed[shape]]
        if not columns:
            with pytest.raises(InfeasibleError, match="visits every GPU once"):
                pack_orders(request_of(topology, name), shapes)
            continue
        packed = pack_orders(request_of(topology, name), shapes)
        assert packed.proved
        best = most_GBps(topology, columns)
        assert packed.algbw_GBps == pytest.approx(best, rel=1e-6)
        rates = find_exact_rates(packed, Effort())
        assert float(sum(rates.values())) == pytest.approx(best, rel=1e-5)
        assert all(sorted(order) == list(range(len(topology.ranks))) for _, order in rates)


@settings(max_examples=count_examples(4))
@given(topology=MACHINES, shape=st.sampled_from(SHAPES))
def test_equal_channels(topology: Topology, shape: str) -> None:
    """Every channel has every rank once; more channels allowed lose no more than LOSS; no prefix
    can be begun better.
    """
    request = request_of(topology)
    try:
        best = pack_orders(request, [shape]).algbw_GBps
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            find_channels(request, shape)
        return
    rates = []
    for most in (1, 2, 5, 32):
        channels = find_channels(request, shape, most)
        assert 1 <= len(channels.orders) <= most
        assert all(sorted(order) == list(range(len(topology.ranks))) for order in channels.orders)
        schedule = schedule_channels(request, channels, shape)
        verify(schedule, topology)
        rates.append(algbw_GBps(schedule, topology))
    assert all(later >= earlier * (1 - LOSS) for earlier, later in pairwise(rates))
    assert float(rates[-1]) <= best * (1 + 1e-9)
    assert len(find_channels(request, shape, count=3).orders) == 3
    alone = [rate_of(request, Channels(shape, (order,))) for order in channels.orders]
    assert alone[0] == max(alone)
    assert find_channels(request_of(topology), shape) == channels


def rate_of(request: Request, channels: Channels) -> Fraction:
    return algbw_GBps(schedule_channels(request, channels, channels.shape), request.topology)


def test_prefixes_are_balanced() -> None:
    """Few chains of a DGX-1 carry nearly as much as so many can: each prefix at least as much as
    one, most nearly all.
    """
    topology = preset("dgx1")
    request = request_of(topology)
    channels = find_channels(request, CHAIN)
    whole = rate_of(request, channels)
    assert whole == Fraction(600, 7)
    count = len(channels.orders)
    for m in range(1, count):
        reached = rate_of(request, Channels(CHAIN, channels.orders[:m]))
        assert reached >= whole * Fraction(55, 100)
    assert (
        sum(rate_of(request, Channels(CHAIN, channels.orders[:m])) for m in range(1, count))
        > whole * count * 3 / 4
    )


@pytest.mark.parametrize(
    ("name", "chains", "rings", "most"),
    [
        ("../inputs/nccl_graphs/ncv4-bridged.topology.xml", Fraction(24), Fraction(16), 2),
        (
            "../inputs/nccl_graphs/a100-one-bridge-missing.topology.xml",
            Fraction(54, 5),
            Fraction(8),
            9,
        ),
        ("../inputs/nccl_graphs/oci-h100.topology.xml", Fraction(7416, 35), Fraction(7416, 35), 4),
        pytest.param(
            "nccl_xml/rccl/topo_8p_940.xml",
            Fraction(192),
            Fraction(192),
            7,
            marks=pytest.mark.long,
        ),
    ],
)
def test_recorded_machines(
    name: str, chains: Fraction, rings: Fraction, most: int, recorded: Callable[[str], Path]
) -> None:
    request = request_of(load_for_planning(recorded(name))[0])
    for shape, wanted in ((CHAIN, chains), (RING, rings)):
        channels = find_channels(request, shape)
        assert rate_of(request, channels) == wanted
        assert len(channels.orders) <= most


def test_what_has_no_channels_says_so() -> None:
    for argument, shape, name in (
        ("path:4", RING, "allreduce"),
        ("star:5", CHAIN, "allreduce"),
        ("dgx1", CHAIN, "allgather"),
    ):
        with pytest.raises(InfeasibleError, match=r"visits every GPU once|chains allreduce"):
            find_channels(request_of(preset(argument), name), shape)
    with pytest.raises(InfeasibleError, match="rings have allreduce"):
        find_channels(request_of(preset("dgx1"), "alltoall"), RING)
    with pytest.raises(InputError, match="expected one of ring, chain"):
        find_channels(request_of(preset("dgx1")), "tree")
    with pytest.raises(InputError, match="expected at least 1"):
        find_channels(request_of(preset("dgx1")), RING, 0)


@settings(max_examples=count_examples(4))
@given(topology=MACHINES, name=st.sampled_from(["allreduce", "allgather", "reduce-scatter"]))
def test_the_strategy_reaches_the_best_of_chains_rings_or_both(
    topology: Topology, name: str
) -> None:
    shapes = SHAPES if name == "allreduce" else [RING]
    columns = [load for shape in shapes for load in list_loads(topology, shape, name)]
    if not columns:
        with pytest.raises(InfeasibleError, match="visits every GPU once"):
            synthesize(on(name, topology), topology, "chains")
        return
    found = synthesize(on(name, topology), topology, "chains")
    reached = max(1 / bandwidth_s_per_GB(schedule, topology) for schedule, _ in found.candidates)
    assert float(reached) == pytest.approx(most_GBps(topology, columns), rel=1e-5)
    assert reached <= found.plan.bound_one_way.algbw_GBps


@pytest.fixture(scope="module")
def two_sockets() -> Synthesis:
    topology = preset("pcie-2socket")
    return synthesize(collective_on("allreduce", topology), topology, "chains")


@pytest.mark.long
def test_the_strategy_has_few_chains_at_the_bound(two_sockets: Synthesis) -> None:
    """Rooted at their middles: as many steps as there are GPUs."""
    plan = two_sockets.plan
    topology = plan.topology
    last = plan.entries[-1].schedule
    assert plan.gap_of(plan.entries[-1]) == 0
    assert (last.steps, last.depth) == (8, 4)
    assert any(
        s.trees is not None and s.trees <= 8 and bandwidth_s_per_GB(s, topology) == 7 / Fraction(96)
        for s in (e.schedule for e in plan.entries)
    )


def test_chains_of_unequal_shares_have_equal_ones_beside_them(two_sockets: Synthesis) -> None:
    topology = two_sockets.plan.topology
    times = {
        s.trees: float(shared_s_per_GB(replace(s, segments=2), topology))
        for s in {schedule.uncut for schedule, _ in two_sockets.candidates}
    }
    best, fewest = min(times.values()), times[min(x for x in times if x and x > 1)]
    assert best < 0.98 * fewest


@pytest.mark.long
def test_auto_keeps_chains_where_they_may_win() -> None:
    """They stand among the alternatives that are raced on a host; on large machines packing at the
    bound leaves them out.
    """
    small, large = preset("switch:4"), preset("switch:9")
    plan = synthesize(collective_on("allreduce", small), small).plan
    assert any(schedule.strategy == "chains" for schedule in plan.schedules)
    for machine, name in ((large, "allreduce"), (small, "allgather")):
        candidates = synthesize(collective_on(name, machine), machine).candidates
        assert all(schedule.strategy != "chains" for schedule, _ in candidates)


def test_machines_beyond_dynamic_programming() -> None:
    """A ring of 20 both ways round, and its one chain where a link is gone; 16 GPUs with four
    rings.
    """
    torus, ring, path = preset("torus:4x4"), preset("ring:20"), preset("path:20")
    assert rate_of(request_of(torus), find_channels(request_of(torus), RING)) == Fraction(32, 15)
    assert rate_of(request_of(ring), find_channels(request_of(ring), RING)) == Fraction(20, 19)
    assert rate_of(request_of(path), find_channels(request_of(path), CHAIN)) == 1
    with pytest.raises(InfeasibleError, match="no cycle visits every GPU once"):
        find_channels(request_of(path), RING)


@settings(max_examples=count_examples(8))
@given(st.integers(2, 7), st.booleans(), st.integers(0, 2**32 - 1))
def test_cheapest_circuits(nodes: int, both_directions: bool, seed: int) -> None:
    """By dynamic programming, by CP-SAT and by exchanges, beside all circuits there are."""
    chance = np.random.default_rng(seed)
    price = chance.integers(1, 100, (nodes, nodes)).astype(float)
    price[chance.random((nodes, nodes)) < 0.25] = np.inf
    price = price + price.T if both_directions else price

    def price_of(circuit: tuple[int, ...]) -> float:
        tour = [0, *circuit, 0]
        return float(price[tour[:-1], tour[1:]].sum())

    least = min(map(price_of, permutations(range(1, nodes))))
    listed = cheapest_circuits(price, 5, Effort())
    searched, proved = search_circuit(price, Effort(), "circuit")
    assert proved and (searched is None) == (not listed) == (least == np.inf)
    for value, circuit in [*listed, *near_circuits(price, [], 3, Effort())]:
        assert sorted(circuit) == list(range(1, nodes)) and price_of(circuit) == pytest.approx(
            value
        )
        assert value >= least - 1e-9
    if listed:
        assert searched is not None
        assert listed[0][0] == pytest.approx(least) == pytest.approx(price_of(searched))
        assert len({circuit for _, circuit in listed}) == len(listed)
