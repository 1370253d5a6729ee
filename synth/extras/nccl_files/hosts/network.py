"""Model one of several equal hosts as NCCL sees it, to build a file's channels there.

Algbw is the bytes of the buffer over the time of a call; the level of P2P is the farthest type of
path over which GPUs access each other's memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from .....topo.errors import InfeasibleError
from .....topo.graph import Topology
from .....topo.hardware import ASSUMED_BY
from ....channels.channels import CHAIN
from ....channels.channels import RING as RING_SHAPE
from ...stock.constants import RING, LOCAL_kBps, MBps_PER_GBps, PathType
from ...stock.library import find_nccl
from ...stock.nccl import NcclHosts
from ...stock.nic_rates import count_loads
from ...stock.search import StockGraph
from ...stock.system import NET, StockLink

# A link at a level of P2P, since paths depend on it.
Row = tuple[PathType | None, StockLink]


@dataclass(frozen=True)
class HostChannel:
    """A channel through one host: its GPUs in order, and the NICs (`nets`) at its start and end.

    All are indices in NCCL's order. A tree has its NIC at the first GPU only.
    """

    order: tuple[int, ...]
    nets: tuple[int, int]


@dataclass(frozen=True)
class HostGraphs:
    """The rings and trees of a file for each host, the same number of both.

    `ring_GBps` and `tree_GBps` are the algbw of an allreduce over all hosts that NCCL's tuner
    predicts from the graphs' speeds.
    """

    rings: StockGraph
    trees: StockGraph
    ring_GBps: Fraction
    tree_GBps: Fraction

    @property
    def by_shape(self) -> dict[str, StockGraph]:
        """Both graphs, by their shape."""
        return {RING_SHAPE: self.rings, CHAIN: self.trees}

    @property
    def algbw_GBps(self) -> dict[str, Fraction]:
        """The algbw of "rings" and of "chains" (trees) in GB/s."""
        return {"rings": self.ring_GBps, "chains": self.tree_GBps}


class HostNetwork:
    """One of `hosts` equal hosts, with the links of NCCL's graph.

    `topology` is that of the host. `library` models stock NCCL, which is NCCL without a file, and
    rates channels by NCCL's constants. `gpus` and `nets` (NICs) are in NCCL's order, `devs` are the
    NICs' `dev` numbers. `paths` has, by level of P2P (None: NCCL's default), the paths between GPUs
    and those to NICs. Raise InfeasibleError if stock NCCL cannot be modelled there, NICs have no
    known speed, or two have the same dev number.
    """

    def __init__(self, topology: Topology, hosts: int) -> None:
        library = find_nccl(topology, hosts)
        if not isinstance(library, NcclHosts):
            raise InfeasibleError(
                f"{topology.name}: no file for {hosts} hosts: {library.reason}; give the XML of "
                "NCCL_TOPO_DUMP_FILE from a run with NICs"
            )
        self.hosts, self.library, self.gpus = hosts, library, library.gpus
        self.nets = library.model.system.nodes[NET]
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
        self.paths = {
            level: (library.paths[level], library.nics[level]) for level in library.levels
        }

    def count_loads(self, pattern: int, channel: HostChannel) -> dict[Row, Fraction]:
        """Return how often each link carries a channel's share of an allreduce, by level of P2P.

        `pattern` is NCCL's number of the shape: RING, TREE or BALANCED_TREE. Links inside a device,
        which limit nothing, are left out.
        """
        graph = self.build_graph(pattern, [channel])
        return {
            (level, link): load
            for level, paths in self.paths.items()
            for link, load in count_loads(graph, *paths, self.hosts).items()
            if link.rate_kBps < LOCAL_kBps
        }

    def build_graph(
        self, pattern: int, channels: Sequence[HostChannel], cross_nic: int = 0
    ) -> StockGraph:
        """Return channels as NCCL's graph, without a speed; `cross_nic` is NCCL's setting.

        `pattern` is NCCL's number of the shape.
        """
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
        """Return a graph with the speed from which NCCL's tuner gets its true rate, and the rate.

        The rate is the algbw of an allreduce in GB/s.
        """
        rate, ranks = self.library.rate(graph), len(self.gpus) * self.hosts
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

    def repeat_stock_rings(self, count: int) -> StockGraph | None:
        """Return `count` rings that repeat stock's; None if `count` is no multiple of these."""
        model = self.library.model
        graph = model.graphs[RING_SHAPE]
        if count % model.channels:
            return None
        pairs = zip(graph.orders, graph.nets, strict=True)
        channels = [HostChannel(order, nets) for order, nets in pairs][: model.channels]
        return self.build_graph(RING, channels * (count // model.channels), graph.cross_nic)
