"""Model stock NCCL on a host without a graph file: the channels that it finds, and its choice.

A channel is one ring, or one chain: a path through all GPUs, which NCCL calls a tree inside a host.
Algbw is the bytes of the buffer over the time of a call. P2P means that GPUs access each other's
memory; other data goes through a CPU and host memory.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import permutations

from ....topo.derived.hosts import group_by_host
from ....topo.derived.parts import split_hosts
from ....topo.extras.nccl_topology import is_amd
from ....topo.extras.nccl_topology.made_up import view_machine
from ....topo.facts import keys
from ....topo.facts.keys import p2p_subject, qualify
from ....topo.facts.view import WIRES
from ....topo.graph import Topology
from ...channels.channels import CHAIN, Channels, Order
from ...channels.channels import RING as RING_SHAPE
from ...channels.orders import hops
from .constants import (
    BALANCED_TREE,
    NVLS_SM,
    RING,
    FALLBACK_MBps,
    MBps_PER_GBps,
    PathType,
    kBps_PER_GBps,
)
from .nic_rates import rate_between_hosts
from .nic_search import SearchTooLongError, find_host_chains, find_host_rings
from .nics import NicPaths
from .paths import GpuPaths, find_gpu_paths
from .search import StockGraph, find_chains, find_rings
from .system import GPU, NET, NVS, StockLink, StockNode, StockSystem, build_system
from .tuner import expect

# What rings and chains are called in what people and programs read, by their shape.
KINDS = {RING_SHAPE: "rings", CHAIN: "chains"}


@dataclass(frozen=True)
class StockChannels:
    """The rings or chains that NCCL finds, each an order of ranks.

    `speed_GBps` is the speed that NCCL counts for a channel, `pattern` its number of the pattern,
    and `path_type` the type of the farthest hop as NCCL names it. With `same_channels` all have one
    order. In a job of several hosts `nets` has the two NICs of each channel by their `dev` numbers,
    at a speed of `nic_speed_GBps` over paths of `nic_type`, and `cross_nic` is NCCL's (2: channels
    in pairs exchange their NICs). `algbw_GBps` is that of an allreduce with equal shares on the
    channels that NCCL uses, by the loads on the links of NCCL's own graph.
    """

    orders: tuple[tuple[int, ...], ...]
    speed_GBps: Fraction
    pattern: int
    path_type: str
    same_channels: bool
    algbw_GBps: Fraction
    nets: tuple[tuple[int, int], ...] = ()
    nic_speed_GBps: Fraction = Fraction(0)
    nic_type: str = ""
    cross_nic: int = 0

    @property
    def is_fallback(self) -> bool:
        """Whether NCCL finds no channel and falls back to one in rank order at a fixed low rate."""
        return self.speed_GBps == Fraction(FALLBACK_MBps, MBps_PER_GBps)


@dataclass(frozen=True)
class StockModel:
    """What stock NCCL does on a host, or on each of several equal hosts.

    It uses the first `channels` of the rings and of the chains. `p2p` has the ordered pairs of
    ranks that it connects with P2P, `p2p_at_sys` those with NCCL_P2P_LEVEL=SYS. If `has_nvls`,
    NVSwitches can add data, which NCCL may prefer to both and this model leaves out. `assumes` has
    a line for each kind of fact that the topology lacks and NCCL finds on the machine. `expect`
    takes a number of bytes and the least microseconds of a hop (0: as NCCL counts them); it returns
    what NCCL's tuner picks for an allreduce of that size, and the microseconds that it expects.
    `graphs` are the rings and chains as found, by shape, in NCCL's graph `system` and over its
    paths; `nics` are those to NICs on several `hosts`.
    """

    rings: StockChannels
    chains: StockChannels
    channels: int
    p2p: frozenset[tuple[int, int]]
    p2p_at_sys: frozenset[tuple[int, int]]
    has_nvls: bool
    assumes: tuple[str, ...]
    hosts: int
    expect: Callable[[int, float], tuple[str, float]] = field(repr=False, compare=False)
    graphs: Mapping[str, StockGraph] = field(repr=False, compare=False)
    system: StockSystem = field(repr=False, compare=False)
    gpu_paths: GpuPaths = field(repr=False, compare=False)
    nics: NicPaths | None = field(repr=False, compare=False)

    def pick(self, size_bytes: int) -> str:
        """Return "rings" or "chains": what NCCL's tuner picks for an allreduce of `size_bytes`."""
        return self.expect(size_bytes, 0.0)[0]

    def list_used(self, shape: str) -> Channels:
        """Return the rings or chains (`shape`) that NCCL uses, as orders of ranks."""
        found = self.rings if shape == RING_SHAPE else self.chains
        return Channels(shape, found.orders[: self.channels])

    @property
    def algbw_GBps(self) -> dict[str, Fraction]:
        """The algbw of an allreduce in GB/s at large sizes, by "rings" and "chains"."""
        return {"rings": self.rings.algbw_GBps, "chains": self.chains.algbw_GBps}

    def to_json(self, size_bytes: int) -> dict[str, object]:
        """Return the rates, and NCCL's pick for an allreduce of `size_bytes`, as JSON data."""
        rates = {kind: float(rate) for kind, rate in self.algbw_GBps.items()}
        return {"algbw_GBps": rates, "picked": self.pick(size_bytes)}


