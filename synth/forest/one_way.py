"""Prices of links for machines on which each pair of GPUs has one way: column generation over the
system's own routes.

A column is what is sent between ranks for one part of a collective: trees whose edges are routes,
or (`PATHS`) a way to every other rank through ranks that hand on. The program divides each part
among its columns so that the busiest link takes least time; its duals price the links, and the
cheapest columns under these come next. Links that symmetries of the machine and its routes take to
each other are one row, and of ranks that they take to each other one is looked at: both lose
nothing. Prices are smoothed towards the best known (Wentges 1997).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from ..effort import Effort
from ..ir.collective import Collective
from ..numeric.arborescence import cheapest_out_tree
from .machine.metric import HOP_SHARE
from .machine.own_routes import OwnRoutes, find_orbits
from .machine.symmetry import colours
from .weigh import divide

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Link = tuple[str, str]
# How often a column uses each row, in pairs of a row and a number.
Column = tuple[tuple[int, int], ...]

# Spanning trees of pairs of ranks, in- and out-trees, or ways from rank to rank.
PAIRS, TREES, PATHS = "pairs", "trees", "paths"
_TOLERANCE = 1e-10
_SMOOTH = 0.5
_SIMILAR, _RAISE = 8, 0.2
# With more rows, links of one colour (machine/symmetry.py) share one, which may lose something.
_MOST_ROWS = 1500
# Seconds of a quiet core: for all distances, for a tree, and for each two ranks in it.
_METRIC_S, _TREE_S, _TREE_ENTRY_S = 5e-4, 3e-4, 4e-7


@dataclass(frozen=True)
class LinkPrices:
    """Prices of directed links, and the time in s that they show each part to take (all parts of 1
    GB); floats.
    """

    of: dict[Link, float]
    value: float


class OneWayPacking:
    """The column generation for one collective; `shape` says what the columns are."""

    def __init__(self, routes: OwnRoutes, collective: Collective, shape: str) -> None:
        self.routes, self.name, self.shape = routes, collective.name, shape
        n = routes.size
        images = [] if collective.root is not None else routes.symmetries
        link_images = [links for _, links in images]
        if shape == PAIRS and routes.is_mirrored:
            link_images.append(
                np.array([routes.number[b, a] for a, b in routes.links], dtype=np.int64)
            )
        rows = find_orbits(len(routes.links), link_images)
        if int(rows.max(initial=0)) >= _MOST_ROWS:
            rows = self._colour_links(
                None if collective.root is None else routes.topology.ranks[collective.root]
            )
        _, compact = np.unique(rows, return_inverse=True)
        self.row = compact.reshape(-1)
        self.capacity: Floats = np.bincount(self.row, weights=routes.capacity).astype(np.float64)
        # Parts, each standing for as many as its rank has images.
        orbit = find_orbits(n, [ranks for ranks, _ in images])
        firsts, counts = np.unique(orbit, return_index=True, return_counts=True)[1:]
        self.weight = dict(zip(firsts.tolist(), counts.tolist(), strict=True))
        if collective.root is not None:
            self.weight = {collective.root: 1}
        self.one_part = collective.name == "allreduce"
        self.uses: dict[Column, int] = {}
        """The part of each column, by what it sends over each row."""

    def _colour_links(self, single: str | None) -> Ints:
        """Return a number for every link, the same for links between devices of the same colours
        and as wide.
        """
        topology = self.routes.topology
        colour = dict(
            zip((d.id for d in topology.devices), colours(topology, single).tolist(), strict=True)
        )
        numbers: dict[object, int] = {}
        keys = [(colour[a], colour[b], topology.capacity_GBps[a, b]) for a, b in self.routes.links]
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

    def run(self, effort: Effort, say: Callable[[str], None] | None = None) -> LinkPrices | None:
        """Return the best prices found within the work that is allowed; None where routes do not
        join all ranks.
        """
        dual: Floats = 1 / self.capacity / len(self.capacity)
        best, best_value, reached = dual, 0.0, np.inf
        duals: dict[int, float] = {}
        smooth = 0.0
        while True:
            trial = smooth * best + (1 - smooth) * dual
            offers = self._price(trial)
            if offers is None:
                return None
            effort.spend(self._pricing_s)
            needed = (
                min(c for c, *_ in offers)
                if self.one_part
                else sum(c * self.weight[part] for c, part, _ in offers)
            )
            value = needed / float(self.capacity @ trial)
            if value > best_value:
                best, best_value = trial, value
            if reached <= best_value * (1 + _TOLERANCE) or (
                self.uses and effort.is_over("prices of one way a pair")
            ):
                break
            # Under the duals themselves a column must cost less than its part's dual to improve the
            # program.
            fresh = [
                (part, column)
                for _, part, column in offers
                if self._improves(part, column, dual, duals)
            ]
            if not fresh:
                if smooth == 0.0:
                    break
                smooth = smooth / 2 if smooth > 0.05 else 0.0
                continue
            if len(self.weight) == 1 or self.one_part:
                fresh += self._find_similar(trial, dict.fromkeys(column for _, column in fresh))
            for part, column in fresh:
                self.uses.setdefault(column, 0 if self.one_part else part)
            parts = list(self.uses.values())
            solved = divide(
                [dict(column) for column in self.uses], self.capacity, parts, effort=effort
            )
            if solved is None:
                break
            reached, dual = solved.time, solved.prices
            duals = {part: solved.duals[part] for part in set(parts)}
            smooth = _SMOOTH
            if say is not None:
                say(f"one way a pair: {len(self.uses)} columns")
        prices = best[self.row]
        return LinkPrices(
            {link: float(p) for link, p in zip(self.routes.links, prices, strict=True)}, best_value
        )

    @property
    def _pricing_s(self) -> float:
        """Work of pricing all parts once, in seconds of a quiet core."""
        trees = 1 if self.shape == PAIRS else len(self.weight) * (2 if self.one_part else 1)
        return _METRIC_S + trees * (_TREE_S + _TREE_ENTRY_S * self.routes.size**2)

    def _improves(self, part: int, column: Column, dual: Floats, duals: dict[int, float]) -> bool:
        """Return whether a column may shorten the program's time under its duals."""
        if column in self.uses:
            return False
        limit = duals.get(0 if self.one_part else part, np.inf)
        return sum(float(dual[row]) * times for row, times in column) < limit * (1 - _TOLERANCE)

    def _price(self, prices: Floats) -> list[tuple[float, int, Column]] | None:
        """Return the cheapest column of each part under the rows' prices (of an allreduce, that of
        each rank); None where ranks cannot be joined.

        A column is given as its cost for one rank's part, the part, and what all the parts it
        stands for send over each row.
        """
        per_link = prices[self.row]
        hop = HOP_SHARE * max(float(per_link.mean()), 1e-300)
        distance = self.routes.distances(per_link + hop)
        out = []
        if self.shape == PAIRS:
            listed = [(0, self._spanning_tree(distance))]
        else:
            # Edmonds' algorithm takes dense graphs: a pair without a route costs more than all
            # others together.
            far = float(distance[np.isfinite(distance)].sum()) + 1
            full = np.where(np.isfinite(distance), distance, far)
            ways = self._ways(distance) if self.shape == PATHS else None
            listed = [
                (part, self._trees(full, part) if ways is None else self._paths(ways, part))
                for part in self.weight
            ]
        for part, sends in listed:
            if sends is None or (sends[~self.routes.exists] > 0).any():
                return None
            load = np.bincount(
                self.row, weights=self.routes.loads(sends), minlength=len(self.capacity)
            )
            whole = np.rint(load).astype(np.int64)
            used = np.flatnonzero(whole)
            times = 1 if self.one_part else self.weight[part]
            column = tuple((int(row), int(whole[row]) * times) for row in used)
            out.append((float(prices[used] @ whole[used]), part, column))
        return out

    def _find_similar(self, prices: Floats, known: dict[Column, None]) -> list[tuple[int, Column]]:
        """Return a few more columns that are nearly as cheap, each avoiding the links of those
        before it.
        """
        out: list[tuple[int, Column]] = []
        earlier: Floats = np.zeros(len(prices))
        size = np.bincount(self.row)
        for column in known:
            for row, times in column:
                earlier[row] += times / size[row]
        for _ in range(_SIMILAR):
            raised = prices * (1 + _RAISE * earlier) + _RAISE * 1e-3 * float(prices.mean())
            cheapest = min(self._price(raised) or [], key=lambda offer: offer[0], default=None)
            if cheapest is None:
                break
            for row, times in cheapest[2]:
                earlier[row] += times / size[row]
            out.append((cheapest[1], cheapest[2]))
        return out

    def _spanning_tree(self, distance: Floats) -> Floats | None:
        """Return what each rank sends to each other on a minimum spanning tree (Prim), two messages
        an edge.

        Where routes are mirrored one goes each way, else both in the cheaper direction.
        """
        n = self.routes.size
        price = np.minimum(distance, distance.T)
        near, parent = price[0].copy(), np.zeros(n, dtype=np.int64)
        outside = np.ones(n, dtype=np.bool_)
        outside[0] = False
        sends: Floats = np.zeros((n, n))
        for _ in range(n - 1):
            node = int(np.argmin(np.where(outside, near, np.inf)))
            if not outside[node] or not np.isfinite(near[node]):
                return None
            u, v = (int(parent[node]), node) if distance[parent[node], node] <= distance[node, parent[node]] else (
                node, int(parent[node]))  # fmt: skip
            sends[u, v] += 1
            sends[(v, u) if self.routes.is_mirrored else (u, v)] += 1
            outside[node] = False
            closer = outside & (price[node] < near)
            near[closer], parent[closer] = price[node][closer], node
        return sends

    def _trees(self, distance: Floats, root: int) -> Floats:
        """Return what each rank sends to each other on the cheapest out-tree of a root, in-tree to
        it, or both.
        """
        sends: Floats = np.zeros_like(distance)
        if self.name not in ("reduce", "reduce-scatter"):
            for v, p in enumerate(cheapest_out_tree(distance, root)):
                if p >= 0:
                    sends[p, v] += 1
        if self.name in ("reduce", "reduce-scatter", "allreduce"):
            for v, p in enumerate(cheapest_out_tree(distance.T, root)):
                if p >= 0:
                    sends[v, p] += 1
        return sends

    def _ways(self, distance: Floats) -> tuple[Floats, Ints]:
        """Return how long cheapest ways through ranks are from each part's rank (gather: to it),
        and the ranks before.
        """
        turned = distance.T if self.name == "gather" else distance
        graph = np.where(
            np.isfinite(turned), turned, 0.0
        )  # no edge; every route has a price above 0
        length, before = shortest_path(graph, indices=list(self.weight), return_predecessors=True)
        return length, before.astype(np.int64)

    def _paths(self, ways: tuple[Floats, Ints], part: int) -> Floats | None:
        """Return what each rank sends to each other when a part goes to every rank on the cheapest
        way (from, if gather).
        """
        place = list(self.weight).index(part)
        length, before = ways[0][place], ways[1][place]
        if not np.isfinite(length).all():
            return None
        n = self.routes.size
        sends: Floats = np.zeros((n, n))
        # From the farthest rank back: each rank's own share and those that it hands on cross the
        # edge before it.
        carried = np.ones(n)
        for v in np.argsort(-length, kind="stable").tolist():
            if v != part:
                sends[before[v], v] += carried[v]
                carried[before[v]] += carried[v]
        return sends.T if self.name == "gather" else sends
