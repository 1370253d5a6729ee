"""Compare stock NCCL with other channels by NCCL's own constants, on one or several equal hosts.

A channel is one ring, or one chain: a path through all GPUs, which NCCL calls a tree inside a host.
Algbw is the bytes of the buffer over the time of a call; the level of P2P is the farthest type of
path over which GPUs access each other's memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

from ....topo.graph import Topology
from ...channels.channels import CHAIN, RING
from .constants import BALANCED_TREE, TREE, PathType
from .constants import RING as RING_PATTERN
from .model import KINDS, NotModelled, StockModel, list_refused_p2p, model_stock, rate_orders
from .nic_rates import rate_between_hosts
from .nics import NicPaths
from .on_paper import StockRate, rate_stock
from .paths import GpuPaths, find_gpu_paths
from .search import StockGraph
from .system import GPU, StockNode
from .tuner import pick_algorithm


class NcclHost:
    """A model of NCCL on one host, with its own channels or those of a graph file.

    It is a Library (library.py), which explains its methods, `levels` and `others`. `model` is that
    of stock. A `level` of P2P (NCCL_P2P_LEVEL) is NCCL's default (None) or the farthest. With `nvb`
    false, channels are rated as with NCCL_NVB_DISABLE=1, and stock without.
    """

    reason = ""
    levels: tuple[PathType | None, ...] = (None, PathType.SYS)
    others: tuple[str, ...] = (RING,)

    def __init__(self, topology: Topology, model: StockModel, nvb: bool = True) -> None:
        self.topology, self.model, self.nvb = topology, model, nvb
        self.gpus: Sequence[StockNode] = model.system.nodes[GPU]

    @cached_property
    def models(self) -> dict[PathType | None, StockModel]:
        """The models of stock NCCL by the level of P2P."""
        at_sys = model_stock(self.topology, PathType.SYS.name, hosts=self.model.hosts)
        assert isinstance(at_sys, StockModel)
        return dict(zip(self.levels, (self.model, at_sys), strict=True))

    @cached_property
    def paths(self) -> dict[PathType | None, GpuPaths]:
        """The paths between GPUs, by the level of P2P."""
        return {level: self._find_paths(model, level) for level, model in self.models.items()}

    def _find_paths(self, model: StockModel, level: PathType | None) -> GpuPaths:
        if self.nvb:
            return model.gpu_paths
        return find_gpu_paths(model.system, level, False, list_refused_p2p(self.topology))

    @property
    def gpu_paths(self) -> GpuPaths:
        """The paths at the default level of P2P."""
        return self.paths[None]

    def pick(self, graphs: Mapping[str, StockGraph], size_bytes: int) -> str:
        """Return the shape that NCCL's tuner picks for an allreduce, given a file's graphs."""
        if len(graphs) == 1:
            return next(iter(graphs))
        hosts, system = self.model.hosts, self.model.system
        kind = pick_algorithm(system, graphs[RING], graphs[CHAIN], size_bytes, hosts)
        return next(shape for shape, name in KINDS.items() if name == kind)

    def pick_stock(self, size_bytes: int, level: PathType | None = None) -> str:
        """Return the shape that NCCL's tuner picks for an allreduce among its own graphs."""
        return RING if self.models[level].pick(size_bytes) == KINDS[RING] else CHAIN

    def rate(
        self, graph: StockGraph, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw in GB/s of an allreduce over a file's rings or chains.

        Links between CPUs have `between_cpus` times their rates.
        """
        return rate_orders(
            graph.pattern == RING_PATTERN, graph.orders, self.paths[level], between_cpus
        )

    def rate_stock(
        self, shape: str, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw in GB/s of an allreduce over NCCL's own rings or chains (`shape`).

        Links between CPUs have `between_cpus` times their rates.
        """
        model = self.models[level]
        orders = model.graphs[shape].orders[: model.channels]
        return rate_orders(shape == RING, orders, model.gpu_paths, between_cpus)

    def reach(self, collective: str) -> StockRate | NotModelled:
        """Return the algbw of stock for a collective at the topology's rates, or why unknown."""
        return rate_stock(collective, self.topology)

    def count_without_p2p(self, hops: Iterable[tuple[int, int]]) -> int:
        """Return how many of `hops`, ordered pairs of ranks, NCCL runs without P2P by default."""
        p2p, index = self.paths[None].p2p, {gpu.rank: gpu.index for gpu in self.gpus}
        return sum((index[a], index[b]) not in p2p for a, b in hops)


class NcclHosts(NcclHost):
    """A model of NCCL on each of several equal hosts, whose channels begin and end at NICs.

    `nics` are the paths to these by the level of P2P.
    """

    def __init__(self, topology: Topology, model: StockModel) -> None:
        super().__init__(topology, model)
        self.hosts = model.hosts
        self.nics: dict[PathType | None, NicPaths] = {
            level: each.nics for level, each in self.models.items() if each.nics is not None
        }

    def rate(
        self, graph: StockGraph, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw in GB/s of a file's rings or trees, by the loads on links alone.

        The hosts of a balanced tree have most of their neighbours, on two hosts all of them, at the
        first GPU; NCCL's own count has half there. The lower of both rates is returned. Links
        between CPUs have `between_cpus` times their rates.
        """
        patterns = {graph.pattern, TREE} if graph.pattern == BALANCED_TREE else {graph.pattern}
        return min(
            self._rate(replace(graph, pattern=each), graph.channels, between_cpus, level)
            for each in patterns
        )

    def rate_stock(
        self, shape: str, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw in GB/s of NCCL's own rings or trees, by the loads on links alone.

        It may be above NCCL's own count, which takes only speeds from a list.
        """
        model = self.models[level]
        return self._rate(model.graphs[shape], model.channels, between_cpus, level)

    def _rate(
        self, graph: StockGraph, used: int, between_cpus: int, level: PathType | None
    ) -> Fraction:
        paths = self.paths[level], self.nics[level]
        return rate_between_hosts(graph, used, *paths, self.hosts, between_cpus, counted=False)
