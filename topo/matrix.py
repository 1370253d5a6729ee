"""Label the connection between two GPUs as `nvidia-smi topo -m` does, with its bandwidth.

A label names the kind of path, not its speed. The bandwidth is that of the route's narrowest link
when no other traffic uses it. PHB and NODE differ only if devices name their root complex in
`extra["root"]`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from .grouping import group_by_key
from .routes import Route, Router, route_links

if TYPE_CHECKING:
    from .graph import Topology

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


@dataclass(frozen=True)
class Connection:
    """Kind of the route between two devices, and its bandwidth in GB/s when nothing else uses it.

    `label` is a key of LABELS, with # replaced by the number of links (NV12). The bandwidth is None
    from a device to itself ("X"), and if no route exists ("DIS").
    """

    label: str
    GBps: Fraction | None


class ConnectionFinder:
    """Finder of the label and bandwidth of routes between devices of one topology.

    `router` finds the routes; its `steps` count the work.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._by_id = topology.by_id
        self.router = Router(topology)
        # Known number of links from one device to another, keyed ((src, dst), kind).
        self._counts: dict[tuple[tuple[str, str], str], int] = defaultdict(int)
        for link in topology.links:
            if link.is_counted:
                self._counts[(link.src, link.dst), link.kind] += link.count

    def find(self, src: str, dst: str) -> Connection:
        """Return the connection from one GPU or NIC to another, by their ids."""
        if src == dst:
            return Connection("X", None)
        route = self.router.find_route(src, dst)
        if route is None:
            return Connection("DIS", None)
        return Connection(self._choose_label(route), self.router.bandwidth_GBps(route))

    def _choose_label(self, route: Route) -> str:
        through = [self._topology.by_id[ident] for ident in route[1:-1]]
        if any(d.family == "network" or d.kind == "nic" for d in through):
            return "NET"
        cpus = sum(d.kind == "cpu" for d in through)
        if cpus == 1:
            roots = {self._topology.by_id[end].extra.get("root") for end in (route[0], route[-1])}
            return "NODE" if len(roots - {None}) == 2 else "PHB"
        if cpus:  # of several hosts, if cables join them
            has_cable = any(self._counts.get((hop, "network")) for hop in route_links(route))
            return "NET" if has_cable else "SYS"
        if through and all(d.family == "pcie" for d in through):
            return "PIX" if self.count_switches(route) <= 1 else "PXB"
        for kind, name in (("nvlink", "NV"), ("xgmi", "XGMI")):
            bonded = min(self._counts.get((hop, kind), 0) for hop in route_links(route))
            if bonded:
                return f"{name}{bonded}"
        return "SW" if through else "LNK"

    def count_switches(self, route: Route) -> int:
        """Return the number of switches on a route, without ports that one adapter shares.

        Below such a port there are only functions of one PCI device, like the two ports of a NIC.
        """
        return sum(self._by_id[d].kind == "switch" and d not in self._ports for d in route[1:-1])

    @cached_property
    def _ports(self) -> frozenset[str]:
        by_id, near = self._by_id, self._topology.out_neighbours
        ports = set()
        for switch in (d.id for d in self._topology.devices if d.family == "pcie"):
            nics = [by_id[end] for end in near[switch] if by_id[end].kind == "nic"]
            adapters = {nic.bus_id.rpartition(".")[0] if nic.bus_id else nic.id for nic in nics}
            if len(nics) > 1 and len(adapters) == 1 and len(near[switch]) == len(nics) + 1:
                ports.add(switch)
        return frozenset(ports)


def collect_links(topology: Topology) -> Mapping[str, frozenset[object]]:
    """Return what describes the links of each device, by its id; empty for all but NICs.

    A link is described by its other end, its direction, kind, rate and count. So NICs with equal
    links, such as an adapter's virtual functions, have equal sets, and equal routes.
    """
    links = group_by_key(
        (end, (other, is_out, x.kind, x.bandwidth_GBps, x.count))
        for x in topology.links
        for end, other, is_out in ((x.src, x.dst, True), (x.dst, x.src, False))
        if topology.by_id[end].kind == "nic"
    )
    return {ident: frozenset(links.get(ident, ())) for ident in topology.by_id}


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
