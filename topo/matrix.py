"""Tell how each GPU reaches each other, in the words of `nvidia-smi topo -m`, with the bandwidth of
the route.

A label names the way, not its worth: the bandwidth beside it is that of the narrowest link of the
route, used alone. Devices that say in `extra["root"]` below which root complex they hang tell PHB
from NODE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .graph import Topology
from .routes import Route, Router, route_links

# Meaning of each label; # stands for a number.
LABELS: Mapping[str, str] = {
    "X": "itself",
    "NV#": "# bonded NVLinks, directly or through NVSwitches",
    "XGMI#": "# bonded xGMI links",
    "LNK": "a direct link",
    "SW": "through switches other than PCIe",
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe switches, no CPU",
    "PHB": "through a CPU",
    "NODE": "through two host bridges of one NUMA node",
    "SYS": "through the link between CPUs",
    "NET": "through a network",
    "DIS": "no way that other GPUs need not forward",
}

# Number of lanes from a device to another, keyed ((src, dst), kind).
LaneCounts = Mapping[tuple[tuple[str, str], str], int]


@dataclass(frozen=True)
class Way:
    """How one GPU reaches another: a label, and the bandwidth in GB/s (None for a GPU itself, and
    where there is no route).
    """

    label: str
    GBps: Fraction | None


_NO_WAY = Way("DIS", None)


class Ways:
    """Finds how devices of one topology reach each other."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.router = Router(topology)
        self._lanes: dict[tuple[tuple[str, str], str], int] = {}
        for link in topology.links:
            key = (link.src, link.dst), link.kind
            self._lanes[key] = self._lanes.get(key, 0) + link.count

    def route(self, src: str, dst: str) -> Route | None:
        """Return the route from one device to another (any kind), by their ids; None where only
        GPUs could forward.
        """
        return self.router.find_route(src, dst)

    def find_way(self, src: str, dst: str) -> Way:
        """Return how one device (a GPU, a NIC) reaches another, by their ids."""
        if src == dst:
            return Way("X", None)
        route = self.route(src, dst)
        if route is None:
            return _NO_WAY
        return Way(
            _choose_label(self._topology, self._lanes, route), self.router.bandwidth_GBps(route)
        )


def find_ways(topology: Topology, most_steps: int | None = None) -> list[list[Way]]:
    """Return how rank i reaches rank j in row i, column j.

    With `most_steps` rows end once this many links have been looked at or crossed (after at least
    one row).
    """
    topology_ways = Ways(topology)
    rows: list[list[Way]] = []
    for src in topology.ranks:
        rows.append([topology_ways.find_way(src, dst) for dst in topology.ranks])
        topology_ways.router.forget()
        if most_steps is not None and topology_ways.router.steps > most_steps:
            break
    return rows


def _choose_label(topology: Topology, lanes: LaneCounts, route: Route) -> str:
    """Return the label of a route that has one."""
    through = [topology.by_id[ident] for ident in route[1:-1]]
    if any(d.family == "network" or d.kind == "nic" for d in through):
        return "NET"
    cpus = sum(d.kind == "cpu" for d in through)
    if cpus == 1:
        roots = {topology.by_id[ident].extra.get("root") for ident in (route[0], route[-1])}
        return "NODE" if len(roots - {None}) == 2 else "PHB"
    if cpus:
        return "SYS"
    if through and all(d.family == "pcie" for d in through):
        return "PIX" if len(through) == 1 else "PXB"
    for kind, name in (("nvlink", "NV"), ("xgmi", "XGMI")):
        counts = [lanes.get((hop, kind), 0) for hop in route_links(route)]
        if all(counts):
            return f"{name}{min(counts)}"
    return "SW" if through else "LNK"
