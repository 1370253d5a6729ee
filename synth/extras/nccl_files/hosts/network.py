"""One of several equal hosts as NCCL sees it, to rate a file's channels beside stock NCCL's.

All rates are NCCL's constants, as in the comparison for one host (`guard`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from .....topo.errors import InfeasibleError
from .....topo.graph import Topology
from .....topo.hardware import ASSUMED_BY
from ...stock.constants import BALANCED_TREE, RING, TREE, LOCAL_kBps, MBps_PER_GBps, PathType
from ...stock.model import StockChannels, StockModel, list_refused_p2p, model_stock
from ...stock.nic_rates import count_loads, rate_between_hosts
from ...stock.nics import NicPaths
from ...stock.paths import GpuPaths, find_gpu_paths
from ...stock.search import StockGraph
from ...stock.system import GPU, NET, StockLink, build_system
from ...stock.tuner import pick
from ..guard import BETWEEN_CPUS, LEVELS, Comparison

# A link at a level of P2P, since paths depend on it.
Row = tuple[PathType | None, StockLink]


@dataclass(frozen=True)
class HostChannel:
    """A channel of each host: its GPUs in order, and the NICs it comes from and goes to.

    All are indices in NCCL's order. A tree has its NIC at the first GPU only.
    """

    order: tuple[int, ...]
    nets: tuple[int, int]


@dataclass(frozen=True)
class HostGraphs:
    """Rings and trees in equal numbers, with true speeds, for each of several hosts.

    The rates are the algbw of an allreduce over all hosts, at NCCL's own constants.
    """

    rings: StockGraph
    trees: StockGraph
    ring_GBps: Fraction
    tree_GBps: Fraction

    @property
    def algbw_GBps(self) -> dict[str, Fraction]:
        """Both rates, of `rings` and of `chains`."""
        return {"rings": self.ring_GBps, "chains": self.tree_GBps}


class HostNetwork:
    """One of `hosts` equal hosts of NCCL's graph; `models` are stock by the level of P2P.

    Raise InfeasibleError if stock NCCL cannot be modelled there, or NICs have no known speed.
    """

    def __init__(self, topology: Topology, hosts: int) -> None:
        self.hosts, self.system = hosts, build_system(topology)
        self.models: dict[PathType | None, StockModel] = {}
        for level in LEVELS:
            model = model_stock(topology, None if level is None else level.name, hosts=hosts)
            if not isinstance(model, StockModel):
                raise InfeasibleError(
                    f"{topology.name}: no file for {hosts} hosts: {model.reason}; give the XML of "
                    "NCCL_TOPO_DUMP_FILE from a run with NICs"
                )
            self.models[level] = model
        self.gpus, self.nets = self.system.nodes[GPU], self.system.nodes[NET]
        self.devs = [net.element.get_integer("dev", 0) or 0 for net in self.nets]
        unknown = [d.id for d in topology.devices if d.kind == "nic" and d.extra.get(ASSUMED_BY)]
        if unknown or len(set(self.devs)) < len(self.devs):
            what = (
                f"the speed of {', '.join(unknown[:4])} is unknown"
                if unknown
                else "NICs share a dev"
            )
            raise InfeasibleError(
                f"{topology.name}: no file for {hosts} hosts: {what}; give the XML of "
                "NCCL_TOPO_DUMP_FILE"
            )
        self._index = {gpu.rank: gpu.index for gpu in self.gpus}
        refused = list_refused_p2p(topology)
        self.paths: dict[PathType | None, tuple[GpuPaths, NicPaths]] = {}
        for level in LEVELS:
            gpu_paths = find_gpu_paths(self.system, level, True, refused)
            self.paths[level] = gpu_paths, NicPaths(self.system, gpu_paths, True)

    # -- loads and rates

    def count_loads(self, pattern: int, channel: HostChannel) -> dict[Row, Fraction]:
        """Return how often each link carries a channel's share, at each level of P2P.

        Links inside a device, which limit nothing, are left out.
        """
        graph = self.build_graph(pattern, [channel])
        return {
            (level, link): load
            for level, paths in self.paths.items()
            for link, load in count_loads(graph, *paths, self.hosts).items()
            if link.rate_kBps < LOCAL_kBps
        }

    def rate(
        self, graph: StockGraph, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw of an allreduce in GB/s, by the loads on links alone.

        The hosts of a balanced tree have most of their neighbours, on two hosts all of them, at
        the first GPU; NCCL's own count has half there. The lower of both rates is returned.
        """
        patterns = {graph.pattern, TREE} if graph.pattern == BALANCED_TREE else {graph.pattern}
        return min(
            rate_between_hosts(
                replace(graph, pattern=pattern),
                graph.channels,
                *self.paths[level],
                self.hosts,
                between_cpus,
                counted=False,
            )
            for pattern in patterns
        )

    def build_graph(
        self, pattern: int, channels: Sequence[HostChannel], cross_nic: int = 0
    ) -> StockGraph:
        """Return channels as NCCL's graph, without a speed."""
        orders = tuple(each.order for each in channels)
        return StockGraph(
            pattern,
            len(channels),
            len(channels),
            self._find_type(orders),
            same_channels=len(set(orders)) == 1,
            cross_nic=cross_nic,
            orders=orders,
            nets=tuple(each.nets for each in channels),
            nic_type=self._find_nic_type(pattern, channels),
        )

    def set_speed(self, graph: StockGraph) -> tuple[StockGraph, Fraction]:
        """Return a graph with the speed by which NCCL's tuner counts its true rate, and the rate.

        The rate is the algbw of an allreduce in GB/s.
        """
        rate, ranks = self.rate(graph), len(self.gpus) * self.hosts
        per_channel = rate * 2 / graph.channels
        if graph.pattern == RING:
            per_channel *= Fraction(ranks - 1, ranks)
        speed = int(per_channel * MBps_PER_GBps)
        return replace(graph, speed_MBps=speed, inter_MBps=speed), rate

    def _find_type(self, orders: Sequence[Sequence[int]]) -> PathType:
        paths = self.paths[None][0].paths
        hops = {hop for order in orders for hop in pairwise(order)}
        hops |= {(b, a) for a, b in hops}
        return max((paths[hop].type for hop in hops), default=PathType.LOC)

    def _find_nic_type(self, pattern: int, channels: Sequence[HostChannel]) -> PathType:
        nics = self.paths[None][1]
        return max(
            path.type
            for each in channels
            for path in (
                nics.back[each.order[0], each.nets[0]],
                nics.out[each.order[-1 if pattern == RING else 0], each.nets[-1]],
            )
        )

    # -- stock

    def rate_stock(
        self, kind: str, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw of stock's rings or chains in GB/s, by the loads on links alone.

        It may be above NCCL's own count, which takes only speeds from a list.
        """
        model = self.models[level]
        graph, used = (
            self._restore(model.rings if kind == "rings" else model.chains),
            model.channels,
        )
        paths = self.paths[level]
        return rate_between_hosts(graph, used, *paths, self.hosts, between_cpus, counted=False)

    def repeat_stock_rings(self, count: int) -> StockGraph | None:
        """Return `count` rings, those of stock in turn, None if that is no multiple of them."""
        model = self.models[None]
        if count % model.channels:
            return None
        graph = self._restore(model.rings)
        pairs = zip(graph.orders, graph.nets, strict=True)
        channels = [HostChannel(order, nets) for order, nets in pairs][: model.channels]
        return self.build_graph(RING, channels * (count // model.channels), model.rings.cross_nic)

    def _restore(self, channels: StockChannels) -> StockGraph:
        at = {dev: index for index, dev in enumerate(self.devs)}
        return StockGraph(
            channels.pattern,
            1,
            len(channels.orders),
            PathType[channels.path_type],
            orders=tuple(tuple(self._index[r] for r in order) for order in channels.orders),
            nets=tuple((at[first], at[last]) for first, last in channels.nets),
        )

    def compare(self, graphs: HostGraphs, rings_only: bool, size_bytes: int) -> Comparison:
        """Return a file beside stock, for an allreduce of a size or, if `rings_only`, others."""
        picked = "rings"
        if not rings_only:
            picked = pick(self.system, graphs.rings, graphs.trees, size_bytes, self.hosts)
        of_file = {"rings": graphs.rings, "chains": graphs.trees}
        ratios, ring_ratios = {}, {}
        for level, model in self.models.items():
            of_stock = "rings" if rings_only else model.pick(size_bytes)
            for factor in BETWEEN_CPUS:
                stock = {kind: self.rate_stock(kind, factor, level) for kind in {of_stock, "rings"}}
                ours = {kind: self.rate(of_file[kind], factor, level) for kind in {picked, "rings"}}
                ratios[level, factor] = ours[picked] / stock[of_stock]
                ring_ratios[level, factor] = ours["rings"] / stock["rings"]
        return Comparison(picked, graphs.algbw_GBps[picked], ratios, ring_ratios)
