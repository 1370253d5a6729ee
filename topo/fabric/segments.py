"""Join ports to segments: a cable has two ports, a switched network three or more.

Ports are on one segment if each answers the other over exactly these ports. Where ports heard each
other's multicast messages, these decide which answers count: two cables in one subnet answer for
each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .facts import FabricFacts

if TYPE_CHECKING:
    import networkx as nx

# A port: its host's number, and its name.
PortKey = tuple[int, str]


@dataclass(frozen=True)
class Segment:
    """Ports that reach each other directly, in the order of their hosts.

    `is_management` says that it carries the rendezvous, and hosts are joined without it.
    """

    ports: tuple[PortKey, ...]
    is_management: bool = False

    @property
    def hosts(self) -> frozenset[int]:
        """The numbers of the hosts that it joins."""
        return frozenset(host for host, _ in self.ports)

    @property
    def is_cable(self) -> bool:
        """Whether it joins two ports only."""
        return len(self.ports) == 2


def find_hearing(facts: FabricFacts) -> dict[PortKey, set[PortKey]]:
    """Return the ports that each port heard."""
    heard: dict[PortKey, set[PortKey]] = defaultdict(set)
    for x in facts.hellos:
        heard[x.host, x.port].add((x.from_host, x.from_port))
    return heard


def find_segments(facts: FabricFacts) -> tuple[Segment, ...]:
    """Return all segments with two ports or more, ordered by their first port."""
    heard = find_hearing(facts)
    mutual = {p: {q for q in others if p in heard[q]} for p, others in list(heard.items())}
    right = {((x.host, x.port), (x.to_host, x.to_port)) for x in facts.answers if x.is_right}
    import networkx as nx  # here, since every probe imports this module

    graph: nx.Graph[PortKey] = nx.Graph()
    for p, q in right:
        is_wired = not (mutual.get(p) or mutual.get(q)) or q in mutual.get(p, ())
        if (q, p) in right and is_wired:
            graph.add_edge(p, q)
    order = {port: i for i, port in enumerate(facts.ports)}
    segments = [
        Segment(tuple(sorted(ports, key=order.__getitem__)))
        for ports in nx.connected_components(graph)
    ]
    return tuple(
        _mark_management(facts, sorted(segments, key=lambda segment: order[segment.ports[0]]))
    )


def _mark_management(facts: FabricFacts, segments: Sequence[Segment]) -> list[Segment]:
    """Mark segments of the rendezvous, unless hosts have no other connection."""
    carrying = {(i, host.management) for i, host in enumerate(facts.hosts) if host.management}
    data = [segment for segment in segments if not carrying & set(segment.ports)]
    is_joined = count_islands(facts, data) == 1
    return [Segment(x.ports, is_joined and x not in data) for x in segments]


def list_data_segments(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments that carry data."""
    return tuple(segment for segment in segments if not segment.is_management)


def count_islands(facts: FabricFacts, segments: Sequence[Segment]) -> int:
    """Return the number of groups of hosts that segments do not join."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(facts.hosts)))
    for segment in segments:
        nx.add_path(graph, sorted(segment.hosts))
    return nx.number_connected_components(graph)
