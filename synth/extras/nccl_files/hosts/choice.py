"""Choose the rings and trees of a graph file for several equal hosts, compared with stock NCCL.

A graph file is what NCCL reads by NCCL_GRAPH_FILE: for each host its channels, which are rings and
trees from a NIC through all its GPUs. Stock NCCL is NCCL without one. Rates are algbw, the bytes of
the buffer over the time of a call, by NCCL's constants, the rates that its sources assume for
links.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from .....topo.graph import Topology
from ....channels.channels import CHAIN
from ....channels.channels import RING as RING_SHAPE
from ....numeric.effort import Effort
from ...stock.constants import BALANCED_TREE, RING, TREE, LOCAL_kBps, PathType, kBps_PER_GBps
from ...stock.nccl_version import NcclVersion
from ..guard import BETWEEN_CPUS, Comparison, compare
from .network import HostGraphs, HostNetwork, Row
from .search import ChannelSearch

# NCCL doubles the channels of a file, and has room for twice these.
_MAX_CHANNELS = 16
# Share of the best gain from which files count as equally good.
_EQUAL = Fraction(995, 1000)
# Work of each search in seconds of an idle core, and its share of the time limit.
_WORK_S, _CLOCK = 6.0, 0.2
# Share of the best rate that near NICs must reach for the search to be content.
_REACHED = 0.99

_Rates = dict[Row, Fraction]


@dataclass(frozen=True)
class ChosenHostGraphs:
    """The graphs chosen for a file for several hosts, and how they compare with stock.

    `network` is one of the hosts as NCCL sees it. `comparison` has the ratios of the algbw of
    `graphs` to stock's. `bound_GBps` is the upper bound, at NCCL's constants, on the collective's
    algbw over channels of this form. `rings_only` says that it runs on rings alone, as all but
    allreduce do.
    """

    network: HostNetwork
    graphs: HostGraphs
    comparison: Comparison
    bound_GBps: float
    rings_only: bool

    @property
    def algbw_GBps(self) -> dict[str, Fraction]:
        """The algbw in GB/s of "rings" for the collective, of "chains" (trees) for allreduce."""
        rates = dict(self.graphs.algbw_GBps)
        if self.rings_only:
            rates["rings"] *= 2  # an allreduce is two of these
        return rates

    @property
    def fraction(self) -> float:
        """The algbw of the faster graph for the collective as a fraction of the bound."""
        rates = self.algbw_GBps
        return float(rates["rings"] if self.rings_only else max(rates.values())) / self.bound_GBps


def choose_host_graphs(
    topology: Topology,
    hosts: int,
    effort: Effort,
    version: NcclVersion,
    size_bytes: int,
    rings_only: bool,
) -> ChosenHostGraphs:
    """Return the best graphs for `hosts` hosts like the topology, for buffers of `size_bytes`.

    Those come first that are safe (guard.py): at least 1 % above stock's algbw at NCCL's constants,
    and not below it with links between CPUs at 2 and 4 times these, or with P2P allowed on all
    paths (NCCL_P2P_LEVEL=SYS). Of these the best has nearly the highest ratio to stock at NCCL's
    constants; then nearly the highest smallest ratio of all; then the nearest NICs and the fewest
    channels. If none is safe, it is the one that loses least; the caller decides by
    `comparison.is_safe` of the result.

    `version` is NCCL's. With `rings_only` the collective runs on rings alone, not on trees.
    `effort`, an allowance of work in seconds of an idle core and a time limit, limits the searches.
    Raise InfeasibleError if stock cannot be modelled there, or there are too many GPUs.
    """
    network = HostNetwork(topology, hosts)
    own, robust = [_list_rates(network, None, 1)] * 2, _list_robust_rates(network)
    near = _search(network, own, effort, True)
    every = _search(network, own, effort, False)
    searches = [near, _search(network, robust, effort, True), every]
    if any(near[pattern].optimum < every[pattern].optimum * _REACHED for pattern in near):
        searches.append(_search(network, robust, effort, False))
    most = _limit_channels(network, version)
    files = dict.fromkeys(
        graphs for each in searches for graphs in _list_graphs(network, each, most)
    )
    rated = [
        (graphs, compare(network.library, graphs.by_shape, rings_only, size_bytes))
        for graphs in files
    ]
    graphs, comparison = _choose(rated, network.library.model.channels)
    # Stock's rings, which may exchange their NICs, are not among the search's channels.
    best = {RING: max(every[RING].optimum, float(graphs.ring_GBps)), TREE: every[TREE].optimum}
    bound = 2 * best[RING] if rings_only else max(best.values())
    return ChosenHostGraphs(network, graphs, comparison, bound, rings_only)


def _limit_channels(network: HostNetwork, version: NcclVersion) -> int:
    # The elements are <graphs>, two <graph>, and in each a <channel> with all GPUs and two nets.
    room = (version.max_elements - 3) // (2 * (len(network.gpus) + 3))
    return max(min(_MAX_CHANNELS, version.max_channels, room), 1)


def _list_rates(network: HostNetwork, level: PathType | None, between_cpus: int) -> _Rates:
    """Return the rates of all links in GB/s at a level of P2P."""
    gpu_paths, nics = network.paths[level]
    paths = (each for table in (gpu_paths.paths, nics.back, nics.out) for each in table.values())
    links = dict.fromkeys(link for path in paths for link in path.links)
    return {
        (level, link): Fraction(link.count_kBps(between_cpus), kBps_PER_GBps)
        for link in links
        if link.rate_kBps < LOCAL_kBps
    }


def _list_robust_rates(network: HostNetwork) -> list[_Rates]:
    """Return rates relative to stock's, at all levels of P2P and rates between CPUs.

    Channels that carry much at these are far above stock wherever that is hardest. The first are
    for rings, the second for trees.
    """
    out: list[_Rates] = []
    for shapes in ((RING_SHAPE,), (RING_SHAPE, CHAIN)):
        least: _Rates = {}
        for level in network.library.levels:
            for factor in BETWEEN_CPUS:
                stock = (network.library.rate_stock(shape, factor, level) for shape in shapes)
                target = max(stock)
                for row, rate in _list_rates(network, level, factor).items():
                    least[row] = min(least.get(row, rate / target), rate / target)
        out.append(least)
    return out


def _search(
    network: HostNetwork, rates: Sequence[_Rates], effort: Effort, near: bool
) -> dict[int, ChannelSearch]:
    """Return searches for rings and trees at the rates for each."""
    return {
        pattern: ChannelSearch(network, pattern, each, effort.grant(_WORK_S, _CLOCK), near)
        for pattern, each in zip((RING, TREE), rates, strict=True)
    }


def _list_graphs(
    network: HostNetwork, searches: dict[int, ChannelSearch], most: int
) -> Iterable[HostGraphs]:
    """Yield rings and trees in every number up to `most`."""
    for count in range(1, most + 1):
        searched = network.build_graph(RING, searches[RING].round(count))
        trees = searches[TREE].round(count)
        # NCCL's tuner counts less for a tree whose first GPU has all neighbours. Stock's rings may
        # exchange their NICs, which those of the search never do.
        for rings, pattern in product(
            (searched, network.repeat_stock_rings(count)), (TREE, BALANCED_TREE)
        ):
            if rings is not None:
                with_speed, ring_GBps = network.set_speed(rings)
                chosen, tree_GBps = network.set_speed(network.build_graph(pattern, trees))
                yield HostGraphs(with_speed, chosen, ring_GBps, tree_GBps)


def _choose(
    rated: list[tuple[HostGraphs, Comparison]], least: int
) -> tuple[HostGraphs, Comparison]:
    """Return the best of what is safe, else what loses least.

    It is near the best gain and, of these, as far above stock as possible at all rates. Of equals,
    the one with the fewest channels from `least` on is taken.
    """
    safe = [each for each in rated if each[1].is_safe]
    if not safe:
        return max(rated, key=lambda each: (min(each[1].least, 1), each[1].gain))
    best = max(compared.gain for _, compared in safe)
    safe = [each for each in safe if each[1].gain >= best * _EQUAL]
    strongest = max(compared.least for _, compared in safe)
    safe = [each for each in safe if each[1].least >= strongest * _EQUAL]
    enough = [each for each in safe if each[0].rings.channels >= least] or safe
    return min(enough, key=_rank_equal)


def _rank_equal(each: tuple[HostGraphs, Comparison]) -> tuple[int, int, Fraction]:
    """Return a key by which files that are equally fast are sorted: those with near NICs first."""
    graphs, compared = each
    farthest = graphs.rings.nic_type + graphs.trees.nic_type
    return farthest, graphs.rings.channels, -compared.least
