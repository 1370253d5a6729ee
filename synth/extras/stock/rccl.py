"""Model stock RCCL on a host of AMD GPUs without a graph file.

RCCL first compares a host with a table of machines, and searches only if none fits. The table is
not modelled, but which machines it may apply to follows from counts. Two kinds of machines it
always decides, with rings that use every xGMI link equally. From graph/search.cc and
graph/rome_models.cc of October 2024.

A channel is one ring, or one chain: a path through all GPUs, which NCCL calls a tree inside a host.
Algbw is the bytes of the buffer over the time of a call.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ....topo.derived.hosts import group_by_host
from ....topo.extras.nccl_topology import is_amd
from ....topo.graph import Topology
from ...channels.channels import CHAIN, RING
from .constants import (
    RCCL_BRANCHING_CPUS,
    RCCL_EPYC,
    RCCL_MAX_RINGS,
    RCCL_MESH_GPUS,
    RCCL_MESH_PEERS,
    RCCL_OF_CHAIN,
    RCCL_OF_CHAIN_MI300,
    RCCL_TABLE_PEERS,
    PathType,
    kBps_PER_GBps,
)
from .constants import RING as RING_PATTERN
from .model import NotModelled, rate_orders
from .on_paper import RING_SHARES, RINGS, StockRate
from .paths import GpuPaths
from .rccl_search import find_rccl_chains, find_rccl_rings
from .rccl_system import build_rccl_system, find_architecture, find_paths_to, find_rccl_paths
from .search import StockGraph
from .system import CPU, GPU, NET, StockNode, StockSystem, is_cpu

TABLE = "decided by RCCL's model table"


@dataclass(frozen=True)
class RcclStock:
    """What stock RCCL does on a host: the graphs that its search finds, None if its table decides.

    `known_GBps` is then the algbw of an allreduce in GB/s by shape, which no socket link limits.
    """

    rings: StockGraph | None
    chains: StockGraph | None
    known_GBps: dict[str, Fraction]

    @property
    def channels(self) -> int:
        """The number of channels that the search finds; 0 if the table decides."""
        return self.rings.channels if self.rings else 0


class RcclHost:
    """A model of RCCL on one host, with its own channels or those of a graph file.

    It is a Library (library.py), which explains its methods, `levels` and `others`. `system` is
    RCCL's graph of the host, `gpu_paths` are its paths between `gpus`. `stock` is None if the table
    may decide or RCCL may use NICs (`reason` says which). With the table, `is_provable` is whether
    all routes between GPUs are known, so that bounds hold, and `may_branch` whether it may have
    trees that branch.
    """

    levels: tuple[PathType | None, ...] = (None,)
    others: tuple[str, ...] = (RING, CHAIN)

    def __init__(self, topology: Topology) -> None:
        self.topology, self.system = topology, build_rccl_system(topology)
        self.gpus: Sequence[StockNode] = self.system.nodes[GPU]
        self.gpu_paths = find_rccl_paths(self.system)
        wires = find_xgmi_rates_kBps(self.system)
        peers = {len(row) for row in wires.values()}
        self.may_branch = _may_branch(self.system)
        is_mi300 = find_architecture(topology).lower().removeprefix("gfx").startswith("94")
        self._chain_share = RCCL_OF_CHAIN_MI300 if is_mi300 else RCCL_OF_CHAIN
        self.reason = _find_doubt(self.system, wires, peers)
        self.is_provable = self.reason in ("", TABLE)
        self.stock = None if self.reason else _find_stock(self.system, self.gpu_paths, wires, peers)

    def pick_large(self, rates_GBps: Mapping[str, Fraction]) -> str:
        """Return the shape that RCCL's tuner picks for a large allreduce (tuning.cc).

        `rates_GBps` are the shapes' rates.
        """
        if CHAIN not in rates_GBps or RING not in rates_GBps:
            return next(iter(rates_GBps))
        return CHAIN if rates_GBps[CHAIN] * self._chain_share > rates_GBps[RING] else RING

    def pick(self, graphs: Mapping[str, StockGraph], size_bytes: int) -> str:
        """Return the shape that the tuner picks of a file's graphs, modelled at large sizes.

        `size_bytes` has no effect.
        """
        return self.pick_large({shape: self.rate(graph) for shape, graph in graphs.items()})

    def pick_stock(self, size_bytes: int, level: PathType | None = None) -> str:
        """Return the shape that the tuner picks of RCCL's own graphs; for large sizes only.

        The model must know these (`stock`); `size_bytes` and `level` have no effect.
        """
        return self.pick_large({shape: self.rate_stock(shape) for shape in (RING, CHAIN)})

    def rate(
        self, graph: StockGraph, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw in GB/s of an allreduce over a file's rings or chains.

        Links between CPUs have `between_cpus` times their rates; `level` has no effect.
        """
        is_ring = graph.pattern == RING_PATTERN
        return rate_orders(is_ring, graph.orders, self.gpu_paths, between_cpus)

    def rate_stock(
        self, shape: str, between_cpus: int = 1, level: PathType | None = None
    ) -> Fraction:
        """Return the algbw in GB/s of RCCL's own rings or chains (`shape`), which must be known.

        Links between CPUs have `between_cpus` times their rates; `level` has no effect.
        """
        assert self.stock is not None
        graph = self.stock.rings if shape == RING else self.stock.chains
        return self.stock.known_GBps[shape] if graph is None else self.rate(graph, between_cpus)

    def reach(self, collective: str) -> StockRate | NotModelled:
        """Return the algbw of a collective by RCCL's rings for eight GPUs, or why it is unknown.

        These are of its table, and use all links equally: every GPU sends a share of n - 1 of n
        parts, once or twice, over all of its links. Other machines are not modelled.
        """
        share = RING_SHARES.get(collective)
        if share is None or self.stock is None or self.stock.rings is not None:
            return NotModelled(f"RCCL: {self.reason or 'its search is not modelled here'}")
        joined = [
            [link for link in self.topology.links if link.src == gpu and link.kind == "xgmi"]
            for gpu in self.topology.ranks
        ]
        rates = {link.bandwidth_GBps for links in joined for link in links}
        total_GBps = min(rates) * min(map(len, joined))
        algbw_GBps = total_GBps / share(len(self.topology.ranks))
        return StockRate(algbw_GBps, RINGS, is_limit=False, hosts=1, assumes=(), library="RCCL")


