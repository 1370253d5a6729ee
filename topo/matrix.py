"""Label the connection between two GPUs as `nvidia-smi topo -m` does, with its bandwidth.

A label names the kind of path, not its speed. The bandwidth is that of the route's narrowest link
when no other traffic uses it. PHB and NODE differ only if devices name their root complex in
`extra["root"]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .graph import Topology
from .routes import Route, Router, route_links

# Meaning of each label; # is the number of links.
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
    "DIS": "not connected except through other GPUs",
}

# Number of links from one device to another, keyed ((src, dst), kind).
LinkCounts = Mapping[tuple[tuple[str, str], str], int]


@dataclass(frozen=True)
class Connection:
    """A label, and a bandwidth in GB/s.

    The bandwidth is None from a GPU to itself, and if no route exists.
    """

    label: str
    GBps: Fraction | None


_UNCONNECTED = Connection("DIS", None)


class ConnectionFinder:
    """Finds the connections between devices of one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.router = Router(topology)
        self._counts: dict[tuple[tuple[str, str], str], int] = {}
        for link in topology.links:
            key = (link.src, link.dst), link.kind
            self._counts[key] = self._counts.get(key, 0) + link.count

    def route(self, src: str, dst: str) -> Route | None:
        """Return the route between two devices of any kind, or None if only GPUs could forward."""
        return self.router.find_route(src, dst)

    def find(self, src: str, dst: str) -> Connection:
        """Return the connection from one GPU or NIC to another, by their ids."""
        if src == dst:
            return Connection("X", None)
        route = self.route(src, dst)
        if route is None:
            return _UNCONNECTED
        return Connection(
            _choose_label(self._topology, self._counts, route), self.router.bandwidth_GBps(route)
        )


def find_connections(topology: Topology, max_steps: int | None = None) -> list[list[Connection]]:
    """Return a matrix with the connection from rank i to rank j in row i, column j.

    `max_steps` bounds the work: rows end once routing has visited this many links, after at least
    one row.
    """
    connections = ConnectionFinder(topology)
    rows: list[list[Connection]] = []
    for src in topology.ranks:
        rows.append([connections.find(src, dst) for dst in topology.ranks])
        connections.router.forget()  # the next row starts elsewhere: cached routes only cost memory
        if max_steps is not None and connections.router.steps > max_steps:
            break
    return rows


def _choose_label(topology: Topology, counts: LinkCounts, route: Route) -> str:
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
        bonded = [counts.get((hop, kind), 0) for hop in route_links(route)]
        if all(bonded):
            return f"{name}{min(bonded)}"
    return "SW" if through else "LNK"
