"""How each GPU reaches each other, in the words of `nvidia-smi topo -m`, with the bandwidth of the route.

A label names the way, not its worth: the bandwidth beside it is that of the narrowest link of the route, used alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .graph import Topology
from .routes import Route, Router, route_links

LABELS: Mapping[str, str] = {
    "X": "itself",
    "NV#": "# bonded NVLinks, directly or through NVSwitches",
    "XGMI#": "# bonded xGMI links",
    "LNK": "a direct link",
    "SW": "through switches other than PCIe",
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe switches, no CPU",
    "PHB": "through a CPU",
    "SYS": "through the link between CPUs",
    "NET": "through a network",
    "DIS": "no way that other GPUs need not forward",
}
"""What the labels mean; # stands for a number."""


Lanes = Mapping[tuple[tuple[str, str], str], int]
"""Lanes from a device to another, keyed ((src, dst), kind)."""


@dataclass(frozen=True)
class Way:
    """How one GPU reaches another: a label, and the bandwidth in GB/s (None where there is no route or need of one)."""

    label: str
    GBps: Fraction | None


def ways(topology: Topology) -> list[list[Way]]:
    """Row i, column j: how rank i reaches rank j."""
    router, lanes, ranks = Router(topology), _lanes(topology), topology.ranks
    rows: list[list[Way]] = []
    for src, sender in enumerate(ranks):
        routes = router.routes_from(src)
        rows.append(
            [_way(topology, router, lanes, routes.get(dst)) if dst != sender else Way("X", None) for dst in ranks]
        )
    return rows


def _lanes(topology: Topology) -> Lanes:
    """How many lanes of each kind go from one device to another."""
    lanes: dict[tuple[tuple[str, str], str], int] = {}
    for link in topology.links:
        key = (link.src, link.dst), link.kind
        lanes[key] = lanes.get(key, 0) + link.count
    return lanes


def _way(topology: Topology, router: Router, lanes: Lanes, route: Route | None) -> Way:
    if route is None:
        return Way("DIS", None)
    return Way(_label(topology, lanes, route), router.bandwidth_GBps(route))


def _label(topology: Topology, lanes: Lanes, route: Route) -> str:
    through = [topology.by_id[ident] for ident in route[1:-1]]
    if any(d.family == "network" or d.kind == "nic" for d in through):
        return "NET"
    cpus = sum(d.kind == "cpu" for d in through)
    if cpus:
        return "PHB" if cpus == 1 else "SYS"
    if through and all(d.family == "pcie" for d in through):
        return "PIX" if len(through) == 1 else "PXB"
    for kind, name in (("nvlink", "NV"), ("xgmi", "XGMI")):
        counts = [lanes.get((hop, kind), 0) for hop in route_links(route)]
        if all(counts):
            return f"{name}{min(counts)}"
    return "SW" if through else "LNK"
