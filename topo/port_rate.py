"""Give the ports of hosts into a network, or the cables between them, another rate.

A port is a network link, in one direction, of which an end is no switch.
"""

from dataclasses import replace
from fractions import Fraction

from .graph import Link, Topology

_KIND = "network"


def set_port_rate(topology: Topology, GBps: Fraction, source: str) -> Topology | None:
    """Return a topology whose hosts have ports of `GBps` in one direction.

    `source` becomes that of the rates of all network links; those between switches keep their ratio
    to the ports. Return None if the topology has no port, or ports of several rates.
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
