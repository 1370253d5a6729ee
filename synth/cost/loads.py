"""The load of every link in every step of a schedule, in exact whole numbers, as one array."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from ..ir.collective import Chunk
from ..ir.transfers import Transfers
from .innetwork import computes_in_network, stream_loads

DirectedLink = tuple[str, str]
# Sums below this fit into 64-bit integers.
_SAFE = 1 << 61


@dataclass(frozen=True)
class Loads:
    """`seconds[step, i]` / `scale` is how long link `links[i]` needs for its load of `step`, in s
    for each GB of buffer; `latency[step]` / `latency_scale` the greatest latency of a route in the
    step, in us. Whole numbers: int64 where they fit, Python's otherwise.
    """

    links: tuple[DirectedLink, ...]
    seconds: NDArray[Any]
    scale: int
    latency: NDArray[Any]
    latency_scale: int


# What step_loads was asked for last, and its answer: planning, costing and verifying ask for the
# same in turn.
_latest: list[tuple[tuple[Chunk, ...], Transfers, int, Topology, Loads]] = []


def step_loads(
    chunks: tuple[Chunk, ...], transfers: Transfers, steps: int, topology: Topology
) -> Loads:
    """Return the loads of transfers in `steps` steps, of those links that carry something."""
    for same_chunks, same_transfers, same_steps, same_topology, loads in _latest:
        if (
            same_chunks is chunks
            and same_transfers is transfers
            and same_topology is topology
            and same_steps == steps
        ):
            return loads
    loads = _compute_loads(chunks, transfers, steps, topology)
    _latest[:] = [(chunks, transfers, steps, topology, loads)]
    return loads


def _compute_loads(
    chunks: tuple[Chunk, ...], transfers: Transfers, steps: int, topology: Topology
) -> Loads:
    """Return what step_loads does."""
    ways, way = transfers.ways()
    ranks = topology.ranks
    paths = [tuple(pairwise((ranks[src], *route, ranks[dst]))) for src, dst, route in ways]
    links = tuple(sorted({link for path in paths for link in path}))
    number = {link: i for i, link in enumerate(links)}
    latency, latency_scale = _latencies(paths, way, transfers, steps, topology)
    # Fractions become whole numbers: shares over their common denominator, and 1 / capacity =
    # weight / rates.
    share_scale = lcm(*{c.share.denominator for c in chunks})
    capacity = [topology.capacity_GBps[link] for link in links]
    rates = lcm(*(c.numerator for c in capacity))
    weights = [c.denominator * (rates // c.numerator) for c in capacity]
    shares = [c.share.numerator * (share_scale // c.share.denominator) for c in chunks]
    # 64-bit integers wherever no sum can overflow them; Python's own are a hundred times slower.
    length = max(map(len, paths), default=0)
    top = len(transfers) * length * max(shares, default=0) * max(weights, default=0)
    exact: Any = np.int64 if top < _SAFE else object
    load = np.zeros((steps, len(links)), dtype=exact)
    if computes_in_network(topology):
        # Switches merge and spread streams, so a link's load is not the sum over the transfers that
        # cross it.
        for step in range(steps):
            now = transfers.taken(transfers.step == step)
            for link, share in stream_loads(chunks, now, topology).items():
                load[step, number[link]] = int(share * share_scale)
    else:
        # Otherwise it is: hop by hop, all transfers at once, over a table of the links that each
        # route crosses.
        share_of = np.array(shares, dtype=exact)[transfers.chunk]
        crossed = np.full((len(paths), length), -1, dtype=np.int64)
        for row, path in enumerate(paths):
            crossed[row, : len(path)] = [number[link] for link in path]
        for hop in range(length):
            link_of = crossed[way, hop]
            crosses = link_of >= 0  # shorter routes have ended
            np.add.at(load, (transfers.step[crosses], link_of[crosses]), share_of[crosses])
    load *= np.array(weights, dtype=exact)
    return Loads(links, load, share_scale * rates, latency, latency_scale)


def _latencies(
    paths: list[tuple[DirectedLink, ...]],
    way: NDArray[np.int64],
    transfers: Transfers,
    steps: int,
    topology: Topology,
) -> tuple[NDArray[Any], int]:
    """Return the greatest latency of a route in each step, as whole numbers, and their scale."""
    scale = lcm(*{x.denominator for x in topology.latency_us.values()})
    of_link = {link: int(x * scale) for link, x in topology.latency_us.items()}
    whole = [sum(of_link[link] for link in path) for path in paths]
    exact: Any = np.int64 if max(whole, default=0) * max(steps, 1) < _SAFE else object
    out = np.zeros(steps, dtype=exact)
    np.maximum.at(out, transfers.step, np.array(whole, dtype=exact)[way])
    return out, scale
