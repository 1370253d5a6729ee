"""Write NCCL's graph file: rings and chains with their true speeds, for NCCL_GRAPH_FILE.

NCCL's tuner reads the speeds: for allreduce it computes an algbw of channels * speed * n / (2 (n -
1)) for rings and of channels * speed / 2 for trees (times .92, as NCCL rates trees lower). With
speeds from the channels' exact rates it chooses well for each size. NCCL runs only as many channels
as both graphs have, so both get the same number, at which both lose little.

A channel is an order of all GPUs of a host, as a ring or a chain (NCCL's tree inside a host). Algbw
is the bytes of the buffer over the time of a call. The single-path bound, the highest algbw of a
collective, holds for plans in which two GPUs use one route, the hardware's.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import cycle, islice

from ....topo.errors import InfeasibleError, VerificationError
from ....topo.graph import Topology
from ....topo.pictures.cables import describe_rates
from ....topo.routes import Router
from ....topo.version import VERSION
from ...bounds.certificate import Bound
from ...bounds.single_path import Bounds, find_bounds
from ...channels.channels import CHAIN, RING, Channels, Order, algbw_GBps, schedule_channels
from ...channels.rounding import Rounding, prepare
from ...ir.collective import Collective
from ...ir.schedule import Schedule
from ...numeric.effort import Effort
from ...request import Request
from ...verify import verify
from ..stock.constants import BALANCED_TREE, WHOLE_CHAIN_CAPS_GBps
from ..stock.constants import RING as RING_PATTERN
from ..stock.nccl_version import NEWEST, NcclVersion
from .gpu_numbers import GpuNumbers, PathTypes, number_gpus
from .graph_check import check_graph_file, list_channels, list_hops, make_plain
from .graph_file import RING_ID, TREE_ID, GraphFile, NcclGraph, read_graph_file

_PATTERNS = {RING_ID: RING_PATTERN, TREE_ID: BALANCED_TREE}
# Work of the bound in seconds of an idle core, and its share of the time limit.
_BOUND_WORK_S, _BOUND_CLOCK = 20.0, 0.5
# Largest relative change of an algbw by the rounding of speeds in the file to 7 digits.
_TOLERANCE = Fraction(1, 10**5)


# Shares of their best rates that a number of channels must keep: for the faster of rings and
# chains, and for the other.
_NEAR_FASTER, _NEAR_SLOWER = Fraction(995, 1000), Fraction(98, 100)
# Gain in share for which the faster shape may have another number of channels.
_WORTH_CHANGING = Fraction(2, 100)

# The channels of each shape, in equal numbers.
Sized = dict[str, Channels]


@dataclass(frozen=True)
class FileChannels:
    """Rings and chains as a file has them, by shape: channels, a channel's GB/s, path type."""

    channels: dict[str, Channels]
    speeds_GBps: dict[str, Fraction]
    types: dict[str, str]


@dataclass(frozen=True)
class NcclGraphs:
    """Rings and chains for a machine, in equal numbers, with their algbw in GB/s at large sizes.

    `router` has the routes of their hops, `numbers` the `dev` number of each GPU. `ring_GBps` is
    the algbw of the collective, `chain_GBps` that of allreduce. Rings or chains are None, with
    algbw 0, if no such channel exists. `bound` is the collective's single-path bound.
    `counted_GBps` are the algbw of an allreduce by shape that the file gives to NCCL's tuner, if
    those are at NCCL's constants instead of the machine's own rates.
    """

    router: Router
    collective: Collective
    numbers: GpuNumbers
    rings: Channels | None
    chains: Channels | None
    ring_GBps: Fraction
    chain_GBps: Fraction
    bound: Bound
    counted_GBps: Mapping[str, Fraction] = field(default_factory=dict)

    @property
    def allreduce_GBps(self) -> Mapping[str, Fraction]:
        """The algbw of an allreduce over rings and over chains, by shape."""
        halves = 1 if self.collective.name == "allreduce" else 2
        return {RING: self.ring_GBps / halves, CHAIN: self.chain_GBps}

    @property
    def count(self) -> int:
        """The number of channels of each graph."""
        return max(len(each.orders) for each in (self.rings, self.chains) if each is not None)

    @property
    def fraction(self) -> Fraction:
        """The faster graph's algbw for the collective as a fraction of the single-path bound."""
        chain_GBps = self.chain_GBps if self.collective.name == "allreduce" else Fraction(0)
        return max(self.ring_GBps, chain_GBps) / self.bound.algbw_GBps


