"""Choose the model of the library (NCCL or RCCL) that a machine uses, behind one interface.

`find_library` returns that of one host. `find_nccl` has NCCL on each of several equal hosts, too.

Stock is what the library does by itself, without a graph file (NCCL_GRAPH_FILE) that gives it its
channels. A channel is one ring, or one chain: a path through all GPUs, which NCCL calls a tree
inside a host. Algbw is the bytes of the buffer over the time of a call; the level of P2P is the
farthest type of path over which GPUs access each other's memory.
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
    """A model of a collective library on a machine: its own (stock) channels, or a graph file's.

    Channels are StockGraphs by their shape, RING or CHAIN ("ring", "chain"), whose GPUs are indices
    of `gpus`. Rates are the algbw of an allreduce at large sizes in GB/s, by the library's own
    constants, with links between CPUs `between_cpus` times as fast, at a `level` of P2P
    (NCCL_P2P_LEVEL). `reason` is why stock is not known, empty if it is. `levels` are the levels of
    P2P at which stock may differ, None for the default, at which `gpu_paths` are those that data
    takes. `others` are the shapes whose channels also serve calls for which they are not picked by
    size.
    """

    reason: str
    gpus: Sequence[StockNode]
    levels: tuple[PathType | None, ...]
    others: tuple[str, ...]

    @property
    def gpu_paths(self) -> GpuPaths:
        """The paths that data takes between GPUs, at the default level of P2P."""

    def pick(self, graphs: Mapping[str, StockGraph], size_bytes: int) -> str:
        """Return the shape that the tuner picks of a file's graphs, for an allreduce of a size."""

    def pick_stock(self, size_bytes: int, level: PathType | None = None) -> str:
        """Return the shape that the tuner picks of the library's own graphs, for an allreduce."""

    def rate(
        self, graph: StockGraph, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw in GB/s of a file's rings or chains."""

    def rate_stock(
        self, shape: str, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw in GB/s of the library's own rings or chains (`shape`)."""

    def reach(self, collective: str) -> StockRate | NotModelled:
        """Return stock's algbw for a collective at the topology's rates, or why it is unknown."""


def find_nccl(topology: Topology, hosts: int = 1) -> NcclHost | NotModelled:
    """Return the model of NCCL on a host, or on each of `hosts` such hosts, or why none exists."""
    model = model_stock(topology, hosts=hosts)
    if isinstance(model, NotModelled):
        return model
    return NcclHost(topology, model) if hosts == 1 else NcclHosts(topology, model)


def find_library(topology: Topology) -> Library | NotModelled:
    """Return the library of a machine, else why none is known."""
    return model_rccl(topology) if is_amd(topology) else find_nccl(topology, 1)


def reach(collective: str, topology: Topology) -> StockRate | NotModelled:
    """Return the algbw of a machine's stock library for a collective, or why it is not known.

    Links have the topology's rates. Between several hosts it is the most that their links allow.
    """
    library = find_library(topology)
    if isinstance(library, NotModelled):
        return rate_stock(collective, topology)
    return library.reach(collective)
