"""Group ports into segments: a cable has two ports, a switched network three or more.

Ports are on one segment if each answers the other over exactly these ports. Where ports heard each
other's multicast messages, these decide which answers count: two cables in one subnet answer for
each other. Segments through the same connectors are one bundle: one cable, or one switched network,
in several subnets. FabricFacts has what the hosts of a launch told of their ports, and what these
answered and heard; the rendezvous is where the launch's ranks meet (MASTER_ADDR).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from .facts import FabricFacts

# A port: its host's number, and its name.
PortKey = tuple[int, str]
_Node = TypeVar("_Node")


@dataclass(frozen=True)
class Segment:
    """Ports that reach each other directly, one of each host, in the order of their hosts.

    `is_management` says that it carries the rendezvous, and that hosts are joined without it.
    `unused` are further ports of the same hosts in the same subnet: a system sends over one of them
    only.
    """

    ports: tuple[PortKey, ...]
    is_management: bool = False
    unused: tuple[PortKey, ...] = ()

    @property
    def hosts(self) -> frozenset[int]:
        """The numbers of the hosts that this segment joins."""
        return frozenset(host for host, _ in self.ports)

    @property
    def all_ports(self) -> tuple[PortKey, ...]:
        """The segment's ports, and the unused ones."""
        return self.ports + self.unused

    @property
    def is_cable(self) -> bool:
        """Whether this segment is a cable: it joins two ports only."""
        return len(self.ports) == 2


@dataclass(frozen=True)
class SegmentBundle:
    """Segments through the same connectors, which one cable or switched network carries."""

    segments: tuple[Segment, ...]

    @property
    def hosts(self) -> tuple[int, ...]:
        """The numbers of the hosts that this bundle joins, in order."""
        return tuple(sorted({host for segment in self.segments for host in segment.hosts}))

    @property
    def is_cable(self) -> bool:
        """Whether this bundle is a cable: it joins two hosts only."""
        return len(self.hosts) == 2

    def list_flows(self, src: int, dst: int) -> tuple[tuple[PortKey, PortKey], ...]:
        """Return the (from port, to port) over which data passes from host `src` to host `dst`."""
        ports = [dict(segment.ports) for segment in self.segments]
        return tuple(((src, of[src]), (dst, of[dst])) for of in ports if src in of and dst in of)


def find_hearing(facts: FabricFacts) -> dict[PortKey, set[PortKey]]:
    """Return, for each port, the ports whose multicasts it received."""
    heard: dict[PortKey, set[PortKey]] = defaultdict(set)
    for x in facts.hellos:
        heard[x.host, x.port].add((x.from_host, x.from_port))
    return heard


def find_wires(facts: FabricFacts) -> list[frozenset[PortKey]]:
    """Return the sets of ports on one wire: on one cable, or on cables that switches join.

    They receive each other's multicasts, whatever their addresses, or share a connector. Ports are
    on one wire each, alone if they receive nothing.
    """
    heard = find_hearing(facts)
    ends = [(p, ("connector", facts.find_connector(p))) for p in facts.ports]
    hearing = [(p, q) for p in facts.ports for q in heard[p] if p in heard[q]]
    groups = _find_groups([*ends, *hearing])
    wires = [frozenset(p for p in facts.ports if p in joined) for joined in groups]
    order = {port: i for i, port in enumerate(facts.ports)}
    return sorted(wires, key=lambda wire: min(map(order.__getitem__, wire)))


def find_segments(facts: FabricFacts) -> tuple[Segment, ...]:
    """Return all segments that join two hosts or more, ordered by their first port."""
    heard = find_hearing(facts)
    mutual = {p: {q for q in others if p in heard[q]} for p, others in list(heard.items())}
    exact = {((x.host, x.port), (x.to_host, x.to_port)) for x in facts.answers if x.is_right}
    right = exact | find_loose(facts)
    joined = [
        (p, q)
        for p, q in right
        if (q, p) in right and (q in mutual.get(p, ()) or not (mutual.get(p) or mutual.get(q)))
    ]
    order = {port: i for i, port in enumerate(facts.ports)}
    counts = Counter(port for pair in exact for port in pair)
    management = _list_management(facts)
    segments = [
        _choose_ports(
            sorted(ports, key=lambda p: (p not in management, -counts[p], order[p])), order
        )
        for ports in _find_groups(joined)
    ]
    return tuple(
        _mark_management(facts, sorted(segments, key=lambda segment: order[segment.ports[0]]))
    )


