"""Packing spanning trees over GPUs into links: column generation, for allreduce schedules and their bound.

A unit of buffer is reduced along a tree to a root and broadcast back along it. A tree edge between two GPUs is a route
through switches; the reduction uses it one way, the broadcast the other, so each tree uses every link on its edges once
in both directions. Maximise the sum of the trees' weights under the links' bandwidths (of the narrower direction).
The dual prices links so that every tree costs at least 1: pricing is a minimum spanning tree over cheapest routes.
Trees alone reach the bound where links are symmetric (Tutte, Nash-Williams); else the weights are still right, the
prices (on the mean of both directions) still a bound.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra, minimum_spanning_tree

from ..topo.errors import InfeasibleError
from ..topo.graph import Topology
from ..topo.routes import Route
from .linear import pack
from .rounding import exact_rates

_HOP_PRICE = 1e-7
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Tree:
    """`edges` as routes between GPU devices (either direction stands for both)."""

    edges: tuple[Route, ...]


@dataclass(frozen=True)
class Packing:
    """Trees with their rates in GB/s, feasible exactly; and prices of (a, b) pairs, the same both ways."""

    trees: tuple[Tree, ...]
    rates_GBps: tuple[Fraction, ...]
    prices: dict[tuple[str, str], Fraction]

    @property
    def rate_GBps(self) -> Fraction:
        """Sum of the trees' rates: the allreduce algbw that they reach."""
        return sum(self.rates_GBps, Fraction(0))


class _Graph:
    """The topology as arrays: GPUs split in a sending and a receiving node, so that no route passes through one."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        capacity = topology.capacity_GBps
        self.pairs = sorted({(min(a, b), max(a, b)) for a, b in capacity if (b, a) in capacity})
        self.number = {pair: i for i, pair in enumerate(self.pairs)}
        self.capacity = [min(capacity[a, b], capacity[b, a]) for a, b in self.pairs]
        others = [d.id for d in topology.devices if d.kind != "gpu"]
        gpus = list(topology.ranks)
        self.gpus = gpus
        self.names = gpus + others + gpus
        sender = {g: i for i, g in enumerate(gpus)} | {d: len(gpus) + i for i, d in enumerate(others)}
        receiver = sender | {g: len(gpus) + len(others) + i for i, g in enumerate(gpus)}
        links = [(a, b) for pair in self.pairs for a, b in (pair, pair[::-1])]
        self.rows = np.array([sender[a] for a, _ in links], dtype=np.int64)
        self.columns = np.array([receiver[b] for _, b in links], dtype=np.int64)
        self.pair_of = np.array([self.number[min(link), max(link)] for link in links], dtype=np.int64)
        self.receivers = np.array([receiver[g] for g in gpus], dtype=np.int64)

    def joins_all(self) -> bool:
        """Whether two-way links join all GPUs."""
        around: dict[str, list[str]] = {d.id: [] for d in self.topology.devices}
        for a, b in self.pairs:
            around[a].append(b)
            around[b].append(a)
        seen, stack = {self.gpus[0]}, [self.gpus[0]]
        while stack:
            for there in around[stack.pop()]:
                if there not in seen:
                    seen.add(there)
                    stack.append(there)
        return seen.issuperset(self.gpus)

    def cheapest_tree(self, prices: NDArray[np.float64]) -> tuple[float, Tree]:
        """A minimum spanning tree of the GPUs over cheapest routes, and its price (hop prices not counted)."""
        size = len(self.names)
        graph = csr_matrix((prices[self.pair_of] + _HOP_PRICE, (self.rows, self.columns)), shape=(size, size))
        n = len(self.gpus)
        distance, before = dijkstra(graph, indices=np.arange(n), return_predecessors=True)
        metric = np.minimum(distance[:, self.receivers], distance[:, self.receivers].T)
        metric[~np.isfinite(metric)] = 0
        tree = minimum_spanning_tree(np.triu(metric, 1)).tocoo()
        edges = []
        for u, v in zip(tree.row, tree.col, strict=True):
            path = [int(self.receivers[v])]
            while path[-1] != u:
                path.append(int(before[u, path[-1]]))
            edges.append(tuple(self.names[i] for i in reversed(path)))
        found = Tree(tuple(edges))
        return float(sum(prices[i] for i in self.uses(found))), found

    def uses(self, tree: Tree) -> list[int]:
        """Numbers of the link pairs that a tree uses, as often as it uses them."""
        return [self.number[min(a, b), max(a, b)] for route in tree.edges for a, b in pairwise(route)]


def pack_trees(
    topology: Topology, time_limit_s: float = 60.0, progress: Callable[[str], None] | None = None
) -> Packing:
    """Pack trees until no tree is cheaper than 1 or the time is over; the best weights and prices found.

    Raises InfeasibleError where two-way links do not join all GPUs.
    """
    graph = _Graph(topology)
    if not graph.joins_all():
        raise InfeasibleError(f"topology {topology.name!r}: links that go both ways do not join all GPUs into a tree")
    deadline = time.monotonic() + time_limit_s
    capacity = np.array([float(c) for c in graph.capacity])
    prices = 1.0 / capacity / len(capacity)
    trees: list[Tree] = []
    columns: list[Counter[int]] = []
    seen: set[Tree] = set()
    best = prices, np.inf
    weights = np.zeros(0)
    while True:
        price, tree = graph.cheapest_tree(prices)
        value = float(capacity @ prices) / price if price > 0 else np.inf
        if value < best[1]:
            best = prices / price, value
        if tree in seen or (trees and (price >= 1 - _TOLERANCE or time.monotonic() > deadline)):
            break
        seen.add(tree)
        trees.append(tree)
        columns.append(Counter(graph.uses(tree)))
        solved = pack(columns, capacity)
        if solved is None:
            raise InfeasibleError("the packing of trees has no optimum; are the bandwidths of very different sizes?")
        weights, prices = solved
        if progress is not None and len(trees) % 20 == 0:
            progress(f"packing: {len(trees)} trees, {weights.sum():.4g} of at most {best[1]:.4g} GB/s")
    rates = exact_rates(weights, columns, graph.capacity)
    kept = [(t, r) for t, r in zip(trees, rates, strict=True) if r]
    exact = _exact_prices(graph, best[0])
    return Packing(tuple(t for t, _ in kept), tuple(r for _, r in kept), exact)


def _exact_prices(graph: _Graph, prices: NDArray[np.float64]) -> dict[tuple[str, str], Fraction]:
    """Fractions near the prices, on the scale where the cheapest link of all that cost anything costs 1."""
    least = float(prices[prices > 1e-9].min())
    exact = {
        pair: Fraction(float(p) / least).limit_denominator(1000) for pair, p in zip(graph.pairs, prices, strict=True)
    }
    return {pair: p for pair, p in exact.items() if p}
