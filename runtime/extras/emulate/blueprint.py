"""Plan the emulation of a topology: a namespace per device, a cable per linked pair, all routes.

Pure data, computed before anything is touched. A rank has an identity address (10.99.x.y) that its
process groups are bound to; every device on a route knows the next hop. Where equal switches are
parallel, each connection takes one of them, by a hash of its ports. If only other GPUs join two
GPUs, those forward packets: sockets need connections between all ranks, and a stock collective in a
bad rank order would do the same.
"""

import re
from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from ipaddress import IPv4Address
from itertools import pairwise, product
from os import PathLike

from ....topo.derived.forwarding import Forwarding
from ....topo.derived.stripes import group_equal, merge_nvswitches, merge_switches
from ....topo.errors import InfeasibleError, InputError
from ....topo.graph import Topology
from ....topo.loader.resolve import load
from ....topo.routes import Router
from ...ranks.machine import find_own_cores

# Private networks that only the namespaces see: of ranks, and of the ends of cables.
_IDENTITY_NET, _CABLE_NET = IPv4Address("10.99.0.0"), IPv4Address("10.128.0.0")
_MAX_RANKS = 250  # each has several processes on this host
_MAX_DEVICES = 600  # each is a namespace, a process that holds it, and several calls of ip and tc
# Sum of all emulated links for each core of the host, at which links still keep their rates.
_TOTAL_bps_PER_CORE = Fraction(800_000_000)
# Default rate of the widest emulated link, unless _TOTAL_bps_PER_CORE allows less.
_DEFAULT_bps = Fraction(800_000_000)
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kMGT]?)(bit|bps|B/s)", re.IGNORECASE)


@dataclass(frozen=True)
class VethPair:
    """A pair of virtual Ethernet interfaces: emulated cable number `number` of two devices.

    `a` and `b` are device numbers. `rate_ab` is the rate from a to b in bit/s, `rate_ba` from b to
    a; None in a direction without a link.
    """

    number: int
    a: int
    b: int
    rate_ab: int | None
    rate_ba: int | None

    def address(self, device: int) -> str:
        """Return the IP address of this cable's end at the device numbered `device`."""
        return str(_CABLE_NET + 2 * self.number + (device == self.b))

    def rate_out_of(self, device: int) -> int | None:
        """Return the rate from the device numbered `device` into the cable, in bit/s.

        None if there is no link in that direction.
        """
        return self.rate_ab if device == self.a else self.rate_ba

    def other(self, device: int) -> int:
        """Return the number of the device at the other end of this cable than `device`."""
        return self.b if device == self.a else self.a


@dataclass(frozen=True)
class Hop:
    """A forwarding rule of one device: packets for rank `dst` go to the devices numbered in `via`.

    If there are several, each connection takes one. The rule applies to packets from rank `src`, or
    from any rank if that is None.
    """

    src: int | None
    dst: int
    via: tuple[int, ...]


