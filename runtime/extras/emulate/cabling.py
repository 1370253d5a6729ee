"""Plan the emulation of hosts that cables join: a subnet for each cable, and no forwarding.

Pure data, computed before anything is touched. GPUs of one host share a network namespace; a link
between two hosts is a cable with its own subnet, parallel links are several cables. Network
switches are bridges, and all hosts on the same switches are in one subnet. There is also a
management network: a head node that each host reaches, but through which hosts do not reach each
other, so that it carries the rendezvous and nothing else.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from ipaddress import IPv4Address

from ....topo.errors import InfeasibleError, InputError
from ....topo.graph import Device, Link, Topology
from .blueprint import Blueprint, VethPair, find_scale

# Private networks: management, cables, and switches.
_MANAGEMENT, _CABLES, _SWITCHED = (
    IPv4Address("10.99.0.0"),
    IPv4Address("10.130.0.0"),
    IPv4Address("10.64.0.0"),
)
_MAX_HOSTS = 64  # each is a namespace with several processes
MANAGEMENT_PORT = "mgmt0"


@dataclass(frozen=True)
class Port:
    """One end of an emulated cable: a port of the host or switch numbered `device`.

    `name` is its network interface. `address` includes the prefix length ("10.130.0.1/24") and is
    empty on a switch. `mtu` is in bytes.
    """

    device: int
    name: str
    address: str
    mtu: int


@dataclass(frozen=True)
class CablePlan:
    """A cable between the ports `a` and `b`.

    `rate_ab` is the rate out of a towards b in bit/s, `rate_ba` the reverse; None: nothing passes.
    """

    a: Port
    b: Port
    rate_ab: int | None
    rate_ba: int | None


@dataclass(frozen=True)
class Cabling:
    """Everything to build for an emulated machine of hosts and cables.

    Devices are numbered: first the hosts, by `hosts`, then the `switches`. `seats[rank]` is the
    number of the rank's host. `topology` has the rates multiplied by `scale`, and no links within
    hosts.
    """

    topology: Topology
    scale: Fraction
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    seats: tuple[int, ...]
    cables: tuple[CablePlan, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of hosts and switches, by number."""
        return self.hosts + self.switches

    def management_address(self, host: int | None) -> str:
        """Return a host's IP address in the management network; None: the head node's."""
        return str(_MANAGEMENT + (0xFFFE if host is None else host + 1))

    def as_blueprint(self) -> Blueprint:
        """Return this machine as a Blueprint, for code that needs devices, ranks and cables."""
        return Blueprint(
            self.topology,
            self.scale,
            self.devices,
            self.seats,
            tuple(
                VethPair(number, x.a.device, x.b.device, x.rate_ab, x.rate_ba)
                for number, x in enumerate(self.cables)
            ),
            {},
            {},
        )


def plan_cabling(
    topology: Topology, slowest_bps: Fraction | None = None, mtu: int = 9000
) -> Cabling:
    """Plan the emulation of a topology's hosts and the cables between them.

    GPUs are on the host that their field `host` names, or alone on one. Rates are scaled so that
    the slowest link has `slowest_bps`, in bit/s (None: as much as this host's cores can emulate);
    `mtu` is in bytes. Raise InputError if there are fewer than two hosts, too many, or a link whose
    directions have different rates, and InfeasibleError if switches form a loop.
    """
    place = _find_hosts(topology)
    names = list(dict.fromkeys(place[gpu] for gpu in topology.ranks))
    switches = [d.id for d in topology.devices if d.id not in place]
    if not 2 <= len(names) <= _MAX_HOSTS:
        raise InputError(
            f"topology {topology.name!r} has {len(names)} hosts; from 2 to {_MAX_HOSTS} can be "
            "emulated with cables",
            parameter="cables",
        )
    number = {name: i for i, name in enumerate([*names, *switches])}
    joined = [x for x in topology.links if place.get(x.src, x.src) != place.get(x.dst, x.dst)]
    if not joined:
        raise InputError(f"topology {topology.name!r}: no link joins two hosts", parameter="cables")
    outside = replace(topology, links=tuple(joined))
    scale = find_scale(outside, slowest_bps)
    scaled = replace(
        outside,
        links=tuple(replace(x, bandwidth_GBps=x.bandwidth_GBps * scale) for x in outside.links),
    )
    pairs = _pair_links(scaled.links, {d: number[place.get(d, d)] for d in topology.by_id})
    nets = _find_switched_nets(pairs, len(names))
    return Cabling(
        scaled,
        scale,
        tuple(names),
        tuple(switches),
        tuple(number[place[gpu]] for gpu in topology.ranks),
        tuple(_number_ports(pairs, nets, len(names), mtu)),
    )


