"""Give the ports of hosts into a network, or the cables between them, another rate."""

from dataclasses import replace
from fractions import Fraction

from .graph import Link, Topology

_KIND = "network"


def set_port_rate(topology: Topology, GBps: Fraction, source: str) -> Topology | None:
    """Return a topology whose hosts have ports of `GBps` in one direction, from `source`.

    Links between switches keep their ratio to the ports. None if the topology has no such port, or
    ports of several rates.
    """
    ports = {link.bandwidth_GBps for link in topology.links if _is_port(topology, link)}
    if len(ports) != 1:
        return None
    factor = GBps / ports.pop()
    links = (
        replace(link, bandwidth_GBps=link.bandwidth_GBps * factor, source=source)
        if link.kind == _KIND
        else link
        for link in topology.links
    )
    return replace(topology, links=tuple(links))


def _is_port(topology: Topology, link: Link) -> bool:
    kinds = {topology.by_id[end].kind for end in (link.src, link.dst)}
    return link.kind == _KIND and kinds != {"switch"}