@dataclass(frozen=True)
class NotModelled:
    """The reason why the stock library has no model on a topology: a result, not an error."""

    reason: str


# Topologies are hashed by their devices and links, which takes milliseconds; a search takes longer.
@lru_cache(maxsize=32)
def model_stock(
    topology: Topology, p2p_level: str | None = None, nvb: bool = True, hosts: int = 1
) -> StockModel | NotModelled:
    """Return what NCCL does by itself on a host, or in a job of `hosts` such hosts.

    `p2p_level` is the value of NCCL_P2P_LEVEL, a type of path such as SYS; None is NCCL's default.
    With `nvb` false, NCCL_NVB_DISABLE=1 is set. The facts are those of NCCL's XML: PCI tree, PCIe
    speeds, CPU models, compute capabilities, numbers of NVLinks; the rates of links do not count.
    The result is cached. Raise KeyError if `p2p_level` is not a type of path.
    """
    reason = _find_obstacle(topology)
    if reason is not None:
        return NotModelled(reason)
    system = build_system(topology)
    level = None if p2p_level is None else PathType[p2p_level]
    refused = list_refused_p2p(topology)
    gpu_paths = find_gpu_paths(system, level, nvb, refused)
    if any(path.type == PathType.DIS for path in gpu_paths.paths.values()):
        return NotModelled("some GPUs are not connected by PCIe or NVLink in the topology")
    nics = None
    if hosts == 1:
        rings = find_rings(system, gpu_paths)
        chains = find_chains(system, gpu_paths, rings.channels)
    else:
        if not system.nodes[NET]:
            return NotModelled("the topology has no NICs, which jobs of several hosts need")
        nics = NicPaths(system, gpu_paths, nvb)
        try:
            rings = find_host_rings(system, gpu_paths, nics)
            chains = find_host_chains(system, gpu_paths, nics, rings.channels)
        except SearchTooLongError:
            return NotModelled("NCCL's search between such hosts takes too long to repeat")
        if not (rings.nets and chains.nets):
            return NotModelled("NCCL finds no channels between hosts, and takes the simplest one")
    used = min(rings.channels, chains.channels)
    at_sys = find_gpu_paths(system, PathType.SYS, nvb, refused).p2p
    described = [
        _describe(
            graph,
            system,
            rate_orders(graph.pattern == RING, graph.orders[:used], gpu_paths)
            if nics is None
            else rate_between_hosts(graph, used, gpu_paths, nics, hosts),
        )
        for graph in (rings, chains)
    ]
    return StockModel(
        rings=described[0],
        chains=described[1],
        channels=used,
        p2p=_name_pairs(gpu_paths.p2p, system),
        p2p_at_sys=_name_pairs(at_sys, system),
        has_nvls=bool(system.nodes[NVS]) and system.min_sm >= NVLS_SM,
        assumes=tuple(_list_assumptions(system, hosts)),
        hosts=hosts,
        graphs={RING_SHAPE: rings, CHAIN: chains},
        system=system,
        gpu_paths=gpu_paths,
        nics=nics,
        expect=lambda size_bytes, hop_us: expect(system, rings, chains, size_bytes, hosts, hop_us),
    )


