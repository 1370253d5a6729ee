"""Read a topology as hosts with one GPU each and the cables between their ports.

Such hosts, Macs or DGX Sparks for example, have no switch between them. Hosts are numbered as the
ranks of their GPUs. The management network is the one over which processes find each other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import permutations

import networkx as nx

from ....topo.errors import InfeasibleError
from ....topo.exact import fraction_gcd
from ....topo.extras.cables.facts import HostFacts, load_facts
from ....topo.graph import Device, Link, Topology
from ....topo.grouping import group_by_key
from ....topo.names import name_opposite

# RDMA devices of macOS begin so: rdma_en2.
_MACOS_RDMA = "rdma_"
# The function of a network card's port at the end of its interface's name: enp1s0f1, enp1s0f1np1.
_FUNCTION = re.compile(r"f\d+(np\d+)?$")


@dataclass(frozen=True)
class HostPort:
    """A network port of host number `host`.

    `name` is its interface, `rdma` its RDMA devices, `address` its IP address without a prefix;
    empty if unknown.
    """

    host: int
    name: str
    rdma: tuple[str, ...] = ()
    address: str = ""

    @property
    def card(self) -> str:
        """The name of its network card; a port whose name does not tell its card counts as one."""
        return _FUNCTION.sub("", self.name) if _FUNCTION.search(self.name) else f"{self.name}/"


@dataclass(frozen=True)
class HostCable:
    """A cable between two ports of two hosts, with the links of its two directions."""

    ends: tuple[HostPort, HostPort]
    links: tuple[Link, Link]

    def find_end(self, host: int) -> HostPort:
        """Return this cable's port at host number `host`."""
        return self.ends[self.ends[1].host == host]


@dataclass(frozen=True)
class CabledHosts:
    """Hosts with one GPU each, rank r on host r, and all cables between them.

    `names` and `gpus` (ids) are by host, as are `ports`, all that could have a cable, `management`,
    the interfaces of the management network, and `addresses`, theirs; empty if unknown.
    """

    topology: Topology = field(repr=False)
    names: tuple[str, ...]
    gpus: tuple[str, ...]
    cables: tuple[HostCable, ...]
    ports: tuple[tuple[str, ...], ...]
    management: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of hosts."""
        return len(self.names)

    @cached_property
    def between(self) -> dict[tuple[int, int], tuple[HostCable, ...]]:
        """The cables between two hosts, by (from, to), in the same order for both directions."""
        joining = group_by_key(
            ((src.host, dst.host), cable)
            for cable in self.cables
            for src, dst in permutations(cable.ends)
        )
        return {pair: tuple(cables) for pair, cables in joining.items()}

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """The hosts at the other ends of each host's cables."""
        return tuple(
            tuple(b for b in range(self.count) if (a, b) in self.between) for a in range(self.count)
        )

    @cached_property
    def is_mesh(self) -> bool:
        """Whether a cable joins every two hosts."""
        return all(len(near) == self.count - 1 for near in self.neighbours)

    @cached_property
    def rdma(self) -> tuple[str, ...]:
        """The RDMA devices of all ports with cables."""
        return tuple(name for cable in self.cables for port in cable.ends for name in port.rdma)

    @property
    def are_macs(self) -> bool:
        """Whether the RDMA devices have macOS's names, so that the hosts are Macs."""
        return bool(self.rdma) and all(name.startswith(_MACOS_RDMA) for name in self.rdma)

    def list_free_ports(self, host: int) -> list[str]:
        """Return the ports of a host that have no cable."""
        used = {port.name for cable in self.cables for port in cable.ends if port.host == host}
        return [name for name in self.ports[host] if name not in used]

    def rate_GBps(self, src: int, dst: int) -> Fraction:
        """Return the rate in GB/s of all cables from host `src` to host `dst`.

        The hosts' own limits are accounted for.
        """
        return self._rates[src, dst]

    @cached_property
    def _rates(self) -> dict[tuple[int, int], Fraction]:
        capacity = self.topology.capacity_GBps
        unit = fraction_gcd(list(capacity.values()))
        host_of = {d.id: number for d, number in _number_devices(self.topology, self.names)}
        links = group_by_key(
            (frozenset((host_of[src], host_of[dst])), (src, dst)) for src, dst in capacity
        )
        rates = {}
        for a, b in self.between:
            graph: nx.DiGraph[str] = nx.DiGraph()
            for hosts in (frozenset((a,)), frozenset((b,)), frozenset((a, b))):
                for src, dst in links[hosts]:
                    graph.add_edge(src, dst, capacity=int(capacity[src, dst] / unit))
            carried = nx.maximum_flow_value(graph, self.gpus[a], self.gpus[b])
            rates[a, b] = int(carried) * unit
        return rates


