"""Compare graph files with a stock library, in the library's own graph of a host.

Here all rates are the library's constants. Real links between CPUs are often two to four times as
fast, so each comparison is made at these rates, too.

Graphs have a shape, "ring" or "chain" (a path through all GPUs, which NCCL calls a tree). Algbw is
the bytes of the buffer over the time of a call; the level of P2P is the farthest type of path over
which GPUs access each other's memory.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from ...channels.channels import RING
from ..stock.constants import LOCAL_kBps, PathType, kBps_PER_GBps
from ..stock.library import Library
from ..stock.search import StockGraph
from .robust import LinkRates, collect

# Multiples of the library's constant for links between CPUs at which a file must hold.
BETWEEN_CPUS = (1, 2, 4)
# Gain over stock, at its own constants, from which a file is worth writing.
WORTH_WRITING = Fraction(101, 100)


@dataclass(frozen=True)
class Comparison:
    """The ratios of a file's algbw to stock's, by (P2P level, factor on links between CPUs).

    `ratios` are of the shapes that the library's tuner picks, which is `picked` in the file;
    `other_ratios`, by (shape, P2P level, factor), are of the shapes that other calls use. The level
    None is the library's default. `algbw_GBps` is that of the file's picked shape for an allreduce,
    at the library's constants.
    """

    picked: str
    algbw_GBps: Fraction
    ratios: dict[tuple[PathType | None, int], Fraction] = field(repr=False)
    other_ratios: dict[tuple[str, PathType | None, int], Fraction] = field(repr=False)

    @property
    def gain(self) -> Fraction:
        """The ratio to stock at the library's own constants and default P2P level."""
        return self.ratios[None, 1]

    @property
    def least(self) -> Fraction:
        """The least of all ratios."""
        return min(*self.ratios.values(), *self.other_ratios.values())

    @property
    def is_safe(self) -> bool:
        """Whether the file gains 1 % at the library's constants, and loses nothing at others."""
        return self.gain >= WORTH_WRITING and self.least >= 1


def compare(
    library: Library, graphs: Mapping[str, StockGraph], rings_only: bool, size_bytes: int
) -> Comparison:
    """Compare a file's graphs, by shape, with stock in the model `library`, which must know it.

    The comparison is for an allreduce of `size_bytes`, for which the tuner picks a shape, or, if
    `rings_only`, for the collectives that run on rings alone.
    """
    own = RING if rings_only else library.pick(graphs, size_bytes)
    others = [shape for shape in library.others if shape in graphs]
    ratios, other_ratios = {}, {}
    for level in library.levels:
        of_stock = RING if rings_only else library.pick_stock(size_bytes, level)
        for factor in BETWEEN_CPUS:
            ours = {shape: library.rate(graphs[shape], factor, level) for shape in {own, *others}}
            stock = {
                shape: library.rate_stock(shape, factor, level) for shape in {of_stock, *others}
            }
            ratios[level, factor] = ours[own] / stock[of_stock]
            for shape in others:
                other_ratios[shape, level, factor] = ours[shape] / stock[shape]
    return Comparison(own, library.rate(graphs[own]), ratios, other_ratios)


def pick_stock(library: Library, rings_only: bool, size_bytes: int) -> str:
    """Return the shape that stock picks for an allreduce; with `rings_only` that of rings."""
    return RING if rings_only else library.pick_stock(size_bytes)


def count_link_rates(
    library: Library, pairs: Collection[tuple[int, int]], between_cpus: int
) -> LinkRates:
    """Return the rates of the links between pairs of ranks, by the library's constants.

    Links between CPUs have `between_cpus` times their rates.
    """
    ranks = [gpu.rank for gpu in library.gpus]
    return collect(
        (pair, link, Fraction(link.count_kBps(between_cpus), kBps_PER_GBps))
        for (a, b), path in library.gpu_paths.paths.items()
        if (pair := (ranks[a], ranks[b])) in pairs
        for link in path.links
        if link.rate_kBps < LOCAL_kBps
    )
