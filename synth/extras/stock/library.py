"""What a library does on a machine by itself, and how other channels compare: one model to ask.

`find_library` returns it: NCCL on one host, NCCL on each of several equal hosts, or RCCL on one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ....topo.extras.nccl_topology import is_amd
from .model import NotModelled, model_stock
from .nccl import NcclHost, NcclHosts
from .on_paper import StockRate, rate_stock
from .rccl import model_rccl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from ....topo.graph import Topology
    from .constants import PathType
    from .paths import GpuPaths
    from .search import StockGraph
    from .system import StockNode


class Library(Protocol):
    """A library on a machine, as far as it is known what its stock does there.

    Channels are graphs by their shape, RING or CHAIN, whose GPUs are indices of `gpus`. Rates are
    the algbw of an allreduce at large sizes in GB/s, by the library's own constants, with links
    between CPUs `between_cpus` times as fast. `reason` is why stock is not known, empty if it is.
    `levels` are the levels of P2P at which stock may differ, None for the default, at which
    `gpu_paths` are those that data takes. `others` are the shapes whose channels also serve calls
    for which they are not picked by size.
    """

    reason: str
    gpus: Sequence[StockNode]
    levels: tuple[PathType | None, ...]
    others: tuple[str, ...]

    @property
    def gpu_paths(self) -> GpuPaths:
        """The paths between GPUs."""

    def pick(self, graphs: Mapping[str, StockGraph], size_bytes: int) -> str:
        """Return the shape of what the tuner picks of a file's graphs for an allreduce."""

    def pick_stock(self, size_bytes: int, level: PathType | None = None) -> str:
        """Return the shape of what it picks of stock's."""

    def rate(
        self, graph: StockGraph, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw of a file's rings or chains."""

    def rate_stock(
        self, shape: str, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw of stock's."""

    def reach(self, collective: str) -> StockRate | NotModelled:
        """Return what stock reaches for a collective at the topology's rates."""


def find_nccl(topology: Topology, hosts: int = 1) -> NcclHost | NotModelled:
    """Return NCCL on a host, or on each of `hosts` hosts like it, or why it is not modelled."""
    model = model_stock(topology, hosts=hosts)
    if isinstance(model, NotModelled):
        return model
    return NcclHost(topology, model) if hosts == 1 else NcclHosts(topology, model)


def find_library(topology: Topology, hosts: int = 1) -> Library | NotModelled:
    """Return the library of a machine, in jobs of `hosts` hosts like it; else why none is known."""
    return model_rccl(topology) if is_amd(topology) and hosts == 1 else find_nccl(topology, hosts)


def reach(collective: str, topology: Topology) -> StockRate | NotModelled:
    """Return what the stock library of a machine reaches for a collective at its links' rates.

    Between hosts of one topology it is the most that their links allow.
    """
    library = find_library(topology)
    if isinstance(library, NotModelled):
        return rate_stock(collective, topology)
    return library.reach(collective)
