"""Kinds of paths between two devices of one host, by the rules of NCCL and RCCL, best first.

The rules are those of graph/paths.cc.

NVL  NVLink or xGMI, directly or through switches      P2C  C2C to the CPU, then PCIe to the NIC
NVB  two NVLinks through one other GPU                 PHB  through one CPU
C2C  NVLink-C2C, through a CPU                         SYS  through the link between CPUs
PIX  one PCIe switch at most                           DIS  no path inside the host
PXB  several PCIe switches, no CPU                     ???  the topology says too little
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

from ...facts.view import WIRES
from ...graph import Topology
from ...grouping import group_by_key
from ...hardware import ASSUMED_PLACE
from ...matrix import ConnectionFinder
from ...routes import route_links

KINDS = ("NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PHB", "SYS", "DIS", "???")
PCIE_PATHS = ("PIX", "PXB", "PHB", "SYS")

_IN_A_HOST = ("pcie", "c2c", "smp", *WIRES)


def is_within(kind: str, level: str) -> bool:
    """Return whether a path of kind `kind` is at least as good as `level`, both from KINDS."""
    return KINDS.index(kind) <= KINDS.index(level)


class Paths:
    """Paths between the devices of a topology, each found on first use and cached."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.connections = ConnectionFinder(topology)
        self._kinds: dict[tuple[str, str], set[str]] = defaultdict(set)
        for link in topology.links:
            self._kinds[link.src, link.dst].add(link.kind)
        self._kind_of: dict[tuple[str, str], str] = {}
        self._nearest: dict[str, frozenset[str]] = {}

    @cached_property
    def host_of(self) -> Mapping[str, str]:
        """The host of each device, by device id; hosts are named by the id of one of their devices.

        Devices that are connected without networks are on the same host.
        """
        near: dict[str, list[str]] = defaultdict(list)
        apart = False
        for link in self.topology.links:
            if link.kind == "network" or self._is_network(link.src) or self._is_network(link.dst):
                apart = True
            else:
                near[link.src].append(link.dst)
                near[link.dst].append(link.src)
        top: dict[str, str] = {}
        for start in self.topology.by_id:
            waiting = [start]
            while waiting:
                device = waiting.pop()
                if device not in top:
                    top[device] = start if apart else self.topology.devices[0].id
                    waiting += near[device]
        return top

    def share_host(self, a: str, b: str) -> bool:
        """Return whether two devices (ids) are in one host.

        They are if they are connected without networks and do not name different hosts in
        `extra["host"]` or different chassis in `extra["box"]`.
        """
        extra, other = (self.topology.by_id[ident].extra for ident in (a, b))
        return self.host_of[a] == self.host_of[b] and not any(
            key in extra and key in other and extra[key] != other[key] for key in ("host", "box")
        )

    def list_in_host(self, ident: str, kind: str) -> tuple[str, ...]:
        """Return the ids of the devices of a kind, such as `gpu`, in the host of device `ident`."""
        return self._by_kind.get((self.host_of[ident], kind), ())

    @cached_property
    def _by_kind(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        ids = group_by_key(
            ((self.host_of[device.id], device.kind), device.id) for device in self.topology.devices
        )
        return {key: tuple(idents) for key, idents in ids.items()}

    def find_label(self, a: str, b: str) -> str:
        """Return topo-probe's label of the path between two devices, such as NV4, PIX or NODE.

        If the directions differ, it is the label of the worse one. `find_kind` has NCCL's names.
        """
        return self.connections.find(
            *max(((a, b), (b, a)), key=lambda pair: KINDS.index(self._find_directed(*pair)))
        ).label

    def find_kind(self, a: str, b: str) -> str:
        """Return the kind of path (one of KINDS) between two GPUs, or a GPU `a` and a NIC `b`.

        If the directions differ, it is the kind of the worse one.
        """
        if (a, b) not in self._kind_of:
            self._kind_of[a, b] = self._judge(a, b)
        return self._kind_of[a, b]

    def has_assumed_place(self, ident: str) -> bool:
        """Return whether no text says which CPU a device is below, so that one is assumed."""
        return bool(self.topology.by_id[ident].extra.get(ASSUMED_PLACE))

    def list_relays(self, a: str, b: str) -> tuple[str, ...]:
        """Return the ids of the GPUs that NVLink or xGMI joins with both GPU `a` and GPU `b`."""
        return tuple(c for c in self.wired.get(a, ()) if c in self.wired.get(b, ()))

    def _judge(self, a: str, b: str) -> str:
        worse = max(self._find_directed(a, b), self._find_directed(b, a), key=KINDS.index)
        if self.topology.by_id[b].kind == "gpu":
            return "NVB" if worse != "NVL" and self.list_relays(a, b) else worse
        return (
            "P2C"
            if worse == "PHB" and self.starts_with_c2c(a, b) and b in self._list_nearest(a)
            else worse
        )

    def _find_directed(self, a: str, b: str) -> str:
        route = self.connections.router.find_route(a, b)
        if route is None or any(
            self._is_network(d) or self.topology.by_id[d].kind == "nic" for d in route[1:-1]
        ):
            linked = all(self.topology.out_neighbours[end] for end in (a, b))
            return "DIS" if linked and self.list_in_host(a, "cpu") else "???"
        hops = [self._kinds[hop] for hop in route_links(route)]
        if all(kinds.intersection(WIRES) for kinds in hops):
            return "NVL"
        if not all(kinds.intersection(_IN_A_HOST) for kinds in hops):
            return "???"
        cpus = sum(self.topology.by_id[d].kind == "cpu" for d in route)
        if cpus:
            return "SYS" if cpus > 1 else "C2C" if all("c2c" in kinds for kinds in hops) else "PHB"
        if not all("pcie" in kinds for kinds in hops):
            return "???"
        return "PIX" if self.connections.count_switches(route) <= 1 else "PXB"

    @cached_property
    def wired(self) -> Mapping[str, Mapping[str, None]]:
        """The GPUs that NVLink or xGMI joins with each GPU in both directions, by GPU id.

        The inner mapping is an ordered set: its keys are GPU ids in the order of the topology's
        links. GPUs without such links have no key.
        """
        gpus = set(self.topology.ranks)
        directed = {
            pair: None
            for pair, kinds in self._kinds.items()
            if kinds.intersection(WIRES) and gpus.issuperset(pair)
        }
        near: dict[str, dict[str, None]] = defaultdict(dict)
        for a, b in directed:
            if (b, a) in directed:
                near[a][b] = None
        return near

    def _list_nearest(self, gpu: str) -> frozenset[str]:
        """Return the NICs nearest to a GPU by NCCL's rule: most bandwidth, then the best path."""
        if gpu in self._nearest:
            return self._nearest[gpu]
        worth = {
            nic: (
                self.connections.find(gpu, nic).GBps or 0,
                -KINDS.index(self._find_directed(gpu, nic)),
            )
            for nic in self.list_in_host(gpu, "nic")
        }
        best = max(worth.values(), default=None)
        self._nearest[gpu] = frozenset(nic for nic, own in worth.items() if own == best)
        return self._nearest[gpu]

    def starts_with_c2c(self, gpu: str, nic: str) -> bool:
        """Return whether the path from a GPU to a NIC begins with C2C to the GPU's CPU."""
        route = self.connections.router.find_route(gpu, nic)
        return route is not None and "c2c" in self._kinds[route[0], route[1]]

    def _is_network(self, ident: str) -> bool:
        return self.topology.by_id[ident].family == "network"