def find_obstacle(topology: Topology) -> str:
    """Return why a topology is not one of hosts with one GPU each that only cables join, or ""."""
    hosts = {d.id: _name_host(d) for d in topology.devices}
    gpus = [hosts[gpu] for gpu in topology.ranks]
    # GPUs that name no host are those of one machine.
    names_hosts = all({"host", "box"} & topology.by_id[gpu].extra.keys() for gpu in topology.ranks)
    if len(set(gpus)) < 2 or not names_hosts:
        return "it has a single host"
    alone = [d.id for d in topology.devices if hosts[d.id] not in gpus]
    if alone:
        return f"{alone[0]} is a switch between hosts"
    if len(set(gpus)) < len(gpus):
        most = max(map(gpus.count, gpus))
        return f"a host has {most} GPUs"
    reached = {
        (link.src, link.dst) for link in topology.links if hosts[link.src] != hosts[link.dst]
    }
    if not all((name_opposite(b), name_opposite(a)) in reached for a, b in reached):
        return "a link between hosts has one direction only"
    return "" if reached else "no link joins its hosts"


def read_hosts(topology: Topology) -> CabledHosts:
    """Return a topology's hosts and cables.

    Ports and addresses are those that topo-probe stored with the topology (HostFacts), or that its
    GPUs and links name. Raise InfeasibleError, with the reason, if it does not consist of hosts
    with one GPU each that only cables join.
    """
    obstacle = find_obstacle(topology)
    if obstacle:
        raise InfeasibleError(
            f"{topology.name}: {obstacle}; expected hosts with one GPU each that cables join, such "
            "as spark-ring:3, or those that topo-probe finds"
        )
    facts = load_facts(topology.extra, topology.name)
    known = {host.name: host for host in facts.hosts} if facts is not None else {}
    gpus = [topology.by_id[gpu] for gpu in topology.ranks]
    names = tuple(map(_name_host, gpus))
    ports = [
        _list_connectors(known[name])
        if name in known
        else list(map(str, gpu.extra.get("ports", ())))
        for gpu, name in zip(gpus, names, strict=True)
    ]
    management = [
        known[name].management if name in known else str(gpu.extra.get("management", ""))
        for gpu, name in zip(gpus, names, strict=True)
    ]
    addresses = [
        port.ip if name in known and (port := known[name].find_port(known[name].management)) else ""
        for name in names
    ]
    return CabledHosts(
        topology,
        names,
        topology.ranks,
        _list_cables(topology, names, known),
        tuple(map(tuple, ports)),
        tuple(management),
        tuple(addresses),
    )


def _list_connectors(host: HostFacts) -> list[str]:
    """Return the ports of a host without that of its management, one for each connector."""
    ports = [port for port in host.ports if port.name != host.management]
    ports.sort(key=lambda port: not port.address)  # cables are named by ports with addresses
    names = {port.connector or f"port {port.name}": port.name for port in reversed(ports)}
    return [port.name for port in host.ports if port.name in names.values()]


def _name_host(device: Device) -> str:
    """Return the name of a device's host; a device that is in none is its own."""
    host = device.extra.get("host", device.extra.get("box"))
    return str(host) if host is not None else device.id


def _number_devices(topology: Topology, names: Sequence[str]) -> list[tuple[Device, int]]:
    number = {name: i for i, name in enumerate(names)}
    return [(device, number[_name_host(device)]) for device in topology.devices]


def _list_cables(
    topology: Topology, names: Sequence[str], known: Mapping[str, HostFacts]
) -> tuple[HostCable, ...]:
    """Return the cables: each link between hosts with one that comes back over the same ports."""
    host_of = {d.id: number for d, number in _number_devices(topology, names)}
    waiting: dict[tuple[HostPort, HostPort], list[Link]] = defaultdict(list)
    cables = []
    for link in topology.links:
        src, dst = (
            _read_port(link, side, host_of[end], known.get(names[host_of[end]]))
            for side, end in (("src", link.src), ("dst", link.dst))
        )
        if src.host == dst.host:
            continue
        if waiting[dst, src]:
            cables.append(HostCable((dst, src), (waiting[dst, src].pop(0), link)))
        else:
            waiting[src, dst].append(link)
    left = [pair for pair, links in waiting.items() if links]
    if left:
        a, b = (f"{names[port.host]}:{port.name}" for port in left[0])
        raise InfeasibleError(
            f"{topology.name}: no link comes back from {b} to {a} over the same ports; a cable "
            "carries data in both directions",
        )
    return tuple(cables)


def _read_port(link: Link, side: str, host: int, facts: HostFacts | None) -> HostPort:
    name = str(link.extra.get(f"{side}_port", ""))
    rdma = tuple(map(str, link.extra.get(f"{side}_rdma", ())))
    port = facts.find_port(name) if facts is not None else None
    if not rdma and port is not None and port.rdma:
        rdma = (port.rdma,)
    return HostPort(host, name, rdma, str(link.extra.get(f"{side}_address", "")))
