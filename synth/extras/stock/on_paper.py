"""Estimate what stock NCCL reaches at large sizes, by a model: the figure that every command gives.

On one host it is the rate of the channels that NCCL's search finds and its tuner picks (model.py),
with every link at the topology's rate. NCCL's own constants decide what is found and picked.

On several hosts the search is not modelled, but what its channels can carry is. A flat ring crosses
every cut between GPUs, so that of a host's NICs, with 2 (n - 1) / n of its share for n GPUs: all
rings together carry at most n / (2 (n - 1)) of the narrowest cut, however many NICs they use. A
tree sends a share out of a host once on two hosts; on more a host has two neighbours on average.
Published results of NCCL on 4 to 16 hosts are at .91 to .98 of the ring's limit
(benchmarks/published.py). Hosts that NVLinks join count as one.

Algbw is the bytes of the buffer over the time of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

import networkx as nx

from ....topo.derived.hosts import group_by_host
from ....topo.devices import Device
from ....topo.errors import InfeasibleError, TopoplanError
from ....topo.graph import Topology
from ....topo.hardware_rule import HARDWARE
from ...bounds.cuts import cut_bound
from ...channels.channels import CHAIN, RING, algbw_GBps, schedule_channels
from ...ir.collective import Collective
from ...numeric.effort import Effort
from ...request import Request
from .model import NotModelled, StockModel, model_stock
from .routes import NcclRouter

RINGS, TREES = "rings", "trees"
# The size in bytes that files are made for unless one is given: large enough for links to decide.
USUAL_SIZE_bytes = 1 << 30
# The share of the buffer that crosses every hop of a ring through n GPUs, by collective.
RING_SHARES: Mapping[str, Callable[[int], Fraction]] = {
    "allreduce": lambda n: Fraction(2 * (n - 1), n),
    "allgather": lambda n: Fraction(n - 1, n),
    "reduce-scatter": lambda n: Fraction(n - 1, n),
}
# Most hosts whose border is computed: two maximum flows each.
_MAX_TRIED_HOSTS = 16
# Published: two channels, twice the one in rank order, reach .42 of what the links of two sockets
# carry, and eight .71 (benchmarks/published.py, m42).
_OF_FALLBACK = (
    "one channel in rank order, to which NCCL falls back as it finds none, fills the slowest link"
)
_BY_NVLS = "NVSwitches add (NVLS)"
# Kinds of links by which hosts act as one to NCCL.
_FABRICS = ("nvlink", "xgmi")


@dataclass(frozen=True)
class StockRate:
    """The modelled algbw in GB/s of a collective by a stock library at large sizes.

    `library` is the library's name, `hosts` the number of hosts. `shape` is "rings" or "trees".
    With `is_limit` it is no model of what NCCL finds, but the most that such channels carry between
    the hosts. `assumes` has a line for each fact that the topology lacks, and each thing that is
    not known.
    """

    algbw_GBps: Fraction
    shape: str
    is_limit: bool
    hosts: int
    assumes: tuple[str, ...]
    library: str = "NCCL"

    @property
    def name(self) -> str:
        """The library and channels that the figure is for, as text."""
        if not self.is_limit:
            return f"the {self.shape} that stock {self.library} finds (modelled)"
        return "a flat ring" if self.shape == RINGS else "a tree over the hosts"

    @property
    def needs_adding(self) -> bool:
        """Whether it is reached only with switches that add."""
        return _BY_NVLS in self.assumes

    @property
    def basis(self) -> str:
        """What the figure is (a model or an upper limit) and of which channels, as text."""
        if not self.is_limit:
            return self.name
        return f"at most what {self.name} carries through the narrowest cut between GPUs"

    def to_json(self) -> dict[str, Any]:
        """Return the figure, its basis and assumptions as fields of `stock_model`."""
        return {
            "stock_GBps": float(self.algbw_GBps),
            "stock_basis": self.basis,
            "assumes": list(self.assumes),
        }


def rate_stock(collective: str, topology: Topology) -> StockRate | NotModelled:
    """Return the modelled algbw of stock NCCL for a collective, or why it is not known.

    `collective` is its name, as in Collective.
    """
    model = model_stock(topology)
    if isinstance(model, StockModel):
        if collective not in RING_SHARES:
            return NotModelled(f"{collective} runs on other channels than rings and trees")
        return _rate_model(collective, topology, model)
    hosts = group_by_host([topology.by_id[gpu] for gpu in topology.ranks])
    if len(hosts) < 2 or collective not in RING_SHARES:
        return model
    return _limit_between_hosts(collective, topology)


@lru_cache(maxsize=32)
def _rate_model(collective: str, topology: Topology, model: StockModel) -> StockRate | NotModelled:
    shape = model.pick(USUAL_SIZE_bytes) if collective == "allreduce" else RINGS
    found, kind = (model.rings, RING) if shape == RINGS else (model.chains, CHAIN)
    router = NcclRouter(HARDWARE.on(topology))
    n = len(topology.ranks)
    request = Request(Collective(collective, n), topology, Effort(), router=router)
    try:
        schedule = schedule_channels(request, model.list_used(kind), f"stock {kind}s")
    except InfeasibleError:
        return NotModelled("the topology lacks routes that NCCL counts on")
    rate = algbw_GBps(schedule, topology)
    assumes = (*model.assumes, _OF_FALLBACK) if found.is_fallback else model.assumes
    return StockRate(rate, RINGS if shape == RINGS else TREES, False, 1, assumes)


@lru_cache(maxsize=32)
def _limit_between_hosts(collective: str, topology: Topology) -> StockRate | NotModelled:
    hosts = _group_hosts(topology)
    if len(hosts) < 2:
        return NotModelled("NVLinks join the hosts, and stock's search on them is not modelled")
    if any(topology.by_id[gpu].extra.get("stands_for") for gpu in topology.ranks):
        return NotModelled("the topology has ranks without a GPU")
    if not any(device.kind == "switch" for device in topology.devices):
        return NotModelled("no switch joins the hosts: NCCL needs settings there")
    n, count, adds = len(topology.ranks), len(hosts), False
    try:
        narrowest = cut_bound(Collective("allreduce", n), topology).algbw_GBps
    except TopoplanError as error:
        return NotModelled(str(error))
    limits = {RINGS: narrowest / RING_SHARES[collective](n)}
    if collective == "allreduce":
        # Inside a host a tree is a chain, whose GPUs send the sums up and the results down, unless
        # the NVSwitches add.
        adds = any(_can_add(device) for device in topology.devices)
        border, gpu = _find_border(topology, hosts), _find_slowest_gpu(topology)
        inside = gpu if adds else gpu / 2
        limits[TREES] = min(narrowest, border if count == 2 else border / 2, inside)
    shape = max(limits, key=lambda each: limits[each])
    by_nvls = (_BY_NVLS,) if shape == TREES and adds else ()
    assumes = (
        *by_nvls,
        f"the narrowest cut between GPUs, of {float(narrowest):g} GB/s, is used fully, in both "
        "directions",
        "links inside the hosts limit nothing else",
        "which channels NCCL finds and picks between hosts is not modelled",
    )
    return StockRate(limits[shape], shape, True, count, assumes)


def _can_add(device: Device) -> bool:
    """Return whether a device is an NVSwitch whose hardware can add; the A100's cannot."""
    is_able = device.in_network is not None and device.in_network.reduce != "no"
    return device.family == "nvswitch" and is_able


