"""What NCCL's tuner picks for an allreduce, by the model of its graph/tuning.cc."""

from dataclasses import dataclass, replace

from .search import StockGraph
from .steps import TREE
from .system import DEV, PathType, StockSystem

# The protocols: 8 bytes with flags, 128 bytes with flags, and plain.
_LL, _LL128, _SIMPLE = range(3)
# Microseconds that a call takes at least, and a step over NVLink, PCI and a network, for each
# protocol.
_BASE_us = {"chains": (6.8, 14.0, 8.4), "rings": (6.6, 14.0, 8.4)}
_NVLINK_us = {"chains": (0.6, 1.25, 4.0), "rings": (0.6, 1.9, 3.4)}
_PCI_us = {"chains": (1.0, 1.9, 4.0), "rings": (1.0, 2.5, 5.7)}
_NET_us = {"chains": (5.0, 8.5, 14.0), "rings": (2.7, 4.0, 14.0)}
# Microseconds in which a CPU, AMD's or another, posts to the network; three times as many for
# plain messages.
_POST_AMD_us, _POST_us, _POSTS_OF_SIMPLE = 2.0, 1.0, 3
# Large messages take a ring so much longer between hosts, on GPUs before the compute capability
# (times ten) and later; a message is large from this many bytes of a rank on a channel.
_PLATEAU_OLD, _PLATEAU, _PLATEAU_SM, _LARGE_bytes = 1.9, 1.4, 80, 64


@dataclass(frozen=True)
class _Caps:
    """GB/s that NCCL expects at most of a channel, on 1, 2 and more hosts; `ll` is of a host."""

    ll: float
    ring_ll128: tuple[float, float, float]
    chain_ll128: tuple[float, float, float]
    chain: tuple[float, float, float]


