"""Cables and switches inferred from facts: what is joined, at which rates, and what is wrong.

The facts are those of a model network: wires between ports, over which hellos and answers pass as
they would between hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import permutations

import msgspec
import pytest
from planned import synthesize

from topoplan.synth.extras.cables.hosts import read_hosts
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.errors import InputError
from topoplan.topo.extras.cables import (
    FabricFacts,
    Flow,
    Hello,
    HostFacts,
    PortAnswer,
    PortFacts,
    describe_hosts,
    find_bundles,
    find_faults,
    make_topology,
)
from topoplan.topo.extras.cables.facts import agree_on_management, list_possible_pairs
from topoplan.topo.extras.cables.segments import find_segments, list_data_segments
from topoplan.topo.extras.doctor import list_findings
from topoplan.topo.graph import Topology

Key = tuple[int, str]


def connect(
    ports: Mapping[Key, PortFacts],
    wires: Sequence[Sequence[Key]],
    *,
    deaf: Sequence[tuple[Key, Key]] = (),
    rates: Mapping[frozenset[Key], float] | None = None,
    multicast: bool = True,
    management: str = "",
    chosen: tuple[str, ...] = (),
) -> FabricFacts:
    """Return the facts of hosts whose ports are on some wires: each is a cable or a switch.

    Nothing passes from the first to the second of the `deaf` pairs. If several ports of a host are
    on one wire, its system answers for one over another.
    """
    numbers = sorted({host for host, _ in ports})
    hosts = tuple(
        HostFacts(
            f"h{host}",
            (host,),
            tuple(port for (of, _), port in ports.items() if of == host),
            management if (host, management) in ports else "",
            chosen,
        )
        for host in numbers
    )

    def passes(p: Key, q: Key) -> bool:
        return (p, q) not in deaf and any(p in wire and q in wire for wire in wires)

    hellos = [
        Hello(*q, *p) for p in ports for q in ports if p[0] != q[0] and passes(p, q) and multicast
    ]
    answers = []
    for p, q in list_possible_pairs(hosts):
        by = [
            other
            for other in ports
            if other != p
            and ports[other].ip == ports[q].ip
            and passes(p, other)
            and passes(other, p)
        ]
        crowded = any(
            [x[0] for x in wire].count(host) > 1
            for wire in wires
            if p in wire
            for host in (p[0], q[0])
        )
        answer = (by[0][0], "") if by and crowded else by[0] if by else (None, "")
        answers.append(PortAnswer(*p, *q, *answer))
    flows = [
        (Flow(*p, *q, (rates or {}).get(frozenset((p, q)), 10.0)),)
        for wire in wires
        for p in wire
        for q in wire
        if p[0] != q[0]
    ]
    return FabricFacts(hosts, tuple(hellos), tuple(answers), tuple(flows))


def wire_ring(hosts: int) -> tuple[dict[Key, PortFacts], list[list[Key]]]:
    """Return ports and wires of a ring: host i's port0 leads to the next host's port1."""
    ports: dict[Key, PortFacts] = {}
    wires = []
    for i in range(hosts):
        j = (i + 1) % hosts
        ports[i, "port0"] = PortFacts("port0", f"10.1.{i}.1/24")
        ports[j, "port1"] = PortFacts("port1", f"10.1.{i}.2/24")
        wires.append([(i, "port0"), (j, "port1")])
    return ports, wires


def add_management(ports: dict[Key, PortFacts], hosts: int) -> list[Key]:
    for host in range(hosts):
        ports[host, "mgmt0"] = PortFacts("mgmt0", f"192.168.0.{host + 1}/24")
    return [(host, "mgmt0") for host in range(hosts)]


def list_codes(facts: FabricFacts) -> list[str]:
    return [fault.code for fault in find_faults(facts)]


@pytest.mark.parametrize("hosts", [3, 4, 6])
@pytest.mark.parametrize("multicast", [True, False])
def test_a_ring_is_found_as_cables_and_plans_relay_along_it(hosts: int, multicast: bool) -> None:
    ports, wires = wire_ring(hosts)
    wires.append(add_management(ports, hosts))
    facts = connect(ports, wires, multicast=multicast, management="mgmt0")
    topology = make_topology(facts)
    assert topology.ranks == tuple(f"h{i}" for i in range(hosts))
    assert not [d for d in topology.devices if d.kind == "switch"]
    expected = {(f"h{i}", f"h{(i + 1) % hosts}") for i in range(hosts)}
    assert set(topology.capacity_GBps) == expected | {(b, a) for a, b in expected}
    assert set(topology.capacity_GBps.values()) == {Fraction(10)}
    assert list_codes(facts) == []
    assert any("management network" in note for note in topology.notes)
    link = next(x for x in topology.links if (x.src, x.dst) == ("h0", "h1"))
    assert (link.extra["src_address"], link.extra["dst_port"]) == ("10.1.0.1", "port1")
    synthesize(collective_on("allreduce", topology), topology, "ring").plan.verify()


def test_two_cables_are_two_links_with_addresses_of_their_own() -> None:
    ports = {
        (host, f"port{i}"): PortFacts(f"port{i}", f"10.1.{i}.{host + 1}/24")
        for host in (0, 1)
        for i in (0, 1)
    }
    wires = [[(0, f"port{i}"), (1, f"port{i}")] for i in (0, 1)]
    topology = make_topology(connect(ports, wires))
    there = [x for x in topology.links if x.src == "h0"]
    assert [x.extra["src_address"] for x in there] == ["10.1.0.1", "10.1.1.1"]
    assert topology.capacity_GBps["h0", "h1"] == 20


def switch_facts(leaves: Sequence[int], uplink: float) -> FabricFacts:
    """Return the facts of hosts on one switched network; host i is on the leaf leaves[i]."""
    hosts = len(leaves)
    ports = {(i, "port0"): PortFacts("port0", f"10.2.0.{i + 1}/24") for i in range(hosts)}
    facts = connect(ports, [list(ports)])
    rounds = list(facts.rounds)
    for (a, c), (b, d) in (
        pair
        for four in [(0, 1, 2, 3)]
        for pair in [
            ((four[0], four[2]), (four[1], four[3])),
            ((four[0], four[1]), (four[2], four[3])),
            ((four[0], four[1]), (four[3], four[2])),
        ]
    ):
        of = [leaves[i] for i in (a, b, c, d)]
        is_up = of[0] == of[1] and of[0] not in of[2:]
        is_down = of[2] == of[3] and of[2] not in of[:2]
        rate = uplink / 2 if is_up or is_down else 10.0
        rounds.append((Flow(a, "port0", c, "port0", rate), Flow(b, "port0", d, "port0", rate)))
    return msgspec.structs.replace(facts, rounds=tuple(rounds))


@pytest.mark.parametrize("leaves", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)])
def test_leaves_are_told_by_flows_that_slow_each_other_down(leaves: tuple[int, ...]) -> None:
    topology = make_topology(switch_facts(leaves, 10.0))
    leaf_of = [next(x.dst for x in topology.links if x.src == gpu) for gpu in topology.ranks]
    assert [leaf_of.index(x) for x in leaf_of] == [leaves.index(x) for x in leaves]
    uplinks = [x for x in topology.links if {x.src, x.dst}.isdisjoint(topology.ranks)]
    assert len(uplinks) == 4
    assert {x.bandwidth_GBps for x in uplinks} == {Fraction(10)}


def test_a_switch_without_contention_has_no_tiers() -> None:
    topology = make_topology(switch_facts((0, 1, 2, 3), 10.0))
    assert [d.id for d in topology.devices if d.kind == "switch"] == ["switch0"]


def test_ranks_of_one_host_reach_others_but_nothing_forwards() -> None:
    ports, wires = wire_ring(3)
    facts = connect(ports, wires)
    hosts = tuple(
        msgspec.structs.replace(host, ranks=(2 * i, 2 * i + 1))
        for i, host in enumerate(facts.hosts)
    )
    topology = make_topology(msgspec.structs.replace(facts, hosts=hosts))
    assert topology.ranks[:3] == ("h0/rank0", "h0/rank1", "h1/rank2")
    assert not [x for x in topology.links if x.src.endswith("/in") and x.dst.endswith("/out")]


def test_measured_rates_that_are_alike_are_one_rate() -> None:
    ports, wires = wire_ring(4)
    rates = {frozenset(wire): 10 + 0.1 * i for i, wire in enumerate(wires)}
    topology = make_topology(connect(ports, wires, rates=rates))
    assert len(set(topology.capacity_GBps.values())) == 1


def test_rdma_ports_count_with_the_speed_of_their_link() -> None:
    ports, wires = wire_ring(3)
    rdma = {
        key: msgspec.structs.replace(port, rdma="mlx5_0", speed_Mbps=200_000)
        for key, port in ports.items()
    }
    topology = make_topology(connect(rdma, wires))
    assert set(topology.capacity_GBps.values()) == {Fraction(25)}


# Sparks: each connector is two interfaces, one on each of two PCIe links

# By the connector: its two interfaces, which are ports of one cable.
SPARK = [(f"enp1s0f{i}np{i}", f"enP2p1s0f{i}np{i}") for i in range(2)]


def wire_sparks(
    cables: Sequence[Sequence[tuple[int, int]]], name_subnet: Callable[[int, int], str]
) -> tuple[dict[Key, PortFacts], list[list[Key]]]:
    """Return ports and wires of Sparks: a cable or switch joins connectors (host, 0 or 1).

    `name_subnet` returns the subnet of the cable's first or second interfaces: "10.1.0.{}/24".
    """
    ports: dict[Key, PortFacts] = {}
    wires = []
    for number, ends in enumerate(cables):
        wires.append([(host, name) for host, i in ends for name in SPARK[i]])
        for host, i in ends:
            for rail, name in enumerate(SPARK[i]):
                ports[host, name] = PortFacts(
                    name,
                    name_subnet(number, rail).format(len(ports) + 1),
                    speed_Mbps=200_000,
                    rdma=name.replace("en", "roce").partition("np")[0],
                    connector=f"4bb00000fb98 p{i}",
                )
    return ports, wires


def measure(facts: FabricFacts, GBps: float) -> FabricFacts:
    """Return the facts with measurements: all subnets of a cable together carry so much."""
    flows = [
        bundle.list_flows(*pair)
        for bundle in find_bundles(facts, list_data_segments(find_segments(facts)))
        for pair in permutations(bundle.hosts, 2)
    ]
    rounds = tuple(tuple(Flow(*p, *q, GBps / len(x)) for p, q in x) for x in flows)
    return msgspec.structs.replace(facts, rounds=rounds)


def forget_rdma(ports: Mapping[Key, PortFacts]) -> dict[Key, PortFacts]:
    return {
        key: msgspec.structs.replace(port, rdma="", speed_Mbps=None) for key, port in ports.items()
    }


def follow_playbook(cable: int, rail: int) -> str:
    return f"192.168.{100 + 2 * cable + rail}.{{}}/24"


def share_one_subnet(cable: int, rail: int) -> str:
    return "192.168.100.{}/24"


def use_link_local(cable: int, rail: int) -> str:
    return "169.254.7.{}/16"


PAIR = [[(0, 0), (1, 0)]]
TWO_CABLES = [[(0, i), (1, i)] for i in range(2)]
RING = [[(i, 0), ((i + 1) % 3, 1)] for i in range(3)]


@pytest.mark.parametrize(("cables", "count"), [(PAIR, 1), (TWO_CABLES, 2), (RING, 3)])
@pytest.mark.parametrize("multicast", [True, False])
def test_two_interfaces_of_a_connector_are_one_cable(
    cables: list[list[tuple[int, int]]], count: int, multicast: bool
) -> None:
    ports, wires = wire_sparks(cables, follow_playbook)
    facts = measure(connect(ports, wires, multicast=multicast), 9.0)
    assert list_codes(facts) == []
    topology = make_topology(facts)
    assert len(topology.links) == 2 * count
    assert {x.bandwidth_GBps for x in topology.links} == {Fraction(25)}
    assert topology.links[0].extra["src_rdma"] == ["rocep1s0f0", "roceP2p1s0f0"]
    hosts = read_hosts(topology)
    assert len(hosts.cables) == count
    assert hosts.list_free_ports(0) == []
    tcp = make_topology(measure(connect(forget_rdma(ports), wires, multicast=multicast), 9.0))
    assert {x.bandwidth_GBps for x in tcp.links} == {Fraction(9)}


def test_a_cable_over_which_ranks_meet_carries_data_in_both_subnets() -> None:
    ports, wires = wire_sparks(PAIR, follow_playbook)
    facts = measure(connect(ports, wires, management=SPARK[0][0]), 9.0)
    assert list_codes(facts) == []
    assert len(list_data_segments(find_segments(facts))) == 2
    assert len(make_topology(facts).links) == 2


def test_sparks_on_a_switch_have_one_link_to_it() -> None:
    ports, wires = wire_sparks([[(i, 0) for i in range(4)]], follow_playbook)
    facts = measure(connect(ports, wires), 9.0)
    assert list_codes(facts) == []
    topology = make_topology(facts)
    assert [d.id for d in topology.devices if d.kind == "switch"] == ["switch0"]
    assert [x.bandwidth_GBps for x in topology.links] == [Fraction(25)] * 8


@pytest.mark.parametrize("name_subnet", [share_one_subnet, use_link_local])
@pytest.mark.parametrize("hosts", [2, 4])
def test_one_subnet_on_both_interfaces_is_one_port(
    name_subnet: Callable[[int, int], str], hosts: int
) -> None:
    ports, wires = wire_sparks([[(i, 0) for i in range(hosts)]], name_subnet)
    facts = measure(connect(ports, wires), 9.0)
    (fault,) = find_faults(facts)
    assert (fault.code, fault.is_fatal) == ("one-subnet-two-ports", False)
    expected = "192.168.10{0}.1/24 at h0:enP2p1s0f0np0 and 192.168.10{0}.2/24 at h1:enP2p1s0f0np0"
    assert expected.format(int(name_subnet is share_one_subnet)) in fault.advice
    topology = make_topology(facts)
    assert len(topology.links) == (2 if hosts == 2 else 2 * hosts)
    assert {x.bandwidth_GBps for x in topology.links} == {Fraction(25)}


@pytest.mark.parametrize(
    ("cables", "code"),
    [(TWO_CABLES, "one-subnet-two-cables"), (RING, "subnet-used-twice")],
)
def test_link_local_addresses_on_several_cables_are_one_fault(
    cables: list[list[tuple[int, int]]], code: str
) -> None:
    ports, wires = wire_sparks(cables, use_link_local)
    facts = connect(ports, wires)
    (fault,) = find_faults(facts)
    assert (fault.code, fault.is_fatal) == (code, True)
    assert f"{len(cables)} cables" in fault.text
    assert "192.168.100.1/24 at h0:enP2p1s0f0np0" in fault.advice
    with pytest.raises(InputError, match=r"169\.254\.0\.0/16"):
        make_topology(facts)


@pytest.mark.parametrize("hosts", [(1,), (0, 1)])
def test_an_interface_without_address_leaves_half_of_its_cable_idle(hosts: tuple[int, ...]) -> None:
    ports, wires = wire_sparks(PAIR, follow_playbook)
    for host in hosts:
        key = host, SPARK[0][1]
        ports[key] = msgspec.structs.replace(ports[key], address="")
    (fault,) = find_faults(connect(ports, wires))
    assert (fault.code, fault.is_fatal) == ("interface-without-address", False)
    assert "h1:enP2p1s0f0np0: no IPv4 address" in fault.text
    both = "set 192.168.101.1/24 at h0:enP2p1s0f0np0 and 192.168.101.2/24 at h1:enP2p1s0f0np0"
    assert fault.advice == (both if len(hosts) == 2 else fault.advice)
    assert len(hosts) == 2 or "subnet of the interface at the other end" in fault.advice


def test_a_vlan_has_the_device_and_the_address_of_its_interface() -> None:
    ports = {}
    for host in range(2):
        base = PortFacts("enp1s0", speed_Mbps=100_000, rdma="mlx5_0", connector="port enp1s0")
        ports[host, base.name] = base
        ports[host, "enp1s0.7"] = msgspec.structs.replace(
            base, name="enp1s0.7", address=f"10.7.0.{host + 1}/24"
        )
    facts = connect(ports, [[(0, "enp1s0.7"), (1, "enp1s0.7")], [(0, "enp1s0"), (1, "enp1s0")]])
    assert list_codes(facts) == []
    assert make_topology(facts).links[0].extra["src_rdma"] == ["mlx5_0"]


def test_the_host_of_the_rendezvous_has_the_management_port_of_the_others_network() -> None:
    ports, wires = wire_ring(3)
    wires.append(add_management(ports, 3))
    facts = connect(ports, wires, management="mgmt0")
    by_loopback = msgspec.structs.replace(facts.hosts[0], management="")
    assert agree_on_management((by_loopback, *facts.hosts[1:])) == facts.hosts


# Miscablings


def cross_ports() -> FabricFacts:
    ports = {
        (host, f"port{i}"): PortFacts(f"port{i}", f"10.1.{i}.{host + 1}/24")
        for host in (0, 1)
        for i in (0, 1)
    }
    return connect(ports, [[(0, "port0"), (1, "port1")], [(0, "port1"), (1, "port0")]])


def share_subnet() -> FabricFacts:
    ports = {
        (host, f"port{i}"): PortFacts(f"port{i}", f"10.1.0.{2 * i + host + 1}/24")
        for host in (0, 1)
        for i in (0, 1)
    }
    return connect(ports, [[(0, f"port{i}"), (1, f"port{i}")] for i in (0, 1)])


def deafen() -> FabricFacts:
    ports, wires = wire_ring(4)
    return connect(ports, wires, deaf=[((0, "port0"), (1, "port1"))])


def slow_down() -> FabricFacts:
    ports, wires = wire_ring(4)
    return connect(ports, wires, rates={frozenset(wires[2]): 2.0})


def change_mtu() -> FabricFacts:
    ports, wires = wire_ring(4)
    ports[1, "port1"] = msgspec.structs.replace(ports[1, "port1"], mtu=9000)
    return connect(ports, wires)


def isolate() -> FabricFacts:
    ports, wires = wire_ring(4)
    return connect(ports, [wire for wire in wires if not any(host == 2 for host, _ in wire)])


def repeat_subnet() -> FabricFacts:
    ports, wires = wire_ring(4)
    ports[2, "port0"] = PortFacts("port0", "10.1.0.3/24")
    ports[3, "port1"] = PortFacts("port1", "10.1.0.4/24")
    return connect(ports, wires)


def answer_for_another() -> FabricFacts:
    ports, wires = wire_ring(4)
    wires[0][1], wires[2][1] = wires[2][1], wires[0][1]
    ports[3, "port1"] = ports[1, "port1"]
    return connect(ports, wires)


def mislead() -> FabricFacts:
    ports, wires = wire_ring(4)
    wires[0][1], wires[2][1] = wires[2][1], wires[0][1]
    return connect(ports, wires)


def forget_address() -> FabricFacts:
    ports, wires = wire_ring(4)
    ports[2, "port0"] = PortFacts("port0")
    return connect(ports, wires)


def differ_subnets() -> FabricFacts:
    ports, wires = wire_ring(4)
    ports[2, "port0"] = PortFacts("port0", "10.1.7.1/24")
    ports[3, "port1"] = PortFacts("port1", "10.1.8.1/24")
    return connect(ports, wires)


def copy_address() -> FabricFacts:
    ports, wires = wire_sparks(PAIR, lambda cable, rail: f"192.168.{100 + rail}.10/24")
    return connect(ports, wires)


def need_management() -> FabricFacts:
    ports, wires = wire_ring(4)
    wires.append(add_management(ports, 4))
    kept = [wire for wire in wires if len(wire) > 2 or not any(host == 2 for host, _ in wire)]
    return connect(ports, kept, management="mgmt0")


def choose_management() -> FabricFacts:
    ports, wires = wire_ring(3)
    wires.append(add_management(ports, 3))
    return connect(ports, wires, management="mgmt0", chosen=("mgmt0",))


@pytest.mark.parametrize(
    ("make", "code", "port"),
    [
        (cross_ports, "ports-crossed", "h0:port0"),
        (share_subnet, "one-subnet-two-cables", "h1:port1"),
        (deafen, "one-direction", "h0:port0"),
        (slow_down, "cable-slow", "h2:port0"),
        (change_mtu, "mtu-differs", "h1:port1"),
        (isolate, "rank-alone", "h2:port0"),
        (repeat_subnet, "subnet-used-twice", "h3:port1"),
        (answer_for_another, "address-of-another-host", "h1:port1"),
        (mislead, "cable-to-another-host", "h2:port0"),
        (forget_address, "cable-without-address", "h3:port1"),
        (differ_subnets, "subnets-differ", "h2:port0"),
        (copy_address, "address-used-twice", "h1:enP2p1s0f0np0"),
        (need_management, "management-for-data", "h2:mgmt0"),
        (choose_management, "management-for-data", "h1:mgmt0"),
    ],
)
def test_a_miscabling_is_named_with_its_port(make: object, code: str, port: str) -> None:
    assert callable(make)
    facts = make()
    faults = find_faults(facts)
    assert {fault.code for fault in faults} == {code}
    assert any(port in fault.text for fault in faults)
    found = [x for x in list_findings(describe_hosts(facts)) if x.what == code]
    assert found
    assert found[0].severity == ("error" if faults[0].is_fatal else "warning")
    if faults[0].is_fatal:
        with pytest.raises(InputError, match=port if len(faults) == 1 else "port"):
            make_topology(facts)


def test_facts_are_in_the_file_and_read_back() -> None:
    ports, wires = wire_ring(3)
    facts = connect(ports, wires)
    text = make_topology(facts).dumps()
    again = Topology.loads(text)
    assert list_findings(again) == list_findings(make_topology(facts))
    bad = text.replace('"hellos"', '"hello"').replace('"hosts": [{', '"hosts": [3, {')
    assert any(x.what == "unreadable-facts" for x in list_findings(Topology.loads(bad)))


def test_several_networks_without_cables_are_switches_and_one_network_is_data() -> None:
    ports = {(i, "port0"): PortFacts("port0", f"10.2.0.{i + 1}/24") for i in range(4)}
    facts = connect(ports, [list(ports)], management="port0")
    assert [x.is_management for x in find_segments(facts)] == [False]
    assert len(list_data_segments(find_segments(facts))) == 1
    assert list_codes(facts) == []
