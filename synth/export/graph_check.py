"""Check graph files by NCCL's rules, including those that NCCL does not check itself, and convert
them to channels.

NCCL trusts `nchannels`, reads unknown types as LOC, and never checks trees: it hangs on one that
misses a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise

from ...topo.errors import InputError
from ..channels.channels import CHAIN, RING, Channels
from .graph_file import (
    COLLNET_CHAIN_ID,
    NAMES,
    NVLS_ID,
    RING_ID,
    TREE_ID,
    TYPES,
    GraphFile,
    NcclGraph,
)
from .nccl_version import NEWEST, NcclVersion

# Patterns of the graphs with each id, as NCCL's search numbers them.
PATTERNS = {RING_ID: (4,), TREE_ID: (1, 2, 3), COLLNET_CHAIN_ID: (3,), NVLS_ID: (5,), 4: (6,)}
# Graphs whose channels go through all GPUs.
_CROSS_ALL_GPUS = (RING_ID, TREE_ID, COLLNET_CHAIN_ID)
# GPUs that a message names.
_MAX_NAMED = 8
# Characters of a comment's line, within what NCCL reads as a value.
_MAX_COMMENT = 250


def check_graph_file(
    file: GraphFile,
    devs: Collection[int] | None = None,
    version: NcclVersion = NEWEST,
    *,
    inside: bool = False,
) -> None:
    """Raise InputError for the first thing in a file that NCCL would refuse, misread, or hang on.

    `devs` are the numbers of the machine's GPUs, if it is known; with `inside` the file is for one
    host, so it has no nets.
    """
    elements = 1 + sum(
        1 + sum(1 + len(c) + len(n) for c, n in zip(g.channels, g.nets, strict=True))
        for g in file.graphs
    )
    if elements > version.max_elements:
        raise InputError(
            f"{file.where}: {elements} XML elements; NCCL {version} reads {version.max_elements} "
            "of a graph file"
        )
    # Without the machine, the first channel through all GPUs says which there are.
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
        for number, channel in enumerate(graph.channels):
            nets = graph.nets[number]
            if len(channel) + len(nets) > version.max_children:
                raise InputError(
                    f"{where}, channel {number}: {len(channel) + len(nets)} GPUs and nets; NCCL "
                    f"{version} reads "
                    f"{version.max_children} in a channel"
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
            f"{version.max_channels}, and does not check"
        )
    for key, kind in (("typeintra", graph.typeintra), ("typeinter", graph.typeinter)):
        if kind not in TYPES or (kind == "P2C" and not version.knows_p2c):
            raise InputError(
                f"{where}: {key}={kind[:20]!r} is not known to NCCL {version}, which reads it as "
                f"LOC; expected one of {', '.join(TYPES)}"
            )
    if graph.nchannels and not graph.speedintra:
        raise InputError(
            f"{where}: speedintra is 0, so the tuner would never use it; expected GB/s of a channel"
        )


def _check_members(channel: tuple[int, ...], expected: set[int], known: bool, where: str) -> None:
    strange = [dev for dev in channel if dev not in expected]
    twice = {dev for dev in channel if channel.count(dev) > 1}
    missing = expected - set(channel)
    place = "on the machine" if known else "in the first"
    wrong = [f"has {_list_devs(strange)}, not {place}"] if strange else []
    wrong += [f"has {_list_devs(twice)} more than once"] if twice else []
    wrong += [f"misses {_list_devs(missing)}"] if missing else []
    if wrong:
        is_other = known and strange
        other = "is the file for another machine?" if is_other else "NCCL would hang or fail"
        raise InputError(f"{where} {' and '.join(wrong)}; expected every GPU once; {other}")


def _list_devs(devs: Collection[int]) -> str:
    listed = [f"{dev:#x}" for dev in sorted(set(devs))]
    return f"dev {', '.join(listed[:_MAX_NAMED])}{' ...' if len(listed) > _MAX_NAMED else ''}"


def list_channels(graph: NcclGraph, rank_of: dict[int, int], where: str) -> Channels:
    """Return the channels of a ring or tree graph as orders of ranks; `rank_of` maps dev numbers to
    ranks.

    A tree inside a host is a chain from its first GPU, the root. Raises InputError if a channel
    does not have all GPUs.
    """
    for number, channel in enumerate(graph.channels):
        _check_members(
            channel,
            set(rank_of),
            True,
            f"{where}, line {graph.line}: {graph.name}, channel {number}",
        )
    orders = tuple(tuple(rank_of[dev] for dev in channel) for channel in graph.channels)
    return Channels(RING if graph.id == RING_ID else CHAIN, orders)


def list_hops(channels: Channels) -> set[tuple[int, int]]:
    """Return the pairs of ranks that send to each other directly."""
    out: set[tuple[int, int]] = set()
    for order in channels.orders:
        out.update(pairwise((*order, order[0]) if channels.shape == RING else order))
        if channels.shape == CHAIN:
            out.update(pairwise(order[::-1]))
    return out


def make_plain(line: str) -> str:
    """Return a line in a form for comments of all formats: plain characters, no double dashes."""
    plain = re.sub(r"[^ -~]", "?", line)
    return re.sub(r"-(?=-)", "", plain)[:_MAX_COMMENT].rstrip("-")
