"""RCCL's search for rings and chains inside a host, by the rules of its graph/search.cc.

It is NCCL's of 2.18 (`search`), with speeds of its own. Candidates that are equal otherwise are
better with more hops over xGMI, and machines of five to eight GPUs with xGMI get two rings at most.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...channels.channels import RING as RING_SHAPE
from ...channels.orders import hops
from .constants import (
    BALANCED_TREE,
    RCCL_MAX_RINGS,
    RCCL_MAX_RINGS_WITH_XGMI,
    RCCL_TYPES,
    RCCL_XGMI_GPUS,
    RING,
    STEPS,
    STEPS_SAME,
    PathType,
    RCCL_SPEEDS_MBps,
)
from .paths import GpuPaths
from .search import GraphSearch, StockGraph
from .steps import SearchLimits, search
from .system import GPU, StockSystem

# A candidate's numbers of channels, links and hops over xGMI.
_Candidate = tuple[int, int, int]


def find_rccl_rings(system: StockSystem, gpu_paths: GpuPaths) -> StockGraph:
    """Return the rings that RCCL's search finds."""
    has_xgmi = any(path.type == PathType.NVL for path in gpu_paths.paths.values())
    is_limited = has_xgmi and len(system.nodes[GPU]) in RCCL_XGMI_GPUS
    most = RCCL_MAX_RINGS_WITH_XGMI if is_limited else RCCL_MAX_RINGS
    return _RcclSearch(system, gpu_paths, RING, 1, most).run()


def find_rccl_rings_without_table(system: StockSystem, gpu_paths: GpuPaths) -> StockGraph:
    """Return the rings that RCCL's search finds where its table is passed over (RCCL_TREES)."""
    return _RcclSearch(system, gpu_paths, RING, 1, RCCL_MAX_RINGS).run()


def find_rccl_chains(system: StockSystem, gpu_paths: GpuPaths, channels: int) -> StockGraph:
    """Return the chains that RCCL's search finds, as many as it has rings."""
    return _RcclSearch(system, gpu_paths, BALANCED_TREE, channels, channels).run()


class _RcclSearch(GraphSearch):
    """RCCL's searches for one graph."""

    def __init__(
        self, system: StockSystem, gpu_paths: GpuPaths, pattern: int, least: int, most: int
    ) -> None:
        super().__init__(system, gpu_paths, pattern, least, most)
        self.best = self.trial = StockGraph(pattern, least, most, PathType.NVL)
        self.speeds, self.cross_nic = RCCL_SPEEDS_MBps, 0
        self.types, self.max_type = RCCL_TYPES, PathType.SYS
        self.wires = {
            pair
            for pair, path in gpu_paths.paths.items()
            if len(path.links) == 1 and path.type == PathType.NVL
        }
        # Candidates of the search that runs, and of those done so far with the steps left.
        self.candidates: set[_Candidate] = set()
        self.searched: dict[tuple[object, ...], tuple[int, set[_Candidate]]] = {}

    def _search(self) -> int:
        """Run one search for `trial`, unless an equal one found nothing better than `best`."""
        trial = self.trial
        table = self.host.make_table(trial.pattern, trial.speed_MBps, trial.path_type)
        key = (id(table), trial.same_channels, trial.min_channels, self.links_before)
        left, known = self.searched.get(key, (0, set()))
        if key in self.searched and not any(self._is_better(*each) for each in known):
            return left
        self.candidates = set()
        limits = SearchLimits(
            ring=trial.pattern == RING,
            same_channels=trial.same_channels,
            min_channels=trial.min_channels,
            max_channels=trial.max_channels,
            steps=STEPS_SAME if trial.same_channels else STEPS,
        )
        left = search(self.host, table, limits, self._report)
        if left >= 0:
            self.searched[key] = left, self.candidates
        return left

    def _report(self, channels: int, links: int, path: Sequence[int]) -> bool:
        """Take a candidate as the best graph if it is better."""
        links += self.links_before
        gpus = len(self.host.gpus)
        orders = tuple(tuple(path[c * gpus : (c + 1) * gpus]) for c in range(channels))
        candidate = channels, links, self._count_wires(orders)
        self.candidates.add(candidate)
        if not self._is_better(*candidate):
            return False
        self.best = replace(self.trial, links=links, orders=orders)
        return True

    def _count_wires(self, orders: Sequence[tuple[int, ...]]) -> int:
        """Return the number of hops over a direct xGMI link, rings closed."""
        return sum(hop in self.wires for order in orders for hop in hops(RING_SHAPE, order))

    def _is_better(self, channels: int, links: int, wires: int) -> bool:
        """Return whether a candidate is better than the best graph.

        It is by its total, then by fewer links, or by more hops over xGMI on as many channels.
        """
        best, trial = self.best, self.trial
        total, best_total = channels * trial.speed_MBps, best.channels * best.speed_MBps
        if total != best_total:
            return total > best_total
        return links < best.links or (
            channels == best.channels and wires > self._count_wires(best.orders)
        )
