"""Bounds and their certificates: against brute force, against schedules, and against tampering."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import synthesize
from random_graphs import graphs, on, partition_bound
from thorough import count_examples

from topoplan.synth.bounds.certificate import Bound, check_bound
from topoplan.synth.bounds.multipath import bound
from topoplan.synth.bounds.prices import path_distances, path_tree_price
from topoplan.synth.ir.collective import COLLECTIVES, Collective
from topoplan.topo.errors import InfeasibleError, VerificationError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset


@pytest.mark.parametrize(
    ("argument", "algbw"),
    [
        ("dgx1", Fraction(600, 7)),
        ("mesh:4x4", Fraction(8, 5)),
        ("path:8", Fraction(1)),
        ("star:5", Fraction(1)),
        ("switch:8", Fraction(4, 7)),
        ("pcie-2socket", Fraction(96, 7)),
        ("dgx-a100", Fraction(1200, 7)),
        ("dgx-a100:2", Fraction(520, 3)),
    ],
)
def test_allreduce_bounds_known_from_the_literature(argument: str, algbw: Fraction) -> None:
    topology = preset(argument)
    found = bound(on("allreduce", topology), topology)
    assert found.algbw_GBps == algbw
    check_bound(found, on("allreduce", topology), topology)


@settings(max_examples=count_examples(4))
@given(graphs(most=7))
def test_allreduce_on_two_way_graphs_is_the_partition_formula_and_trees_reach_it(
    topology: Topology,
) -> None:
    collective = on("allreduce", topology)
    found = bound(collective, topology)
    check_bound(found, collective, topology)
    assert found.algbw_GBps == partition_bound(topology)
    plan = synthesize(collective, topology, "packing").plan
    rate = found.algbw_GBps * (1 - plan.gap_of(plan.entries[-1]))
    assert rate <= found.algbw_GBps
    assert rate >= found.algbw_GBps * (1 - Fraction(1, 10**6))


def cut_formula(name: str, topology: Topology) -> Fraction:
    """The greatest cut bound over all sets of devices, by brute force."""
    n, gpus = len(topology.ranks), set(topology.ranks)
    best = Fraction(0)
    for size in range(1, n):
        for inside in combinations(topology.ranks, size):
            s = set(inside)
            out = sum(
                (c for (a, b), c in topology.capacity_GBps.items() if a in s and b not in s),
                Fraction(0),
            )
            root = topology.ranks[0] in s
            crossing = {
                "allgather": Fraction(size, n),
                "reduce-scatter": Fraction(n - size, n),
                "broadcast": Fraction(root),
                "reduce": Fraction(not root),
                "gather": Fraction(0 if root else size, n),
                "scatter": Fraction(n - size if root else 0, n),
            }[name]
            best = max(best, crossing / out)
    assert gpus
    return best


@pytest.mark.parametrize(
    "name", ["allgather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter"]
)
@settings(max_examples=count_examples(8))
@given(topology=graphs(two_way=False))
def test_cut_bounds_are_the_best_over_all_cuts(name: str, topology: Topology) -> None:
    collective = on(name, topology)
    found = bound(collective, topology)
    check_bound(found, collective, topology)
    assert found.s_per_GB == cut_formula(name, topology)


@settings(max_examples=count_examples(8))
@given(graphs(most=5, two_way=False))
def test_alltoall_bounds_hold_and_are_no_weaker_than_any_cut(topology: Topology) -> None:
    collective = on("alltoall", topology)
    found = bound(collective, topology)
    check_bound(found, collective, topology)
    n = len(topology.ranks)
    for size in range(1, n):
        for inside in combinations(topology.ranks, size):
            s = set(inside)
            out = sum(
                (c for (a, b), c in topology.capacity_GBps.items() if a in s and b not in s),
                Fraction(0),
            )
            assert found.s_per_GB >= Fraction(size * (n - size), n) / out * (1 - Fraction(1, 10**6))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_certificates_do_not_prove_more_than_they_do(name: str) -> None:
    topology = preset("dgx1")
    collective = on(name, topology)
    found = bound(collective, topology)
    with pytest.raises(VerificationError, match="not the claimed"):
        check_bound(
            replace(found, s_per_GB=found.s_per_GB * Fraction(1001, 1000)), collective, topology
        )
    with pytest.raises(VerificationError, match="not the claimed"):
        check_bound(
            replace(found, s_per_GB=found.s_per_GB * Fraction(999, 1000)), collective, topology
        )


@pytest.mark.parametrize(
    ("kind", "certificate"),
    [
        ("cut", {"inside": ["nobody"]}),
        ("cut", {}),
        ("prices", {"prices": [["gpu0", "gpu1", -1]]}),
        ("prices", {"prices": [["gpu0", "gpu5", 1]]}),
        ("prices", {"prices": []}),
        ("word of honour", {}),
    ],
)
def test_certificates_that_are_none_are_refused(kind: str, certificate: dict[str, object]) -> None:
    with pytest.raises(VerificationError):
        check_bound(
            Bound(Fraction(1), kind, certificate), Collective("allreduce", 8), preset("dgx1")
        )


@pytest.mark.parametrize(
    ("name", "widths", "algbw"),
    [
        # GB/s from each of three GPUs into a plain switch, and out of it to them; None where there
        # is no such link
        ("allreduce", [(1, 2), (1, 3), (1, 3)], Fraction(3, 4)),
        ("reduce-scatter", [(4, 2), (2, 2), (4, 1)], Fraction(5, 2)),
        ("broadcast", [(3, 2), (1, 4), (1, 4)], Fraction(5, 2)),
        ("broadcast", [(1, None), (None, 2), (None, 2)], Fraction(1, 2)),
        ("reduce", [(None, 1), (2, None), (2, None)], Fraction(1, 2)),
    ],
)
def test_tree_prices_prove_what_cuts_do_not_and_no_more(
    name: str, widths: list[tuple[int | None, int | None]], algbw: Fraction
) -> None:
    """A plain switch copies and adds nothing, so what it hands to two GPUs was sent to it twice."""
    links = []
    for i, (up, down) in enumerate(widths):
        links += [Link(f"g{i}", "s", Fraction(up))] if up else []
        links += [Link("s", f"g{i}", Fraction(down))] if down else []
    devices = (*(Device(f"g{i}") for i in range(3)), Device("s", "switch"))
    topology = Topology("uneven", devices, tuple(links))
    collective = on(name, topology)
    found = bound(collective, topology)
    assert (found.kind, found.algbw_GBps) == ("tree-prices", algbw)
    plan = synthesize(collective, topology, "packing").plan
    assert min(plan.gap_of(entry) for entry in plan.entries) <= Fraction(1, 10**6)
    with pytest.raises(VerificationError, match="not the claimed"):
        check_bound(
            replace(found, s_per_GB=found.s_per_GB * Fraction(1001, 1000)), collective, topology
        )
    with pytest.raises(VerificationError, match="prices are zero"):
        check_bound(replace(found, certificate={"prices": []}), collective, topology)


def test_in_network_reduction_lifts_the_price_bound() -> None:
    """A switch that adds and copies: only the cuts are left, 19.2 GB/s instead of 96/7."""
    topology = preset("pcie-2socket")
    able = replace(
        topology,
        devices=tuple(
            d if d.kind == "gpu" else replace(d, can_reduce=True, can_copy=True)
            for d in topology.devices
        ),
    )
    assert bound(Collective("allreduce", 8), able).algbw_GBps == Fraction(96, 5)


def test_what_is_cut_off_is_named() -> None:
    devices = tuple(Device(f"gpu{i}") for i in range(4))
    topology = Topology(
        "two islands",
        devices,
        (*both_directions(Link("gpu0", "gpu1")), *both_directions(Link("gpu2", "gpu3"))),
    )
    with pytest.raises(
        InfeasibleError,
        match=r"no path leads to gpu2, gpu3: no link leads out of the cut \{gpu0, gpu1\}",
    ):
        bound(Collective("allreduce", 4), topology)


def test_one_way_links_are_hinted_at() -> None:
    topology = Topology("one way", (Device("a"), Device("b")), (Link("a", "b"),))
    with pytest.raises(InfeasibleError, match="one direction unless"):
        bound(Collective("allreduce", 2), topology)
    assert bound(Collective("broadcast", 2, 0), topology).algbw_GBps == 1


@settings(max_examples=count_examples(20))
@given(graphs(switches=3), st.data())
def test_prices_of_paths_and_trees_are_those_of_networkx(
    topology: Topology, data: st.DataObject
) -> None:
    """Many links are free, as in most certificates."""
    ends = sorted({(min(hop), max(hop)) for hop in topology.capacity_GBps})
    prices = {hop: data.draw(st.sampled_from((0, 0, 1, 3))) for hop in ends}
    prices |= {(b, a): price for (a, b), price in prices.items()}
    graph: nx.Graph[str] = nx.Graph()
    graph.add_weighted_edges_from((a, b, prices[a, b]) for a, b in ends)
    distances = {
        u: {v: paid for v, paid in row.items() if v in topology.ranks and v != u}
        for u, row in nx.all_pairs_dijkstra_path_length(graph)
        if u in topology.ranks
    }
    assert path_distances(prices, topology) == distances
    closure: nx.Graph[str] = nx.Graph()
    closure.add_weighted_edges_from(
        (u, v, paid) for u, row in distances.items() for v, paid in row.items()
    )
    tree = nx.minimum_spanning_tree(closure)
    assert path_tree_price(prices, topology) == tree.size(weight="weight")