# By the lowest compute capability, times ten.
_CAPS = (
    (100, _Caps(282.0, (40.0,) * 3, (55.6, 31.67, 20.0), (70.0, 42.8, 24.0))),
    (90, _Caps(141.0, (36.7,) * 3, (36.7, 36.7, 29.0), (38.7, 41.4, 36.0))),
    (80, _Caps(87.7, (20.0,) * 3, (20.0,) * 3, (24.0, 23.6, 17.8))),
    (0, _Caps(39.0, (20.0,) * 3, (20.0,) * 3, (26.5, 18.5, 10.0))),
)
# GB/s of all channels with LL on 2 and on more hosts, with AMD's CPUs and others.
_LL_AMD_GBps, _LL_GBps = (22.5, 19.0), (39.0, 20.4)
# Shares of the modelled rate that NCCL expects of chains, by protocol, for sizes of 64 bytes, 128
# bytes and so on; it expects all of it outside the table.
_CHAIN_SHARES = (
    (*(1.0,) * 4, 0.9, 0.8, *(0.7,) * 4, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, *(1.0,) * 4),
    (*(1.0,) * 5, 0.9, 0.8, 0.8, 0.8, 0.7, *(0.6,) * 6, 0.8, *(0.9,) * 4, 1.0, 1.0),
    (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
# The size of the table's first share.
_SMALLEST_bytes = 64
# Parts of a graph's rate that NCCL expects: of chains, with their protocols and if all have one
# root; of rings with their protocols.
_CHAIN, _CHAIN_LL, _PLAIN_TREE = 0.92, 1 / 3.8, 0.85
_CHAIN_LL128, _CHAIN_LL128_HOSTS = 7 / 9, 120 / 128
_RING_LL, _RING_LL128 = 0.5, 0.92
# LL128 needs this compute capability, times ten, and equal GPUs below the second.
_LL128_SM, _LL128_MIXED_SM = 70, 90


def pick(
    system: StockSystem, rings: StockGraph, chains: StockGraph, size_bytes: int, hosts: int = 1
) -> str:
    """Return "rings" or "chains": what NCCL picks for an allreduce of a size."""
    return expect(system, rings, chains, size_bytes, hosts)[0]


def expect(
    system: StockSystem,
    rings: StockGraph,
    chains: StockGraph,
    size_bytes: int,
    hosts: int = 1,
    hop_us: float = 0.0,
) -> tuple[str, float]:
    """Return what NCCL picks for an allreduce of a size, and the microseconds that it expects.

    Where a hop is known to take longer than NCCL counts, `hop_us`, the time is with that.
    """
    used = min(rings.channels, chains.channels)
    graphs = {
        name: replace(graph, orders=graph.orders[:used])
        for name, graph in (("chains", chains), ("rings", rings))
    }
    times = {
        (name, protocol): _predict_us(system, hosts, name, graph, protocol, size_bytes)
        for name, graph in graphs.items()
        for protocol in (_LL, _LL128, _SIMPLE)
        if protocol != _LL128 or _has_ll128(system, graph, hosts)
    }
    name, protocol = min(times, key=lambda key: times[key])
    graph = graphs[name]
    return name, _predict_us(system, hosts, name, graph, protocol, size_bytes, hop_us)


def _has_ll128(system: StockSystem, graph: StockGraph, hosts: int) -> bool:
    sms = {dev.sm for dev in system.nodes[DEV]}
    farthest = PathType.PXN if min(sms) >= _LL128_MIXED_SM else PathType.PXB
    return (
        graph.path_type <= PathType.NVB
        and (hosts == 1 or graph.nic_type <= farthest)
        and min(sms) >= _LL128_SM
        and (len(sms) == 1 or min(sms) >= _LL128_MIXED_SM)
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
    latency_us = _BASE_us[name][protocol] + _count_steps_us(
        system, hosts, name, graph, protocol, least_hop_us
    )
    is_large = size_bytes >= _LARGE_bytes * 2 * graph.channels * ranks
    if name == "rings" and protocol == _SIMPLE and hosts > 1 and is_large:
        latency_us *= _PLATEAU_OLD if system.min_sm < _PLATEAU_SM else _PLATEAU
    rate = _expect_GBps(system, hosts, name, graph, protocol)
    rate *= ranks / (2 * (ranks - 1)) if name == "rings" else 0.5
    power = (size_bytes // _SMALLEST_bytes).bit_length() - 1
    if name == "chains" and 0 <= power < len(_CHAIN_SHARES[protocol]):
        rate *= _CHAIN_SHARES[protocol][power]
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
    hop_us = (_NVLINK_us if graph.path_type == PathType.NVL else _PCI_us)[name][protocol]
    if name == "chains" and graph.path_type != PathType.NVL and system.has_cpu("ppc64"):
        # On POWER NCCL counts a step of a chain like one of a ring.
        hop_us = _PCI_us["rings" if protocol == _SIMPLE else "chains"][protocol]
    hop_us = max(hop_us, least_hop_us)
    net_us = _NET_us["chains" if gpus == 1 else name][protocol]
    if name == "chains":
        return 2 * ((gpus - 1) * hop_us + (hosts.bit_length() - 1) * net_us)
    if hosts > 1:
        post_us = _POST_AMD_us if system.has_cpu("x86_64", "AuthenticAMD") else _POST_us
        hop_us = max(hop_us, post_us * (_POSTS_OF_SIMPLE if protocol == _SIMPLE else 1))
    return 2 * (hosts * (gpus - 1) * hop_us + (hosts - 1) * net_us)


def _expect_GBps(
    system: StockSystem, hosts: int, name: str, graph: StockGraph, protocol: int
) -> float:
    """Return the bus bandwidth in GB/s that NCCL expects of a graph."""
    caps = next(caps for sm, caps in _CAPS if system.min_sm >= sm)
    at, channels = min(hosts, 3) - 1, graph.channels
    ll_GBps = caps.ll
    if hosts > 1:
        is_amd = system.has_cpu("x86_64", "AuthenticAMD")
        ll_GBps = (_LL_AMD_GBps if is_amd else _LL_GBps)[at - 1]
    rate = channels * (graph.speed_MBps if hosts <= 2 else graph.inter_MBps) / 1000
    if name == "rings":
        if protocol == _LL:
            return min(ll_GBps, rate * _RING_LL)
        cap = channels * caps.ring_ll128[at]
        return min(rate * _RING_LL128, cap) if protocol == _LL128 else rate
    rate = min(rate * _CHAIN, channels * caps.chain[at])
    if protocol == _LL:
        rate = min(rate * _CHAIN_LL, ll_GBps)
    elif protocol == _LL128:
        share = _CHAIN_LL128 if hosts == 1 else _CHAIN_LL128_HOSTS
        rate = min(rate * share, channels * caps.chain_ll128[at])
    return rate * _PLAIN_TREE if graph.pattern == TREE else rate
