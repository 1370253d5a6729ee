"""The load of every link in every step of a schedule, in exact integers, as one array.

Switches may compute (NVLink SHARP, SHARP): a device that can copy forwards one stream to several
devices, and one that can reduce adds the streams that meet in it and forwards one. Within a step,
copies of one chunk from one rank are one stream until their routes part, at a device that can copy;
additions of one chunk to one rank are one stream from the device on at which their routes meet, if
it can reduce. Everything else is one stream per transfer.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from ...topo.grouping import group_by_key
from ..ir.collective import Chunk, Collective
from ..ir.transfers import Op, Transfers

DirectedLink = tuple[str, str]
Path = tuple[str, ...]
# Sums below this fit into 64-bit integers.
_SAFE = 1 << 61


@dataclass(frozen=True)
class Loads:
    """Link loads and route latencies by step, as integers: int64 if they fit, else Python's.

    `seconds[step, i]` / `scale` is the time that link `links[i]` needs for its load of `step`, in
    seconds per GB of buffer; `latency[step]` / `latency_scale` is the greatest latency of a route
    in the step, in us.
    """

    links: tuple[DirectedLink, ...]
    seconds: NDArray[Any]
    scale: int
    latency: NDArray[Any]
    latency_scale: int


# The latest arguments of `step_loads`, and its result: planning, costing and tightening request the
# same loads in turn. Comparing by identity is quick; hashing a million chunks is not.
_latest: list[tuple[tuple[Any, ...], Loads]] = []


def step_loads(
    chunks: tuple[Chunk, ...], transfers: Transfers, steps: int, topology: Topology
) -> Loads:
    """Return link loads and latencies of a schedule's transfers for steps 0..`steps` - 1.

    Only links that carry data are listed. The latest result is cached by identity of the arguments.
    """
    asked = (chunks, transfers, topology)
    for same, loads in _latest:
        if all(a is b for a, b in zip(asked, same, strict=True)) and len(loads.latency) == steps:
            return loads
    loads = _compute_loads(chunks, transfers, steps, topology)
    _latest[:] = [(asked, loads)]
    return loads


def _compute_loads(
    chunks: tuple[Chunk, ...], transfers: Transfers, steps: int, topology: Topology
) -> Loads:
    listed, path_of = transfers.paths()
    ranks = topology.ranks
    paths = [tuple(pairwise((ranks[src], *route, ranks[dst]))) for src, dst, route in listed]
    links = tuple(sorted({link for path in paths for link in path}))
    number = {link: i for i, link in enumerate(links)}
    # Fractions become integers: shares and latencies over their common denominators, and 1 /
    # capacity = weight / rates.
    share_scale = lcm(*{c.share.denominator for c in chunks})
    shares = [c.share.numerator * (share_scale // c.share.denominator) for c in chunks]
    capacity = [topology.capacity_GBps[link] for link in links]
    rates = lcm(*(c.numerator for c in capacity))
    weights = [c.denominator * (rates // c.numerator) for c in capacity]
    latency_scale = lcm(*{x.denominator for x in topology.latency_us.values()})
    of_link = {link: int(x * latency_scale) for link, x in topology.latency_us.items()}
    latencies = [sum(of_link[link] for link in path) for path in paths]
    latency = np.zeros(steps, dtype=_exact(max(latencies, default=0) * max(steps, 1)))
    np.maximum.at(latency, transfers.step, np.array(latencies, dtype=latency.dtype)[path_of])
    hops = max(map(len, paths), default=0)
    heaviest = len(transfers) * hops * max(shares, default=0) * max(weights, default=0)
    load = np.zeros((steps, len(links)), dtype=_exact(heaviest))
    if computes_in_network(topology):
        # Switches merge and spread streams, so a link's load is not the sum over the transfers that
        # cross it.
        for step in range(steps):
            now = transfers.taken(transfers.step == step)
            for link, share in stream_loads(chunks, now, topology).items():
                load[step, number[link]] = int(share * share_scale)
    else:
        # Without such switches, it is the sum: hop by hop, all transfers at once, over a table of
        # the links that each route crosses; -1 after the end of a shorter route.
        share_of = np.array(shares, dtype=load.dtype)[transfers.chunk]
        crossed = np.full((len(paths), hops), -1, dtype=np.int64)
        for row, path in enumerate(paths):
            crossed[row, : len(path)] = [number[link] for link in path]
        for hop in range(hops):
            link_of = crossed[path_of, hop]
            crosses = link_of >= 0
            np.add.at(load, (transfers.step[crosses], link_of[crosses]), share_of[crosses])
    load *= np.array(weights, dtype=load.dtype)
    return Loads(links, load, share_scale * rates, latency, latency_scale)


def _exact(largest: int) -> Any:
    """Return the array type for integers up to `largest`; Python's are a hundred times slower."""
    return np.int64 if largest < _SAFE else object