def _find_obstacle(topology: Topology) -> str | None:
    """Return why NCCL's graph cannot be made of a topology, None if it can."""
    gpus = [topology.by_id[name] for name in topology.ranks]
    if len(gpus) < 2:
        return "NCCL needs two GPUs for a collective"
    if is_amd(topology):
        return "RCCL's search on AMD GPUs is not modelled"
    if any(gpu.extra.get("stands_for") for gpu in gpus):
        return "the topology has ranks without a GPU"
    if len(group_by_host(gpus)) > 1:
        return "GPUs are on several hosts"
    linked = {
        end
        for link in topology.links
        if link.kind in ("pcie", "nvlink", "c2c") or _is_in_pci_tree(topology, link.src, link.dst)
        for end in (link.src, link.dst)
    }
    if not linked.issuperset(topology.ranks):
        return "the topology is a graph without PCIe or NVLink, so NCCL's search does not apply"
    return None


def _is_in_pci_tree(topology: Topology, src: str, dst: str) -> bool:
    ends = [topology.by_id[name] for name in (src, dst)]
    return any(end.kind == "cpu" or end.family in ("pcie", "nvswitch") for end in ends)


def list_refused_p2p(topology: Topology) -> frozenset[tuple[int, int]]:
    """Return the ordered pairs of ranks between which the driver refuses P2P, as far as is known.

    The topology says so, or boards of a pair are known to have none over PCIe. Ranks of different
    hosts are no such pairs.
    """
    rank_of = {gpu: rank for rank, gpu in enumerate(topology.ranks)}
    return frozenset(
        (rank_of[a], rank_of[b])
        for host, part in split_hosts(topology).items()
        for a, b in _list_refused(part, host)
    )


def _list_refused(part: Topology, host: str) -> Iterator[tuple[str, str]]:
    """Yield the ordered pairs of a host's GPUs that P2P is refused to, by ids of the machine.

    `host` is the prefix of these ids, "" if they have none.
    """
    view = view_machine(part)
    index_of = {gpu: view.find_gpu_index(gpu) for gpu in part.ranks}
    wired = {(link.src, link.dst) for link in part.links if link.kind in WIRES}
    for gpu, other in permutations(part.ranks, 2):
        subject = p2p_subject(index_of[gpu], index_of[other])
        if any(
            view.facts.get_text(subject, key) not in (None, "ok")
            for key in (keys.P2P_READ, keys.P2P_WRITE)
        ) or ((gpu, other) not in wired and view.find_board_without_p2p(gpu, other)):
            yield (qualify(host, gpu), qualify(host, other)) if host else (gpu, other)


def _name_pairs(
    pairs: frozenset[tuple[int, int]], system: StockSystem
) -> frozenset[tuple[int, int]]:
    gpus = system.nodes[GPU]
    return frozenset((gpus[a].rank, gpus[b].rank) for a, b in pairs)


