"""Predict what NCCL's tuner picks for an allreduce, by the model of its graph/tuning.cc.

NCCL picks an algorithm and a protocol (LL, LL128 or Simple). Its algorithms here are Ring ("rings")
and Tree ("chains"): inside a host, what NCCL calls a tree is a chain, a path through all GPUs,
along which sums travel to one end and results back. NVLS and CollNet are left out: they run where
switches add, on graphs of their own, for which this package has no search; StockModel.has_nvls says
where NCCL may prefer NVLS.
"""

from dataclasses import replace

from .constants import (
    CAPS,
    CHAIN_LL,
    CHAIN_LL128,
    CHAIN_LL128_HOSTS,
    CHAIN_SHARES,
    LL,
    LL128,
    LL128_MIXED_SM,
    LL128_SM,
    OF_CHAIN,
    PLAIN_TREE,
    PLATEAU,
    PLATEAU_OLD,
    PLATEAU_SM,
    POSTS_OF_SIMPLE,
    RING_LL,
    RING_LL128,
    SIMPLE,
    TREE,
    BASE_us,
    LARGE_bytes,
    LL_AMD_GBps,
    LL_GBps,
    NET_us,
    NVLINK_us,
    PathType,
    PCI_us,
    POST_AMD_us,
    POST_us,
    SMALLEST_bytes,
)
from .search import StockGraph
from .system import DEV, StockSystem


def pick_algorithm(
    system: StockSystem, rings: StockGraph, chains: StockGraph, size_bytes: int, hosts: int = 1
) -> str:
    """Return "rings" or "chains": what NCCL picks for an allreduce of `size_bytes`.

    That is the one of which it expects the least time with the best protocol. `rings` and `chains`
    are NCCL's graphs of both, found by its search or read from a graph file; NCCL uses as many
    channels of each as the one with fewer has. `system` is its graph of a host; `hosts` is the
    number of hosts of the job.
    """
    return expect(system, rings, chains, size_bytes, hosts)[0]


def expect(
    system: StockSystem,
    rings: StockGraph,
    chains: StockGraph,
    size_bytes: int,
    hosts: int = 1,
    hop_us: float = 0.0,
) -> tuple[str, float]:
    """Return what NCCL picks for an allreduce of `size_bytes`, and the time that it expects in us.

    The pick and the parameters are those of `pick_algorithm`. If `hop_us`, the known latency of a
    hop, is above what NCCL assumes, the time accounts for it; the choice does not.
    """
    used = min(rings.channels, chains.channels)
    graphs = {
        name: replace(graph, orders=graph.orders[:used])
        for name, graph in (("chains", chains), ("rings", rings))
    }
    times = {
        (name, protocol): _predict_us(system, hosts, name, graph, protocol, size_bytes)
        for name, graph in graphs.items()
        for protocol in (LL, LL128, SIMPLE)
        if protocol != LL128 or _has_ll128(system, graph, hosts)
    }
    name, protocol = min(times, key=lambda key: times[key])
    graph = graphs[name]
    return name, _predict_us(system, hosts, name, graph, protocol, size_bytes, hop_us)


def _has_ll128(system: StockSystem, graph: StockGraph, hosts: int) -> bool:
    sms = {dev.sm for dev in system.nodes[DEV]}
    farthest = PathType.PXN if min(sms) >= LL128_MIXED_SM else PathType.PXB
    return (
        graph.path_type <= PathType.NVB
        and (hosts == 1 or graph.nic_type <= farthest)
        and min(sms) >= LL128_SM
        and (len(sms) == 1 or min(sms) >= LL128_MIXED_SM)
    )


def _predict_us(
    system: StockSystem,
    hosts: int,
    name: str,
    graph: StockGraph,
    protocol: int,
    size_bytes: int,
    least_hop_us: float = 0.0,
) -> float:
    """Return the microseconds that NCCL expects of an allreduce."""
    gpus = len(system.nodes[DEV])
    ranks = gpus * hosts
    latency_us = BASE_us[name][protocol] + _count_steps_us(
        system, hosts, name, graph, protocol, least_hop_us
    )
    is_large = size_bytes >= LARGE_bytes * 2 * graph.channels * ranks
    if name == "rings" and protocol == SIMPLE and hosts > 1 and is_large:
        latency_us *= PLATEAU_OLD if system.min_sm < PLATEAU_SM else PLATEAU
    rate = _expect_GBps(system, hosts, name, graph, protocol)
    rate *= ranks / (2 * (ranks - 1)) if name == "rings" else 0.5
    power = (size_bytes // SMALLEST_bytes).bit_length() - 1
    if name == "chains" and 0 <= power < len(CHAIN_SHARES[protocol]):
        rate *= CHAIN_SHARES[protocol][power]
    return latency_us + size_bytes / (1000 * rate)


def _count_steps_us(
    system: StockSystem,
    hosts: int,
    name: str,
    graph: StockGraph,
    protocol: int,
    least_hop_us: float,
) -> float:
    """Return the microseconds that NCCL expects of the steps of an allreduce."""
    gpus = len(system.nodes[DEV])
    hop_us = (NVLINK_us if graph.path_type == PathType.NVL else PCI_us)[name][protocol]
    if name == "chains" and graph.path_type != PathType.NVL and system.has_cpu("ppc64"):
        # On POWER NCCL counts a step of a chain like one of a ring.
        hop_us = PCI_us["rings" if protocol == SIMPLE else "chains"][protocol]
    hop_us = max(hop_us, least_hop_us)
    net_us = NET_us["chains" if gpus == 1 else name][protocol]
    if name == "chains":
        return 2 * ((gpus - 1) * hop_us + (hosts.bit_length() - 1) * net_us)
    if hosts > 1:
        post_us = POST_AMD_us if system.has_cpu("x86_64", "AuthenticAMD") else POST_us
        hop_us = max(hop_us, post_us * (POSTS_OF_SIMPLE if protocol == SIMPLE else 1))
    return 2 * (hosts * (gpus - 1) * hop_us + (hosts - 1) * net_us)


def _expect_GBps(
    system: StockSystem, hosts: int, name: str, graph: StockGraph, protocol: int
) -> float:
    """Return the bus bandwidth in GB/s that NCCL expects of a graph."""
    caps = next(caps for sm, caps in CAPS if system.min_sm >= sm)
    at, channels = min(hosts, 3) - 1, graph.channels
    ll_GBps = caps.ll
    if hosts > 1:
        is_amd = system.has_cpu("x86_64", "AuthenticAMD")
        ll_GBps = (LL_AMD_GBps if is_amd else LL_GBps)[at - 1]
    rate = channels * (graph.speed_MBps if hosts <= 2 else graph.inter_MBps) / 1000
    if name == "rings":
        if protocol == LL:
            return min(ll_GBps, rate * RING_LL)
        cap = channels * caps.ring_ll128[at]
        return min(rate * RING_LL128, cap) if protocol == LL128 else rate
    rate = min(rate * OF_CHAIN, channels * caps.chain[at])
    if protocol == LL:
        rate = min(rate * CHAIN_LL, ll_GBps)
    elif protocol == LL128:
        share = CHAIN_LL128 if hosts == 1 else CHAIN_LL128_HOSTS
        rate = min(rate * share, channels * caps.chain_ll128[at])
    return rate * PLAIN_TREE if graph.pattern == TREE else rate
