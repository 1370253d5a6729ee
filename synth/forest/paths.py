"""Paths for alltoall, scatter and gather: every piece has one source and one target, and GPUs on
the way hand it on.

The concurrent multicommodity flow, by column generation: shortest paths under the links' prices,
weighed so that the busiest link is as idle as it can be. The dual prices are the certificate of
kind "prices".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from ...topo.errors import InfeasibleError, TimeLimitError
from ...topo.graph import Topology
from ..cost.affine import tighten
from ..effort import Effort
from ..ir.collective import Chunk, Collective
from ..ir.schedule import Schedule
from ..ir.transfers import COPY, Transfers
from .large.level_paths import LevelPaths
from .machine.metric import Floats, Link
from .machine.own_routes import OwnRoutes
from .machine.symmetry import group
from .weigh import Division, divide, orbits, round_shares

# Devices from the source GPU to the target GPU, relaying GPUs included.
Path = tuple[str, ...]
_TOLERANCE = 1e-9
_HOP_SHARE = 1e-6
# Seconds of a quiet core for a pair's cheapest path, and for each device that is looked at from a
# source.
_PATH_S, _DEVICE_S = 1e-5, 1e-6


@dataclass
class Flow:
    """Paths, each with its share (a float) of what its source sends to its target, and prices of
    links.

    Times are in units of one pair's part over 1 GB/s: `value` is the lower bound that the prices
    prove, `reached` the time that the shares take.
    """

    paths: list[Path] = field(default_factory=list)
    shares: Floats = field(default_factory=lambda: np.zeros(0))
    prices: dict[Link, float] = field(default_factory=dict)
    value: float = 0.0
    reached: float = np.inf
    images: NDArray[np.int64] | None = None


class PathPacking:
    """Column generation for the pairs from `sources` to all other ranks."""

    def __init__(
        self,
        topology: Topology,
        sources: Sequence[int],
        turns: list[NDArray[np.int64]] | None = None,
        routes: OwnRoutes | None = None,
    ) -> None:
        """`routes`: ranks send to each other on these only; the turns must keep them."""
        self.routes = routes
        self.topology = topology
        self.links = list(topology.capacity_GBps)
        self.names = [d.id for d in topology.devices]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.gpus = np.array([self.index[g] for g in topology.ranks], dtype=np.int64)
        self.rank_of = {gpu: r for r, gpu in enumerate(topology.ranks)}
        self.sources, self.times = list(sources), 1
        n = len(topology.ranks)
        rows = np.arange(len(self.links))
        # Where the shifts take rank 0 to every rank just once, one source stands for all, and links
        # of an orbit are one row.
        images = group(turns, 4096) if turns and len(self.sources) == n else None
        self.images = None
        if images is not None and len(set(images[:, self.gpus[0]].tolist())) == n == len(images):
            self.images, self.sources, self.times = images, [0], n
            rows = orbits(topology, self.links, images)
        _, row = np.unique(rows, return_inverse=True)
        self.row = row.reshape(-1)
        capacity = np.array([float(topology.capacity_GBps[link]) for link in self.links])
        self.capacity: Floats = np.bincount(self.row, weights=capacity).astype(np.float64)
        self.number = {link: i for i, link in enumerate(self.links)}
        self.src = np.array([self.index[a] for a, _ in self.links], dtype=np.int64)
        self.dst = np.array([self.index[b] for _, b in self.links], dtype=np.int64)
        self.uses: dict[Path, Counter[int]] = {}
        self.flow = Flow(images=self.images)
        self.finished = False

    def run(self, effort: Effort, say: Callable[[str], None] | None = None) -> Flow:
        """Generate paths until they are optimal or the work that is allowed is done, and return
        them.

        A later call goes on where an earlier one ended.
        """
        out = self.flow
        prices: Floats = 1 / self.capacity
        duals: Mapping[Hashable, float] = {}
        if self.uses and not self.finished:
            solved = self._solve(effort)
            prices, duals = solved.prices, solved.duals
        while not self.finished:
            fresh = self._price(prices, duals)
            effort.spend(
                len(self.sources) * (_PATH_S * len(self.gpus) + _DEVICE_S * len(self.names))
            )
            if not fresh:
                self.finished = True
                break
            if self.uses and effort.is_over("packing paths"):
                break
            for path in fresh:
                self.uses[path] = self._count_uses(path)
            solved = self._solve(effort)
            out.shares, out.reached, prices, duals = (
                solved.shares,
                solved.time,
                solved.prices,
                solved.duals,
            )
            out.paths = list(self.uses)
            if out.reached <= out.value * (1 + _TOLERANCE):
                self.finished = True
            if say is not None:
                say(f"packing: {len(self.uses)} paths")
        return out

    def _price(self, prices: Floats, duals: Mapping[Hashable, float]) -> list[Path]:
        """Return new paths that cost less than their pair's dual; keep the prices if they raise the
        bound.
        """
        # Of paths at the same price, the one of fewest links is taken: a small charge a link breaks
        # ties.
        out, size = self.flow, len(self.names)
        by_link = prices[self.row]
        weight = by_link + _HOP_SHARE * float(by_link.mean())
        if self.routes is None:
            matrix = csr_matrix((weight, (self.src, self.dst)), shape=(size, size))
            nodes_of_ranks = self.gpus
        else:
            # Over ranks instead of devices; a price of 0 would be no edge, but every hop costs
            # something.
            distance = self.routes.distances(weight)
            matrix = csr_matrix(np.where(np.isfinite(distance), distance, 0.0))
            nodes_of_ranks = np.arange(len(self.gpus))
        starts = nodes_of_ranks[self.sources]
        length, before = dijkstra(matrix, indices=starts, return_predecessors=True)
        if not np.isfinite(length[:, nodes_of_ranks]).all():
            raise InfeasibleError(
                f"packing: the system's routes on {self.topology.name!r} do not join all GPUs"
            )
        # The bound counts every pair at its cheapest path, whether or not that is new.
        total, fresh = 0.0, []
        for row, source in enumerate(starts.tolist()):
            for target in nodes_of_ranks.tolist():
                if target == source:
                    continue
                nodes = [target]
                while nodes[-1] != source:
                    nodes.append(int(before[row, nodes[-1]]))
                path = self._name_path(nodes[::-1])
                price = sum(by_link[self.number[link]] for link in pairwise(path))
                total += price
                if path not in self.uses and price * self.times < duals.get(
                    (path[0], path[-1]), np.inf
                ) * (1 - _TOLERANCE):
                    fresh.append(path)
        # Weak duality: no routing is faster than what all pairs' cheapest paths cost, over what all
        # links cost.
        value = total * self.times / float(self.capacity @ prices)
        if value > out.value:
            out.value = value
            out.prices = {link: float(by_link[i]) for i, link in enumerate(self.links)}
        return fresh

    def _name_path(self, nodes: Sequence[int]) -> Path:
        """Return the path over devices, given by their places; with own routes, along those from
        each rank to the next.
        """
        if self.routes is None:
            return tuple(self.names[i] for i in nodes)
        hops = [self.routes.route(u, v) for u, v in pairwise(nodes)]
        return (hops[0][0], *(device for hop in hops for device in hop[1:]))

    def _count_uses(self, path: Path) -> Counter[int]:
        """Return how often a path uses each row, all its images together."""
        used: Counter[int] = Counter()
        for link in pairwise(path):
            used[int(self.row[self.number[link]])] += self.times
        return used

    def _solve(self, effort: Effort) -> Division:
        """Divide what each pair sends among its paths."""
        pairs = [(path[0], path[-1]) for path in self.uses]
        division = divide(list(self.uses.values()), self.capacity, pairs, effort=effort)
        if division is None:
            raise TimeLimitError("the linear program of paths was not solved")
        return division


def path_schedule(packing: PathPacking, collective: Collective, strategy: str) -> Schedule:
    """Return the schedule of alltoall or scatter in which every piece moves one hop along its path
    in each step.
    """
    topology, flow = packing.topology, packing.flow
    pairs = {pair: i for i, pair in enumerate({(p[0], p[-1]): None for p in flow.paths})}
    pair_of = [pairs[p[0], p[-1]] for p in flow.paths]
    capacity = [Fraction(0)] * len(packing.capacity)
    for i, link in enumerate(packing.links):
        capacity[int(packing.row[i])] += topology.capacity_GBps[link]
    shares = round_shares(flow.shares, list(packing.uses.values()), capacity, pair_of)
    # All images of a path are laid out at once: one path may stand for thousands of pairs.
    images = np.arange(len(packing.names))[None] if flow.images is None else flow.images
    layout = _Layout(topology, collective)
    for path, share in zip(flow.paths, shares, strict=True):
        if share:
            layout.add(images[:, [packing.index[d] for d in path]], share)
    return layout.finish(strategy)


def level_schedule(paths: LevelPaths, collective: Collective, strategy: str) -> Schedule:
    """Return the schedule of alltoall in which every pair's part moves one hop along the pair's
    path in each step.
    """
    layout = _Layout(paths.topology, collective)
    lengths = (paths.stops >= 0).sum(axis=1)
    for length in sorted(set(lengths.tolist()) - {1}):
        devices = paths.stops[lengths == length, :length][:, ::-1].astype(np.int64)
        # Paths that pass GPUs at the same places have the same hops.
        places, which = np.unique(layout.rank_of[devices] >= 0, axis=0, return_inverse=True)
        for number in range(len(places)):
            layout.add(devices[which.reshape(-1) == number], Fraction(1))
    return layout.finish(strategy)


class _Layout:
    """Chunks and transfers of paths, as they are collected."""

    def __init__(self, topology: Topology, collective: Collective) -> None:
        self.topology, self.collective = topology, collective
        self.names = [d.id for d in topology.devices]
        index = {name: i for i, name in enumerate(self.names)}
        self.rank_of = np.full(len(self.names), -1, dtype=np.int64)
        self.rank_of[[index[g] for g in topology.ranks]] = np.arange(len(topology.ranks))
        self.chunks: list[Chunk] = []
        self.parts: list[Transfers] = []

    def add(self, devices: NDArray[np.int64], share: Fraction) -> None:
        """Send `share` of what the first device of each row has for the last along the row, which
        all pass GPUs at the same places.
        """
        n, first = self.collective.ranks, len(self.chunks)
        # GPUs on the way relay the piece, so the path is sent in hops from GPU to GPU.
        stops = np.flatnonzero(self.rank_of[devices[0]] >= 0).tolist()
        ranks = self.rank_of[devices[:, stops]]
        number = np.arange(first, first + len(devices))
        for hop, (a, b) in enumerate(pairwise(stops)):
            # Routes are stored once each, and transfers refer to them by number.
            between, which = np.unique(devices[:, a + 1 : b], axis=0, return_inverse=True)
            routes = [tuple(self.names[d] for d in row) for row in between.tolist()]
            step = np.full(len(devices), hop)
            op = np.full(len(devices), COPY)
            self.parts.append(
                Transfers(
                    step, ranks[:, hop], ranks[:, hop + 1], number, op, which.reshape(-1), routes
                )
            )
        each = self.collective.name == "alltoall"
        sources = ranks[:, 0].tolist() if each else [None] * len(devices)
        part = share / n
        self.chunks += [
            Chunk(part, source, target)
            for source, target in zip(sources, ranks[:, -1].tolist(), strict=True)
        ]

    def finish(self, strategy: str) -> Schedule:
        """Return the schedule of all that was added."""
        n = self.collective.ranks
        # What a rank has for itself is never sent, but is part of the buffer.
        for rank in range(n):
            source = rank if self.collective.name == "alltoall" else None
            if source is not None or rank == self.collective.root:
                self.chunks.append(Chunk(Fraction(1, n), source, rank))
        transfers = Transfers.joined(self.parts).sorted()
        return tighten(
            Schedule(self.collective, strategy, tuple(self.chunks), transfers, ()), self.topology
        )
