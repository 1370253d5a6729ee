"""Repeat RCCL's search for rings and chains inside a host, by the rules of its graph/search.cc.

It is NCCL's of 2.18 (`search`), with speeds of its own. Of equal candidates those with more hops
over xGMI are better, and machines of five to eight GPUs with xGMI get two rings at most.
"""

from collections.abc import Sequence
from itertools import chain

from ...channels.channels import RING as RING_SHAPE
from ...channels.orders import hops
from .constants import (
    BALANCED_TREE,
    RCCL_MAX_RINGS,
    RCCL_MAX_RINGS_WITH_XGMI,
    RCCL_TYPES,
    RCCL_XGMI_GPUS,
    RING,
    PathType,
    RCCL_SPEEDS_MBps,
)
from .paths import GpuPaths
from .search import GraphSearch, StockGraph
from .system import GPU, StockSystem


def find_rccl_rings(system: StockSystem, gpu_paths: GpuPaths) -> StockGraph:
    """Return the rings that RCCL's search finds in its graph `system` of a host.

    `gpu_paths` are the paths between its GPUs.
    """
    has_xgmi = any(path.type == PathType.NVL for path in gpu_paths.paths.values())
    is_limited = has_xgmi and len(system.nodes[GPU]) in RCCL_XGMI_GPUS
    most = RCCL_MAX_RINGS_WITH_XGMI if is_limited else RCCL_MAX_RINGS
    return _RcclSearch(system, gpu_paths, RING, 1, most).run()


def find_rccl_rings_without_table(system: StockSystem, gpu_paths: GpuPaths) -> StockGraph:
    """Return the rings that RCCL's search finds if its table is passed over (RCCL_TREES).

    `system` is its graph of a host, `gpu_paths` are the paths between the GPUs.
    """
    return _RcclSearch(system, gpu_paths, RING, 1, RCCL_MAX_RINGS).run()


def find_rccl_chains(system: StockSystem, gpu_paths: GpuPaths, channels: int) -> StockGraph:
    """Return the chains that RCCL's search finds in its graph `system` of a host.

    `gpu_paths` are the paths between its GPUs; there are as many as `channels`, its number of
    rings.
    """
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

    def _count_wires(self, path: Sequence[int]) -> int:
        """Return the number of hops over a direct xGMI link, rings closed."""
        gpus = len(self.host.gpus)
        orders = (tuple(path[at : at + gpus]) for at in range(0, len(path), gpus))
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
            channels == best.channels and wires > self._count_wires([*chain(*best.orders)])
        )
