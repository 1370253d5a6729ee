"""Repeat one search of NCCL's for channels: depth first, at one speed, in NCCL's order of trials.

A channel is one ring or chain (a path through all GPUs of a host). A step of the search is a GPU
that is added to a channel, or the end of a channel; NCCL limits their number.

The free capacities of all links are packed into one integer, a field for each link with a guard bit
on top. Subtracting the packed load of a hop leaves every guard bit set only if every link has room,
so a trial costs one subtraction however long the path is. Capacities and speeds are in MB/s, to
which NCCL rounds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from .constants import (
    ACKNOWLEDGED,
    BALANCED_TREE,
    INTEL_SHARE,
    LINK_PCI,
    QUIET_SM,
    RING,
    WHOLE,
    PathType,
    kBps_PER_MBps,
)
from .paths import GpuPaths, StockPath
from .system import CPU, DEV, GPU, NVS, StockLink, StockNode, StockSystem, is_cpu

# Bits of a field: capacities up to 2**23 MB/s, more than any link's, and the guard bit.
_FIELD_BITS = 24
_MAX_CAPACITY_MBps = (1 << _FIELD_BITS - 1) - 1


@dataclass(frozen=True, slots=True)
class GpuHop:
    """A hop to the GPU `gpu`: its bit in sets of GPUs, its packed load, and its number of links."""

    gpu: int
    bit: int
    load: int
    links: int


@dataclass(frozen=True)
class HopTable:
    """The hops that one search may take.

    `hops` are keyed (from, to); `nexts` has those from each GPU in the order in which NCCL tries
    them.
    """

    hops: dict[tuple[int, int], GpuHop]
    nexts: tuple[tuple[GpuHop, ...], ...]


@dataclass(slots=True)
class SearchLimits:
    """What one search looks for.

    Rings or else chains (`ring`), from `min_channels` to `max_channels` of them, with one order for
    all (`same_channels`), in at most `steps` steps.
    """

    ring: bool
    same_channels: bool
    min_channels: int
    max_channels: int
    steps: int


# Called with a candidate: its number of channels, its number of links, and a list that begins with
# the orders of its channels. Returns whether it is the best so far.
Report = Callable[[int, int, Sequence[int]], bool]


class HostLinks:
    """The capacities of a host's links between its GPUs, as fields of packed integers.

    `capacity` has those of an unused host, with all guard bits set, `guard` the guard bits alone;
    `shift` is the lowest bit of each link's field. `others` are more paths whose links count, each
    with the node at which it starts.
    """

    def __init__(
        self,
        system: StockSystem,
        gpu_paths: GpuPaths,
        others: Iterable[tuple[StockNode, StockPath]] = (),
    ) -> None:
        self.system, self.gpu_paths = system, gpu_paths
        self.gpus = system.nodes[GPU]
        self.intel = {cpu for cpu in system.nodes[CPU] if is_cpu(cpu, "x86_64", "GenuineIntel")}
        self.shift: dict[StockLink, int] = {}
        between_gpus = ((self.gpus[src], path) for (src, _), path in gpu_paths.paths.items())
        for src, path in (*between_gpus, *others):
            for _, link in self.list_loads(src, path):
                self.shift.setdefault(link, len(self.shift) * _FIELD_BITS)
        self.guard = sum(1 << at + _FIELD_BITS - 1 for at in self.shift.values())
        self.capacity = self.guard + sum(
            min(link.rate_kBps // kBps_PER_MBps, _MAX_CAPACITY_MBps) << at
            for link, at in self.shift.items()
        )
        self._tables: dict[tuple[int, int, tuple[tuple[int, int], ...]], HopTable] = {}

    def list_loads(self, src: StockNode, path: StockPath) -> Iterator[tuple[Fraction, StockLink]]:
        """Yield (fraction of a path's speed, link) for each link that a path from `src` loads.

        Links between a GPU and its hardware are left out, since they are never full.
        """
        is_slowed = path.type == PathType.PHB and src.kind == GPU
        is_slowed = is_slowed and any(link.end in self.intel for link in path.links)
        node = src
        for link in path.links:
            end = link.end
            if link.type != PathType.LOC or end.kind not in (GPU, DEV):
                yield INTEL_SHARE if is_slowed and link.type == LINK_PCI else WHOLE, link
            if end.kind == DEV and end.sm < QUIET_SM and src.kind != GPU:
                yield ACKNOWLEDGED, _find_reverse(node, link)
            if link.type == PathType.NVL and end.kind == CPU and is_cpu(end, "ppc64"):
                yield WHOLE, _find_reverse(node, link)
            node = end

    def make_table(self, pattern: int, speed_MBps: int, farthest: PathType) -> HopTable:
        """Return the hops that a search at `speed_MBps` may take, for NCCL's `pattern`.

        Their paths are of at most the type `farthest`.
        """
        paths = self.gpu_paths.paths
        allowed = tuple(
            pair
            for pair, path in paths.items()
            if pair[0] != pair[1]
            and path.type <= farthest
            and (pattern == RING or paths[pair[1], pair[0]].type <= farthest)
        )
        key = (pattern, speed_MBps, allowed)
        if key not in self._tables:
            made = {pair: self._make_hop(pair, speed_MBps) for pair in allowed}
            # Hops that never have room are left out, as a trial of one is not a step.
            hops = {pair: hop for pair, hop in made.items() if self.has_room(hop)}
            nexts = tuple(
                tuple(hops[g, p] for p in self._order_nexts(g, pattern) if (g, p) in hops)
                for g in range(len(self.gpus))
            )
            self._tables[key] = HopTable(hops, nexts)
        return self._tables[key]

    def get_free_MBps(self, link: StockLink, free: int) -> int:
        """Return a link's free capacity in MB/s; `free` are all links' free capacities, packed."""
        if link not in self.shift:
            return link.rate_kBps // kBps_PER_MBps
        return free >> self.shift[link] & _MAX_CAPACITY_MBps

    def has_room(self, hop: GpuHop) -> bool:
        """Return whether an otherwise unused machine can carry a hop."""
        return self.capacity - hop.load & self.guard == self.guard

    def _make_hop(self, pair: tuple[int, int], speed_MBps: int) -> GpuHop:
        src, dst = pair
        path = self.gpu_paths.paths[pair]
        return GpuHop(dst, 1 << dst, self.pack(self.gpus[src], path, speed_MBps), len(path.links))

    def pack(self, src: StockNode, path: StockPath, speed_MBps: int) -> int:
        """Return the load of a path from `src` at `speed_MBps`, packed into an integer."""
        return sum(
            int(share * speed_MBps) << self.shift[link]
            for share, link in self.list_loads(src, path)
        )

    def _order_nexts(self, gpu: int, pattern: int) -> list[int]:
        """Return the GPUs that NCCL tries after `gpu`, the first one first.

        With NVSwitches these are neighbours only, so that a GPU talks to few others.
        """
        count = len(self.gpus)
        paths = self.gpu_paths.paths
        reachable = [p for i in range(1, count) if paths[gpu, p := (gpu + i) % count].links]
        if self.system.nodes[NVS]:
            after, before = (gpu + 1) % count, (gpu - 1) % count
            wanted = {RING: (before, after), BALANCED_TREE: (after, before)}.get(pattern, (after,))
            return [p for p in dict.fromkeys(wanted) if p in reachable]
        return sorted(
            reachable,
            key=lambda p: (
                -(paths[gpu, p].rate_kBps // 10**6),
                len(paths[gpu, p].links),
                (p - gpu) % count,
            ),
        )


def _find_reverse(node: StockNode, link: StockLink) -> StockLink:
    """Return the link back to `node`, from which `link` leads."""
    return next(x for x in link.end.links if x.end is node and x.type == link.type)


@dataclass(slots=True)
class _SearchFrame:
    """A point of the search with the `trials` that are left at it.

    `used` are the GPUs of the channel so far as bits, `step` the last one's position, -1 before the
    first. `free` are the packed free capacities, `links` counts the links of all channels. With
    `forced` the only trial is the next GPU in NCCL's order or, from the second channel on, that of
    the channel before.
    """

    trials: Iterator[GpuHop]
    channel: int
    step: int
    used: int
    free: int
    links: int
    forced: bool


def search(links: HostLinks, table: HopTable, limits: SearchLimits, report: Report) -> int:
    """Search for channels; return the steps left, 0 after the last, -1 if the best was found.

    Each candidate of at least `limits.min_channels` is reported. `table` has the hops that it may
    take over `links`.
    """
    return _ChannelSearch(links, table, limits, report).run()


class _ChannelSearch:
    """The state of one search: the steps left, and the orders so far in `path`."""

    def __init__(
        self, links: HostLinks, table: HopTable, limits: SearchLimits, report: Report
    ) -> None:
        self.links, self.table, self.limits, self.report = links, table, limits, report
        self.gpus = len(links.gpus)
        self.starts = tuple(GpuHop(gpu, 1 << gpu, 0, 0) for gpu in range(self.gpus))
        self.path = [0] * (self.gpus * limits.max_channels)
        self.left = limits.steps
        self.stack: list[_SearchFrame] = []

    def run(self) -> int:
        """Run the search and return the steps left."""
        guard, stack = self.links.guard, self.stack
        self._begin_channel(0, self.links.capacity, 0)
        while stack:
            frame = stack[-1]
            used, free = frame.used, frame.free
            for hop in frame.trials:
                if used & hop.bit:
                    continue
                rest = free - hop.load
                if rest & guard != guard:
                    continue
                if self.left <= 0:
                    return self.left
                self.left -= 1
                self._enter(frame, hop, rest)
                if stack[-1] is not frame:
                    break
            else:
                stack.pop()
        return self.left

    def _begin_channel(self, channel: int, free: int, links: int) -> None:
        """Put the starts of a channel on the stack: one with a forced order first, then all."""
        if channel == 0 or not self.limits.same_channels:
            self.stack.append(_SearchFrame(iter(self.starts), channel, -1, 0, free, links, False))
        first = self.path[(channel - 1) * self.gpus] if channel else 0
        forced = iter((self.starts[first],))
        self.stack.append(_SearchFrame(forced, channel, -1, 0, free, links, True))

    def _enter(self, frame: _SearchFrame, hop: GpuHop, free: int) -> None:
        """Go to the GPU of a hop, and on to the end of the channel if it is the last one."""
        channel, step = frame.channel, frame.step + 1
        at = channel * self.gpus
        self.path[at + step] = hop.gpu
        links = frame.links + hop.links
        if step < self.gpus - 1:
            if frame.forced:
                following = self.path[at - self.gpus + step + 1] if channel else step + 1
                forced = self.table.hops.get((hop.gpu, following))
                trials = iter((forced,) if forced else ())
            else:
                trials = iter(self.table.nexts[hop.gpu])
            used = frame.used | hop.bit
            self.stack.append(_SearchFrame(trials, channel, step, used, free, links, frame.forced))
            return
        if self.limits.ring:
            closing = self.table.hops.get((hop.gpu, self.path[at]))
            if closing is None:
                return
            free -= closing.load
            links += closing.links
            if free & self.links.guard != self.links.guard:
                return
        if self.left > 0:
            self.left -= 1
            self._end_channel(channel + 1, free, links)

    def _end_channel(self, channels: int, free: int, links: int) -> None:
        """Report the channels so far and begin the next one."""
        is_counted = channels >= self.limits.min_channels
        if is_counted and self.report(channels, links, self.path):
            self.left = -1 if channels == self.limits.max_channels else self.left
        if channels < self.limits.max_channels:
            self._begin_channel(channels, free, links)
