"""NCCL's graphs (NCCL_GRAPH_DUMP_FILE, NCCL_GRAPH_FILE) as the channels of a communicator."""

from fractions import Fraction

from .....topo.errors import InputError
from ...nccl_files.graph_file import (
    NVLS_ID,
    RING_ID,
    TREE_ID,
    GraphFile,
    NcclGraph,
    read_graph_file,
)
from ..file_contents import (
    FileContents,
    FileFinding,
    Location,
    ObservedCommunicator,
    Pick,
    SearchResult,
    chain_parents,
)

# Factors of NCCL's tuner on the rates of trees, and in addition on pattern 3.
_TREE_FACTOR = Fraction(92, 100)
_TREE_PENALTY = Fraction(85, 100)
# The rate in GB/s of the one channel that NCCL falls back to if its search fails.
_SIMPLE_GBps = Fraction(1, 10)
# First bit of a GPU's number that belongs to the number of its host.
_HOST_SHIFT = 56
# Most GPUs to name in an error.
_MAX_NAMED = 8


def read_graph_dump(text: str, where: str) -> FileContents:
    """Return the rings and chains of a graph file; ranks are its GPUs in the order of numbers.

    A channel of NCCL's trees is a chain of a host's GPUs, which begins at its root. `where` is the
    file's name. Raise InputError, with the line, if a channel misses a GPU or lists one twice.
    """
    file = read_graph_file(text, where)
    devs = sorted({dev for graph in file.graphs for channel in graph.channels for dev in channel})
    if len(devs) < 2:
        raise InputError(f"{where}: its channels name {len(devs)} GPU; expected at least 2")
    rank_of = {dev: rank for rank, dev in enumerate(devs)}
    graphs = [graph for graph in file.graphs if graph.id in (RING_ID, TREE_ID)]
    for graph in graphs:
        _check_channels(graph, devs, where)
    findings = tuple(
        FileFinding(
            "simple-order",
            f"{graph.name} is the simple order of ranks: NCCL's search failed, and its tuner "
            "counts one channel of 0.1 GB/s",
            "try an older or newer NCCL",
            graph.line,
        )
        for graph in graphs
        if graph.nchannels == 1 and graph.speedintra <= _SIMPLE_GBps
    )
    rings, chains = (
        [
            tuple(rank_of[dev] for dev in channel)
            for graph in graphs
            if graph.id == ident
            for channel in graph.channels[: graph.nchannels]
        ]
        for ident in (RING_ID, TREE_ID)
    )
    if not rings and not chains:
        raise InputError(
            f"{where}: neither rings nor trees; NCCL finds those by itself, dump them on the "
            "machine"
        )
    hosts = {dev >> _HOST_SHIFT for dev in devs}
    notes = [note.removeprefix(f"{where}: ") for note in file.notes]
    if any(net for graph in file.graphs for channel in graph.nets for net in channel):
        notes.append("its channels go on to other nodes; what happens inside this node is judged")
    nvls = file.find(NVLS_ID)
    communicator = ObservedCommunicator(
        ranks=len(devs),
        nodes=len(hosts),
        locations={
            rank: Location(
                f"host{dev >> _HOST_SHIFT}" if len(hosts) > 1 else None,
                _number_on_host(dev),
                physical=True,
            )
            for dev, rank in rank_of.items()
        },
        rings=tuple(rings),
        trees=tuple(chain_parents(chain) for chain in chains),
        patterns=tuple(
            SearchResult(
                graph.pattern,
                graph.nchannels,
                float(graph.speedintra),
                float(graph.speedinter),
                graph.typeintra,
                graph.typeinter,
            )
            for graph in graphs
        ),
        uses_nvls=nvls is not None and nvls.nchannels > 0,
    )
    pick = None if communicator.uses_nvls else predict_pick(file, len(devs))
    return FileContents(
        where,
        "NCCL graph file",
        communicators=(communicator,),
        picks=(Pick("allreduce", 1 << 30, pick, "SIMPLE"),) if pick else (),
        findings=findings,
        notes=tuple(notes),
        is_graph_file=True,
    )


def predict_pick(file: GraphFile, ranks: int) -> str | None:
    """Return "RING" or "TREE": what NCCL's tuner picks for a large allreduce in one node.

    The pick follows from the rates that the file declares; None if it does not declare both.
    """
    ring, tree = file.find(RING_ID), file.find(TREE_ID)
    if ring is None or tree is None:
        return None
    # The tuner doubles the channels of both, which changes nothing between them.
    by_ring = ring.nchannels * ring.speedintra * ranks / (2 * (ranks - 1))
    by_tree = tree.nchannels * tree.speedintra * _TREE_FACTOR / 2
    if tree.pattern == 3:
        by_tree *= _TREE_PENALTY
    return "RING" if by_ring >= by_tree else "TREE"


def _number_on_host(dev: int) -> int:
    return dev & (1 << _HOST_SHIFT) - 1


def _check_channels(graph: NcclGraph, devs: list[int], where: str) -> None:
    """Raise InputError if channels are missing, or one does not have each GPU of the file once."""
    at = f"{where}, line {graph.line}: {graph.name}"
    if len(graph.channels) < graph.nchannels:
        raise InputError(
            f"{at} declares {graph.nchannels} channels and has {len(graph.channels)}; NCCL stops "
            "on that: is the file cut off?"
        )
    for number, channel in enumerate(graph.channels[: graph.nchannels]):
        missing = [f"{_number_on_host(dev):#x}" for dev in devs if dev not in channel]
        twice = sorted({f"{_number_on_host(d):#x}" for d in channel if channel.count(d) > 1})
        wrong = [f"misses GPU {', '.join(missing[:_MAX_NAMED])}"] if missing else []
        wrong += [f"has GPU {', '.join(twice[:_MAX_NAMED])} more than once"] if twice else []
        if wrong:
            stops = "NCCL would hang" if graph.id == TREE_ID else "NCCL stops on it"
            raise InputError(
                f"{at}, channel {number} {' and '.join(wrong)}; {stops}; list every GPU once"
            )
