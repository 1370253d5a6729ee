"""Link loads where switches compute: a device that can copy sends one stream on to several, one
that can reduce adds the streams that meet in it and sends one on (NVLink SHARP, SHARP).

Within a step, copies of one chunk from one rank are one stream as far as their routes agree and
part at a device that can copy; additions of one chunk to one rank are one stream from the device on
where their routes meet, if it can reduce. Everything else is one stream for each transfer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction

from ...topo.graph import Topology
from ..ir.collective import Chunk
from ..ir.transfers import Transfers

Path = tuple[str, ...]


def computes_in_network(topology: Topology) -> bool:
    """Return whether any device other than a GPU copies or adds."""
    return any(d.kind != "gpu" and (d.can_copy or d.can_reduce) for d in topology.devices)


def stream_loads(
    chunks: Sequence[Chunk], step: Transfers, topology: Topology
) -> dict[tuple[str, str], Fraction]:
    """Return the share of the buffer that each directed link, as (src, dst), carries in one
    step.
    """
    spread: dict[tuple[int, int], list[Path]] = defaultdict(list)
    gathered: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for t in step:
        path = (topology.ranks[t.src], *t.route, topology.ranks[t.dst])
        if t.op == "copy":
            spread[t.src, t.chunk].append(path)
        else:
            gathered[t.dst, t.chunk].append(path[::-1])
    load: dict[tuple[str, str], Fraction] = defaultdict(Fraction)

    def copies(device: str) -> bool:
        return topology.by_id[device].kind != "gpu" and topology.by_id[device].can_copy

    def adds(device: str) -> bool:
        return topology.by_id[device].kind != "gpu" and topology.by_id[device].can_reduce

    for (_, chunk), paths in spread.items():
        for link, streams in _streams(paths, copies).items():
            load[link] += streams * chunks[chunk].share
    # Streams that are added up form the same tree as streams that are copied, seen from the
    # destination.
    for (_, chunk), paths in gathered.items():
        for (b, a), streams in _streams(paths, adds).items():
            load[a, b] += streams * chunks[chunk].share
    return dict(load)


def _streams(paths: list[Path], joins: Callable[[str], bool]) -> dict[tuple[str, str], int]:
    """Return how many streams each link carries on paths that begin at one device, if devices that
    `joins` need one each.
    """
    total: dict[tuple[str, str], int] = defaultdict(int)

    def walk(prefix: int, members: list[Path]) -> int:
        """Count the streams that paths need from device `prefix` on; up to there they are the
        same.
        """
        ending = sum(len(path) == prefix + 1 for path in members)
        onward: dict[str, list[Path]] = defaultdict(list)
        for path in members:
            if len(path) > prefix + 1:
                onward[path[prefix + 1]].append(path)
        needed = ending
        device = members[0][prefix]
        for neighbour, group in onward.items():
            streams = walk(prefix + 1, group)
            total[device, neighbour] += streams
            needed += streams
        return 1 if joins(device) and not ending else needed

    walk(0, paths)
    return dict(total)
