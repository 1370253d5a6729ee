"""What to build for a topology: a namespace a device, a cable a pair of linked devices, and every
pair's own route.

Pure data, worked out before anything is touched. A rank has an identity address (10.99.x.y) that
its process groups are bound to; every device on the way from one rank to another knows where to
hand packets on. Where a pair has no route that the hardware would take (only other GPUs lie between
them), those GPUs forward: sockets connect everybody to everybody, and that is also what a stock
collective in a bad rank order would have to do.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from ...topo.derived.forwarding import Forwarding
from ...topo.errors import InfeasibleError, InputError
from ...topo.graph import Link, Topology
from ...topo.routes import Router

IDENTITY_NET = 10 << 24 | 99 << 16
_CABLE_NET = 10 << 24 | 128 << 16
_MOST_RANKS = 250
_MOST_DEVICES = 600
# What all links of an emulated machine may carry together, for each core of the host: with that
# they keep their rates.
_TOTAL_bps_PER_CORE = Fraction(800_000_000)
# The rate of the widest emulated link where none is asked for, unless _TOTAL_bps_PER_CORE allows
# less.
_MOST_bps = Fraction(800_000_000)
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kMGT]?)(bit|bps|B/s)", re.IGNORECASE)


@dataclass(frozen=True)
class Cable:
    """A veth pair between the devices numbered `a` and `b`; rates in bit/s out of each end, None
    where no link leads.
    """

    number: int
    a: int
    b: int
    rate_ab: int | None
    rate_ba: int | None

    def address(self, device: int) -> str:
        """Return the address of the end at `device`."""
        return format_address(_CABLE_NET + 2 * self.number + (device == self.b))

    def rate_out_of(self, device: int) -> int | None:
        """Return the rate from `device` into the cable, in bit/s."""
        return self.rate_ab if device == self.a else self.rate_ba

    def other(self, device: int) -> int:
        """Return the device at the other end."""
        return self.b if device == self.a else self.a


@dataclass(frozen=True)
class Hop:
    """At a device: packets for rank `dst` (of rank `src`; None: of any) go to device `via`."""

    src: int | None
    dst: int
    via: int


@dataclass(frozen=True)
class Blueprint:
    """`topology` has the scaled rates, ranks in the order asked for, and only devices that are
    built: `devices[i]` is the id of the i-th, `home[r]` the number of rank r's. `paths[s, d]` lists
    device numbers.
    """

    topology: Topology
    scale: Fraction
    devices: tuple[str, ...]
    home: tuple[int, ...]
    cables: tuple[Cable, ...]
    hops: dict[int, tuple[Hop, ...]]
    paths: dict[tuple[int, int], tuple[int, ...]]

    def identity(self, rank: int) -> str:
        """Return the address of a rank."""
        return format_address(IDENTITY_NET + 256 * (rank // 200) + rank % 200 + 1)

    def cable_between(self, a: int, b: int) -> Cable:
        """Return the cable between two devices, given their numbers. Raises KeyError where there is
        none.
        """
        return self._cables[frozenset((a, b))]

    @cached_property
    def _cables(self) -> dict[frozenset[int], Cable]:
        return {frozenset((c.a, c.b)): c for c in self.cables}


def format_address(address: int) -> str:
    """Return an IPv4 address in dotted notation."""
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def parse_rate(text: str) -> Fraction:
    """Return the bit/s of `50Mbit`, `1.5Gbit`, or `6MB/s` (bytes). Raises InputError where it is
    not a rate.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or not Fraction(match[1]):
        raise InputError(f"{text!r} is not a rate; expected for example 50Mbit, 1Gbit or 6.25MB/s")
    factor = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}[match[2].lower()]
    return Fraction(match[1]) * factor * (8 if match[3] == "B/s" else 1)


def parse_order(text: str, ranks: int) -> tuple[int, ...]:
    """Return the GPU number of each rank. Raises InputError unless each GPU is listed once."""
    try:
        order = tuple(int(x) for x in text.split(","))
    except ValueError:
        order = ()
    if sorted(order) != list(range(ranks)):
        raise InputError(
            f"--order {text}: expected each GPU from 0 to {ranks - 1} once, separated by commas"
        )
    return order


