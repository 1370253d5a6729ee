"""Topologies become graphs of networkx and come back equal; plain graphs become topologies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs
from thorough import count_examples

import topoplan
from topoplan import InNetwork, Link, Note, Topology

RATES = st.sampled_from([Fraction(64, 3), Fraction(1, 7), Fraction(25), Fraction("19.2")])
LABELS = st.sampled_from(["nvlink", "assumed: a guess", "é: /", "xgmi"])
EXTRAS: list[dict[str, Any]] = [{}, {"host": "n1"}, {"weird key": [1, None, {"a": True}], "sm": 90}]
EXTRA = st.sampled_from(EXTRAS)
FAMILIES = st.sampled_from([None, "pcie", "nvswitch", "network"])
ABILITIES = st.sampled_from([None, InNetwork("yes", "a"), InNetwork("possible", "b")])


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """A random machine with parallel links, fractions, and every field of devices and links."""
    plain = draw(graphs(two_way=False, switches=2))
    links = draw(st.permutations([*plain.links, *plain.links[: draw(st.integers(0, 4))]]))
    devices = [
        replace(
            device,
            numa_node=draw(st.none() | st.integers(0, 7)),
            bus_id=draw(st.none() | st.just("0000:3b:00.0")),
            source=draw(st.none() | LABELS),
            extra=draw(EXTRA),
            family=draw(FAMILIES) if device.kind == "switch" else None,
            in_network=draw(ABILITIES) if device.kind == "switch" else None,
        )
        for device in plain.devices
    ]
    return Topology(
        draw(LABELS),
        tuple(draw(st.permutations(devices))),
        tuple(
            Link(
                x.src, x.dst, draw(RATES), draw(RATES), draw(LABELS), draw(st.integers(1, 18)),
                draw(st.none() | LABELS), draw(EXTRA),
            )
            for x in links
        ),
        draw(st.none() | LABELS),
        draw(EXTRA) | {"notes": [Note("one link is dark", "link-without-peer", ("g0",), "nvlink")]},
    )  # fmt: skip


@settings(max_examples=count_examples(10))
@given(machines())
def test_a_machine_comes_back_equal_and_exact(machine: Topology) -> None:
    """Ids, order, fractions, notes with their kinds, and fields that only its file defines."""
    graph = machine.to_networkx()
    assert isinstance(graph, nx.MultiDiGraph)
    assert graph.number_of_edges() == len(machine.links)
    back = Topology.from_networkx(graph)
    assert back == machine and back.dumps() == machine.dumps()
    assert back.notes[0].about == ("g0",)
    merged = machine.to_networkx(merge_parallel=True)
    assert type(merged) is nx.DiGraph
    edges = merged.edges(data=True)
    assert {(a, b): x["bandwidth_GBps"] for a, b, x in edges} == machine.capacity_GBps
    assert {(a, b): x["latency_us"] for a, b, x in edges} == machine.latency_us
    assert Topology.from_networkx(merged).fingerprint == machine.fingerprint


@pytest.mark.parametrize("name", ["dgx1", "dgx-a100:2", "gb200-nvl72"])
def test_presets_come_back_equal(name: str) -> None:
    machine = topoplan.load(name)
    assert Topology.from_networkx(machine.to_networkx()) == machine


def test_algorithms_of_networkx_give_exact_results() -> None:
    """Six NVLinks of 25 GB/s leave a GPU of a DGX-1."""
    graph = topoplan.load("dgx1").to_networkx(merge_parallel=True)
    flow = nx.maximum_flow_value(graph, "gpu0", "gpu7", capacity="bandwidth_GBps")
    assert str(flow) == "150"


def test_a_plain_graph_has_gpus_and_assumed_rates() -> None:
    """An undirected edge is a link in both directions, each as fast as the edge."""
    machine = Topology.from_networkx(nx.cycle_graph(4))
    assert machine.name == "networkx" and machine.ranks == ("0", "1", "2", "3")
    assert len(machine.links) == 8 and machine.is_symmetric
    assert {(x.bandwidth_GBps, x.latency_us) for x in machine.links} == {
        (Fraction(1), Fraction(7, 10))
    }
    assert all(link.is_assumed for link in machine.links)
    # a unidirectional ring would have half of it
    assert topoplan.synthesize("allreduce", machine, "ring").bound.algbw_GBps == Fraction(4, 3)


def test_attributes_of_a_plain_graph_are_read() -> None:
    graph: nx.MultiGraph[str] = nx.MultiGraph(name="box", year=2026)
    graph.add_node("switch", kind="switch", family="nvswitch")
    graph.add_edge("a", "switch", capacity=np.float64(12.5), color="green")
    graph.add_edge("a", "switch", capacity="64/3")
    graph.add_edge("b", "switch", capacity=Decimal("0.1"))
    machine = Topology.from_networkx(graph, bandwidth="capacity")
    assert machine.name == "box" and machine.extra == {"year": 2026}
    assert machine.ranks == ("a", "b")
    rates = machine.capacity_GBps
    assert rates["switch", "a"] == rates["a", "switch"] == Fraction(25, 2) + Fraction(64, 3)
    assert rates["b", "switch"] == Fraction(1, 10)
    assert machine.links[0].extra == {"color": "green"}
    assert Topology.from_networkx(graph, "other", bandwidth="capacity").name == "other"


def build_edge(**attributes: Any) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_edge("a", "b", **attributes)
    return graph


def build_node(**attributes: Any) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_node("a", **attributes)
    return graph


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ["a", "b"], "expected a graph with nodes, got list"),
        (nx.Graph, "expected a graph with nodes, got one without nodes"),
        (lambda: build_edge(bandwidth_GBps="fast"), "edge 'a' -> 'b'.*expected a number.*'fast'"),
        (lambda: build_edge(bandwidth_GBps=float("nan")), "edge 'a' -> 'b'.*expected a number"),
        (lambda: build_edge(bandwidth_GBps=0), "link 'a' -> 'b': bandwidth_GBps is 0"),
        (lambda: build_edge(latency_us=-1), "link 'a' -> 'b': latency_us is -1"),
        (lambda: build_edge(pos=np.zeros(2)), "edge 'a' -> 'b': pos: .*ndarray; remove the"),
        (lambda: build_node(kind="tpu"), "node 'a'.kind: expected one of .*, got 'tpu'"),
        (lambda: build_node(numa_node="first"), "node 'a'.numa_node: expected a whole number"),
        (lambda: nx.Graph([(1, "2"), (2, "3")]), "two devices are called '2'"),
        (lambda: nx.Graph([("a", "a")]), "'a' -> 'a': it ends where it starts"),
        (lambda: nx.path_graph(["a\n", "b"]), "expected a string without control characters"),
    ],
)
def test_what_is_no_topology_is_refused_in_one_line(make: Callable[[], Any], expected: str) -> None:
    with pytest.raises(topoplan.InputError, match=f"^networkx graph: .*{expected}") as refused:
        Topology.from_networkx(make())
    assert "\n" not in str(refused.value)


def test_a_name_that_no_edge_has_is_refused() -> None:
    with pytest.raises(topoplan.InputError, match="no edge has the attribute 'rate'"):
        Topology.from_networkx(build_edge(capacity=2), bandwidth="rate")