def bound_request(
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> tuple[Request, Bounds]:
    """Return the request for a file's channels on a router's routes, and the bounds there.

    A request is what searches for channels are given: the collective, the topology, the routes and
    the effort, here with the single-path bound. `progress` is given lines about the search.
    """
    bounds = find_bounds(collective, router, effort.grant(_BOUND_WORK_S, _BOUND_CLOCK), progress)
    topology, bound = router.topology, bounds.single_path
    return Request(collective, topology, effort, progress, bound, router=router), bounds


def find_graphs(request: Request, bound: Bound, version: NcclVersion = NEWEST) -> NcclGraphs:
    """Return the best rings and chains for a collective on one host, on the request's routes.

    The collective is one of OVER_RINGS, and `bound` its single-path bound. Raise InfeasibleError if
    the GPUs are on several hosts or too many for a file, or no ring or chain exists.
    """
    most = limit_channels(request.collective, version)
    return rate_graphs(request, bound, match_counts(request, prepare_finders(request), most))


def limit_channels(collective: Collective, version: NcclVersion) -> int:
    """Return the most channels that a file can have, by the number of GPUs and NCCL's version.

    Raise InfeasibleError if there are too many GPUs for one channel.
    """
    n = collective.ranks
    # The elements are <graphs>, two <graph>, and in each a <channel> with all GPUs.
    most = min(version.max_channels, (version.max_elements - 3) // (2 * (n + 1)))
    if most < 1 or n > version.max_children:
        raise InfeasibleError(
            f"NCCL {version} reads no graph file for {n} GPUs: it would have too many XML elements"
        )
    return most


def prepare_finders(request: Request) -> list[Rounding]:
    """Return the searches for rings and for chains, each if such channels exist.

    Raise InfeasibleError if none serves the collective.
    """
    reducing = request.of(Collective("allreduce", request.collective.ranks))
    finders, reasons = [], []
    for shape, wanted in ((RING, request), (CHAIN, reducing)):
        try:
            finders.append(prepare(wanted, shape))
        except InfeasibleError as error:
            reasons.append(str(error))
    # Without rings, chains serve allreduce only.
    if not finders or (finders[0].shape == CHAIN and request.collective.name != "allreduce"):
        raise InfeasibleError(reasons[0])
    return finders


def rate_graphs(request: Request, bound: Bound, sized: Sized) -> NcclGraphs:
    """Return channels by shape, `sized`, as graphs with exact rates on the request's routes.

    `bound` is the single-path bound on them. Raise InfeasibleError if neighbours have no route.
    """
    rings, chains = sized.get(RING), sized.get(CHAIN)
    reducing = request.of(Collective("allreduce", request.collective.ranks))
    return NcclGraphs(
        request.router, request.collective, number_gpus(request.topology), rings, chains,
        Fraction(0) if rings is None else _compute_algbw(request, rings),
        Fraction(0) if chains is None else _compute_algbw(reducing, chains),
        bound,
    )  # fmt: skip


def measure_algbw(request: Request, schedule: Schedule) -> Fraction:
    """Return the exact algbw in GB/s of a schedule at large sizes, computed from its link loads.

    Raise VerificationError if the schedule is wrong.
    """
    verify(schedule, request.topology, gpus_forward=True)
    return algbw_GBps(schedule, request.topology)


def _compute_algbw(request: Request, channels: Channels) -> Fraction:
    return measure_algbw(request, schedule_channels(request, channels, f"{channels.shape}s"))


def write_graphs(
    graphs: NcclGraphs, version: NcclVersion = NEWEST, remarks: Sequence[str] = ()
) -> str:
    """Return the text of the graph file, with the lines `remarks` in its comment.

    GPUs are named in hexadecimal with 0x, which every version reads in the same way; they have no
    rank, and there is no XML declaration. Raise VerificationError if the text, read back, does not
    have the rates of `graphs`.
    """
    topology, described = graphs.router.topology, describe_channels(graphs, version)
    lines = ['<graphs version="1">', _write_comment(graphs, version, remarks)]
    for number, channels in ((RING_ID, graphs.rings), (TREE_ID, graphs.chains)):
        if channels is None:
            continue
        # NCCL keeps speeds as floats, of 7 digits.
        speed = f"{float(described.speeds_GBps[channels.shape]):.7g}"
        worst = described.types[channels.shape]
        lines.append(
            f'  <graph id="{number}" pattern="{_PATTERNS[number]}" crossnic="0" '
            f'nchannels="{len(channels.orders)}" speedintra="{speed}" speedinter="{speed}" '
            f'latencyinter="0" typeintra="{worst}" typeinter="PIX" '
            f'samechannels="{int(len(set(channels.orders)) == 1)}">'
        )
        for order in channels.orders:
            lines += [
                "    <channel>",
                *(f'      <gpu dev="{graphs.numbers.devs[rank]:#x}"/>' for rank in order),
                "    </channel>",
            ]
        lines.append("  </graph>")
    text = "\n".join([*lines, "</graphs>", ""])
    file = read_graph_file(text, f"the graph file for {topology.name}")
    check_graph_file(file, graphs.numbers.devs, version, inside=True)
    _check_rates(graphs, file)
    return text


def describe_channels(graphs: NcclGraphs, version: NcclVersion) -> FileChannels:
    """Return how a file has these `graphs` for a version of NCCL: channels, speeds, path types."""
    types = PathTypes(graphs.router, version)
    given = {each.shape: each for each in (graphs.rings, graphs.chains) if each is not None}
    return FileChannels(
        given,
        {shape: _speed_GBps(graphs, each) for shape, each in given.items()},
        {shape: types.find_worst(list_hops(each)) for shape, each in given.items()},
    )


def _speed_GBps(graphs: NcclGraphs, channels: Channels) -> Fraction:
    """Return the speed of a channel for which NCCL's formula gives the channels' algbw, in GB/s."""
    n, count = channels.ranks, len(channels.orders)
    algbw = (graphs.counted_GBps or graphs.allreduce_GBps)[channels.shape]
    return algbw * 2 / count * (1 if channels.shape == CHAIN else Fraction(n - 1, n))


def _check_rates(graphs: NcclGraphs, file: GraphFile) -> None:
    n, router = graphs.collective.ranks, graphs.router
    request = Request(Collective("allreduce", n), router.topology, Effort(), router=router)
    for graph in file.graphs:
        shape = RING if graph.id == RING_ID else CHAIN
        rate = _compute_algbw(request, list_channels(graph, graphs.numbers.rank_of, file.where))
        counted, promised = count_algbw_GBps(graph, n), graphs.allreduce_GBps[shape]
        stated = graphs.counted_GBps.get(shape, promised)
        if rate != promised or abs(counted - stated) > stated * _TOLERANCE:
            raise VerificationError(
                f"{file.where}: {graph.name} reaches {float(rate):.6g} GB/s and says "
                f"{float(counted):.6g}, but {float(promised):.6g} and {float(stated):.6g} were "
                "promised"
            )


def count_algbw_GBps(graph: NcclGraph, ranks: int) -> Fraction:
    """Return the algbw of allreduce in GB/s that NCCL's tuner computes for a graph.

    Its factor of .92 for trees is left out.
    """
    total = graph.nchannels * graph.speedintra
    return total * ranks / (2 * (ranks - 1)) if graph.id == RING_ID else total / 2


def _write_comment(graphs: NcclGraphs, version: NcclVersion, remarks: Sequence[str]) -> str:
    topology = graphs.router.topology
    reached = [
        f"{shape} {float(rate):.4g}"
        for shape, rate, channels in (
            ("rings", graphs.ring_GBps, graphs.rings),
            ("chains", graphs.chain_GBps, graphs.chains),
        )
        if channels is not None
    ]
    lines = [
        f"topoplan {VERSION}, for jobs of one host (in one of several NCCL would send all through "
        f"one NIC): {graphs.count} channels through {graphs.collective.ranks} GPUs of "
        f"{topology.name}",
        f"fingerprint {topology.fingerprint}, for NCCL "
        f"{version if version < NEWEST else 'up to ' + str(NEWEST)}",
        f"reaches at large sizes, GB/s algbw: {', '.join(reached)}; {graphs.collective.name} "
        f"could reach at most {float(graphs.bound.algbw_GBps):.4g} with a single path per pair of "
        f"GPUs ({float(graphs.fraction):.1%} of it)",
        "assumes the topology's rates of links, that GPUs reach each other directly (P2P), and "
        "that nothing else sends",
        *(["speeds are at NCCL's own count of links"] if graphs.counted_GBps else []),
        *remarks,
        *describe_rates(topology),
        f"dev: {graphs.numbers.source}; only for communicators of just these GPUs",
    ]
    return "  <!-- " + "\n       ".join(map(make_plain, lines)) + " -->"


def match_counts(request: Request, finders: Sequence[Rounding], most: int, least: int = 1) -> Sized:
    """Return rings and chains, by shape, the same number of each: at most `most`.

    It is the smallest number at which all shapes are near their best rates, or one of at least
    `least` that loses no more. `finders` finds the channels of one shape each.
    """
    given = {finder.shape: finder.name(finder.choose(most)) for finder in finders}
    matching = _Matching(request, given, {finder.shape: finder for finder in finders}, most)
    chosen = matching.size_to(matching.choose_count(least))
    # If the slower shape loses much by a number that suits the faster one, its own number may suit
    # both.
    for shape, channels in given.items():
        if matching.find_share(chosen, shape) < _NEAR_SLOWER:
            own = matching.size_to(most // len(channels.orders) * len(channels.orders))
            if matching.find_least_share(own) > matching.find_least_share(chosen) + _WORTH_CHANGING:
                chosen = own if matching.keeps_faster(own) else chosen
    return chosen


class _Matching:
    """Rings and chains as given, and the algbw of their prefixes and repetitions for allreduce."""

    def __init__(
        self, request: Request, given: Sized, finders: dict[str, Rounding], most: int
    ) -> None:
        self._topology, self._given, self._finders = request.topology, given, finders
        self._most = most
        self._uses: dict[tuple[str, Order], Counter[int]] = {}
        self._by_count = {
            shape: self._list_rates(channels, most) for shape, channels in given.items()
        }
        # Allgather and reduce-scatter only run on rings.
        self._serving = list(given) if request.collective.name == "allreduce" else [RING]

    def choose_count(self, least: int) -> int:
        """Return the smallest number of channels that loses little.

        If `most` allows, it is large enough that no channel must exceed the rate of a single
        channel, and at least `least` if that loses no more.
        """
        faster = [
            max(self._by_count[shape][k] for shape in self._serving) for k in range(self._most)
        ]
        slower = [min(row[k] for row in self._by_count.values()) for k in range(self._most)]
        fitting = [k for k in range(self._most) if faster[k] >= max(faster) * _NEAR_FASTER]
        enough = max(slower[k] for k in fitting) * _NEAR_SLOWER
        fitting = [k for k in fitting if slower[k] >= enough]
        slow = [k for k in fitting if faster[k] * 2 / (k + 1) <= _max_channel_GBps(self._topology)]
        first = min(slow or fitting[-1:])
        as_good = (
            k
            for k in fitting
            if k + 1 >= least and faster[k] >= faster[first] and slower[k] >= slower[first]
        )
        return 1 + max(first, next(as_good, first))

    def size_to(self, count: int) -> Sized:
        """Return `count` channels of each shape.

        These are the given ones, repeated in turn, or those of a search if they lose less.
        """
        out: Sized = {}
        for shape, channels in self._given.items():
            out[shape] = repeat_channels(channels, count)
            if self.find_share(out, shape) < _NEAR_FASTER:
                finder = self._finders[shape]
                rounded = finder.name(finder.round(count))
                out[shape] = max(out[shape], rounded, key=self._rate)
        return out

    def _rate(self, channels: Channels) -> Fraction:
        return self._list_rates(channels, len(channels.orders))[-1]

    def find_share(self, sized: Sized, shape: str) -> Fraction:
        """Return the share of its best algbw that a shape keeps."""
        return self._rate(sized[shape]) / max(self._by_count[shape])

    def find_least_share(self, sized: Sized) -> Fraction:
        """Return the share of its best algbw that the shape with the greatest loss keeps."""
        return min(self.find_share(sized, shape) for shape in sized)

    def keeps_faster(self, sized: Sized) -> bool:
        """Return whether the faster shape keeps nearly its best rate."""
        best = max(max(self._by_count[shape]) for shape in self._serving)
        return max(self._rate(sized[shape]) for shape in self._serving) >= best * _NEAR_FASTER

    def _list_rates(self, channels: Channels, most: int) -> list[Fraction]:
        """Return the algbw in GB/s of the first 1, 2, ... `most` channels for allreduce.

        Channels are repeated if there are fewer.
        """
        total: Counter[int] = Counter()
        n, orders, rates = channels.ranks, self._finders[channels.shape].orders, []
        # The loads may be those of an allgather, of which an allreduce has two.
        times = Fraction(2 * (n - 1), orders.times[RING]) if channels.shape == RING else Fraction(1)
        for count, order in enumerate(islice(cycle(channels.orders), most), 1):
            total.update(self._find_uses(channels.shape, order))
            busiest = max(Fraction(used) / orders.capacity[row] for row, used in total.items())
            rates.append(count / busiest / times)
        return rates

    def _find_uses(self, shape: str, order: Order) -> Counter[int]:
        uses = self._uses.get((shape, order))
        if uses is None:
            uses = self._uses[shape, order] = self._finders[shape].orders.uses(shape, order)
        return uses


def repeat_channels(channels: Channels, count: int) -> Channels:
    """Return `count` channels: the given ones, repeated in turn."""
    return Channels(channels.shape, tuple(islice(cycle(channels.orders), count)))


def _max_channel_GBps(topology: Topology) -> int:
    """Return the most GB/s that one channel of a tree copies on the slowest of the GPUs."""
    texts = (str(topology.by_id[gpu].extra.get("sm", "")) for gpu in topology.ranks)
    slowest = min((int(text) if text.isdigit() else 0 for text in texts), default=0)
    return next(rate for capability, rate in WHOLE_CHAIN_CAPS_GBps if slowest >= capability)
