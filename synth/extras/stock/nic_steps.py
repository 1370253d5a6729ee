"""Repeat one search of NCCL's for channels that begin and end at NICs, for jobs of several hosts.

A channel is one ring or chain (a path through all GPUs of a host). Each point of the search is a
generator that yields the points below it, so that no number of channels exceeds Python's stack.
`steps` has the search inside one host, which is much faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .constants import (
    BALANCED_TREE,
    FIRST_STEPS,
    LINK_PCI,
    RING,
    TREE,
    MBps_PER_GBps,
    PathType,
    kBps_PER_GBps,
)
from .nics import NicPaths
from .steps import GpuHop, HopTable, HostLinks, Report, SearchLimits
from .system import NVS, StockNode

# Sorting a GPU among the next ones takes as long as this many trials.
_TRIALS_OF_SORTING = 4


@dataclass(frozen=True)
class NicSettings:
    """What one search asks of NICs: a speed in MB/s, and paths of at most the type `farthest`.

    `pattern` is NCCL's number of the shape. With `cross_nic` 0 a channel ends at a NIC of the same
    rail (an attribute in NCCL's XML; without one, the same port) as it begins at, with 2 channels
    come in pairs that exchange their NICs.
    """

    pattern: int
    cross_nic: int
    speed_MBps: int
    farthest: PathType


@dataclass(slots=True)
class Clock:
    """The number of steps that a search may still make: 0 for none, -1 after the best graph."""

    left: int


class ChannelPoint(NamedTuple):
    """A state of the search: the channels so far, and what they leave free.

    `channel` is the number of the channel in progress, `free` the free capacities of links (packed
    into an integer), `nic_MBps` those of NICs. `links` counts the links of all hops, and `used` has
    the last channel's GPUs as bits. With `forced` the order of the GPUs is given, as in `steps`.
    """

    channel: int
    free: int
    nic_MBps: tuple[int, ...]
    links: int
    used: int = 0
    forced: bool = False


class NicSearch:
    """The search for one graph at one speed; `nets` has the two NICs of each channel in turn.

    `table` has the hops that it may take; `limits` and `settings` say what it looks for. `report`
    is called with each candidate, and returns whether it is the best so far. `path` has the orders
    of the channels so far, one after the other.
    """

    def __init__(
        self,
        host: HostLinks,
        nics: NicPaths,
        table: HopTable,
        limits: SearchLimits,
        settings: NicSettings,
        report: Report,
    ) -> None:
        self.host, self.nics, self.table = host, nics, table
        self.limits, self.settings, self.report = limits, settings, report
        self.gpus = len(host.gpus)
        self.path = [0] * (self.gpus * limits.max_channels)
        self.nets = [0] * (2 * limits.max_channels)
        # Paths tried, whether or not there was room, and work that takes as long.
        self.trials = 0
        self.back = self.gpus - 1 if limits.ring else 0
        self.find_load = lru_cache(maxsize=None)(self._find_load)
        self.list_nics = lru_cache(maxsize=None)(nics.list_nics)

    def run(self) -> int:
        """Run the search; return the steps left: 0 if used up, -1 if the best was found."""
        clock = Clock(self.limits.steps)
        rates = tuple(net.links[0].rate_kBps // MBps_PER_GBps for net in self.nics.nets)
        stack = [self._start(ChannelPoint(0, self.host.capacity, rates, 0), clock)]
        while stack:
            below = next(stack[-1], None)
            if below is None:
                stack.pop()
            else:
                stack.append(below)
        return clock.left

    # -- from and to NICs

    def _start(self, at: ChannelPoint, clock: Clock) -> Iterator[Points]:
        """Begin a channel at each NIC."""
        wanted, channel = self.settings, at.channel
        nics = self.list_nics(wanted.farthest, None)
        whole_MBps = wanted.speed_MBps // MBps_PER_GBps * MBps_PER_GBps
        is_paired = self.limits.ring and wanted.cross_nic == 2 and channel & 1
        for i in range(len(nics)):
            # The first trial of the first channel at a NIC has steps of its own.
            if channel > 0 and clock.left <= 0:
                return
            net = nics[(channel + i) % len(nics)]
            if at.nic_MBps[net] < whole_MBps or (is_paired and net != self.nets[2 * channel - 1]):
                continue
            self.nets[2 * channel] = net
            port = _get_port(self.nics.nets[net])
            rates = tuple(
                rate - whole_MBps if _get_port(other) == port else rate
                for rate, other in zip(at.nic_MBps, self.nics.nets, strict=True)
            )
            below = at._replace(nic_MBps=rates, forced=False)
            if channel > 0 and self.limits.same_channels:
                first = self.path[(channel - 1) * self.gpus]
                yield from self._enter(below._replace(forced=True), clock, net, first)
                continue
            if channel == 0 and not self.host.system.nodes[NVS]:
                own = Clock(FIRST_STEPS)
                yield from self._enter(below._replace(forced=True), own, net, 0)
                clock.left = -1 if own.left == -1 else clock.left
            local = self.nics.local_gpu[net]
            first_gpus = [] if local is None else [local]
            for gpu in dict.fromkeys((*first_gpus, *self.nics.list_local_gpus(net))):
                if clock.left <= 0:
                    break
                yield from self._enter(below, clock, net, gpu)

    def _enter(self, at: ChannelPoint, clock: Clock, net: int, gpu: int) -> Iterator[Points]:
        """Go from a NIC to the first GPU."""
        load = self.find_load(gpu, net, self.settings.speed_MBps, True)
        step = self._take(at, load, 1 << gpu)
        if step is not None:
            yield self._visit(step, clock, gpu, 0, self.back)

    def _leave(self, at: ChannelPoint, clock: Clock, gpu: int, step: int) -> Iterator[Points]:
        """Go back to a NIC, and then on from the same GPU."""
        settings = self.settings
        is_halved = settings.pattern == BALANCED_TREE
        speed_MBps = settings.speed_MBps // 2 if is_halved else settings.speed_MBps
        for net in self.list_nics(settings.farthest, gpu):
            if clock.left <= 0:
                return
            if not self._may_end(at.channel, net, step):
                continue
            after = self._take(at, self.find_load(gpu, net, speed_MBps, False), at.used)
            if after is not None:
                self.nets[2 * at.channel + 1] = net
                back = 1 if is_halved and step == 0 else -1
                yield self._visit(after, clock, gpu, step, back)

    def _may_end(self, channel: int, net: int, step: int) -> bool:
        """Return whether a channel may end at a NIC."""
        pattern, cross_nic = self.settings.pattern, self.settings.cross_nic
        first = self.nets[2 * channel]
        a, b = self.nics.nets[net], self.nics.nets[first]
        if pattern == TREE and net != first:
            return False
        if a.get("plane") and b.get("plane") and a.get("plane") != b.get("plane"):
            return False
        if pattern == RING and cross_nic == 2:
            if channel & 1 and net != self.nets[2 * channel - 2]:
                return False
        elif cross_nic == 0:
            rails = a.get("rail"), b.get("rail")
            if rails[0] != rails[1] if all(rails) else _get_port(a) != _get_port(b):
                return False
        return pattern != BALANCED_TREE or step == 0 or net == self.nets[2 * channel + 1]

    def _find_load(
        self, gpu: int, net: int, speed_MBps: int, inwards: bool
    ) -> tuple[int, int] | None:
        """Return a path's packed load and number of links, None if its type is too far."""
        paths = (self.nics.back, self.nics.out) if inwards else (self.nics.out, self.nics.back)
        path, reverse = (each[gpu, net] for each in paths)
        farthest = self.settings.farthest
        if path.type > farthest or (not self.limits.ring and reverse.type > farthest):
            return None
        src = self.nics.nets[net] if inwards else self.host.gpus[gpu]
        return self.host.pack(src, path, speed_MBps), len(path.links)

    def _take(
        self, at: ChannelPoint, load: tuple[int, int] | None, used: int
    ) -> ChannelPoint | None:
        """Return the point after a path of a load, None without one or without room.

        `used` has the GPUs of that point.
        """
        self.trials += 1
        if load is None:
            return None
        free = at.free - load[0]
        if free & self.host.guard != self.host.guard:
            return None
        # Made anew, since NamedTuple._replace takes several times as long.
        links = at.links + load[1]
        return ChannelPoint(at.channel, free, at.nic_MBps, links, used, at.forced)

    # -- between GPUs

    def _visit(
        self, at: ChannelPoint, clock: Clock, gpu: int, step: int, back: int
    ) -> Iterator[Points]:
        """Go on from a GPU at a position of the channel; at `back` to a NIC first."""
        if clock.left <= 0:
            return
        clock.left -= 1
        if step == self.gpus:
            yield from self._end_channel(at, clock)
            return
        self.path[at.channel * self.gpus + step] = gpu
        if step == back:
            yield from self._leave(at, clock, gpu, step)
        elif step == self.gpus - 1:
            yield self._visit(at, clock, gpu, self.gpus, -1)
        else:
            for hop in self._list_hops(at, gpu, step, back):
                if clock.left <= 0:
                    return
                after = self._take(at, (hop.load, hop.links), at.used | hop.bit)
                if after is not None:
                    yield self._visit(after, clock, hop.gpu, step + 1, back)

    def _end_channel(self, at: ChannelPoint, clock: Clock) -> Iterator[Points]:
        channels = at.channel + 1
        is_counted = channels >= self.limits.min_channels
        if is_counted and self.report(channels, at.links, self.path):
            clock.left = -1 if channels == self.limits.max_channels else clock.left
        if channels < self.limits.max_channels:
            yield self._start(ChannelPoint(channels, at.free, at.nic_MBps, at.links), clock)

    def _list_hops(self, at: ChannelPoint, gpu: int, step: int, back: int) -> list[GpuHop]:
        """Return the hops from a GPU in NCCL's order.

        If the channel still has to return to a NIC, GPUs near to its first NIC come first, or last
        where all are equally far from `gpu` and the NIC is not next.
        """
        if at.forced:
            before = (at.channel - 1) * self.gpus
            following = self.path[before + step + 1] if at.channel else step + 1
            forced = self.table.hops.get((gpu, following))
            return [] if forced is None else [forced]
        if back == -1 or self.host.system.nodes[NVS]:
            return [hop for hop in self.table.nexts[gpu] if not at.used & hop.bit]
        paths, net = self.host.gpu_paths.paths, self.nets[2 * at.channel]
        distance = {
            p: (-(path.rate_kBps // kBps_PER_GBps), len(path.links))
            for p in range(self.gpus)
            if p != gpu and not at.used & 1 << p and (path := paths[gpu, p]).links
        }

        self.trials += _TRIALS_OF_SORTING * len(distance)

        def measure(p: int) -> tuple[int, ...]:
            to_gpu = self.nics.back[p, net]
            near = -(to_gpu.rate_kBps // kBps_PER_GBps), -self._count_pci_GBps(p, at.free)
            return (*near, len(to_gpu.links), *distance[p], (p - gpu) % self.gpus)

        order = sorted(distance, key=measure)
        if back != step + 1 and len(set(distance.values())) == 1:
            order.reverse()
        hops = (self.table.hops.get((gpu, p)) for p in order)
        return [hop for hop in hops if hop is not None]

    def _count_pci_GBps(self, gpu: int, free: int) -> int:
        """Return what is free of a GPU's PCI link, in whole GB/s, in the fuller direction."""
        dev = self.host.gpus[gpu].parent
        assert dev is not None
        up = next(link for link in dev.links if link.type == LINK_PCI)
        down = next(link for link in up.end.links if link.end is dev)
        return min(self.host.get_free_MBps(link, free) for link in (up, down)) // MBps_PER_GBps


# A point of the search, which yields the points below it.
Points = Iterator["Points"]


def _get_port(net: StockNode) -> tuple[str, str]:
    """Return what NCCL tells NICs apart by: the device and its port."""
    return net.get("guid") or f"net{net.index}", net.get("port") or "0"
