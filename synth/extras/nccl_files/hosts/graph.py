"""Write a graph file for several equal hosts, and check the text by reading it back.

NCCL reads it by NCCL_GRAPH_FILE. Each channel, a ring or a tree, is a NIC, all GPUs of a host, and
a NIC; NCCL joins the hosts.
"""

from collections.abc import Sequence
from fractions import Fraction

from .....topo.errors import VerificationError
from .....topo.graph import Topology
from .....topo.version import VERSION
from ...stock.constants import MBps_PER_GBps, PathType
from ...stock.nccl_version import NEWEST, NcclVersion
from ...stock.search import StockGraph
from ..gpu_numbers import GpuNumbers
from ..graph_check import check_graph_file, list_channels, make_plain
from ..graph_file import RING_ID, TREE_ID, NcclGraph, read_graph_file
from .choice import ChosenHostGraphs
from .network import HostChannel, HostNetwork


def write_host_graphs(
    chosen: ChosenHostGraphs,
    topology: Topology,
    numbers: GpuNumbers,
    version: NcclVersion,
    remarks: Sequence[str],
) -> str:
    """Return the text of the graph file of `chosen`, with the lines `remarks` in its comment.

    `topology` is one of the hosts, `version` NCCL's. GPUs, by `numbers`, and NICs are named in
    hexadecimal with 0x, which every version reads in the same way, and have no rank. Raise
    VerificationError if the text, read back, does not have the rates of `chosen`.
    """
    lines = ['<graphs version="1">', _write_comment(chosen, topology, numbers, version, remarks)]
    given = {RING_ID: chosen.graphs.rings, TREE_ID: chosen.graphs.trees}
    for number, graph in given.items():
        lines += _write_graph(number, graph, chosen.network, numbers, version)
    text = "\n".join([*lines, "</graphs>", ""])
    file = read_graph_file(text, f"the graph file for {topology.name}")
    check_graph_file(file, numbers.devs, version)
    for read in file.graphs:
        _check_graph(read, given[read.id], chosen, numbers, file.where)
    return text


def _write_graph(
    number: int,
    graph: StockGraph,
    network: HostNetwork,
    numbers: GpuNumbers,
    version: NcclVersion,
) -> list[str]:
    devs = [numbers.devs[gpu.rank] for gpu in network.gpus]
    speed = f"{graph.speed_MBps / MBps_PER_GBps:.7g}"
    lines = [
        f'  <graph id="{number}" pattern="{graph.pattern}" crossnic="{graph.cross_nic}" '
        f'nchannels="{graph.channels}" speedintra="{speed}" speedinter="{speed}" '
        f'latencyinter="0" typeintra="{_name_type(graph.path_type, version)}" '
        f'typeinter="{_name_type(graph.nic_type, version)}" '
        f'samechannels="{int(graph.same_channels)}">'
    ]
    for order, (first, last) in zip(graph.orders, graph.nets, strict=True):
        lines += [
            "    <channel>",
            f'      <net dev="{network.devs[first]:#x}"/>',
            *(f'      <gpu dev="{devs[gpu]:#x}"/>' for gpu in order),
            f'      <net dev="{network.devs[last]:#x}"/>',
            "    </channel>",
        ]
    return [*lines, "  </graph>"]


def _name_type(kind: PathType, version: NcclVersion) -> str:
    """Return a type as a file has it: C2C, and P2C where a version lacks it, is as far as PHB."""
    if kind == PathType.C2C or (kind == PathType.P2C and not version.knows_p2c):
        return PathType.PHB.name
    return kind.name


def _check_graph(
    read: NcclGraph,
    written: StockGraph,
    chosen: ChosenHostGraphs,
    numbers: GpuNumbers,
    where: str,
) -> None:
    """Raise VerificationError if a graph read back has not the promised rate and speed."""
    network = chosen.network
    index = {gpu.rank: gpu.index for gpu in network.gpus}
    orders = list_channels(read, numbers.rank_of, where).orders
    at = {dev: net for net, dev in enumerate(network.devs)}
    channels = [
        HostChannel(tuple(index[rank] for rank in order), (at[nets[0]], at[nets[1]]))
        for order, nets in zip(orders, read.nets, strict=True)
        if len(nets) == 2 and at.keys() >= set(nets)
    ]
    promised = chosen.graphs.algbw_GBps["rings" if read.id == RING_ID else "chains"]
    if len(channels) < read.nchannels:
        raise VerificationError(f"{where}: a channel of {read.name} lacks NICs of the host")
    rate = network.library.rate(network.build_graph(read.pattern, channels, read.crossnic))
    stated = round(Fraction(written.speed_MBps, MBps_PER_GBps), 6)
    if rate != promised or read.speedinter != stated or read.speedintra != stated:
        raise VerificationError(
            f"{where}: {read.name} reaches {float(rate):.6g} GB/s with a speed of "
            f"{float(read.speedinter):.6g}, but {float(promised):.6g} and {float(stated):.6g} were "
            "promised"
        )


def _write_comment(
    chosen: ChosenHostGraphs,
    topology: Topology,
    numbers: GpuNumbers,
    version: NcclVersion,
    remarks: Sequence[str],
) -> str:
    network, rates = chosen.network, chosen.algbw_GBps
    lines = [
        f"topoplan {VERSION}, for jobs of {network.hosts} hosts (on one host, or with other "
        f"numbers of hosts, the speeds are wrong): {chosen.graphs.rings.channels} channels through "
        f"{len(network.gpus)} GPUs and {len(network.nets)} NICs of {topology.name} on each",
        f"fingerprint {topology.fingerprint}, for NCCL "
        f"{version if version < NEWEST else 'up to ' + str(NEWEST)}",
        f"reaches at large sizes, GB/s algbw by NCCL's own count: "
        f"{', '.join(f'{name} {float(rate):.4g}' for name, rate in rates.items())}; at most "
        f"{chosen.bound_GBps:.4g} with such channels ({chosen.fraction:.1%} of it)",
        "assumes that all hosts are equal, that NICs of one dev reach each other between hosts at "
        "full rate, and that nothing else sends",
        *remarks,
        f"GPUs: dev by {numbers.source}; NICs: dev by the topology; NCCL joins the hosts itself; "
        "only for communicators of just these GPUs on every host",
    ]
    return "  <!-- " + "\n       ".join(map(make_plain, lines)) + " -->"
