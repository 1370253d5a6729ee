"""Repeat NCCL's search for channels in jobs of several equal hosts: they begin and end at NICs.

A channel is one ring, or one chain: a path through all GPUs, which NCCL calls a tree inside a host.
"""

from collections.abc import Sequence
from dataclasses import replace

from .constants import BALANCED_TREE, MAX_CHANNELS, NEAR_NICS_SM, RING, HOST_SPEEDS_MBps, PathType
from .nic_steps import NicSearch, NicSettings
from .nics import NicPaths
from .paths import GpuPaths
from .search import GraphSearch, StockGraph
from .steps import HopTable, HostLinks, SearchLimits
from .system import DEV, StockSystem

# Paths tried after which the search is given up: about 10 s of an idle core. NCCL itself takes
# a tenth of that; boxes with 8 GPUs stay below.
_MAX_TRIALS = 6_000_000


class SearchTooLongError(Exception):
    """NCCL's search would take too long to repeat."""


def find_host_rings(system: StockSystem, gpu_paths: GpuPaths, nics: NicPaths) -> StockGraph:
    """Return the rings that NCCL finds on each host for jobs of several hosts.

    `system` is NCCL's graph of a host, with the paths between GPUs and to NICs. Raise
    SearchTooLongError if the search would take too long.
    """
    return _NicGraphSearch(system, gpu_paths, nics, RING, 1, MAX_CHANNELS).run()


def find_host_chains(
    system: StockSystem, gpu_paths: GpuPaths, nics: NicPaths, channels: int
) -> StockGraph:
    """Return the trees that NCCL finds on each host for jobs of several hosts.

    There are as many as `channels`, the number of rings; `system` is NCCL's graph of a host, with
    the paths between GPUs and to NICs. Raise SearchTooLongError if the search would take too long.
    """
    return _NicGraphSearch(system, gpu_paths, nics, BALANCED_TREE, channels, channels).run()


class _NicGraphSearch(GraphSearch):
    """NCCL's searches for one graph of a job of several hosts."""

    def __init__(
        self,
        system: StockSystem,
        gpu_paths: GpuPaths,
        nics: NicPaths,
        pattern: int,
        least: int,
        most: int,
    ) -> None:
        super().__init__(system, gpu_paths, pattern, least, most)
        self.nics = nics
        into = ((nics.nets[n], path) for (_, n), path in nics.back.items())
        out = ((self.host.gpus[g], path) for (g, _), path in nics.out.items())
        self.host = HostLinks(system, gpu_paths, (*into, *out))
        self.speeds = next(speeds for sm, speeds in HOST_SPEEDS_MBps if self.sm >= sm)
        types = [path.type for path in nics.out.values()]
        self.min_nic_type, self.max_nic_type = min(*types, PathType.SYS), max(types)
        self.nic_types = {*types, *(path.type for path in nics.back.values())}
        if self.sm < NEAR_NICS_SM:
            self.max_nic_type = PathType.SYS
        self.best = self.trial = replace(self.best, nic_type=self.min_nic_type)
        rates = (path.rate_kBps for to in nics.to_net for x, path in to.items() if x.kind == DEV)
        self.max_rate = max(rates) / 1000
        self.search: NicSearch | None = None
        self.trials = 0

    def _search_types(self) -> bool:
        for nic_type in map(PathType, range(self.min_nic_type, self.max_nic_type + 1)):
            is_near = nic_type in (self.min_nic_type, *range(PathType.PXN + 1))
            if self.best.orders and not is_near and nic_type > self.best.nic_type:
                break
            self.trial = replace(self.trial, nic_type=nic_type)
            if self._search_types_to(max(nic_type, self.min_type)):
                return True
        return False

    def _list_keys(self) -> tuple[object, ...]:
        trial = self.trial
        # Farther types allow no more where no path to a NIC has them.
        farthest = max((x for x in self.nic_types if x <= trial.nic_type), default=None)
        return (*super()._list_keys(), farthest, trial.cross_nic, trial.inter_MBps)

    def _run_search(self, table: HopTable, limits: SearchLimits) -> int:
        trial = self.trial
        settings = NicSettings(trial.pattern, trial.cross_nic, trial.inter_MBps, trial.nic_type)
        self.search = NicSearch(self.host, self.nics, table, limits, settings, self._report)
        left = self.search.run()
        self.trials += self.search.trials
        if self.trials > _MAX_TRIALS:
            raise SearchTooLongError
        return left

    def _report(self, channels: int, links: int, path: Sequence[int]) -> bool:
        is_better = super()._report(channels, links, path)
        if is_better and self.search is not None:
            nets = self.search.nets[: 2 * channels]
            self.best = replace(self.best, nets=tuple(zip(nets[::2], nets[1::2], strict=True)))
        return is_better