def _group_hosts(topology: Topology) -> list[list[str]]:
    """Return the GPUs of each host by their ids; those that NVLinks or xGMI join are of one."""
    groups: nx.utils.UnionFind[str] = nx.utils.UnionFind(topology.ranks)
    for block in group_by_host([topology.by_id[gpu] for gpu in topology.ranks]):
        groups.union(*(topology.ranks[number] for number in block))
    for link in topology.links:
        if link.kind in _FABRICS:
            groups.union(link.src, link.dst)
    gpus = set(topology.ranks)
    return [members for group in groups.to_sets() if (members := sorted(group & gpus))]


def _find_border(topology: Topology, hosts: list[list[str]]) -> Fraction:
    """Return the least GB/s that one of the first hosts can send to the others, or receive.

    Hosts are mostly alike; others could only lower it, so what it limits holds as well.
    """
    scale = lcm(*(rate.denominator for rate in topology.capacity_GBps.values()))
    graph: nx.DiGraph[str] = nx.DiGraph()
    for (a, b), rate in topology.capacity_GBps.items():
        graph.add_edge(a, b, capacity=int(rate * scale))
    everyone, least = set(topology.ranks), []
    for host in hosts[:_MAX_TRIED_HOSTS]:
        for facing in (graph, graph.reverse(copy=False)):
            whole = facing.copy()
            # Links without a capacity carry any flow.
            whole.add_edges_from(("from", gpu) for gpu in host)
            whole.add_edges_from((gpu, "to") for gpu in everyone.difference(host))
            least.append(nx.maximum_flow_value(whole, "from", "to"))
    return Fraction(int(min(least)), scale)


def _find_slowest_gpu(topology: Topology) -> Fraction:
    """Return the least GB/s that leave some GPU, or enter it."""
    out, into = ({gpu: Fraction(0) for gpu in topology.ranks} for _ in range(2))
    for (a, b), rate in topology.capacity_GBps.items():
        if a in out:
            out[a] += rate
        if b in into:
            into[b] += rate
    return min((*out.values(), *into.values()))