def _describe(graph: StockGraph, system: StockSystem, algbw_GBps: Fraction) -> StockChannels:
    ranks = [gpu.rank for gpu in system.nodes[GPU]]
    devs = [net.element.get_integer("dev", 0) or 0 for net in system.nodes[NET]]
    return StockChannels(
        orders=tuple(tuple(ranks[gpu] for gpu in order) for order in graph.orders),
        speed_GBps=Fraction(graph.speed_MBps, MBps_PER_GBps),
        pattern=graph.pattern,
        path_type=graph.path_type.name,
        same_channels=graph.same_channels,
        algbw_GBps=algbw_GBps,
        nets=tuple((devs[first], devs[last]) for first, last in graph.nets),
        nic_speed_GBps=Fraction(graph.inter_MBps if graph.nets else 0, MBps_PER_GBps),
        nic_type=graph.nic_type.name if graph.nets else "",
        cross_nic=graph.cross_nic,
    )


def make_graph(
    gpus: Sequence[StockNode],
    channels: Channels,
    speed_GBps: Fraction = Fraction(0),
    path_type: str = PathType.LOC.name,
) -> StockGraph:
    """Return channels through all GPUs, given as ranks, as a graph of the library.

    `path_type` is the type of a channel's farthest hop, `speed_GBps` a channel's speed.
    """
    index, count = {gpu.rank: gpu.index for gpu in gpus}, len(channels.orders)
    return StockGraph(
        RING if channels.shape == RING_SHAPE else BALANCED_TREE,
        count,
        count,
        PathType[path_type],
        speed_MBps=round(speed_GBps * MBps_PER_GBps),
        orders=tuple(tuple(index[rank] for rank in order) for order in channels.orders),
    )


def rate_orders(
    is_ring: bool, orders: Sequence[Order], gpu_paths: GpuPaths, between_cpus: int = 1
) -> Fraction:
    """Return the algbw of an allreduce in GB/s over rings or chains, from the loads on the links.

    Orders are of GPUs in NCCL's numbering. Links between CPUs have `between_cpus` times their
    rates. In a ring each hop carries 2(n-1)/n of a channel's share; in a chain the sums go one
    direction and the results the other, so each hop carries all of it both times.
    """
    shape = RING_SHAPE if is_ring else CHAIN
    counts = Counter(hop for order in orders for hop in hops(shape, order))
    slowest = find_slowest_kBps(counts, gpu_paths, between_cpus)
    gpus = len(orders[0])
    factor = Fraction(gpus, 2 * (gpus - 1)) if is_ring else Fraction(1)
    return slowest * len(orders) * factor / kBps_PER_GBps


def find_slowest_kBps(
    counts: Mapping[tuple[int, int], int], gpu_paths: GpuPaths, between_cpus: int
) -> Fraction:
    """Return the rate in kB/s of the slowest hop, if each runs as often as `counts` says at once.

    Hops are (GPU, GPU), whose paths are in `gpu_paths`. Links between CPUs have `between_cpus`
    times their rates.
    """
    loads: Counter[StockLink] = Counter()
    for pair, count in counts.items():
        for link in gpu_paths.paths[pair].links:
            loads[link] += count
    return min(Fraction(link.count_kBps(between_cpus), count) for link, count in loads.items())


def _list_assumptions(system: StockSystem, hosts: int) -> Iterator[str]:
    """Yield a line for each kind of fact that was made up, or left to NCCL's default."""
    made_up = {"cpu": "CPU models", "gpu": "compute capabilities", "pci": "PCI addresses"}
    kinds = {e.tag for e in system.root.walk() if "topoplan_made_up" in e.attributes}
    yield from (f"{made_up[kind]} are not in the topology" for kind in made_up if kind in kinds)
    for key, name, default in (
        ("link_speed", "speed", "Gen3"),
        ("link_width", "width", "x16"),
    ):
        unknown = [e for e in system.root.walk() if e.tag == "pci" and e.get(key) in (None, "0")]
        if unknown:
            yield f"the PCIe {name} of {len(unknown)} devices is unknown; NCCL counts {default}"
    nets = system.nodes[NET] if hosts > 1 else []
    for key, default in (("speed", "10 Gb/s"), ("gdr", "that they have GPUDirect")):
        if any(not net.get(key) for net in nets):
            yield f"the {key} of some NICs is unknown; the model takes {default}"
