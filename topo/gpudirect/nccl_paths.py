"""The kind of path between two devices of one host as NCCL and RCCL tell them apart (graph/paths.cc), best first.

NVL  NVLink or xGMI, directly or through switches      P2C  C2C to the CPU, then PCIe to the NIC
NVB  two NVLinks through one other GPU                 PHB  through one CPU
C2C  NVLink-C2C, through a CPU                         SYS  through the link between CPUs
PIX  one PCIe switch at most                           DIS  no path inside the host
PXB  several PCIe switches, no CPU                     ???  the topology says too little
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

from ..graph import Topology
from ..matrix import Ways
from ..routes import route_links

KINDS = ("NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PHB", "SYS", "DIS", "???")
WIRES = ("nvlink", "xgmi")
PCIE_PATHS = ("PIX", "PXB", "PHB", "SYS")

_IN_A_HOST = ("pcie", "c2c", "smp", *WIRES)


def within(kind: str, level: str) -> bool:
    """Whether a path is no further than a level."""
    return KINDS.index(kind) <= KINDS.index(level)


class Paths:
    """Paths between devices of one topology; found when first asked for."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.ways = Ways(topology)
        self._kinds: dict[tuple[str, str], set[str]] = defaultdict(set)
        for link in topology.links:
            self._kinds[link.src, link.dst].add(link.kind)
        self._found: dict[tuple[str, str], str] = {}

    @cached_property
    def host_of(self) -> Mapping[str, str]:
        """For each device the first that it hangs together with, networks left out; without networks all are one."""
        near: dict[str, list[str]] = defaultdict(list)
        apart = False
        for link in self.topology.links:
            if link.kind == "network" or self._is_network(link.src) or self._is_network(link.dst):
                apart = True
            else:
                near[link.src].append(link.dst)
                near[link.dst].append(link.src)
        top: dict[str, str] = {}
        first = next(iter(self.topology.by_id), "")
        for start in self.topology.by_id:
            waiting = [start]
            while waiting:
                here = waiting.pop()
                if here not in top:
                    top[here] = start if apart else first
                    waiting += near[here]
        return top

    def one_host(self, a: str, b: str) -> bool:
        """Whether two devices are in one host: they hang together, and no file gives them different hosts or boxes."""
        extras = [self.topology.by_id[ident].extra for ident in (a, b)]
        apart = any(extras[0][key] != extras[1][key] for key in ("host", "box") if all(key in e for e in extras))
        return self.host_of[a] == self.host_of[b] and not apart

    def of_host(self, ident: str, kind: str) -> tuple[str, ...]:
        """Ids of the devices of a kind in the host of `ident`."""
        return self._by_kind.get((self.host_of[ident], kind), ())

    @cached_property
    def _by_kind(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for device in self.topology.devices:
            found[self.host_of[device.id], device.kind].append(device.id)
        return {key: tuple(idents) for key, idents in found.items()}

    def label(self, a: str, b: str) -> str:
        """The way in the words of `matrix`, that of the worse direction."""
        return self.ways.find_way(*max(((a, b), (b, a)), key=lambda pair: KINDS.index(self._one_way(*pair)))).label

    def kind(self, a: str, b: str) -> str:
        """The kind of path between two GPUs, or a GPU `a` and a NIC `b`: one of KINDS, of the worse direction."""
        if (a, b) not in self._found:
            self._found[a, b] = self._find(a, b)
        return self._found[a, b]

    def relays(self, a: str, b: str) -> tuple[str, ...]:
        """GPUs with NVLinks of their own to both of two GPUs."""
        return tuple(c for c in self.wired.get(a, ()) if c in self.wired.get(b, ()))

    def _find(self, a: str, b: str) -> str:
        found = max((self._one_way(a, b), self._one_way(b, a)), key=KINDS.index)
        if self.topology.by_id[b].kind == "gpu":
            return "NVB" if found != "NVL" and self.relays(a, b) else found
        return "P2C" if found == "PHB" and b in self._nearest(a) and self._over_c2c(a, b) else found

    def _one_way(self, a: str, b: str) -> str:
        route = self.ways.route(a, b)
        if route is None or any(self._is_network(d) or self.topology.by_id[d].kind == "nic" for d in route[1:-1]):
            known = self.of_host(a, "cpu") and all(self.topology.out_neighbours[end] for end in (a, b))
            return "DIS" if known else "???"
        hops = [self._kinds[hop] for hop in route_links(route)]
        if all(kinds.intersection(WIRES) for kinds in hops):
            return "NVL"
        if not all(kinds.intersection(_IN_A_HOST) for kinds in hops):
            return "???"
        cpus = sum(self.topology.by_id[d].kind == "cpu" for d in route)
        if cpus:
            return "SYS" if cpus > 1 else "C2C" if all("c2c" in kinds for kinds in hops) else "PHB"
        return "???" if not all("pcie" in kinds for kinds in hops) else "PIX" if len(route) <= 3 else "PXB"

    @cached_property
    def wired(self) -> Mapping[str, Mapping[str, None]]:
        """For each GPU those that have NVLink or xGMI with it both ways, in the order of links."""
        gpus = set(self.topology.ranks)
        told = {
            pair: None for pair, kinds in self._kinds.items() if kinds.intersection(WIRES) and gpus.issuperset(pair)
        }
        near: dict[str, dict[str, None]] = defaultdict(dict)
        for a, b in told:
            if (b, a) in told:
                near[a][b] = None
        return near

    def _nearest(self, gpu: str) -> tuple[str, ...]:
        """The NICs nearest to a GPU as NCCL picks them: most bandwidth, then the best path."""
        rank: dict[str, tuple[Fraction, int]] = {}
        for nic in self.of_host(gpu, "nic"):
            rank[nic] = self.ways.find_way(gpu, nic).GBps or Fraction(0), -KINDS.index(self._one_way(gpu, nic))
        return tuple(nic for nic, worth in rank.items() if worth == max(rank.values()))

    def _over_c2c(self, gpu: str, nic: str) -> bool:
        route = self.ways.route(gpu, nic)
        return route is not None and "c2c" in self._kinds[route[0], route[1]]

    def _is_network(self, ident: str) -> bool:
        return self.topology.by_id[ident].family == "network"
