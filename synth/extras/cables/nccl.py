"""Predict whether stock NCCL starts on hosts that cables join, and with which settings.

The rules are those of NCCL's sources (2.30.7: transport/net_ib/connect.cc, graph/trees.cc,
transport/generic.cc, init.cc). Both ends of a connection first take the port with the channel's
number. Without subnet-aware routing these two must be joined by a cable. With it, the sender looks
for a port in a subnet of the receiver's port, and then the receiver for one in the sender's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ....topo.grouping import group_by_key
from .hosts import CabledHosts, HostPort
from .rings import Order, list_edges, list_rings

# The first version with NCCL_IB_SUBNET_AWARE_ROUTING; 2.30.3 and 2.30.4 lack it.
SUBNET_AWARE_SINCE = "2.30.7"
# Ports whose subnets a receiver can state.
_MAX_STATED = 2

_Device = tuple[HostPort, ...]


@dataclass(frozen=True)
class NcclCabling:
    """How stock NCCL can run on cabled hosts: their `order` in rings, and the `ports` each uses.

    `settings` are the variables that all hosts need, `rings_only` says that NCCL can connect its
    rings only, not its trees. `obstacle` is why it cannot start at all, else "".
    """

    order: Order
    settings: dict[str, str]
    ports: tuple[tuple[HostPort, ...], ...] = field(repr=False)
    rings_only: bool = False
    obstacle: str = ""

    @property
    def is_any_version(self) -> bool:
        """Whether NCCL starts without subnet-aware routing, and so in versions that lack it."""
        return not self.obstacle and "NCCL_IB_SUBNET_AWARE_ROUTING" not in self.settings


@dataclass(frozen=True)
class _Mode:
    """Settings that decide which ports are joined to one device, and which device is used."""

    merges: bool
    is_aware: bool
    settings: dict[str, str]


_AWARE = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"}
# Tried in turn: NCCL's defaults, ports as devices of their own, and the ports of a card merged.
_MODES = (
    _Mode(True, False, {}),
    _Mode(False, True, {**_AWARE, "NCCL_IB_MERGE_NICS": "0"}),
    _Mode(True, True, {**_AWARE, "NCCL_IB_MERGE_NICS": "1"}),
)
# Trees and the binomial trees of allgather connect when they are first used, not at the start, if
# NCCL uses the cuMem functions; with NCCL_ALGO=RING they are never used.
_RINGS_ONLY = {"NCCL_ALGO": "RING", "NCCL_CUMEM_ENABLE": "1", "NCCL_RUNTIME_CONNECT": "1"}


def find_nccl_cabling(hosts: CabledHosts) -> NcclCabling:
    """Return how stock NCCL can run on some hosts, or why it cannot."""
    rings = list_rings(hosts)
    every = _list_ports(hosts, hosts.between)
    natural = tuple(range(hosts.count))
    if not rings:
        return NcclCabling(
            natural,
            {},
            every,
            obstacle="its rings need a cable from each rank to the next, and no order of these "
            "hosts has that",
        )
    for order in rings:
        for mode in _MODES:
            if _connects(hosts, _list_all_edges(order), every, mode):
                return NcclCabling(order, mode.settings, every)
    for order in rings:
        edges = list_edges(order)
        ports = _list_ports(hosts, edges)
        for mode in _MODES:
            if _connects(hosts, edges, ports, mode):
                return NcclCabling(order, {**mode.settings, **_RINGS_ONLY}, ports, rings_only=True)
    return NcclCabling(
        rings[0],
        {},
        every,
        obstacle="it pairs ports by their numbers, and no ring joins them so that either end "
        "finds the other; join the first port of each host to the second one of the next",
    )


def _list_all_edges(order: Order) -> list[tuple[int, int]]:
    """Return all connections that NCCL makes with one GPU on each host, in both directions.

    They are those of rings, of the two binary trees, and of the binomial trees (PAT) that
    allgather and reduce-scatter have since 2.23.
    """
    count = len(order)
    tree = _list_parents(count)
    pairs = {(i, p) for i, p in enumerate(tree) if p >= 0}
    if count % 2:  # the second tree is the first one, shifted or mirrored
        pairs |= {((i + 1) % count, (p + 1) % count) for i, p in enumerate(tree) if p >= 0}
    else:
        pairs |= {(count - 1 - i, count - 1 - p) for i, p in enumerate(tree) if p >= 0}
    step = 1
    while step < count:
        pairs |= {(i, (i + step) % count) for i in range(count)}
        step *= 2
    return [(order[a], order[b]) for x, y in sorted(pairs) for a, b in ((x, y), (y, x))]


def _list_parents(count: int) -> list[int]:
    """Return each node's parent in NCCL's binary tree, -1 for the root, node 0."""
    parents = [-1]
    for node in range(1, count):
        bit = node & -node
        parent = (node ^ bit) | (bit << 1)
        parents.append(parent if parent < count else node ^ bit)
    return parents


def _list_ports(
    hosts: CabledHosts, edges: Iterable[tuple[int, int]]
) -> tuple[tuple[HostPort, ...], ...]:
    """Return the ports of each host that have cables along some edges, in the order of names.

    NCCL sorts them by PCI address, which names follow.
    """
    ports: dict[int, set[HostPort]] = defaultdict(set)
    for pair in edges:
        for cable in hosts.between.get(pair, ()):
            for port in cable.ends:
                ports[port.host].add(port)
    return tuple(
        tuple(sorted(ports[host], key=lambda port: port.name)) for host in range(hosts.count)
    )


def _connects(
    hosts: CabledHosts,
    edges: Iterable[tuple[int, int]],
    ports: Sequence[Sequence[HostPort]],
    mode: _Mode,
) -> bool:
    """Return whether NCCL connects all edges on all channels."""
    peer = {end: other for cable in hosts.cables for end, other in (cable.ends, cable.ends[::-1])}
    singles = [[(port,) for port in own] for own in ports]
    merged = [
        _merge(own) if mode.merges else each for own, each in zip(ports, singles, strict=True)
    ]
    every = [
        [*one, *(device for device in more if len(device) > 1)]
        for one, more in zip(singles, merged, strict=True)
    ]

    def choose(host: int, default: _Device, stated: Sequence[HostPort]) -> _Device:
        """Return the device that a host uses, all of whose ports lead to stated ones, if any."""
        fitting = (x for x in (default, *every[host]) if all(peer[port] in stated for port in x))
        return next(fitting, default)

    for a, b in edges:
        for channel in range(max(len(merged[a]), len(merged[b]))):
            out = merged[a][channel % len(merged[a])]
            into = merged[b][channel % len(merged[b])]
            if mode.is_aware:
                out = choose(a, out, into[:_MAX_STATED])
                into = choose(b, into, out)
            if [peer[port] for port in out] != list(into):
                return False
    return True


def _merge(ports: Sequence[HostPort]) -> list[_Device]:
    """Return the devices that NCCL makes of ports by default: one of each card's ports."""
    cards = group_by_key((port.card, port) for port in ports)
    return [tuple(own) for own in cards.values()]