def blueprint(
    topology: Topology, slowest_bps: Fraction | None = None, order: tuple[int, ...] | None = None
) -> Blueprint:
    """Return what to build for a topology.

    Raises InputError where it is too large, InfeasibleError where some rank cannot reach another.
    """
    ranks = len(topology.ranks)
    if not 2 <= ranks <= _MOST_RANKS:
        raise InputError(
            f"topology {topology.name!r} has {ranks} GPUs; from 2 to {_MOST_RANKS} can be emulated"
        )
    if order is not None:
        topology = _reorder(topology, order)
    routes = _find_routes(topology)
    used = {device for route in routes.values() for device in route}
    if len(used) > _MOST_DEVICES:
        raise InputError(
            f"topology {topology.name!r}: {len(used)} devices; at most {_MOST_DEVICES} can be "
            "emulated"
        )
    crossed = {link for route in routes.values() for link in pairwise(route)}
    pruned = replace(
        topology,
        devices=tuple(d for d in topology.devices if d.id in used),
        links=tuple(x for x in topology.links if (x.src, x.dst) in crossed),
    )
    scale = _find_scale(pruned, slowest_bps)
    scaled = replace(pruned, links=tuple(_scale_link(link, scale) for link in pruned.links))
    devices = tuple(d.id for d in scaled.devices)
    number = {device: i for i, device in enumerate(devices)}
    pairs = sorted({tuple(sorted((number[a], number[b]))) for a, b in scaled.capacity_GBps})

    def rate(a: int, b: int) -> int | None:
        capacity = scaled.capacity_GBps.get((devices[a], devices[b]))
        return None if capacity is None else max(8000, round(capacity * 8 * 10**9))

    cables = tuple(Cable(i, a, b, rate(a, b), rate(b, a)) for i, (a, b) in enumerate(pairs))
    paths = {pair: tuple(number[x] for x in route) for pair, route in routes.items()}
    return Blueprint(
        topology=scaled,
        scale=scale,
        devices=devices,
        home=tuple(number[gpu] for gpu in scaled.ranks),
        cables=cables,
        hops=_hops(paths),
        paths=paths,
    )


def _reorder(topology: Topology, order: tuple[int, ...]) -> Topology:
    """Return the machine with its GPUs listed so that rank i is the order[i]-th."""
    gpus = iter([d for d in topology.devices if d.kind == "gpu"][i] for i in order)
    devices = tuple(next(gpus) if d.kind == "gpu" else d for d in topology.devices)
    return replace(topology, devices=devices)


def _find_routes(topology: Topology) -> dict[tuple[int, int], tuple[str, ...]]:
    """Return the device ids on the route from every rank to every other."""
    router = Router(topology)
    out: dict[tuple[int, int], tuple[str, ...]] = {}
    forwarding: Forwarding | None = None
    for src, src_gpu in enumerate(topology.ranks):
        direct = router.routes_from(src)
        missing = [gpu for gpu in topology.ranks if gpu != src_gpu and gpu not in direct]
        if missing:
            forwarding = forwarding or Forwarding(topology)
            forwarded = forwarding.routes_from(src_gpu)
            for gpu in missing:
                if gpu not in forwarded:
                    raise InfeasibleError(
                        f"{src_gpu} cannot reach {gpu}: sockets need a way there and back between "
                        "all ranks"
                    )
                direct[gpu] = forwarded[gpu]
        for dst, gpu in enumerate(topology.ranks):
            if dst != src:
                out[src, dst] = direct[gpu]
    return out


def _find_scale(topology: Topology, slowest_bps: Fraction | None) -> Fraction:
    """Return the emulated bandwidth for each unit of the topology's own."""
    rates = [x * 8 * 10**9 for x in topology.capacity_GBps.values()]
    if slowest_bps is not None:
        return slowest_bps / min(rates)
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    total = _TOTAL_bps_PER_CORE * cores / sum(rates)
    return min(total, _MOST_bps / max(rates))


def _scale_link(link: Link, scale: Fraction) -> Link:
    return replace(link, bandwidth_GBps=link.bandwidth_GBps * scale)


def _hops(paths: dict[tuple[int, int], tuple[int, ...]]) -> dict[int, tuple[Hop, ...]]:
    """Return each device's forwarding rules: one for each destination, and more where sources take
    different ways.
    """
    by_destination: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    start: dict[int, int] = {}
    for (src, dst), path in paths.items():
        start[src] = path[0]
        for device, via in pairwise(path):
            by_destination[device, dst][src] = via
    out: dict[int, list[Hop]] = defaultdict(list)
    for (device, dst), by_source in sorted(by_destination.items()):
        own = [src for src in by_source if start[src] == device]
        usual = (
            by_source[own[0]]
            if own
            else max(by_source.values(), key=list(by_source.values()).count)
        )
        out[device].append(Hop(None, dst, usual))
        out[device] += [
            Hop(src, dst, via) for src, via in sorted(by_source.items()) if via != usual
        ]
    return {device: tuple(hops) for device, hops in out.items()}
