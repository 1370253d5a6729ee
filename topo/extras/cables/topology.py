"""Make the topology of hosts that cables and switches join, from FabricFacts about their ports.

A segment is a cable or a switched network between ports that reach each other directly; a bundle is
the segments through the same connectors, which share its rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import permutations
from statistics import median
from typing import Any

from ...devices import Device, Link
from ...errors import InputError
from ...graph import Topology
from ...hardware import LATENCY_us
from ...notes import assumed
from .facts import FIELD, FabricFacts, HostFacts
from .faults import find_faults, find_total
from .segments import (
    PortKey,
    SegmentBundle,
    count_islands,
    find_bundles,
    find_loose,
    find_segments,
    list_data_segments,
)
from .tiers import find_tiers

SOURCE = "hosts joined by their cables"
_ASSUMED_GBps = Fraction(5, 4)  # a port of 10 Gbit/s
# Between processes of one host, as where hosts are joined by a network (derived/hosts.py).
_MEMORY_GBps = Fraction(2)
# Measured rates that differ by less are taken for the same: so much does TCP vary.
_ALIKE = 0.08


def make_topology(facts: FabricFacts, name: str | None = None) -> Topology:
    """Return the topology of hosts that are joined by the segments between their ports.

    A rank is a device of kind gpu, named after its host, and linked to those of other hosts: a
    cable is a link in each direction with the ports and addresses of its ends, parallel cables are
    parallel links, and other networks are switches. Several interfaces of one connector are one
    port of one cable, with the RDMA devices of all. If a host has several ranks, its links to
    others go through two devices, "HOST/out" and "HOST/in": nothing forwards from cable to cable.

    Raise InputError, naming the port, if the hosts are not joined, or if addresses are ambiguous.
    """
    segments = find_segments(facts)
    data = list_data_segments(segments)
    fatal = [fault for fault in find_faults(facts) if fault.is_fatal]
    if fatal:
        raise InputError(f"{fatal[0].text}; {fatal[0].advice}")
    if count_islands(facts, data) > 1:
        raise InputError(
            f"the hosts are in {count_islands(facts, data)} groups that no cable joins; plug in "
            "the missing cable"
        )
    ranks = sorted(rank for host in facts.hosts for rank in host.ranks)
    if ranks != list(range(len(ranks))):
        raise InputError(f"the hosts have ranks {ranks}; expected each from 0 once")
    bundles = find_bundles(facts, data)
    builder = _FabricBuilder(facts, bundles)
    for bundle in bundles:
        builder.add(bundle)
    management = [x for x in segments if x.is_management]
    notes = [
        f"{', '.join(map(facts.name_port, x.ports))}: management network, carries no data"
        for x in management
    ]
    notes += [
        f"{', '.join(facts.name_port(p) for x in bundle.segments for p in x.ports)}: "
        f"{len(bundle.segments)} subnets on one {'cable' if bundle.is_cable else 'switch'}, whose "
        f"rate they share{_note_answers(facts, bundle)}"
        for bundle in bundles
        if len(bundle.segments) > 1
    ]
    return Topology(
        name or ", ".join(host.name for host in facts.hosts[:4]),
        tuple(builder.list_devices(ranks)),
        tuple(builder.links),
        SOURCE,
        {
            "hosts": [host.name for host in facts.hosts],
            **({"notes": notes} if notes else {}),
            FIELD: facts.to_json(),
        },
    )


def _note_answers(facts: FabricFacts, bundle: SegmentBundle) -> str:
    """Return what to set if interfaces of one connector answer for each other."""
    ports = {port for segment in bundle.segments for port in segment.ports}
    if not any(ports >= set(pair) for pair in find_loose(facts)):
        return ""
    return (
        "; hosts answer for one interface over another, so that TCP may use one only (set sysctl "
        "net.ipv4.conf.all.arp_ignore=1 and arp_announce=2)"
    )


def describe_hosts(facts: FabricFacts) -> Topology:
    """Return `make_topology` of the facts; if that fails, the hosts' ranks without any links.

    The facts are in the topology's `extra["fabric"]`, from which the doctor tells the faults.
    """
    try:
        return make_topology(facts)
    except InputError:
        return Topology(
            ", ".join(host.name for host in facts.hosts[:4]),
            tuple(
                Device(f"{host.name}/rank{rank}", extra={"stands_for": "cpu", "host": host.name})
                for host in facts.hosts
                for rank in host.ranks
            ),
            (),
            SOURCE,
            {FIELD: facts.to_json()},
        )


class _FabricBuilder:
    """Collects devices and links of a topology."""

    def __init__(self, facts: FabricFacts, bundles: Sequence[SegmentBundle]) -> None:
        self.facts = facts
        self.links: list[Link] = []
        measured = [x.GBps for flows in facts.rounds for x in flows]
        measured += [
            total
            for bundle in bundles
            for pair in permutations(bundle.hosts, 2)
            if len(flows := bundle.list_flows(*pair)) > 1
            and (total := find_total(facts, flows)) is not None
        ]
        self.level = _find_levels(measured)
        self.others: list[Device] = []
        self.switches = 0
        self.of_rank = {
            rank: host.name if len(host.ranks) == 1 else f"{host.name}/rank{rank}"
            for host in facts.hosts
            for rank in host.ranks
        }
        for host in facts.hosts:
            if len(host.ranks) > 1:
                self._add_gateway(host)

    def list_devices(self, ranks: Sequence[int]) -> Iterator[Device]:
        host_of = {rank: host.name for host in self.facts.hosts for rank in host.ranks}
        for rank in ranks:
            yield Device(self.of_rank[rank], extra={"stands_for": "cpu", "host": host_of[rank]})
        yield from self.others

    def _add_gateway(self, host: HostFacts) -> None:
        """Add the two devices through which several ranks of a host reach others."""
        ident = host.name
        for place in ("memory", "out", "in"):
            self.others.append(Device(f"{ident}/{place}", "cpu", extra={"host": host.name}))
        source = assumed("a process's share of its host's memory")
        for rank in host.ranks:
            device = self.of_rank[rank]
            for src, dst in (
                (device, f"{ident}/memory"),
                (f"{ident}/memory", device),
                (device, f"{ident}/out"),
                (f"{ident}/in", device),
            ):
                self.links.append(
                    Link(src, dst, _MEMORY_GBps, Fraction(0), "memory", source=source)
                )

    def _end(self, host: int, place: str) -> str:
        """Return the device at which a host's cables begin ("out") or end ("in")."""
        facts = self.facts.hosts[host]
        return facts.name if len(facts.ranks) == 1 else f"{facts.name}/{place}"

    def add(self, bundle: SegmentBundle) -> None:
        """Add the links of a cable or switched network."""
        if bundle.is_cable:
            for pair in permutations(bundle.hosts):
                flows = bundle.list_flows(*pair)
                rate, source = self._choose(flows, find_total(self.facts, flows))
                ends = self._end(pair[0], "out"), self._end(pair[1], "in")
                self._link(*ends, rate, source, tuple(zip(*flows, strict=True)))
            return
        tiers = find_tiers(self.facts, max(bundle.segments, key=lambda x: len(x.ports)))
        root = self._add_switch()
        leaf_of = dict.fromkeys(bundle.hosts, root)
        rates = {
            pair: total
            for pair in permutations(bundle.hosts, 2)
            if (total := find_total(self.facts, bundle.list_flows(*pair))) is not None
        }
        for leaf in tiers.leaves:
            switch = self._add_switch()
            leaf_of |= dict.fromkeys(leaf, switch)
            uplink = _match(tiers.uplink_GBps or max(rates.values()), self.level.values())
            for src, dst in ((switch, root), (root, switch)):
                self._link(src, dst, uplink, "measured: two flows at the same time")
        for host in bundle.hosts:
            ports = [port for x in bundle.segments for port in x.ports if port[0] == host]
            out = [rate for (src, _), rate in rates.items() if src == host]
            into = [rate for (_, dst), rate in rates.items() if dst == host]
            for known, src, dst in (
                (out, self._end(host, "out"), leaf_of[host]),
                (into, leaf_of[host], self._end(host, "in")),
            ):
                flows = tuple((port, port) for port in ports)
                rate, source = self._choose(flows, max(known, default=None))
                self._link(src, dst, rate, source, (ports,))

    def _add_switch(self) -> str:
        ident = f"switch{self.switches}"
        self.switches += 1
        self.others.append(Device(ident, "switch", "network"))
        return ident

    def _link(
        self,
        src: str,
        dst: str,
        rate: Fraction,
        source: str,
        ends: Sequence[Sequence[PortKey]] = (),
    ) -> None:
        """Add a link. `ends` has the ports at the source, and at the destination of a cable."""
        extra: dict[str, Any] = {}
        for side, ports in zip(("src", "dst"), ends, strict=False):
            extra |= {
                f"{side}_port": ports[0][1],
                f"{side}_address": self.facts.ports[ports[0]].ip,
            }
            if rdma := self._list_rdma(ports):
                extra[f"{side}_rdma"] = rdma
        latency = LATENCY_us["network"]
        self.links.append(Link(src, dst, rate, latency, "network", source=source, extra=extra))

    def _list_rdma(self, ports: Sequence[PortKey]) -> list[str]:
        """Return the RDMA devices of the ports' connectors, with and without an address."""
        connectors = set(map(self.facts.find_connector, ports))
        devices = (
            port.rdma
            for key, port in self.facts.ports.items()
            if port.rdma and port.is_up and self.facts.find_connector(key) in connectors
        )
        return list(dict.fromkeys(devices))  # an interface and its VLANs have one

    def _choose(
        self, flows: Sequence[tuple[PortKey, PortKey]], measured: float | None
    ) -> tuple[Fraction, str]:
        """Return the rate to believe of flows at the same time, and its source.

        RDMA reaches the speed of its link, which TCP does not.
        """
        ends = [self.facts.ports[port] for flow in flows for port in flow]
        speeds = [x.speed_Mbps for x in ends if x.speed_Mbps]
        if len(speeds) == len(ends) and all(x.rdma for x in ends):
            return Fraction(min(speeds), 8000), "speed of the RDMA port"
        if measured is not None:
            return self.level[measured], "measured over TCP"
        if speeds:
            return Fraction(min(speeds), 8000), "speed of the port"
        return _ASSUMED_GBps, assumed("10 Gbit/s Ethernet")


def _round(rate: float) -> Fraction:
    return Fraction(f"{rate:.4g}")


def _match(rate: float, known: Iterable[Fraction]) -> Fraction:
    """Return the known rate that one is alike, or the rate itself."""
    return next((x for x in known if abs(rate - x) < _ALIKE * x), _round(rate))


def _find_levels(rates: Sequence[float]) -> dict[float, Fraction]:
    """Return a common rate for measured ones that are alike: their median.

    Equal cables are equal links then, of which plans are found faster, and are better.
    """
    levels: dict[float, Fraction] = {}
    alike: list[float] = []
    for rate in [*sorted(rates), float("inf")]:
        if alike and rate > alike[0] * (1 + _ALIKE):
            levels |= dict.fromkeys(alike, _round(median(alike)))
            alike = []
        alike.append(rate)
    return levels
