"""The comparison of graph files with stock NCCL, in NCCL's own graph of a host.

Here all rates are NCCL's constants. Real links between CPUs are often two to four times as fast, so
each comparison is made at these rates, too.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction

from ....topo.graph import Topology
from ...channels.channels import CHAIN, RING, Channels
from ..stock.constants import BALANCED_TREE, LOCAL_kBps, MBps_PER_GBps, PathType, kBps_PER_GBps
from ..stock.constants import RING as RING_PATTERN
from ..stock.model import StockModel, list_refused_p2p, model_stock, rate_orders
from ..stock.paths import GpuPaths, find_gpu_paths
from ..stock.search import StockGraph
from ..stock.system import GPU, build_system
from ..stock.tuner import pick
from .robust import LinkRates, collect

# Multiples of NCCL's constant for links between CPUs at which a file must hold.
BETWEEN_CPUS = (1, 2, 4)
# The levels of P2P (NCCL_P2P_LEVEL) at which it must: NCCL's default, and the farthest.
LEVELS = (None, PathType.SYS)
# Gain over stock, at NCCL's own constants, from which a file is worth writing.
WORTH_WRITING = Fraction(101, 100)
PICKS = {RING: "rings", CHAIN: "chains"}


@dataclass(frozen=True)
class FileChannels:
    """Rings and chains as a file has them, each with a channel's speed in GB/s and path type."""

    channels: dict[str, Channels]
    speeds_GBps: dict[str, Fraction]
    types: dict[str, str]


@dataclass(frozen=True)
class Comparison:
    """A file beside stock: ratios of their algbw, by P2P level and multiple between CPUs.

    They are of the algorithms that NCCL's tuner picks, `picked` in the file; `ring_ratios` are of
    the rings, which serve the other collectives. `algbw_GBps` is the file's, at NCCL's constants.
    """

    picked: str
    algbw_GBps: Fraction
    ratios: dict[tuple[PathType | None, int], Fraction] = field(repr=False)
    ring_ratios: dict[tuple[PathType | None, int], Fraction] = field(repr=False)

    @property
    def gain(self) -> Fraction:
        """The ratio at NCCL's own constants and default P2P level."""
        return self.ratios[None, 1]

    @property
    def least(self) -> Fraction:
        """The least of all ratios."""
        return min(*self.ratios.values(), *self.ring_ratios.values())

    @property
    def is_safe(self) -> bool:
        """Whether the file gains, and loses nothing at any rates."""
        return self.gain >= WORTH_WRITING and self.least >= 1


class StockHost:
    """A host as NCCL sees it, to rate channels beside those of stock NCCL.

    `model` is that of stock. With `nvb` false, channels are rated as with NCCL_NVB_DISABLE=1, and
    stock without.
    """

    def __init__(self, topology: Topology, model: StockModel, nvb: bool = True) -> None:
        at_sys = model_stock(topology, PathType.SYS.name)
        assert isinstance(at_sys, StockModel)
        self.models = dict(zip(LEVELS, (model, at_sys), strict=True))
        self._system = build_system(topology)
        self._index = {gpu.rank: gpu.index for gpu in self._system.nodes[GPU]}
        refused = list_refused_p2p(topology)
        self._stock_paths, self._paths = (
            {level: find_gpu_paths(self._system, level, through, refused) for level in LEVELS}
            for through in (True, nvb)
        )

    def list_link_rates(self, pairs: Collection[tuple[int, int]], between_cpus: int) -> LinkRates:
        """Return the rates of NCCL's links between pairs of ranks, at its default P2P level."""
        rank_of = {index: rank for rank, index in self._index.items()}
        return collect(
            ((rank_of[a], rank_of[b]), link, Fraction(rate, kBps_PER_GBps))
            for (a, b), path in self._paths[None].paths.items()
            if (rank_of[a], rank_of[b]) in pairs
            for link in path.links
            if (rate := link.rate_kBps * (between_cpus if link.type == PathType.SYS else 1))
            and link.rate_kBps < LOCAL_kBps
        )

    def list_stock(self, level: PathType | None = None) -> dict[str, Channels]:
        """Return the channels of stock, by their shape."""
        model = self.models[level]
        return {
            shape: Channels(shape, channels.orders[: model.channels])
            for shape, channels in ((RING, model.rings), (CHAIN, model.chains))
        }

    def rate_stock(self, shape: str, between_cpus: int, level: PathType | None = None) -> Fraction:
        """Return the algbw of stock's rings or chains for an allreduce, in GB/s."""
        return self._rate(self.list_stock(level)[shape], self._stock_paths[level], between_cpus)

    def rate_picked_stock(self, rings_only: bool, size_bytes: int) -> Fraction:
        """Return the algbw of what stock picks for an allreduce of a size, in GB/s.

        With `rings_only` it is that of its rings.
        """
        is_chains = not rings_only and self.models[None].pick(size_bytes) == PICKS[CHAIN]
        return self.rate_stock(CHAIN if is_chains else RING, 1)

    def rate(self, channels: Channels, between_cpus: int = 1) -> Fraction:
        """Return the algbw of channels for an allreduce, in GB/s, at the default P2P level."""
        return self._rate(channels, self._paths[None], between_cpus)

    def _rate(self, channels: Channels, paths: GpuPaths, between_cpus: int) -> Fraction:
        orders = [[self._index[rank] for rank in order] for order in channels.orders]
        return rate_orders(channels.shape == RING, orders, paths, between_cpus)

    def compare(self, file: FileChannels, rings_only: bool, size_bytes: int) -> Comparison:
        """Return a file beside stock, for an allreduce of a size or, if `rings_only`, others."""
        own = RING if rings_only else self._pick(file, size_bytes)
        ratios, ring_ratios = {}, {}
        for level, model in self.models.items():
            is_chains = not rings_only and model.pick(size_bytes) == PICKS[CHAIN]
            for factor in BETWEEN_CPUS:
                rates = {
                    shape: self._rate(channels, self._paths[level], factor)
                    for shape, channels in file.channels.items()
                }
                stock = self.rate_stock(CHAIN if is_chains else RING, factor, level)
                ratios[level, factor] = rates[own] / stock
                if RING in rates:
                    stock_rings = self.rate_stock(RING, factor, level)
                    ring_ratios[level, factor] = rates[RING] / stock_rings
        return Comparison(PICKS[own], self.rate(file.channels[own]), ratios, ring_ratios)

    def _pick(self, file: FileChannels, size_bytes: int) -> str:
        """Return the shape that NCCL's tuner picks from a file."""
        if len(file.channels) == 1:
            return next(iter(file.channels))
        rings, chains = (
            StockGraph(
                pattern,
                len(file.channels[shape].orders),
                len(file.channels[shape].orders),
                PathType[file.types[shape]],
                speed_MBps=round(file.speeds_GBps[shape] * MBps_PER_GBps),
                orders=file.channels[shape].orders,
            )
            for shape, pattern in ((RING, RING_PATTERN), (CHAIN, BALANCED_TREE))
        )
        picked = pick(self._system, rings, chains, size_bytes)
        return next(shape for shape, name in PICKS.items() if name == picked)

    def count_pairs_without_p2p(self, hops: set[tuple[int, int]]) -> int:
        """Return how many ordered pairs of ranks NCCL connects without P2P by default."""
        p2p = self._paths[None].p2p
        return sum((self._index[a], self._index[b]) not in p2p for a, b in hops)
