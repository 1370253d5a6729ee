"""What NCCL's tuner picks for an allreduce inside a host, by the model of its graph/tuning.cc."""

from dataclasses import dataclass

from .search import StockGraph
from .steps import TREE
from .system import DEV, PathType, StockSystem

# The protocols: 8 bytes with flags, 128 bytes with flags, and plain.
_LL, _LL128, _SIMPLE = range(3)
# Microseconds that a call takes at least, and a step over NVLink and over PCI, for each protocol.
_BASE_us = {"chains": (6.8, 14.0, 8.4), "rings": (6.6, 14.0, 8.4)}
_NVLINK_us = {"chains": (0.6, 1.25, 4.0), "rings": (0.6, 1.9, 3.4)}
_PCI_us = {"chains": (1.0, 1.9, 4.0), "rings": (1.0, 2.5, 5.7)}


@dataclass(frozen=True)
class _Caps:
    """GB/s that NCCL expects at most of GPUs of a generation; all but `ll` are of one channel."""

    ll: float
    ring_ll128: float
    chain_ll128: float
    chain: float


# By the lowest compute capability, times ten.
_CAPS = (
    (100, _Caps(282.0, 40.0, 55.6, 70.0)),
    (90, _Caps(141.0, 36.7, 36.7, 38.7)),
    (80, _Caps(87.7, 20.0, 20.0, 24.0)),
    (0, _Caps(39.0, 20.0, 20.0, 26.5)),
)
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
_CHAIN, _CHAIN_LL, _CHAIN_LL128, _PLAIN_TREE = 0.92, 1 / 3.8, 7 / 9, 0.85
_RING_LL, _RING_LL128 = 0.5, 0.92
# LL128 needs this compute capability, times ten, and equal GPUs below the second.
_LL128_SM, _LL128_MIXED_SM = 70, 90


def pick(system: StockSystem, rings: StockGraph, chains: StockGraph, size_bytes: int) -> str:
    """Return "rings" or "chains": what NCCL picks for an allreduce of a size."""
    times = {
        (name, protocol): _predict_us(system, name, graph, protocol, size_bytes)
        for name, graph in (("chains", chains), ("rings", rings))
        for protocol in (_LL, _LL128, _SIMPLE)
        if protocol != _LL128 or _has_ll128(system, graph)
    }
    return min(times, key=lambda key: times[key])[0]


def _has_ll128(system: StockSystem, graph: StockGraph) -> bool:
    sms = {dev.sm for dev in system.nodes[DEV]}
    return (
        graph.path_type <= PathType.NVB
        and min(sms) >= _LL128_SM
        and (len(sms) == 1 or min(sms) >= _LL128_MIXED_SM)
    )


def _predict_us(
    system: StockSystem, name: str, graph: StockGraph, protocol: int, size_bytes: int
) -> float:
    """Return the microseconds that NCCL expects of an allreduce."""
    gpus = len(system.nodes[DEV])
    caps = next(caps for sm, caps in _CAPS if system.min_sm >= sm)
    hop_us = (_NVLINK_us if graph.path_type == PathType.NVL else _PCI_us)[name][protocol]
    if name == "chains" and graph.path_type != PathType.NVL and system.has_cpu("ppc64"):
        # On POWER NCCL counts a step of a chain like one of a ring.
        hop_us = _PCI_us["rings" if protocol == _SIMPLE else "chains"][protocol]
    latency_us = _BASE_us[name][protocol] + 2 * (gpus - 1) * hop_us
    rate = _expect_GBps(name, graph, protocol, caps)
    rate *= gpus / (2 * (gpus - 1)) if name == "rings" else 0.5
    power = (size_bytes // _SMALLEST_bytes).bit_length() - 1
    if name == "chains" and 0 <= power < len(_CHAIN_SHARES[protocol]):
        rate *= _CHAIN_SHARES[protocol][power]
    return latency_us + size_bytes / (1000 * rate)


def _expect_GBps(name: str, graph: StockGraph, protocol: int, caps: _Caps) -> float:
    """Return the bus bandwidth in GB/s that NCCL expects of a graph."""
    channels = graph.channels
    rate = channels * graph.speed_MBps / 1000
    if name == "rings":
        if protocol == _LL:
            return min(caps.ll, rate * _RING_LL)
        return min(rate * _RING_LL128, channels * caps.ring_ll128) if protocol == _LL128 else rate
    rate = min(rate * _CHAIN, channels * caps.chain)
    if protocol == _LL:
        rate = min(rate * _CHAIN_LL, caps.ll)
    elif protocol == _LL128:
        rate = min(rate * _CHAIN_LL128, channels * caps.chain_ll128)
    return rate * _PLAIN_TREE if graph.pattern == TREE else rate
