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


@dataclass(frozen=True)
class Way:
    """How one GPU reaches another: a label, and the bandwidth in GB/s (None where there is no route or need of one)."""

    label: str
    GBps: Fraction | None


def ways(topology: Topology) -> list[list[Way]]:
    """Row i, column j: how rank i reaches rank j."""
    router = Router(topology)
    ranks = topology.ranks
    return [
        [_way(topology, router, router.route(src, dst)) if src != dst else Way("X", None) for dst in range(len(ranks))]
        for src in range(len(ranks))
    ]


def _way(topology: Topology, router: Router, route: Route | None) -> Way:
    if route is None:
        return Way("DIS", None)
    return Way(_label(topology, route), router.bandwidth_GBps(route))


def _label(topology: Topology, route: Route) -> str:
    through = [topology.by_id[ident] for ident in route[1:-1]]
    hops = route_links(route)
    if any(d.family == "network" or d.kind == "nic" for d in through):
        return "NET"
    cpus = sum(d.kind == "cpu" for d in through)
    if cpus:
        return "PHB" if cpus == 1 else "SYS"
    if through and all(d.family == "pcie" for d in through):
        return "PIX" if len(through) == 1 else "PXB"
    for kind, name in (("nvlink", "NV"), ("xgmi", "XGMI")):
        counts = [_count(topology, hop, kind) for hop in hops]
        if all(counts):
            return f"{name}{min(counts)}"
    return "SW" if through else "LNK"


def _count(topology: Topology, hop: tuple[str, str], kind: str) -> int:
    return sum(count for (a, b, its_kind), count in _lanes(topology).items() if (a, b) == hop and its_kind == kind)


def _lanes(topology: Topology) -> Mapping[tuple[str, str, str], int]:
    """How many lanes of each kind go from one device to another."""
    lanes: dict[tuple[str, str, str], int] = {}
    for link in topology.links:
        key = link.src, link.dst, link.kind
        lanes[key] = lanes.get(key, 0) + link.count
    return lanes