def _find_hosts(topology: Topology) -> Mapping[str, str]:
    """Return the host of each device that is in one; network switches are in none."""

    def find_host(device: Device) -> str:
        return str(device.extra.get("host") or device.extra.get("box") or device.id)

    return {
        d.id: find_host(d)
        for d in topology.devices
        if not (d.kind == "switch" and "host" not in d.extra and "box" not in d.extra)
    }


def _pair_links(
    links: Iterable[Link], number: Mapping[str, int]
) -> list[tuple[int, int, int, int]]:
    """Return a cable for each link and its reverse: both devices, and the rates there and back."""
    rates: dict[tuple[int, int], list[int]] = defaultdict(list)
    for link in links:
        each = max(8000, round(link.bandwidth_GBps * 8 * 10**9 / link.count))
        rates[number[link.src], number[link.dst]] += [each] * link.count
    pairs = []
    for (a, b), out in rates.items():
        back = rates.get((b, a), [])
        if len(out) != len(back):
            raise InputError(
                f"{len(out)} links in one direction and {len(back)} back: expected cables, which "
                "carry data in both directions",
                parameter="cables",
            )
        if a < b:
            pairs += [(a, b, x, y) for x, y in zip(out, back, strict=True)]
    return pairs


def _find_switched_nets(
    pairs: Sequence[tuple[int, int, int, int]], hosts: int
) -> Mapping[int, int]:
    """Return the number of the switched network of each switch.

    Raise InfeasibleError if switches form a loop, which bridges do not survive.
    """
    root: dict[int, int] = {}

    def find_root(switch: int) -> int:
        while root.setdefault(switch, switch) != switch:
            switch = root[switch]
        return switch

    for a, b, _, _ in pairs:
        if a >= hosts and b >= hosts:
            if find_root(a) == find_root(b):
                raise InfeasibleError(
                    "the switches form a loop; emulated ones are bridges, which need a tree"
                )
            root[find_root(a)] = find_root(b)
        for end in (a, b):
            if end >= hosts:
                find_root(end)
    roots = sorted({find_root(switch) for switch in root})
    return {switch: roots.index(find_root(switch)) for switch in root}


def _number_ports(
    pairs: Sequence[tuple[int, int, int, int]], nets: Mapping[int, int], hosts: int, mtu: int
) -> Iterable[CablePlan]:
    """Yield a cable for each pair, with names and addresses of its ports."""
    ports: dict[int, int] = defaultdict(int)
    members: dict[int, int] = defaultdict(int)
    subnets = 0
    for a, b, rate_ab, rate_ba in pairs:
        switch = next((end for end in (a, b) if end >= hosts), None)
        if switch is None:
            subnet, subnets = _CABLES + 256 * subnets, subnets + 1
        ends = []
        for place, device in enumerate((a, b)):
            name = f"port{ports[device]}"
            ports[device] += 1
            address = ""
            if device < hosts and switch is None:
                address = f"{subnet + place + 1}/24"
            elif device < hosts and switch is not None:
                net = nets[switch]
                members[net] += 1
                address = f"{_SWITCHED + 256 * net + members[net]}/24"
            ends.append(Port(device, name, address, mtu))
        yield CablePlan(ends[0], ends[1], rate_ab, rate_ba)
