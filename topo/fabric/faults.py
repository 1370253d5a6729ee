"""Name what is wrong with the cabling of some hosts, port by port, from facts alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from .facts import FabricFacts
from .segments import PortKey, Segment, count_islands, find_hearing, find_segments

# A cable below this share of the median of its kind is slow. TCP on a busy host varies by a third.
_SLOW = 0.6


@dataclass(frozen=True)
class CableFault:
    """Something wrong: a `code`, the ports that it is about, one line of text, and advice.

    `is_fatal` says that hosts cannot be joined by such facts, or only wrongly.
    """

    code: str
    ports: tuple[PortKey, ...]
    text: str
    advice: str
    is_fatal: bool = False


def find_faults(facts: FabricFacts) -> tuple[CableFault, ...]:
    """Return the faults of the cabling, those that nothing works with first."""
    segments = find_segments(facts)
    faults = [
        *_find_wrong_answers(facts),
        *_find_repeated_subnets(facts, segments),
        *_find_misled(facts),
        *_find_one_direction(facts),
        *_find_alone(facts, segments),
        *_find_management(facts, segments),
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
    if fault.code in ("ports-crossed", "cable-to-another-host"):
        return not blamed.isdisjoint(fault.ports)
    return False


def _find_wrong_answers(facts: FabricFacts) -> Iterator[CableFault]:
    seen: set[PortKey] = set()
    for x in facts.answers:
        to = x.to_host, x.to_port
        if x.by_host in (None, x.to_host) or to in seen:
            continue
        assert x.by_host is not None
        seen.add(to)
        port = facts.ports[to]
        by = x.by_host, x.by_port
        yield CableFault(
            "address-of-another-host",
            (to, by),
            f"{facts.name_port(to)}: its address {port.ip} answers from {facts.name_port(by)} "
            f"when asked over {facts.name_port((x.host, x.port))}",
            "give each port an address of its own, and look where the cable leads",
            True,
        )


def _find_repeated_subnets(
    facts: FabricFacts, segments: tuple[Segment, ...]
) -> Iterator[CableFault]:
    by_subnet: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_subnet[str(facts.ports[segment.ports[0]].network)].append(segment)
    wired = _find_wired(facts)
    for subnet, ports in _list_subnets(facts).items():
        # Physical groups of this subnet's ports; some may not answer at all.
        groups = {group for p in ports if len(group := frozenset(wired[p] & set(ports))) > 1}
        groups |= {frozenset(x.ports) for x in by_subnet.get(subnet, ())}
        groups = {x for x in groups if not any(x < y for y in groups)}
        if len(groups) < 2:
            continue
        about = tuple(sorted(port for group in groups for port in group))
        hosts = {frozenset(host for host, _ in group) for group in groups}
        names = ", ".join(map(facts.name_port, about))
        if len(hosts) == 1:
            yield CableFault(
                "one-subnet-two-cables",
                about,
                f"{names}: {len(groups)} cables between two hosts share the subnet {subnet}, so "
                "the system sends everything over one of them",
                "give each cable a subnet of its own",
                True,
            )
        else:
            yield CableFault(
                "subnet-used-twice",
                about,
                f"{names}: the subnet {subnet} is used on {len(groups)} cables",
                "give each cable a subnet of its own",
                True,
            )


def _list_subnets(facts: FabricFacts) -> dict[str, list[PortKey]]:
    """Return the ports of each subnet, without those of the rendezvous."""
    ports: dict[str, list[PortKey]] = defaultdict(list)
    for key, port in facts.ports.items():
        if port.address and port.name != facts.hosts[key[0]].management:
            ports[str(port.network)].append(key)
    return ports


def _find_wired(facts: FabricFacts) -> dict[PortKey, set[PortKey]]:
    """Return for each port those that it hears and that hear it, itself included."""
    heard = find_hearing(facts)
    return {p: {p, *(q for q in heard[p] if p in heard[q])} for p in facts.ports}


def _find_misled(facts: FabricFacts) -> Iterator[CableFault]:
    """Report cables that lead to a port of another subnet than that of their own address."""
    wired, seen = _find_wired(facts), set[PortKey]()
    for p, port in facts.ports.items():
        others = sorted(wired[p] - {p})
        if not port.address or p in seen or len(others) != 1:
            continue
        (q,) = others
        other = facts.ports[q]
        if not other.address or other.network == port.network:
            continue
        mates = [
            key
            for key, x in facts.ports.items()
            if x.address and x.network == port.network and key[0] != p[0]
        ]
        seen.update((p, q))
        expected = (
            f", and its subnet {port.network} is that of {facts.name_port(mates[0])}"
            if (mates)
            else ""
        )
        is_crossed = any(mate[0] == q[0] for mate in mates)
        yield CableFault(
            "ports-crossed" if is_crossed else "cable-to-another-host",
            (p, q),
            f"{facts.name_port(p)}: its cable leads to {facts.name_port(q)}{expected}"
            + (": the cables between these hosts are crossed" if is_crossed else ""),
            "plug the cable into the other port, or swap the two addresses",
            True,
        )


def _find_one_direction(facts: FabricFacts) -> Iterator[CableFault]:
    heard = find_hearing(facts)
    for p in sorted(facts.ports):
        for q in sorted(heard[p]):
            if p not in heard[q]:
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
    carrying = {(i, host.management) for i, host in enumerate(facts.hosts) if host.management}
    data = [x for x in segments if not carrying & set(x.ports)]
    used = [x for x in segments if carrying & set(x.ports) and not x.is_management]
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
    cables = [x for x in segments if x.is_cable and not x.is_management]
    kinds: dict[int | None, list[tuple[Segment, float]]] = defaultdict(list)
    for cable in cables:
        a, b = cable.ports
        rates = [find_rate(facts, a, b), find_rate(facts, b, a)]
        known = [rate for rate in rates if rate is not None]
        speeds = {facts.ports[port].speed_Mbps for port in cable.ports}
        if len(speeds) > 1:
            yield CableFault(
                "cable-slow",
                cable.ports,
                f"{facts.name_port(a)} and {facts.name_port(b)} report different speeds "
                f"({', '.join(map(str, sorted(speeds, key=str)))} Mbit/s)",
                "look at the cable and at the speeds that the ports offer",
            )
        elif known:
            kinds[speeds.pop()].append((cable, min(known)))
    for measured in kinds.values():
        lowest = sorted(rate for _, rate in measured)
        usual = lowest[-1] if len(lowest) == 2 else median(lowest)
        for cable, rate in measured:
            if rate < _SLOW * usual:
                a, b = cable.ports
                yield CableFault(
                    "cable-slow",
                    cable.ports,
                    f"the cable {facts.name_port(a)} - {facts.name_port(b)} carries {rate:.3g} "
                    f"GB/s, others of its kind {usual:.3g}",
                    "look at the cable, its transceivers and the negotiated speed (ethtool PORT)",
                )


def find_rate(facts: FabricFacts, a: PortKey, b: PortKey) -> float | None:
    """Return the highest measured rate from one port to another, in GB/s; None without one."""
    rates = [
        x.GBps
        for flows in facts.rounds
        for x in flows
        if ((x.host, x.port), (x.to_host, x.to_port)) == (a, b)
    ]
    return max(rates, default=None)