def computes_in_network(topology: Topology, collective: Collective | None = None) -> bool:
    """Return whether any device other than a GPU copies or adds data.

    With a `collective`, only what helps it counts.
    """
    return bool(list_computing(topology, collective))


def list_computing(topology: Topology, collective: Collective | None = None) -> list[str]:
    """Return the ids of all devices but GPUs that copy or add data, such as NVLink SHARP switches.

    With a `collective`, only what helps it counts: to add, where data is added, and to copy, where
    several ranks receive the same data. A copy of a partial sum helps no one, as each contribution
    must be added once.
    """
    copies = collective is None or collective.spreads
    adds = collective is None or collective.reduces
    return [
        d.id
        for d in topology.devices
        if d.kind != "gpu" and ((copies and d.can_copy) or (adds and d.can_reduce))
    ]


def stream_loads(
    chunks: Sequence[Chunk], step: Transfers, topology: Topology
) -> dict[DirectedLink, Fraction]:
    """Return the share of the buffer that each used link carries for the transfers of one step.

    `chunks` are the schedule's. Unlike a plain sum over transfers, it counts a stream once where a
    switch copies or adds.
    """
    switches = [d for d in topology.devices if d.kind != "gpu"]
    joining = {
        "copy": {d.id for d in switches if d.can_copy},
        "reduce": {d.id for d in switches if d.can_reduce},
    }
    # Streams that are added up form the same tree as streams that are copied, seen from the
    # destination.
    merging: dict[tuple[Op, int, int], list[Path]] = defaultdict(list)
    for t in step:
        path = (topology.ranks[t.src], *t.route, topology.ranks[t.dst])
        ends = (t.src, path) if t.op == "copy" else (t.dst, path[::-1])
        merging[t.op, ends[0], t.chunk].append(ends[1])
    load: dict[DirectedLink, Fraction] = defaultdict(Fraction)
    for (op, _, chunk), paths in merging.items():
        for link, streams in _count_streams(paths, joining[op]).items():
            load[link if op == "copy" else link[::-1]] += streams * chunks[chunk].share
    return dict(load)


def _count_streams(paths: list[Path], joining: set[str]) -> dict[DirectedLink, int]:
    """Return the number of streams on each link of paths that begin at one device.

    Devices in `joining` need only one stream for all paths through them.
    """
    total: dict[DirectedLink, int] = defaultdict(int)

    def walk(hop: int, members: list[Path]) -> int:
        """Count the streams into device `hop` of paths that are identical up to there."""
        device = members[0][hop]
        ending = needed = sum(len(path) == hop + 1 for path in members)
        onward = group_by_key((path[hop + 1], path) for path in members if len(path) > hop + 1)
        for neighbour, group in onward.items():
            streams = walk(hop + 1, group)
            total[device, neighbour] += streams
            needed += streams
        return 1 if device in joining and not ending else needed

    walk(0, paths)
    return dict(total)