@dataclass(frozen=True)
class Blueprint:
    """Everything to build for an emulated machine.

    `topology` has the rates multiplied by `scale`, ranks in the requested order, and only devices
    that are built. `devices[i]` is the id of device i, `home[r]` the number of rank r's device,
    `hops[i]` device i's forwarding rules, `paths[s, d]` the stages of the route from rank s to rank
    d: at each the numbers of the devices that connections spread over, several if equal switches
    stand side by side.
    """

    topology: Topology
    scale: Fraction
    devices: tuple[str, ...]
    home: tuple[int, ...]
    # A cable for each pair of linked devices.
    cables: tuple[VethPair, ...]
    hops: dict[int, tuple[Hop, ...]]
    paths: dict[tuple[int, int], tuple[tuple[int, ...], ...]]

    def identity(self, rank: int) -> str:
        """Return the identity address of a rank, to which its process groups are bound."""
        return str(_IDENTITY_NET + 256 * (rank // 200) + rank % 200 + 1)

    def cable_between(self, a: int, b: int) -> VethPair:
        """Return the cable between two devices, given their numbers; KeyError without one."""
        return self._cables[frozenset((a, b))]

    @cached_property
    def _cables(self) -> dict[frozenset[int], VethPair]:
        return {frozenset((c.a, c.b)): c for c in self.cables}


def load_machine(machine: str | PathLike[str]) -> Topology:
    """Return the topology to emulate, from a file's path or a preset's name.

    NVSwitches are merged into one, nothing else. Raise InputError if `machine` names no topology.
    """
    return merge_nvswitches(load(machine))


def parse_rate(text: str) -> Fraction:
    """Parse a rate such as `50Mbit`, `1.5Gbit`, or `6MB/s` (bytes); return bit/s.

    Raise InputError for other texts.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or not Fraction(match[1]):
        raise InputError(f"{text!r} is not a rate; expected for example 50Mbit, 1Gbit or 6.25MB/s")
    return (
        Fraction(match[1])
        * Fraction(1000) ** " kmgt".index(match[2].lower() or " ")
        * (8 if match[3] == "B/s" else 1)
    )


def parse_order(text: str, ranks: int) -> tuple[int, ...]:
    """Parse a comma-separated list of GPU numbers, of which the i-th is the GPU of rank i.

    Raise InputError unless each of the `ranks` GPUs is listed once.
    """
    try:
        order = tuple(int(x) for x in text.split(","))
    except ValueError:
        order = ()
    if sorted(order) != list(range(ranks)):
        raise InputError(
            f"{text}: expected each GPU from 0 to {ranks - 1} once, separated by commas",
            parameter="order",
        )
    return order


def put_in_order(topology: Topology, order: tuple[int, ...] | None) -> Topology:
    """Return the topology reordered so that its i-th GPU is the order[i]-th of the given one.

    None leaves the order.
    """
    if order is None:
        return topology
    gpus = (topology.by_id[topology.ranks[i]] for i in order)
    return replace(
        topology, devices=tuple(next(gpus) if d.kind == "gpu" else d for d in topology.devices)
    )


def blueprint(
    topology: Topology, slowest_bps: Fraction | None = None, order: tuple[int, ...] | None = None
) -> Blueprint:
    """Plan the emulation of a topology, for `emulate_blueprint` (network.py) to build.

    Rates are scaled so that the slowest link has `slowest_bps`, in bit/s (None: to what this host's
    cores can emulate); `order[i]` is the GPU number of rank i (None: the topology's order). Raise
    InputError if it is too large, InfeasibleError if a rank cannot reach another.
    """
    ranks = len(topology.ranks)
    if not 2 <= ranks <= _MAX_RANKS:
        raise InputError(
            f"topology {topology.name!r} has {ranks} GPUs; from 2 to {_MAX_RANKS} can be emulated"
        )
    topology = put_in_order(topology, order)
    routes = _find_routes(topology)
    used = {device for route in routes.values() for stage in route for device in stage}
    if len(used) > _MAX_DEVICES:
        raise InputError(
            f"topology {topology.name!r}: {len(used)} devices; at most {_MAX_DEVICES} can be "
            "emulated"
        )
    stages = {pair for route in routes.values() for pair in pairwise(route)}
    crossed = {link for pair in stages for link in product(*pair)}
    pruned = replace(
        topology,
        devices=tuple(d for d in topology.devices if d.id in used),
        links=tuple(x for x in topology.links if (x.src, x.dst) in crossed),
    )
    scale = find_scale(pruned, slowest_bps)
    scaled = replace(
        pruned,
        links=tuple(replace(x, bandwidth_GBps=x.bandwidth_GBps * scale) for x in pruned.links),
    )
    devices = tuple(d.id for d in scaled.devices)
    number = {device: i for i, device in enumerate(devices)}
    rate_bps = {
        (number[a], number[b]): max(8000, round(capacity * 8 * 10**9))
        for (a, b), capacity in scaled.capacity_GBps.items()
    }
    paths = {
        pair: tuple(tuple(number[x] for x in stage) for stage in route)
        for pair, route in routes.items()
    }
    return Blueprint(
        topology=scaled,
        scale=scale,
        devices=devices,
        home=tuple(number[gpu] for gpu in scaled.ranks),
        cables=tuple(
            VethPair(i, a, b, rate_bps.get((a, b)), rate_bps.get((b, a)))
            for i, (a, b) in enumerate(sorted({(min(pair), max(pair)) for pair in rate_bps}))
        ),
        hops=_hops(paths, rate_bps.keys()),
        paths=paths,
    )


def _find_routes(topology: Topology) -> dict[tuple[int, int], tuple[tuple[str, ...], ...]]:
    """Return the stages of the route between each pair of ranks, as in Blueprint."""
    groups, merged = group_equal(topology), merge_switches(topology)
    router, forwarding = Router(merged), Forwarding(merged)
    out: dict[tuple[int, int], tuple[tuple[str, ...], ...]] = {}
    for src, src_gpu in enumerate(topology.ranks):
        routes = router.routes_from(src)
        if not routes.keys() >= set(topology.ranks) - {src_gpu}:
            routes = forwarding.routes_from(src_gpu) | routes
        for dst, gpu in enumerate(topology.ranks):
            if gpu not in routes and dst != src:
                raise InfeasibleError(
                    f"{src_gpu} cannot reach {gpu}: sockets need a route there and back between "
                    "all ranks"
                )
        out |= {
            (src, dst): tuple(tuple(groups.get(x, (x,))) for x in routes[gpu])
            for dst, gpu in enumerate(topology.ranks)
            if dst != src
        }
    return out


def find_scale(topology: Topology, slowest_bps: Fraction | None) -> Fraction:
    """Return the ratio of links' emulated rates to their rates in the topology, without a unit.

    It is chosen so that the slowest link gets `slowest_bps` bit/s. If that is None, the ratio is
    the largest at which this host's cores can emulate all links, and no link exceeds 800 Mbit/s.
    """
    rates = [x * 8 * 10**9 for x in topology.capacity_GBps.values()]
    if slowest_bps is not None:
        return slowest_bps / min(rates)
    return min(
        _TOTAL_bps_PER_CORE * len(find_own_cores()[1]) / sum(rates), _DEFAULT_bps / max(rates)
    )


def _hops(
    paths: dict[tuple[int, int], tuple[tuple[int, ...], ...]], links: Set[tuple[int, int]]
) -> dict[int, tuple[Hop, ...]]:
    """Return each device's rules: one per destination, more if sources take different routes."""
    by_destination: dict[tuple[int, int], dict[int, tuple[int, ...]]] = defaultdict(dict)
    start: dict[int, int] = {}
    for (src, dst), path in paths.items():
        (start[src],) = path[0]
        for stage, following in pairwise(path):
            for device in stage:
                via = tuple(x for x in following if (device, x) in links)
                by_destination[device, dst][src] = via
    out: dict[int, list[Hop]] = defaultdict(list)
    for (device, dst), by_source in sorted(by_destination.items()):
        own = [src for src in by_source if start[src] == device]
        # The route of the device's own packets, or else the one that most sources take.
        hops = list(by_source.values())
        usual = by_source[own[0]] if own else max(hops, key=hops.count)
        out[device].append(Hop(None, dst, usual))
        out[device] += [
            Hop(src, dst, via) for src, via in sorted(by_source.items()) if via != usual
        ]
    return {device: tuple(hops) for device, hops in out.items()}
