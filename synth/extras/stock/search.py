"""Repeat NCCL's search for rings and chains inside a host, by the rules of its graph/search.cc.

NCCL tries speeds from the fastest down. At each it looks for as many channels as the links allow:
first with one order for all, then with different ones, then over farther types of paths. The first
pass ends at the best total; a second one tries higher speeds for as many channels. `steps` has a
single search. Speeds are in MB/s.

A channel is one ring, or one chain: a path through all GPUs, which NCCL calls a tree inside a host.
A pattern is NCCL's number of a shape of channels (constants.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from .constants import (
    BALANCED_TREE,
    CROSS_NIC,
    LINK_PCI,
    LOWEST_SHARE,
    MANY_CHANNELS,
    MAX_CHANNELS,
    PLAIN_TREES_SM,
    RING,
    SPLIT_MANY_SM,
    STEPS,
    STEPS_ALL,
    STEPS_SAME,
    TREE,
    FALLBACK_MBps,
    PathType,
    SPEEDS_MBps,
    SPLIT_MANY_MBps,
    SPLIT_MBps,
)
from .paths import GpuPaths
from .steps import HopTable, HostLinks, SearchLimits, search
from .system import DEV, GPU, NET, StockNode, StockSystem

# A candidate's numbers of channels, of links, and of hops that count for it.
Candidate = tuple[int, int, int]


@dataclass(frozen=True)
class StockGraph:
    """NCCL's graph of rings or chains: channels of one speed, each an order of the GPUs.

    GPUs are indices in NCCL's order, as are the NICs in `nets`, between which each channel lies in
    jobs of several hosts; `nic_type` is the type of the farthest path to one, `path_type` that of
    the farthest hop between GPUs. `pattern` is NCCL's number of the shape; `min_channels` and
    `max_channels` are what was searched for. With `same_channels` all have one order. `speed_MBps`
    is a channel's speed inside a host, `inter_MBps` between hosts; `cross_nic` is NCCL's. `links`
    counts the links of all channels' hops.
    """

    pattern: int
    min_channels: int
    max_channels: int
    path_type: PathType
    same_channels: bool = True
    cross_nic: int = 0
    speed_MBps: int = 0
    inter_MBps: int = 0
    links: int = 0
    orders: tuple[tuple[int, ...], ...] = ()
    nic_type: PathType = PathType.PIX
    nets: tuple[tuple[int, int], ...] = ()

    @property
    def channels(self) -> int:
        """The number of channels."""
        return len(self.orders)


def find_rings(system: StockSystem, gpu_paths: GpuPaths) -> StockGraph:
    """Return the rings that NCCL's search finds in its graph `system` of a host.

    `gpu_paths` are the paths between its GPUs.
    """
    return GraphSearch(system, gpu_paths, RING, 1, MAX_CHANNELS).run()


def find_chains(system: StockSystem, gpu_paths: GpuPaths, channels: int) -> StockGraph:
    """Return the chains that NCCL's search finds in its graph `system` of a host.

    `gpu_paths` are the paths between its GPUs; there are at most `channels`, the number of rings.
    """
    return GraphSearch(system, gpu_paths, BALANCED_TREE, channels, channels).run()


class GraphSearch:
    """NCCL's passes of searches for one graph: `best` so far, and the `trial` in progress.

    `run` does them all. `system` is NCCL's graph of a host. It looks for `least` to `most` channels
    of a `pattern`, NCCL's number of the shape.
    """

    def __init__(
        self, system: StockSystem, gpu_paths: GpuPaths, pattern: int, least: int, most: int
    ) -> None:
        types = [path.type for (a, b), path in gpu_paths.paths.items() if a != b]
        self.min_type, self.max_type = min(*types, PathType.SYS), max(types)
        # Types of paths between GPUs to try, the nearest first, up to `max_type`.
        self.types = tuple(PathType)[self.min_type :]
        if (
            pattern == RING
            and _has_two_nvlink_domains(len(system.nodes[GPU]), gpu_paths)
            and least == 1 < most
        ):
            least = 2
        self.system, self.host = system, HostLinks(system, gpu_paths)
        self.best = self.trial = StockGraph(pattern, least, most, self.min_type)
        self.sm = system.min_sm
        self.speeds = next(speeds for sm, speeds in SPEEDS_MBps if self.sm >= sm)
        self.max_rate = gpu_paths.max_rate_kBps / 1000
        self.total_kBps = max(map(_count_total_kBps, system.nodes[DEV]))
        self.cross_nic = CROSS_NIC if len(system.nodes[NET]) > 1 else 0
        # AMD's CPUs carry so little between sockets that NCCL does not mix orders across them.
        self.is_amd = system.has_cpu("x86_64", "AuthenticAMD")
        self.steps_left = STEPS_ALL
        # Links that candidates start from: in the second pass NCCL adds them to the first's.
        self.links_before = 0
        # Candidates of the search that runs, and of those done so far with the steps left.
        self.candidates: set[Candidate] = set()
        self.done: dict[tuple[object, ...], tuple[int, set[Candidate]]] = {}

    def run(self) -> StockGraph:
        """Run both passes, and return the best graph."""
        self._run_first_pass()
        self.best = _split_channels(self.best, self.sm)
        self._run_second_pass()
        if not self.best.orders:
            order = tuple(range(len(self.system.nodes[GPU])))
            self.best = replace(
                self.best, path_type=PathType.SYS, speed_MBps=FALLBACK_MBps, orders=(order,)
            )
        return self.best

    def _run_first_pass(self) -> None:
        """Search at ever lower speeds until a graph is good enough."""
        at = self._pick_first_speed()
        while not self._search_at(self.speeds[at]):
            at += 1
            if at == len(self.speeds) or (
                self.best.orders and self.speeds[at] * 100 <= LOWEST_SHARE * self.best.inter_MBps
            ):
                return

    def _search_at(self, speed: int) -> bool:
        """Search at one speed over ever farther paths; return whether the pass has ended."""
        self.trial = replace(self.trial, speed_MBps=speed, inter_MBps=speed)
        for cross_nic in dict.fromkeys((0, self.cross_nic)):
            self.trial = replace(self.trial, cross_nic=cross_nic)
            if (not cross_nic or self.best.pattern != TREE) and self._search_types():
                return True
        return False

    def _search_types(self) -> bool:
        """Search over ever farther paths; return whether the pass has ended."""
        return self._search_types_to(self.max_type)

    def _search_types_to(self, farthest: PathType) -> bool:
        """Search over ever farther paths between GPUs; return whether the pass has ended."""
        for path_type in (each for each in self.types if each <= farthest):
            if self.best.orders and self.types[0] < path_type > self.best.path_type:
                break
            self.trial = replace(self.trial, path_type=path_type)
            if self._search_patterns():
                return True
        return False

    def _search_patterns(self) -> bool:
        """Search over one set of paths; return whether the pass has ended."""
        patterns = [self.best.pattern]
        if self.sm >= PLAIN_TREES_SM and patterns[0] == BALANCED_TREE:
            patterns.append(TREE)
        for pattern in patterns:
            for same in (True, False):
                if not same and self.is_amd and self.trial.path_type == PathType.SYS:
                    break
                self.trial = replace(self.trial, pattern=pattern, same_channels=same)
                left = self._search()
                # Steps left by a search for one order are not given back: NCCL's own count.
                self.steps_left -= STEPS_SAME if same else STEPS
                # The best graph uses all that the best connected GPU has.
                if left < 0 or self.best.channels * self.best.inter_MBps * 1000 >= self.total_kBps:
                    return True
            self.steps_left += left
            if self.steps_left < 0 and self.best.orders:
                return True
        return False

    def _run_second_pass(self) -> None:
        """Raise the speed while as many channels as the best graph has are found."""
        at = next(
            (i for i, speed in enumerate(self.speeds) if speed <= self.best.inter_MBps),
            len(self.speeds) - 1,
        )
        start, speed = self.best, self.speeds[at]
        self.links_before = start.links
        self.trial = replace(
            start,
            speed_MBps=speed,
            inter_MBps=speed,
            min_channels=start.channels,
            orders=(),
            nets=(),
        )
        left = -1
        while left != 0 and at > 0:
            at -= 1
            speed = self.speeds[at]
            if start.pattern == RING:
                self.trial = replace(self.trial, speed_MBps=speed, inter_MBps=speed)
            elif (
                self.trial.speed_MBps == self.best.speed_MBps
                and self.trial.speed_MBps < self.trial.inter_MBps * 2
            ):
                # Chains only speed up inside the host.
                self.trial = replace(self.trial, speed_MBps=speed)
            else:
                return
            left = self._search()

    def _search(self) -> int:
        """Run one search for `trial`, unless an equal one found nothing better than `best`.

        Return the steps left, as `search` does.
        """
        trial = self.trial
        table = self.host.make_table(trial.pattern, trial.speed_MBps, trial.path_type)
        key = (id(table), trial.same_channels, trial.min_channels, *self._list_keys())
        left, known = self.done.get(key, (0, set()))
        if key in self.done and not any(self._is_better(*each) for each in known):
            return left
        self.candidates = set()
        limits = SearchLimits(
            ring=trial.pattern == RING,
            same_channels=trial.same_channels,
            min_channels=trial.min_channels,
            max_channels=trial.max_channels,
            steps=STEPS_SAME if trial.same_channels else STEPS,
        )
        left = self._run_search(table, limits)
        if left >= 0:
            self.done[key] = left, self.candidates
        return left

    def _list_keys(self) -> tuple[object, ...]:
        """Return what else of the state tells searches apart."""
        return (self.links_before,)

    def _run_search(self, table: HopTable, limits: SearchLimits) -> int:
        return search(self.host, table, limits, self._report)

    def _report(self, channels: int, links: int, path: Sequence[int]) -> bool:
        """Take a candidate as the best graph if it is better."""
        gpus = len(self.host.gpus)
        links += self.links_before
        candidate = channels, links, self._count_wires(path[: channels * gpus])
        self.candidates.add(candidate)
        if not self._is_better(*candidate):
            return False
        orders = tuple(tuple(path[c * gpus : (c + 1) * gpus]) for c in range(channels))
        self.best = replace(self.trial, links=links, orders=orders)
        return True

    def _count_wires(self, path: Sequence[int]) -> int:
        """Return the number of hops that count for a candidate; `path` has its orders in turn."""
        return 0

    def _is_better(self, channels: int, links: int, wires: int) -> bool:
        """Return whether a candidate is better than the best graph: its total, then its links."""
        best, trial = self.best, self.trial
        total, best_total = channels * trial.speed_MBps, best.channels * best.speed_MBps
        if total != best_total:
            return total > best_total
        is_alike = (trial.pattern, trial.cross_nic) == (best.pattern, best.cross_nic)
        return is_alike and links < best.links

    def _pick_first_speed(self) -> int:
        """Return the index of the first speed at which the channels may fit the fastest GPU."""
        total = Fraction(self.total_kBps, 1000)
        count = len(self.system.nodes[DEV])
        if self.trial.pattern != RING:
            # A chain does not return to its start, so NCCL expects more of it.
            total *= Fraction(count, count - 1)
        fitting = (
            i
            for i, speed in enumerate(self.speeds)
            if speed <= self.max_rate and speed * self.trial.min_channels <= total
        )
        return next(fitting, len(self.speeds) - 1)


def _split_channels(graph: StockGraph, sm: int) -> StockGraph:
    """Return a graph with twice as many channels of half the speed, where NCCL prefers that."""
    speed, count = graph.speed_MBps, graph.channels
    is_fast_enough = speed >= SPLIT_MANY_MBps or sm <= SPLIT_MANY_SM or count <= MANY_CHANNELS
    if count == 0 or speed < SPLIT_MBps or not is_fast_enough:
        return graph
    most = min(2 * count, graph.max_channels)
    parts = -(-most // count)
    return replace(
        graph,
        orders=(graph.orders * 2)[:most],
        nets=(graph.nets * 2)[:most],
        speed_MBps=speed // parts,
        inter_MBps=graph.inter_MBps // parts,
    )


def _count_total_kBps(dev: StockNode) -> int:
    """Return kB/s of all NVLinks of a GPU, or of its PCIe link if that is more."""
    rates = {LINK_PCI: 0, PathType.NVL: 0}
    for link in dev.links:
        if link.type == LINK_PCI:
            rates[LINK_PCI] = link.rate_kBps
        elif link.type == PathType.NVL:
            rates[PathType.NVL] += link.rate_kBps
    return max(rates.values())


def _has_two_nvlink_domains(gpus: int, gpu_paths: GpuPaths) -> bool:
    """Return whether NVLink joins the GPUs to exactly two groups of two or more.

    As in NCCL a GPU belongs to the group of the last GPU before it that it has NVLinks to.
    """
    domain = list(range(gpus))
    for g in range(gpus):
        for p in range(g + 1, gpus):
            if gpu_paths.paths[g, p].type == PathType.NVL:
                domain[p] = domain[g]
    return sum(domain.count(d) > 1 for d in set(domain)) == 2
