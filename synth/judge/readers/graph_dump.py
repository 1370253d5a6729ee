"""Read NCCL's graphs (NCCL_GRAPH_DUMP_FILE, NCCL_GRAPH_FILE) as what they make a communicator
do.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from ....topo.errors import InputError
from ...export.graph_file import NVLS_ID, RING_ID, TREE_ID, Graph, GraphFile, read_graph_file
from ..found import Communicator, Finding, Parents, Pattern, Pick, Place, Reading

_TREE_FACTOR = Fraction(92, 100)
# What NCCL's tuner takes off trees, and off those of pattern 3 besides.
_TREE_PENALTY = Fraction(85, 100)
# The rate of the one channel that stands for a search that found nothing.
_SIMPLE_GBps = Fraction(1, 10)
_HOST_SHIFT = 56


def read_graph_dump(text: str, where: str) -> Reading:
    """Return the rings and chains of a graph file, GPUs being ranks in the order of their numbers.

    Raises InputError where a channel misses a GPU or has one twice, with the line.
    """
    file = read_graph_file(text, where)
    devs = sorted({dev for graph in file.graphs for channel in graph.channels for dev in channel})
    if len(devs) < 2:
        raise InputError(f"{where}: its channels name {len(devs)} GPU; expected at least 2")
    rank_of = {dev: rank for rank, dev in enumerate(devs)}
    findings: list[Finding] = []
    for graph in file.graphs:
        if graph.id in (RING_ID, TREE_ID):
            _check_channels(graph, devs, where)
            if graph.nchannels == 1 and graph.speedintra <= _SIMPLE_GBps:
                findings.append(
                    Finding(
                        "simple-order",
                        f"{graph.name} is the simple order of ranks: NCCL found no path, and its "
                        "tuner counts one channel "
                        "of 0.1 GB/s",
                        "give it a graph file (topo-synth --format nccl-graph)",
                        graph.line,
                    )
                )
    rings = [tuple(rank_of[dev] for dev in channel) for channel in _channels(file, RING_ID)]
    chains = [
        _chain_parents([rank_of[dev] for dev in channel]) for channel in _channels(file, TREE_ID)
    ]
    if not rings and not chains:
        raise InputError(
            f"{where}: neither rings nor trees; NCCL finds those by itself, dump them on the "
            "machine"
        )
    nvls = file.find(NVLS_ID)
    hosts = {dev >> _HOST_SHIFT for dev in devs}
    places = {
        rank: Place(
            f"host{dev >> _HOST_SHIFT}" if len(hosts) > 1 else None,
            dev & (1 << _HOST_SHIFT) - 1,
            None,
            True,
        )
        for dev, rank in rank_of.items()
    }
    nets = any(net for graph in file.graphs for channel in graph.nets for net in channel)
    notes = [note.removeprefix(f"{where}: ") for note in file.notes]
    if nets:
        notes.append("its channels go on to other nodes; what happens inside this node is judged")
    communicator = Communicator(
        ranks=len(devs),
        nodes=len(hosts),
        places=places,
        rings=tuple(rings),
        trees=tuple(chains),
        patterns=tuple(_read_pattern(g) for g in file.graphs if g.id in (RING_ID, TREE_ID)),
        uses_nvls=nvls is not None and nvls.nchannels > 0,
    )
    pick = predict_pick(file, len(devs))
    picks = (Pick("allreduce", 1 << 30, pick, "SIMPLE"),) if pick else ()
    return Reading(
        where,
        "NCCL graph file",
        None,
        (),
        (communicator,),
        picks,
        findings=tuple(findings),
        notes=tuple(notes),
        is_graph_file=True,
    )


def predict_pick(file: GraphFile, ranks: int) -> str | None:
    """Return what NCCL's tuner takes for a large allreduce in one node, by the rates that the file
    declares.
    """
    ring, tree = file.find(RING_ID), file.find(TREE_ID)
    if (
        ring is None
        or tree is None
        or ((nvls := file.find(NVLS_ID)) is not None and nvls.nchannels > 0)
    ):
        return None
    # The tuner doubles channels of both; twice the same factor decides nothing.
    by_ring = ring.nchannels * ring.speedintra * ranks / (2 * (ranks - 1))
    by_tree = tree.nchannels * tree.speedintra * _TREE_FACTOR / 2
    if tree.pattern == 3:
        by_tree *= _TREE_PENALTY
    return "RING" if by_ring >= by_tree else "TREE"


def _channels(file: GraphFile, number: int) -> list[tuple[int, ...]]:
    """Return the channels that NCCL takes of a graph: as many as it declares."""
    graph = file.find(number)
    return list(graph.channels[: graph.nchannels]) if graph is not None else []


def _check_channels(graph: Graph, devs: list[int], where: str) -> None:
    """Raise InputError where a channel does not have every GPU of the file once, or channels are
    fewer than declared.
    """
    if len(graph.channels) < graph.nchannels:
        raise InputError(
            f"{where}, line {graph.line}: {graph.name} declares {graph.nchannels} channels and "
            f"has {len(graph.channels)}; "
            "NCCL stops on that: is the file cut off?"
        )
    for number, channel in enumerate(graph.channels[: graph.nchannels]):
        missing = [f"{dev & (1 << _HOST_SHIFT) - 1:#x}" for dev in devs if dev not in channel]
        twice = sorted(
            {f"{dev & (1 << _HOST_SHIFT) - 1:#x}" for dev in channel if channel.count(dev) > 1}
        )
        if missing or twice:
            wrong = [f"misses GPU {', '.join(missing[:8])}"] if missing else []
            wrong += [f"has GPU {', '.join(twice[:8])} more than once"] if twice else []
            stops = "NCCL would hang" if graph.id == TREE_ID else "NCCL stops on it"
            raise InputError(
                f"{where}, line {graph.line}: {graph.name}, channel {number} "
                f"{' and '.join(wrong)}; {stops}; every GPU once"
            )


def _chain_parents(order: list[int]) -> Parents:
    """Return the chain that begins at its root as a tree."""
    parents = [-1] * len(order)
    for above, rank in pairwise(order):
        parents[rank] = above
    return tuple(parents)


def _read_pattern(graph: Graph) -> Pattern:
    return Pattern(
        graph.pattern,
        graph.nchannels,
        float(graph.speedintra),
        float(graph.speedinter),
        graph.typeintra,
        graph.typeinter,
    )