def find_loose(facts: FabricFacts) -> set[tuple[PortKey, PortKey]]:
    """Return pairs (port, port it reaches) whose connection did not use exactly these two.

    Ports of one host on one wire answer for each other. That they are is known by what they
    receive, or by a connector that they share; else an answer may have come by another cable.
    """
    heard = find_hearing(facts)
    sharing = Counter(map(facts.find_connector, facts.ports))

    def may_be(p: PortKey, q: PortKey) -> bool:
        if heard[p] or heard[q]:
            return q in heard[p] and p in heard[q]
        return any(sharing[facts.find_connector(x)] > 1 for x in (p, q))

    return {
        (p, q)
        for x in facts.answers
        if x.by_host == x.to_host
        and not x.is_right
        and may_be(p := (x.host, x.port), q := (x.to_host, x.to_port))
    }


def _choose_ports(ranked: Iterable[PortKey], order: Mapping[PortKey, int]) -> Segment:
    """Return a segment of the best port of each host; the others are unused."""
    chosen: dict[int, PortKey] = {}
    unused = [p for p in ranked if chosen.setdefault(p[0], p) != p]
    return Segment(
        tuple(sorted(chosen.values(), key=order.__getitem__)),
        unused=tuple(sorted(unused, key=order.__getitem__)),
    )


def _list_management(facts: FabricFacts) -> set[PortKey]:
    return {(i, host.management) for i, host in enumerate(facts.hosts) if host.management}


def _mark_management(facts: FabricFacts, segments: Sequence[Segment]) -> list[Segment]:
    """Mark segments of the rendezvous, unless hosts have no other connection."""
    carrying = list_carrying(facts, segments)
    data = [segment for segment in segments if segment not in carrying]
    is_joined = count_islands(facts, data) == 1
    return [Segment(x.ports, is_joined and x in carrying, x.unused) for x in segments]


def list_carrying(facts: FabricFacts, segments: Sequence[Segment]) -> list[Segment]:
    """Return those segments that share a cable or network with the hosts' management ports.

    Those are the ports on the route to the rendezvous.
    """
    management = _list_management(facts)
    return [
        segment
        for bundle in find_bundles(facts, segments)
        if any(management & set(segment.all_ports) for segment in bundle.segments)
        for segment in bundle.segments
    ]


def list_data_segments(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return those segments that may carry data: all that are not marked `is_management`."""
    return tuple(segment for segment in segments if not segment.is_management)


def find_bundles(facts: FabricFacts, segments: Sequence[Segment]) -> tuple[SegmentBundle, ...]:
    """Group segments by the connectors that they share, ordered by their first segment."""
    joined = [
        (number, facts.find_connector(p))
        for number, segment in enumerate(segments)
        for p in segment.all_ports
    ]
    groups = [sorted(x for x in group if isinstance(x, int)) for group in _find_groups(joined)]
    return tuple(SegmentBundle(tuple(segments[i] for i in group)) for group in sorted(groups))


def count_islands(facts: FabricFacts, segments: Sequence[Segment]) -> int:
    """Return the number of groups of hosts that these segments join; a host alone is one, too."""
    alone = [(host, host) for host in range(len(facts.hosts))]
    return len(_find_groups([*alone, *(x for each in segments for x in pairwise(each.hosts))]))


def _find_groups(edges: Iterable[tuple[_Node, _Node]]) -> list[set[_Node]]:
    """Return the connected components of a graph.

    Importing networkx for this takes longer than all else that a probe computes.
    """
    groups: list[set[_Node]] = []
    for edge in edges:
        joined = [x for x in groups if not x.isdisjoint(edge)]
        groups = [*(x for x in groups if x not in joined), {*edge}.union(*joined)]
    return groups
