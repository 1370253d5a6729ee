"""Find faults in the cabling of hosts, port by port, from FabricFacts alone.

These are the hosts' ports and the messages between them. A segment is a cable or a switched network
between ports that answer each other; a wire has the ports that hear each other's multicasts or
share a connector, whatever their addresses. The rendezvous is where the launch's ranks meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import zip_longest
from statistics import median

from ...grouping import group_by_key
from .facts import FabricFacts
from .segments import (
    PortKey,
    Segment,
    count_islands,
    find_bundles,
    find_hearing,
    find_segments,
    find_wires,
    list_carrying,
    list_data_segments,
)

# A cable below this share of the median of its kind is slow. TCP on a busy host varies by a third.
_SLOW = 0.6
# Subnets for advice: from 192.168.100.0/24 on, as in NVIDIA's playbooks, and others if all overlap.
_PRIVATE = tuple(
    IPv4Network(f"{start}.{number}.0/24")
    for start in ("192.168", "10.100", "172.20")
    for number in range(100, 255)
)
# Subnets that one line of advice writes out.
_ADVISED = 4


@dataclass(frozen=True)
class CableFault:
    """A fault in the cabling: a `code`, the ports concerned, one line of text, and advice.

    `code` is its kind, a fixed word of the table in docs/cables.md. If `is_fatal`, hosts cannot be
    joined by such facts, or would be joined wrongly.
    """

    code: str
    ports: tuple[PortKey, ...]
    text: str
    advice: str
    is_fatal: bool = False


def find_faults(facts: FabricFacts) -> tuple[CableFault, ...]:
    """Return the faults of the cabling, fatal ones first, without those that follow from others."""
    segments, wires = find_segments(facts), find_wires(facts)
    faults = [
        *_find_wrong_answers(facts),
        *_find_repeated_addresses(facts, wires),
        *_find_repeated_subnets(facts, segments, wires),
        *_find_misled(facts, wires),
        *_find_unaddressed(facts, segments, wires),
        *_find_one_direction(facts),
        *_find_alone(facts, segments),
        *_find_management(facts, segments),
        *_find_unused(facts, segments),
        *_find_mtus(facts, segments),
        *_find_slow(facts, segments),
    ]
    blamed: set[PortKey] = set()
    out = []
    for fault in sorted(faults, key=lambda fault: not fault.is_fatal):
        if not _follows(fault, blamed):
            out.append(fault)
        blamed.update(fault.ports)
    return tuple(out)


def _follows(fault: CableFault, blamed: set[PortKey]) -> bool:
    """Return whether a fault only follows from those that others of its ports were blamed for."""
    if fault.code in ("rank-alone", "management-for-data"):
        return not {host for host, _ in fault.ports}.isdisjoint({host for host, _ in blamed})
    if fault.code in ("ports-crossed", "cable-to-another-host", "one-subnet-two-ports"):
        return not blamed.isdisjoint(fault.ports)
    return False


def _find_wrong_answers(facts: FabricFacts) -> Iterator[CableFault]:
    wrong = {
        (x.to_host, x.to_port): ((x.by_host, x.by_port), (x.host, x.port))
        for x in facts.answers
        if x.by_host is not None and x.by_host != x.to_host
    }
    for to, (by, over) in wrong.items():
        yield CableFault(
            "address-of-another-host",
            (to, by),
            f"{facts.name_port(to)}: its address {facts.ports[to].ip} answers from "
            f"{facts.name_port(by)} when asked over {facts.name_port(over)}",
            "give each port an address of its own, and look where the cable leads",
            True,
        )


def _find_repeated_addresses(
    facts: FabricFacts, wires: Sequence[frozenset[PortKey]]
) -> Iterator[CableFault]:
    """Report cables with the same addresses at both ends, as copied settings have them."""
    for ends in _list_cables(facts, wires):
        equal = [
            (p, q)
            for p in ends[0]
            for q in ends[1]
            if facts.ports[p].ip and facts.ports[p].ip == facts.ports[q].ip
        ]
        if equal:
            book = _AddressBook(facts)
            yield CableFault(
                "address-used-twice",
                tuple(port for pair in equal for port in pair),
                "; ".join(
                    f"{_list_names(facts, pair)}: both ends of one cable have the address "
                    f"{facts.ports[pair[0]].ip}"
                    for pair in equal
                ),
                "set "
                + " and ".join(f"{book.add_to(p)} at {facts.name_port(q)}" for p, q in equal),
                True,
            )


def _find_repeated_subnets(
    facts: FabricFacts, segments: Sequence[Segment], wires: Sequence[frozenset[PortKey]]
) -> Iterator[CableFault]:
    ports_of = group_by_key(
        (str(port.network), key)
        for key, port in facts.ports.items()
        if port.address and port.name != facts.hosts[key[0]].management
    )
    for subnet, ports in ports_of.items():
        # Some ports on a wire may not answer at all.
        groups = {wire & set(ports) for wire in wires}
        groups |= {frozenset(x.all_ports) & set(ports) for x in segments}
        groups = {x for x in groups if len({host for host, _ in x}) > 1}
        ordered = sorted(map(sorted, (x for x in groups if not any(x < y for y in groups))))
        if len(ordered) < 2:
            continue
        first, *others = [_pair_ports(facts, group) for group in ordered]
        about = tuple(sorted(port for group in ordered for port in group))
        # A cable goes by the first interface of each of its connectors.
        names = _list_names(facts, sorted(port for group in (first, *others) for port in group[0]))
        between = {frozenset(host for host, _ in group) for group in ordered}
        is_pair = len(between) == 1
        yield CableFault(
            "one-subnet-two-cables" if is_pair else "subnet-used-twice",
            about,
            f"{names}: {len(ordered)} cables between two hosts share the subnet {subnet}, so "
            "the system sends everything over one of them"
            if is_pair
            else f"{names}: the subnet {subnet} is used on {len(ordered)} cables",
            "give each cable a subnet of its own: "
            + _propose_subnets(facts, [*first[1:], *(x for group in others for x in group)]),
            True,
        )


def _list_names(facts: FabricFacts, ports: Iterable[PortKey]) -> str:
    return ", ".join(map(facts.name_port, ports))


def _pair_ports(facts: FabricFacts, ports: Iterable[PortKey]) -> list[list[PortKey]]:
    """Return the ports of one wire by subnets to give them: the first of each host, and so on."""
    of_host = group_by_key((port[0], port) for port in sorted(ports, key=list(facts.ports).index))
    rows = [[port for port in row if port] for row in zip_longest(*of_host.values())]
    return [row for row in rows if len(row) > 1] or rows


class _AddressBook:
    """Addresses that no port has, for advice."""

    def __init__(self, facts: FabricFacts) -> None:
        self._facts = facts
        self._used = {port.ip for port in facts.ports.values()}
        self._networks = {x for port in facts.ports.values() if (x := port.network)}

    def add_to(self, port: PortKey) -> str:
        """Return a free address in the subnet of a port, with its prefix."""
        network = self._facts.ports[port].network
        assert network is not None
        free = next((x for x in network.hosts() if str(x) not in self._used), None)
        if free is None:  # a subnet of two addresses
            return "an address of a larger subnet"
        self._used.add(str(free))
        return f"{free}/{network.prefixlen}"

    def add_subnet(self) -> IPv4Network:
        """Return a subnet of 254 addresses that overlaps no other."""
        free = (x for x in _PRIVATE if not any(map(x.overlaps, self._networks)))
        network = next(free, _PRIVATE[-1])
        self._networks.add(network)
        return network


def _propose_subnets(facts: FabricFacts, rows: Sequence[Sequence[PortKey]]) -> str:
    """Return advice that gives the ports of each row a subnet of their own."""
    book, said = _AddressBook(facts), []
    for row in rows[:_ADVISED]:
        network = book.add_subnet()
        said.append(
            " and ".join(
                f"{ip}/{network.prefixlen} at {facts.name_port(port)}"
                for port, ip in zip(row, network.hosts(), strict=False)
            )
        )
    more = f", and so on for {len(rows) - _ADVISED} more" if len(rows) > _ADVISED else ""
    return f"set {'; '.join(said)}{more}"


def _find_unused(facts: FabricFacts, segments: Sequence[Segment]) -> Iterator[CableFault]:
    """Report hosts with several ports in the subnet of one cable or switch."""
    carrying = list_carrying(facts, segments)
    for segment in segments:
        crowded = {host for host, _ in segment.unused}
        about = [port for port in segment.all_ports if port[0] in crowded]
        # Ethernet and Wi-Fi in the network of the rendezvous are as they should be.
        are_apart = len(set(map(facts.find_connector, about))) > len(crowded)
        if not about or (segment in carrying and are_apart):
            continue
        (subnet,) = {facts.ports[port].network for port in about}
        yield CableFault(
            "one-subnet-two-ports",
            tuple(sorted(about)),
            f"{_list_names(facts, sorted(about))}: on one cable or switch, and in one subnet, "
            f"{subnet}, so each host sends everything over one of its ports",
            "give the others a subnet of their own: "
            + _propose_subnets(facts, _pair_ports(facts, segment.unused)),
        )


def _find_misled(facts: FabricFacts, wires: Sequence[frozenset[PortKey]]) -> Iterator[CableFault]:
    """Report cables that lead to a port of another subnet than that of their own address."""
    for ends in _list_cables(facts, wires):
        addressed = [[port for port in end if facts.ports[port].address] for end in ends]
        networks = [{facts.ports[port].network for port in end} for end in addressed]
        if not all(networks) or networks[0] & networks[1]:
            continue
        p, q = addressed[0][0], addressed[1][0]
        mates = [_list_mates(facts, port) for port in (p, q)]
        if not mates[0] and mates[1]:
            p, q, mates = q, p, mates[::-1]
        if not mates[0]:
            yield CableFault(
                "subnets-differ",
                (p, q),
                f"{facts.name_port(p)} ({facts.ports[p].address}) and {facts.name_port(q)} "
                f"({facts.ports[q].address}) are on one cable, but in different subnets",
                f"set {_AddressBook(facts).add_to(p)} at {facts.name_port(q)}",
                True,
            )
            continue
        is_crossed = any(mate[0] == q[0] for mate in mates[0])
        yield CableFault(
            "ports-crossed" if is_crossed else "cable-to-another-host",
            (p, q),
            f"{facts.name_port(p)}: its cable leads to {facts.name_port(q)}, and its subnet "
            f"{facts.ports[p].network} is that of {facts.name_port(mates[0][0])}"
            + (": the cables between these hosts are crossed" if is_crossed else ""),
            "plug the cable into the other port, or swap the two addresses",
            True,
        )


def _list_cables(
    facts: FabricFacts, wires: Sequence[frozenset[PortKey]]
) -> Iterator[list[list[PortKey]]]:
    """Yield the ports at both ends of each wire between two hosts."""
    for wire in wires:
        hosts = sorted({host for host, _ in wire})
        if len(hosts) == 2:
            yield [[port for port in facts.ports if port in wire and port[0] == x] for x in hosts]


def _list_mates(facts: FabricFacts, key: PortKey) -> list[PortKey]:
    """Return the ports of other hosts in the subnet of a port."""
    return [
        other
        for other, x in facts.ports.items()
        if x.address and x.network == facts.ports[key].network and other[0] != key[0]
    ]


def _find_unaddressed(
    facts: FabricFacts, segments: Sequence[Segment], wires: Sequence[frozenset[PortKey]]
) -> Iterator[CableFault]:
    """Report cables that carry nothing, or half, since an end or an interface has no address."""
    joined = {host for segment in segments for host in segment.hosts}
    for ends in _list_cables(facts, wires):
        addressed = [[port for port in end if facts.ports[port].address] for end in ends]
        if all(addressed):
            used = {(x[0], facts.ports[x].rdma) for end in addressed for x in end}
            mute = [
                x
                for end in ends
                for x in end
                if (port := facts.ports[x]).is_up
                and port.rdma
                and not port.address
                and not {(x[0], port.rdma), (x[0], "")} & used
            ]
            if mute:
                yield CableFault(
                    "interface-without-address",
                    tuple(mute),
                    f"{_list_names(facts, mute)}: no IPv4 address, so the cable uses only the "
                    f"other interface of its connector, {_list_names(facts, addressed[0])}",
                    _propose_subnets(facts, _pair_ports(facts, mute))
                    if len({host for host, _ in mute}) == 2
                    else "give it an address in the subnet of the interface at the other end",
                )
            continue
        p, q = (known[0] if known else end[0] for known, end in zip(addressed, ends, strict=True))
        lacking = [x for x in (p, q) if not facts.ports[x].address]
        have = "have" if len(lacking) == 2 else "has"
        advice = (
            _propose_subnets(facts, [lacking])
            if len(lacking) == 2
            else f"set {_AddressBook(facts).add_to(q if lacking == [p] else p)} at "
            f"{facts.name_port(lacking[0])}"
        )
        yield CableFault(
            "cable-without-address",
            (p, q),
            f"the cable {facts.name_port(p)} - {facts.name_port(q)} carries nothing: "
            f"{' and '.join(map(facts.name_port, lacking))} {have} no IPv4 address",
            advice,
            not {p[0], q[0]} <= joined,
        )


def _find_one_direction(facts: FabricFacts) -> Iterator[CableFault]:
    heard, seen = find_hearing(facts), set[tuple[PortKey, PortKey]]()
    for p in sorted(facts.ports):
        for q in sorted(heard[p]):
            cable = facts.find_connector(p), facts.find_connector(q)
            if p not in heard[q] and cable not in seen:
                seen.add(cable)
                yield CableFault(
                    "one-direction",
                    (p, q),
                    f"{facts.name_port(p)}: it hears {facts.name_port(q)}, which does not hear it: "
                    "data passes in one direction only",
                    "clean or replace the cable and its transceivers",
                    True,
                )


def _find_alone(facts: FabricFacts, segments: tuple[Segment, ...]) -> Iterator[CableFault]:
    joined = {host for segment in segments for host in segment.hosts}
    for number, host in enumerate(facts.hosts):
        if number in joined or len(facts.hosts) == 1:
            continue
        ports = [port for port in host.ports if port.name != host.management]
        named = tuple((number, port.name) for port in ports)
        what = ", ".join(
            f"{facts.name_port((number, port.name))} "
            + (
                "is down"
                if not port.is_up
                else "has no address"
                if not port.address
                else f"({port.address}) gets no answer"
            )
            for port in ports
        )
        ranks = ", ".join(map(str, host.ranks))
        yield CableFault(
            "rank-alone",
            named,
            f"{host.name} (rank {ranks}) is alone: {what or 'it has no port beside management'}",
            "plug in a cable to another host, or give its ports addresses of one subnet",
            True,
        )


def _find_management(facts: FabricFacts, segments: tuple[Segment, ...]) -> Iterator[CableFault]:
    carrying = list_carrying(facts, segments)
    data = [x for x in segments if x not in carrying]
    used = [x for x in carrying if not x.is_management]
    if data and used:  # with no other network at all, the only one is right
        reached = {host for segment in data for host in segment.hosts}
        missing = sorted(set(range(len(facts.hosts))) - reached) or sorted(used[0].hosts)
        about = tuple(port for port in used[0].ports if port[0] in missing)
        yield CableFault(
            "management-for-data",
            about,
            f"{', '.join(map(facts.name_port, about))}: the management network has to carry data, "
            f"since cables join the hosts in {count_islands(facts, data)} separate groups",
            "plug in the missing cable",
        )
    for number, host in enumerate(facts.hosts):
        of_management = {x.ports for x in segments if x.is_management}
        if host.management in host.chosen and of_management:
            yield CableFault(
                "management-for-data",
                ((number, host.management),),
                f"{facts.name_port((number, host.management))}: GLOO_SOCKET_IFNAME names the "
                "management network, so it carries the data",
                "unset GLOO_SOCKET_IFNAME: cables are found without it",
            )


def _find_mtus(facts: FabricFacts, segments: tuple[Segment, ...]) -> Iterator[CableFault]:
    for segment in segments:
        mtus = {facts.ports[port].mtu for port in segment.ports}
        if len(mtus) > 1 and not segment.is_management:
            listed = ", ".join(
                f"{facts.name_port(port)} has {facts.ports[port].mtu}" for port in segment.ports
            )
            yield CableFault(
                "mtu-differs",
                segment.ports,
                f"the MTU differs along a segment: {listed}",
                "set one MTU at all of its ports (ip link set PORT mtu N), 9000 if all allow it",
            )


def _find_slow(facts: FabricFacts, segments: tuple[Segment, ...]) -> Iterator[CableFault]:
    """Report cables that are slow among those of one declared speed."""
    kinds: dict[int | None, list[tuple[tuple[PortKey, PortKey], float]]] = defaultdict(list)
    for bundle in find_bundles(facts, list_data_segments(segments)):
        if not bundle.is_cable:
            continue
        x, y = bundle.hosts
        a, b = bundle.list_flows(x, y)[0]
        rates = [find_total(facts, bundle.list_flows(*pair)) for pair in ((x, y), (y, x))]
        known = [rate for rate in rates if rate is not None]
        speeds = {facts.ports[port].speed_Mbps for port in (a, b)}
        if len(speeds) > 1:
            yield CableFault(
                "cable-slow",
                (a, b),
                f"{facts.name_port(a)} and {facts.name_port(b)} report different speeds "
                f"({', '.join(map(str, sorted(speeds, key=str)))} Mbit/s)",
                "look at the cable and at the speeds that the ports offer",
            )
        elif known:
            kinds[speeds.pop()].append(((a, b), min(known)))
    for measured in kinds.values():
        lowest = sorted(rate for _, rate in measured)
        usual = lowest[-1] if len(lowest) == 2 else median(lowest)
        for (a, b), rate in measured:
            if rate < _SLOW * usual:
                yield CableFault(
                    "cable-slow",
                    (a, b),
                    f"the cable {facts.name_port(a)} - {facts.name_port(b)} carries {rate:.3g} "
                    f"GB/s, others of its kind {usual:.3g}",
                    "look at the cable, its transceivers and the negotiated speed (ethtool PORT)",
                )


def find_rate(facts: FabricFacts, a: PortKey, b: PortKey) -> float | None:
    """Return the highest measured rate from port `a` to port `b` in GB/s; None without one."""
    return find_total(facts, [(a, b)])


def find_total(facts: FabricFacts, flows: Sequence[tuple[PortKey, PortKey]]) -> float | None:
    """Return the highest total rate of simultaneous flows in GB/s; None without one.

    `flows` are (from port, to port). If they were not measured together, the fastest alone counts:
    they may share a cable.
    """
    rounds = [
        {((x.host, x.port), (x.to_host, x.to_port)): x.GBps for x in measured}
        for measured in facts.rounds
    ]
    together = [sum(map(of.__getitem__, flows)) for of in rounds if of.keys() >= set(flows)]
    alone = [rate for of in rounds for flow, rate in of.items() if flow in flows]
    return max(together or alone, default=None)
