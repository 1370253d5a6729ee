"""Compute the rates of channels in jobs of several equal hosts, on the links of NCCL's graph.

Algbw is the bytes of the buffer over the time of a call. A channel is one ring, or one chain: a
path through all GPUs, which NCCL calls a tree inside a host. Paths consist of StockLinks, the links
of NCCL's own graph of a host.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from .constants import BALANCED_TREE, RING, kBps_PER_GBps, kBps_PER_MBps
from .nics import NicPaths
from .paths import GpuPaths, StockPath
from .search import StockGraph
from .system import StockLink


def rate_between_hosts(
    graph: StockGraph,
    used: int,
    gpu_paths: GpuPaths,
    nics: NicPaths,
    hosts: int,
    between_cpus: int = 1,
    counted: bool = True,
) -> Fraction:
    """Return the algbw in GB/s of an allreduce with equal shares on the first `used` channels.

    `gpu_paths` and `nics` are the paths inside a host, over which the links of each host carry what
    its channels send; those between CPUs have `between_cpus` times their rates. If `counted`, a
    channel between hosts gets no more than the speed that NCCL counts for it.
    """
    graph = replace(graph, orders=graph.orders[:used], nets=graph.nets[:used])
    slowest_kBps = min(
        link.count_kBps(between_cpus) / load
        for link, load in count_loads(graph, gpu_paths, nics, hosts).items()
    )
    if counted:
        _, neighbours = count_passes(graph.pattern, len(graph.orders[0]), hosts)
        slowest_kBps = min(slowest_kBps, graph.inter_MBps * kBps_PER_MBps / neighbours)
    return slowest_kBps * used / kBps_PER_GBps


def count_loads(
    graph: StockGraph, gpu_paths: GpuPaths, nics: NicPaths, hosts: int
) -> dict[StockLink, Fraction]:
    """Return how often each link carries one channel's share of an allreduce, over all channels.

    The job has `hosts` equal hosts; `gpu_paths` and `nics` are the paths inside one.
    """
    passes, neighbours = count_passes(graph.pattern, len(graph.orders[0]), hosts)
    loads: defaultdict[StockLink, Fraction] = defaultdict(Fraction)
    for path, load in _list_loads(graph, gpu_paths, nics, passes, neighbours):
        for link in path.links:
            loads[link] += load
    return dict(loads)


def count_passes(pattern: int, gpus: int, hosts: int) -> tuple[Fraction, Fraction]:
    """Return how often a hop in a host, and a host's NIC, carry a channel's share of an allreduce.

    `gpus` is the number on a host; `pattern` is NCCL's number of the shape. The second is an
    average for NCCL's double tree.
    """
    ranks = gpus * hosts
    if pattern == RING:
        return Fraction(2 * (ranks - 1), ranks), Fraction(2 * (ranks - 1), ranks)
    return Fraction(1), Fraction(1 if hosts == 2 else 2)


def _list_loads(
    graph: StockGraph,
    gpu_paths: GpuPaths,
    nics: NicPaths,
    passes: Fraction,
    neighbours: Fraction,
) -> Iterator[tuple[StockPath, Fraction]]:
    """Yield the paths of all channels, and how often each carries a channel's share."""
    for order, (first, last) in zip(graph.orders, graph.nets, strict=True):
        for a, b in pairwise(order):
            yield gpu_paths.paths[a, b], passes
            if graph.pattern != RING:
                yield gpu_paths.paths[b, a], passes
        if graph.pattern == RING:
            yield nics.back[order[0], first], passes
            yield nics.out[order[-1], last], passes
            continue
        # The first GPU of a balanced tree talks to half of the neighbours, the second to the rest.
        ends = [(order[0], first)]
        if graph.pattern == BALANCED_TREE and len(order) > 1:
            ends.append((order[1], last))
        for end in ends:
            yield nics.back[end], neighbours / len(ends)
            yield nics.out[end], neighbours / len(ends)
