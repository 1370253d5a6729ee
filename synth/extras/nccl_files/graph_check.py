"""Check graph files by NCCL's rules, and convert them to channels.

The rules include those that NCCL does not check itself: it trusts `nchannels`, reads unknown path
types as LOC (inside one GPU), and never checks trees, so it hangs if a tree lacks a GPU. Channels
are topoplan's form of the same: rings, or chains for NCCL's trees, as orders of ranks.
"""

import re
from collections.abc import Collection

from ....topo.errors import InputError
from ...channels.channels import CHAIN, RING, Channels
from ...channels.orders import hops
from ..stock.constants import COLLNET_DIRECT, FILE_TYPES, NVLS, TREE, TREES
from ..stock.constants import RING as RING_PATTERN
from ..stock.nccl_version import NEWEST, NcclVersion
from .graph_file import (
    COLLNET_CHAIN_ID,
    COLLNET_DIRECT_ID,
    NAMES,
    NVLS_ID,
    RING_ID,
    TREE_ID,
    GraphFile,
    NcclGraph,
)

# Allowed patterns of the graph with each id.
PATTERNS = {
    RING_ID: (RING_PATTERN,),
    TREE_ID: TREES,
    COLLNET_CHAIN_ID: (TREE,),
    NVLS_ID: (NVLS,),
    COLLNET_DIRECT_ID: (COLLNET_DIRECT,),
}
# Graphs whose channels go through all GPUs.
_CROSS_ALL_GPUS = (RING_ID, TREE_ID, COLLNET_CHAIN_ID)
# Most GPUs to list in a message.
_MAX_NAMED = 8
# Most characters in a line of a comment, within NCCL's limit for values.
_MAX_COMMENT = 250


def check_graph_file(
    file: GraphFile,
    devs: Collection[int] | None = None,
    version: NcclVersion = NEWEST,
    *,
    inside: bool = False,
) -> None:
    """Raise InputError for the first thing in a file that NCCL would refuse, misread, or hang on.

    `devs` are the device numbers of the machine's GPUs, None if the machine is unknown; `version`
    is NCCL's. With `inside` the file is for a single host, so it must not have <net> elements.
    """
    elements = 1 + sum(
        1 + sum(1 + len(c) + len(n) for c, n in zip(g.channels, g.nets, strict=True))
        for g in file.graphs
    )
    if elements > version.max_elements:
        raise InputError(
            f"{file.where}: {elements} XML elements; NCCL {version} reads at most "
            f"{version.max_elements} from a graph file"
        )
    # If the machine is unknown, take its GPUs from the first channel that must have all of them.
    members = next(
        (
            channel
            for graph in file.graphs
            if graph.id in _CROSS_ALL_GPUS
            for channel in graph.channels
        ),
        (),
    )
    expected = set(members if devs is None else devs)
    for graph in file.graphs:
        where = f"{file.where}, line {graph.line}: {graph.name}"
        _check_attributes(graph, where, version)
        for number, (channel, nets) in enumerate(zip(graph.channels, graph.nets, strict=True)):
            if len(channel) + len(nets) > version.max_children:
                raise InputError(
                    f"{where}, channel {number}: {len(channel) + len(nets)} GPUs and nets; NCCL "
                    f"{version} reads at most {version.max_children} in a channel"
                )
            if inside and nets:
                raise InputError(
                    f"{where}, channel {number}: has <net> elements, but the machine is one host"
                )
            # A channel between nodes enters by one NIC and leaves by another.
            if len(nets) not in (0, 2) or len(nets) != len(graph.nets[0]):
                raise InputError(
                    f"{where}, channel {number}: {len(nets)} <net> elements; expected one first "
                    "and one last, or none in any"
                )
            if graph.id in _CROSS_ALL_GPUS:
                _check_members(channel, expected, devs is not None, f"{where}, channel {number}")


def _check_attributes(graph: NcclGraph, where: str, version: NcclVersion) -> None:
    if graph.id not in NAMES:
        raise InputError(f"{where}: NCCL has graphs 0 to {max(NAMES)}; this one would not be read")
    if graph.pattern not in PATTERNS[graph.id]:
        known = " or ".join(map(str, PATTERNS[graph.id]))
        raise InputError(f"{where}: pattern {graph.pattern}; expected {known}")
    if graph.nchannels != len(graph.channels):
        is_short = graph.nchannels > len(graph.channels)
        what = "fails on that" if is_short else f"would use the first {graph.nchannels}"
        raise InputError(
            f"{where}: nchannels={graph.nchannels}, but there are {len(graph.channels)} channels; "
            f"NCCL {what}"
        )
    if graph.nchannels > version.max_channels and graph.id in _CROSS_ALL_GPUS:
        raise InputError(
            f"{where}: {graph.nchannels} channels; NCCL {version} has room for "
            f"{version.max_channels} and does not check the number"
        )
    for key, kind in (("typeintra", graph.typeintra), ("typeinter", graph.typeinter)):
        if kind not in FILE_TYPES or (kind == "P2C" and not version.knows_p2c):
            raise InputError(
                f"{where}: {key}={kind[:20]!r} is not known to NCCL {version}, which reads it as "
                f"LOC; expected one of {', '.join(FILE_TYPES)}"
            )
    if graph.nchannels and not graph.speedintra:
        raise InputError(
            f"{where}: speedintra is 0, so the tuner would never use it; expected GB/s of a channel"
        )


def _check_members(channel: tuple[int, ...], expected: set[int], known: bool, where: str) -> None:
    unknown = [dev for dev in channel if dev not in expected]
    twice = {dev for dev in channel if channel.count(dev) > 1}
    missing = expected - set(channel)
    place = "on the machine" if known else "in the first"
    wrong = [f"has {_list_devs(unknown)}, not {place}"] if unknown else []
    wrong += [f"has {_list_devs(twice)} more than once"] if twice else []
    wrong += [f"lacks {_list_devs(missing)}"] if missing else []
    if wrong:
        hint = (
            "is the file for another machine?" if (known and unknown) else "NCCL would hang or fail"
        )
        raise InputError(f"{where} {' and '.join(wrong)}; expected every GPU once; {hint}")


def _list_devs(devs: Collection[int]) -> str:
    listed = [f"{dev:#x}" for dev in sorted(set(devs))]
    return f"dev {', '.join(listed[:_MAX_NAMED])}{' ...' if len(listed) > _MAX_NAMED else ''}"


def list_channels(graph: NcclGraph, rank_of: dict[int, int], where: str) -> Channels:
    """Return the channels of a ring or tree graph as orders of ranks.

    `rank_of` maps device numbers to ranks, and `where` names the file in errors. A tree inside a
    host is a chain from its first GPU, the root. Raise InputError if a channel lacks a GPU.
    """
    for number, channel in enumerate(graph.channels):
        _check_members(
            channel,
            set(rank_of),
            True,
            f"{where}, line {graph.line}: {graph.name}, channel {number}",
        )
    return Channels(
        RING if graph.id == RING_ID else CHAIN,
        tuple(tuple(rank_of[dev] for dev in channel) for channel in graph.channels),
    )


def list_hops(channels: Channels) -> set[tuple[int, int]]:
    """Return the pairs (source, destination) of ranks that channels send between.

    Chains are used in both directions.
    """
    return {hop for order in channels.orders for hop in hops(channels.shape, order)}


def make_plain(line: str) -> str:
    """Return a line fit for comments of every format: ASCII, short, without double dashes.

    Other characters become question marks; the end of a long line is cut off.
    """
    return re.sub(r"-(?=-)", "", re.sub(r"[^ -~]", "?", line))[:_MAX_COMMENT].rstrip("-")
