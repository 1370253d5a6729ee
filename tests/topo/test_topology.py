"""The topology itself: exact JSON, a fingerprint that sees the machine and not its names, the
routes taken.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.topo.errors import InputError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

RATES = st.fractions(min_value=Fraction(1, 1000), max_value=1000, max_denominator=1000)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    kinds = draw(
        st.lists(st.sampled_from(["gpu", "gpu", "cpu", "nic", "switch"]), min_size=2, max_size=9)
    )
    devices = tuple(
        Device(
            f"d{i}",
            kind,
            "pcie" if kind == "switch" and i % 2 else None,
            kind == "switch" and i % 3 == 0,
        )
        for i, kind in enumerate(kinds)
    )
    ends = st.tuples(st.integers(0, len(kinds) - 1), st.integers(0, len(kinds) - 1)).filter(
        lambda p: p[0] != p[1]
    )
    links: list[Link] = []
    for a, b in draw(st.lists(ends, max_size=16)):
        link = Link(
            f"d{a}",
            f"d{b}",
            draw(RATES),
            draw(RATES),
            draw(st.sampled_from(["link", "nvlink"])),
            1 + a % 2,
        )
        links += both_directions(link) if draw(st.booleans()) else (link,)
    return Topology("drawn", devices, tuple(links), extra={"note": "kept"})


@given(topologies())
@settings(max_examples=count_examples(20))
def test_json_gives_back_the_same_topology(topology: Topology) -> None:
    assert Topology.loads(topology.dumps()) == topology
    assert Topology.from_json(topology.to_json()) == topology


@given(topologies(), st.randoms(use_true_random=False))
@settings(max_examples=count_examples(8))
def test_fingerprint_sees_neither_names_nor_order(topology: Topology, rng: random.Random) -> None:
    names = [d.id for d in topology.devices]
    new = dict(zip(names, (f"x{i}" for i in rng.sample(range(1000), len(names))), strict=True))
    devices = [replace(d, id=new[d.id]) for d in topology.devices]
    links = [replace(x, src=new[x.src], dst=new[x.dst]) for x in topology.links]
    rng.shuffle(devices)
    rng.shuffle(links)
    assert Topology("renamed", tuple(devices), tuple(links)).fingerprint == topology.fingerprint


@given(topologies().filter(lambda t: bool(t.links)), st.data())
@settings(max_examples=count_examples(8))
def test_fingerprint_sees_every_bandwidth_and_latency(
    topology: Topology, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(topology.links) - 1))
    link = topology.links[at]
    faster = replace(link, bandwidth_GBps=link.bandwidth_GBps + Fraction(1, 7))
    slower = replace(link, latency_us=topology.latency_us[link.src, link.dst] + 1)
    for other in (faster, slower):
        changed = replace(topology, links=(*topology.links[:at], other, *topology.links[at + 1 :]))
        assert changed.fingerprint != topology.fingerprint


def test_fingerprint_tells_what_plain_colour_refinement_cannot() -> None:
    """One ring of 6 and two rings of 3: every device looks alike until one is singled out."""
    ring = preset("ring:6")
    pairs = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
    two = Topology(
        "two",
        ring.devices,
        tuple(x for a, b in pairs for x in both_directions(Link(f"gpu{a}", f"gpu{b}"))),
    )
    assert two.fingerprint != ring.fingerprint


def test_fingerprint_sees_a_kind_and_what_a_switch_can_do() -> None:
    switch = preset("switch:4")
    prints = {switch.fingerprint}
    for change in ({"can_reduce": True}, {"can_copy": True}, {"family": "pcie"}, {"kind": "cpu"}):
        devices = tuple(replace(d, **change) if d.id == "switch0" else d for d in switch.devices)
        prints.add(replace(switch, devices=devices).fingerprint)
    assert len(prints) == 5


def test_parallel_links_add_up_and_the_slowest_gives_the_latency() -> None:
    links = (Link("a", "b", Fraction(2), Fraction(1)), Link("a", "b", Fraction(3), Fraction(5)))
    topology = Topology("t", (Device("a"), Device("b")), links)
    assert topology.capacity_GBps == {("a", "b"): 5}
    assert topology.latency_us == {("a", "b"): 5}
    assert not topology.is_symmetric


def test_hand_written_json_with_defaults_and_unknown_fields() -> None:
    text = """{"format": "topoplan-topology", "version": 1, "name": "two-sockets", "owner": "lab",
     "devices": [{"id": "gpu0", "colour": "red"}, {"id": "plx0", "kind": "switch", "can_reduce": false}],
     "links": [{"src": "gpu0", "dst": "plx0", "bandwidth_GBps": "64/3", "bidirectional": true},
               {"src": "plx0", "dst": "gpu0"}]}"""
    topology = Topology.loads(text)
    assert topology.capacity_GBps == {
        ("gpu0", "plx0"): Fraction(64, 3),
        ("plx0", "gpu0"): Fraction(67, 3),
    }
    assert topology.by_id["gpu0"].extra == {"colour": "red"}
    assert topology.extra == {"owner": "lab"}
    assert json.loads(topology.dumps())["owner"] == "lab"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"devices": [', "not JSON at line 1"),
        ('{"devices": []}', "devices: expected a list that is not empty"),
        ('{"devices": [{"id": "a"}, {"id": "a"}]}', "ids must differ"),
        ('{"devices": [{"id": "a"}], "links": [{"src": "a", "dst": "b"}]}', "'b'"),
        (
            '{"devices": [{"id": "a"}], "links": [{"src": "a", "dst": "a"}]}',
            "two different devices",
        ),
        (
            '{"devices": [{"id": "a", "kind": "tpu"}]}',
            "devices[0].kind: expected one of cpu, gpu, nic, switch, got 'tpu'",
        ),
        (
            '{"devices": [{"id": "a"}, {"id": "b"}], "links": [{"src": "a", "dst": "b", '
            '"bandwidth_GBps": 0}]}',
            "above 0",
        ),
        (
            '{"devices": [{"id": "a"}, {"id": "b"}], "links": [{"src": "a", "dst": "b", '
            '"bandwidth_GBps": NaN}]}',
            "NaN",
        ),
        (
            '{"devices": [{"id": "a\\u0007"}]}',
            r"devices[0].id: expected a string without control characters, got 'a\x07'",
        ),
        (
            '{"devices": [{"id": "a", "host": "\\u001b[31m"}]}',
            r"devices[0]: 'host': expected a string without control characters, got '\x1b[31m'",
        ),
        (
            '{"devices": [{"id": "a", "source": "\\u009b"}]}',
            "devices[0].source: expected a string without control",
        ),
        (
            '{"devices": [{"id": "a"}], "rack\\n": 1}',
            "expected a string without control characters, got 'rack",
        ),
        (
            '{"devices": [{"id": "a"}], "name": "two\\nlines"}',
            "name: expected a string without control characters",
        ),
        (
            '{"devices": [{"id": "a", "numa_node": 1.5}]}',
            "devices[0].numa_node: expected a whole number, got 1.5",
        ),
        ('{"devices": [{"kind": "cpu"}]}', "devices[0].id: expected a string, got nothing"),
        (
            '{"devices": [{"id": "a"}], "links": [{"src": "a", "dst": "b", "latency_us": "1/0"}]}',
            "latency_us: expected a number",
        ),
        ('{"format": "other", "devices": [{"id": "a"}]}', "'other'"),
        ('{"version": 2, "devices": [{"id": "a"}]}', "version 1"),
        ("[" * 100_000, "not usable JSON"),
    ],
)
def test_wrong_json_is_refused_with_file_and_reason(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        Topology.loads(text, "machine.json")
    assert str(caught.value).startswith("machine.json")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_routes_take_the_closest_path_and_never_a_gpu() -> None:
    topology = preset("pcie-2socket")
    router = Router(topology)
    assert router.route(0, 1) == ("gpu0", "plx0", "gpu1")
    assert router.route(0, 2) == ("gpu0", "plx0", "cpu0", "plx1", "gpu2")
    far = router.route(0, 7)
    assert far == ("gpu0", "plx0", "cpu0", "cpu1", "plx3", "gpu7")
    assert router.bandwidth_GBps(far) == Fraction(96, 5)
    assert router.latency_us(far) == sum(topology.latency_us[link] for link in pairwise(far))
    assert Router(preset("ring:4")).route(0, 2) is None, "only another GPU could forward"


def test_routes_stay_in_the_box_where_they_can() -> None:
    router = Router(preset("dgx-a100:2"))
    assert router.route(0, 7) == ("gpu0", "nvswitch0", "gpu7")
    assert router.route(0, 8) == ("gpu0", "network0", "gpu8")
    assert Router(preset("mi250:2")).route(0, 1) == ("gpu0", "gpu1")


def test_a_route_prefers_bandwidth_where_latency_and_hops_are_equal() -> None:
    devices = (Device("a"), Device("b"), Device("s", "switch"), Device("f", "switch"))
    links = [
        Link("a", "s"),
        Link("s", "b"),
        Link("a", "f", Fraction(9)),
        Link("f", "b", Fraction(9)),
    ]
    assert Router(Topology("t", devices, tuple(links))).route(0, 1) == ("a", "f", "b")