# Topologies are hashed by their devices and links, which takes milliseconds; a search takes longer.
@lru_cache(maxsize=32)
def model_rccl(topology: Topology) -> RcclHost | NotModelled:
    """Return the model of RCCL on a host, or why there is none. The result is cached."""
    gpus = [topology.by_id[name] for name in topology.ranks]
    if len(gpus) < 2:
        return NotModelled("RCCL needs two GPUs for a collective")
    if not is_amd(topology):
        return NotModelled("RCCL runs on AMD GPUs, of which the topology has none")
    if len(group_by_host(gpus)) > 1:
        return NotModelled("GPUs are on several hosts")
    host = RcclHost(topology)
    if any(path.type == PathType.DIS for path in host.gpu_paths.paths.values()):
        return NotModelled("some GPUs are not connected by PCIe or xGMI in the topology")
    return host


def find_xgmi_rates_kBps(system: StockSystem) -> dict[StockNode, dict[StockNode, int]]:
    """Return the rate over xGMI in kB/s from each GPU to each other that it is linked to."""
    return {
        gpu: {x.end: x.rate_kBps for x in gpu.links if x.type == PathType.NVL and x.end.kind == GPU}
        for gpu in system.nodes[GPU]
    }


def _find_doubt(
    system: StockSystem, wires: dict[StockNode, dict[StockNode, int]], peers: set[int]
) -> str:
    """Return why stock's graphs are not known; empty if they are."""
    may_be_epyc = _may_be_epyc(system)
    # With NICs near all GPUs it counts NICs in, and may send over them inside the host.
    if not _is_joined(wires) and _may_keep_nics(system, may_be_epyc):
        return "RCCL may use NICs inside the host, as not all GPUs are joined by xGMI"
    return TABLE if may_be_epyc and peers in RCCL_TABLE_PEERS.get(len(wires), ()) else ""


def _may_be_epyc(system: StockSystem) -> bool:
    """Return whether the CPUs are EPYC of the table, or unknown."""
    cpus = system.nodes[CPU]
    return any("topoplan_made_up" in cpu.element.attributes for cpu in cpus) or any(
        is_cpu(cpu, "x86_64", "AuthenticAMD")
        and (cpu.element.get_integer("familyid", 0) or 0) == family
        and (cpu.element.get_integer("modelid", 0) or 0) >= least
        for cpu in cpus
        for family, least in RCCL_EPYC
    )


def _may_branch(system: StockSystem) -> bool:
    """Return whether the table may have trees that branch for a machine."""
    cpus = [cpu.element for cpu in system.nodes[CPU]]
    below = {sum(e.tag == "gpu" for e in cpu.walk()) for cpu in cpus}
    is_unknown = any("topoplan_made_up" in cpu.attributes for cpu in cpus)
    return is_unknown or (len(cpus) == RCCL_BRANCHING_CPUS and len(below) == 1)


def _may_keep_nics(system: StockSystem, may_be_epyc: bool) -> bool:
    """Return whether RCCL may keep the NICs: if each GPU has one near that reaches its memory."""
    farthest = PathType.PHB if may_be_epyc else PathType.PXB
    to_net = [find_paths_to(net) for net in system.nodes[NET] if net.get("gdr") != "0"]
    return all(
        gpu.get("gdr") != "0"
        and any(gpu in paths and paths[gpu].type <= farthest for paths in to_net)
        for gpu in system.nodes[GPU]
    )


def _is_joined(wires: dict[StockNode, dict[StockNode, int]]) -> bool:
    """Return whether xGMI links lead from any GPU to all others."""
    first = next(iter(wires))
    seen, left = {first}, [first]
    while left:
        fresh = wires[left.pop()].keys() - seen
        seen |= fresh
        left += fresh
    return len(seen) == len(wires)


def _find_stock(
    system: StockSystem,
    paths: GpuPaths,
    wires: dict[StockNode, dict[StockNode, int]],
    peers: set[int],
) -> RcclStock:
    """Return what RCCL does where that is known."""
    rates = Counter(rate for row in wires.values() for rate in row.values())
    if len(wires) == RCCL_MESH_GPUS and len(peers) == 1 and peers <= set(RCCL_MESH_PEERS):
        n, links, slowest = len(wires), min(peers), Fraction(min(rates), kBps_PER_GBps)
        if links < n - 1 or len(rates) == 1:
            # Each ring uses one link of every GPU, and together they use all links equally often.
            # Each chain lacks one hop of its ring: of six, some link still has two.
            rings = slowest * links * n / (2 * (n - 1))
            chains = slowest * (links // 2 if links < n - 1 else Fraction(n, 2))
            return RcclStock(None, None, {RING: rings, CHAIN: chains})
    searched = find_rccl_rings(system, paths)
    return RcclStock(
        searched, find_rccl_chains(system, paths, min(searched.channels, RCCL_MAX_RINGS)), {}
    )
