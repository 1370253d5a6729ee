"""A writer of NCCL's graph file: rings and chains with their true speeds, for NCCL_GRAPH_FILE.

NCCL's tuner reads the speeds: for allreduce it computes an algbw of channels * speed * n / (2 (n -
1)) for rings and of channels * speed / 2 for trees (times .92, as NCCL rates trees lower). With
speeds from the channels' exact rates it chooses well for each size. NCCL runs as many channels as
the ring and the tree graph both have, so both get the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...topo.errors import InfeasibleError, VerificationError
from ...topo.graph import Topology
from ...topo.pictures.cables import describe_rates
from ...topo.routes import Router
from ...topo.version import VERSION
from ..bounds.certificate import Bound
from ..channels.channels import CHAIN, RING, Channels, algbw_GBps, schedule_channels
from ..ir.collective import Collective
from ..numeric.effort import Effort
from ..request import Request
from ..verify import verify
from .channel_counts import Finder, match_counts
from .gpu_numbers import GpuNumbers, PathTypes, number_gpus
from .graph_check import check_graph_file, list_channels, list_hops, make_plain
from .graph_file import RING_ID, TREE_ID, GraphFile, NcclGraph, read_graph_file
from .nccl_version import NEWEST, NcclVersion

# Collectives that NCCL runs over rings.
COLLECTIVES = ("allreduce", "allgather", "reduce-scatter")
# NCCL's numbers of patterns: a ring, and a balanced tree.
_PATTERNS = {RING_ID: 4, TREE_ID: 1}
# Largest relative change of an algbw by the rounding of speeds in the file to 7 digits.
_TOLERANCE = Fraction(1, 10**5)


@dataclass(frozen=True)
class NcclGraphs:
    """Rings and chains for a machine, in equal numbers, with their algbw in GB/s at large sizes.

    `ring_GBps` is that of the collective, `chain_GBps` that of allreduce. Rings or chains are None
    if no such channel exists.
    """

    router: Router
    collective: Collective
    numbers: GpuNumbers
    rings: Channels | None
    chains: Channels | None
    ring_GBps: Fraction
    chain_GBps: Fraction
    bound: Bound

    @property
    def topology(self) -> Topology:
        """The machine that the channels are for."""
        return self.router.topology

    @property
    def count(self) -> int:
        """The number of channels of each graph."""
        return max(len(each.orders) for each in (self.rings, self.chains) if each is not None)

    @property
    def best_GBps(self) -> Fraction:
        """The algbw of the collective in GB/s by the faster of the graphs that serve it."""
        is_served = self.collective.name == "allreduce"
        return max(self.ring_GBps, self.chain_GBps) if is_served else self.ring_GBps

    @property
    def fraction(self) -> Fraction:
        """The share of the single-path bound that the faster of them reaches."""
        return self.best_GBps / self.bound.algbw_GBps


def find_graphs(request: Request, bound: Bound, version: NcclVersion = NEWEST) -> NcclGraphs:
    """Return the best rings and chains for a collective on one host.

    The collective is one of COLLECTIVES. Raise InfeasibleError if the GPUs are on several hosts, or
    no ring or chain exists.
    """
    collective, topology, n = request.collective, request.topology, request.collective.ranks
    numbers = number_gpus(topology)
    most = _count_most(n, version)
    reducing = request.of(Collective("allreduce", n))
    finders, reasons = [], []
    for shape, wanted in ((RING, request), (CHAIN, reducing)):
        try:
            finders.append(Finder(wanted, shape))
        except InfeasibleError as error:
            reasons.append(str(error))
    # Without rings, chains serve allreduce only.
    if not finders or (finders[0].shape == CHAIN and collective.name != "allreduce"):
        raise InfeasibleError(reasons[0])
    sized = match_counts(request, finders, most)
    rings, chains = sized.get(RING), sized.get(CHAIN)
    return NcclGraphs(
        request.router, collective, numbers, rings, chains,
        Fraction(0) if rings is None else _compute_algbw(request, rings),
        Fraction(0) if chains is None else _compute_algbw(reducing, chains),
        bound,
    )  # fmt: skip


def _count_most(ranks: int, version: NcclVersion) -> int:
    """Return the most channels that a file of two graphs may have.

    Raise InfeasibleError if it may have none.
    """
    # The elements are <graphs>, two <graph>, and in each a <channel> with all GPUs.
    most = min(version.max_channels, (version.max_elements - 3) // (2 * (ranks + 1)))
    if most < 1 or ranks > version.max_children:
        raise InfeasibleError(
            f"NCCL {version} reads no graph file for {ranks} GPUs: it would have too many XML "
            "elements"
        )
    return most


def _compute_algbw(request: Request, channels: Channels) -> Fraction:
    schedule = schedule_channels(request, channels, f"{channels.shape}s")
    verify(schedule, request.topology)
    return algbw_GBps(schedule, request.topology)


def write_graphs(graphs: NcclGraphs, version: NcclVersion = NEWEST) -> str:
    """Return the text of the file, checked with its rates after reading it back.

    GPUs are named in hexadecimal with 0x, which every version reads in the same way; they have no
    rank, and there is no XML declaration.
    """
    types = PathTypes(graphs.topology, version)
    n, lines = graphs.collective.ranks, ['<graphs version="1">', *_write_comment(graphs, version)]
    for number, channels in ((RING_ID, graphs.rings), (TREE_ID, graphs.chains)):
        if channels is None:
            continue
        # NCCL keeps speeds as floats, of 7 digits.
        speed = f"{float(_speed_GBps(graphs, channels)):.7g}"
        worst = types.find_worst(list_hops(channels))
        lines.append(
            f'  <graph id="{number}" pattern="{_PATTERNS[number]}" crossnic="0" '
            f'nchannels="{len(channels.orders)}" speedintra="{speed}" speedinter="{speed}" '
            f'latencyinter="0" typeintra="{worst}" typeinter="PIX" '
            f'samechannels="{int(len(set(channels.orders)) == 1)}">'
        )
        for order in channels.orders:
            gpus = (f'      <gpu dev="{graphs.numbers.devs[rank]:#x}"/>' for rank in order)
            lines += ["    <channel>", *gpus, "    </channel>"]
        lines.append("  </graph>")
    text = "\n".join([*lines, "</graphs>", ""])
    file = read_graph_file(text, f"the graph file for {graphs.topology.name}")
    check_graph_file(file, graphs.numbers.devs, version, inside=True)
    _check_rates(graphs, file, n)
    return text


def _speed_GBps(graphs: NcclGraphs, channels: Channels) -> Fraction:
    """Return the speed of a channel for which NCCL's formula gives the channels' algbw, in GB/s."""
    n, count = channels.ranks, len(channels.orders)
    if channels.shape == CHAIN:
        return graphs.chain_GBps * 2 / count
    passes = 2 if graphs.collective.name == "allreduce" else 1
    return graphs.ring_GBps * passes * (n - 1) / (n * count)


def _check_rates(graphs: NcclGraphs, file: GraphFile, n: int) -> None:
    for number, claimed in ((RING_ID, graphs.ring_GBps), (TREE_ID, graphs.chain_GBps)):
        graph = file.find(number)
        if graph is None:
            continue
        name = graphs.collective.name if number == RING_ID else "allreduce"
        request = Request(Collective(name, n), graphs.topology, Effort(), router=graphs.router)
        rate = _compute_algbw(request, list_channels(graph, graphs.numbers.rank_of, file.where))
        counted = count_algbw_GBps(graph, n) * (1 if name == "allreduce" else 2)
        if rate != claimed or abs(counted - claimed) > claimed * _TOLERANCE:
            raise VerificationError(
                f"{file.where}: {graph.name} reaches {float(rate):.6g} GB/s and says "
                f"{float(counted):.6g}, but {float(claimed):.6g} was promised"
            )


def count_algbw_GBps(graph: NcclGraph, ranks: int) -> Fraction:
    """Return the algbw of allreduce in GB/s that NCCL's tuner computes for a graph.

    Its factor of .92 for trees is left out.
    """
    total = graph.nchannels * graph.speedintra
    return total * ranks / (2 * (ranks - 1)) if graph.id == RING_ID else total / 2


def _write_comment(graphs: NcclGraphs, version: NcclVersion) -> list[str]:
    topology = graphs.topology
    reached = [
        f"{shape} {float(rate):.4g}"
        for shape, rate, channels in (
            ("rings", graphs.ring_GBps, graphs.rings),
            ("chains", graphs.chain_GBps, graphs.chains),
        )
        if channels is not None
    ]
    lines = [
        f"topoplan {VERSION}: {graphs.count} channels through {graphs.collective.ranks} GPUs of "
        f"{topology.name}",
        f"fingerprint {topology.fingerprint}, for NCCL "
        f"{version if version < NEWEST else 'up to ' + str(NEWEST)} and one host",
        f"reaches at large sizes, GB/s algbw: {', '.join(reached)}; {graphs.collective.name} "
        f"could reach at most {float(graphs.bound.algbw_GBps):.4g} with a single path per pair of "
        f"GPUs ({float(graphs.fraction):.1%} of it)",
        "assumes the topology's rates of links, that GPUs reach each other directly (P2P), and "
        "that nothing else sends",
        *describe_rates(topology),
        f"dev: {graphs.numbers.source}; only for communicators of just these GPUs",
    ]
    return ["  <!-- " + "\n       ".join(map(make_plain, lines)) + " -->"]
