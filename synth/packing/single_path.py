"""Prices of links if each pair of GPUs has a single path: column generation over the routes.

A column is the set of messages between ranks for one part of a collective: trees whose edges are
the hardware's routes, or (`PATHS`) a path to every other rank through relaying ranks. The linear
program divides each part among its columns so that the busiest link takes the least time. Its duals
price the links, and the cheapest columns at these prices are added next. Links that are equivalent
under symmetries of the machine and its routes share one row, and only one rank per class of
equivalent ranks is priced; neither weakens the bound.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path

from ..ir.collective import Collective
from ..machine.links import Floats, Ints, Link, compact, find_orbits
from ..machine.routes import OwnRoutes, price_hops
from ..machine.symmetry import colours  # a number for the role of each device
from ..numeric.arborescence import cheapest_out_tree
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.steiner import SteinerTrees, count_work
from .packing import WHOLE, Packing

# How often a column uses each row, as pairs (row, count).
Column = tuple[tuple[int, int], ...]

# Shapes of columns: undirected spanning trees of ranks, in-trees and out-trees, or paths between
# ranks.
PAIRS, TREES, PATHS = "pairs", "trees", "paths"
# Relative gap to the bound at which the program counts as optimal, and by which a new column must
# cost less than its part's dual. Larger than the rounding errors of sums over links.
_TOLERANCE = 1e-10
# Columns added along with the cheapest one, and the fraction by which each of them raises the
# prices of its links for the following ones.
_SIMILAR, _RAISE = 8, 0.2
# Above this, links of the same colour (machine/symmetry.py) share a row, which may weaken the
# bound.
_MAX_ROWS = 1500
# Work in seconds of an idle core: for all distances, per tree, and per pair of ranks in it.
_METRIC_S, _TREE_S, _TREE_ENTRY_S = 5e-4, 3e-4, 4e-7


class SinglePathPacking(Packing[tuple[int, Column]]):
    """The column generation for one collective.

    `routes` are the hardware's routes; `shape` is PAIRS, TREES or PATHS and determines the form of
    a column, which comes with the part of the data that it carries. `value` and `best`, the prices
    of rows that prove it, are floats, so the bound must be checked exactly.
    """

    tolerance = _TOLERANCE

    def __init__(self, routes: OwnRoutes, collective: Collective, shape: str) -> None:
        self.routes, self.name, self.shape = routes, collective.name, shape
        is_whole = collective.has_all_gpus
        images = routes.symmetries if is_whole and collective.root is None else []
        link_images = [links for _, links in images]
        if shape == PAIRS and routes.is_mirrored:
            link_images.append(routes.find_links(routes.dst, routes.src))
        rows = find_orbits(len(routes.links), link_images)
        if int(rows.max(initial=0)) >= _MAX_ROWS:
            root = None if collective.root is None else routes.topology.ranks[collective.root]
            rows = self._colour_links(root)
        self.row = compact(rows)
        capacity: Floats = np.bincount(self.row, weights=routes.capacity).astype(np.float64)
        # One part per class of equivalent ranks, weighted with the size of the class.
        orbit = find_orbits(routes.ranks, [ranks for ranks, _ in images])
        firsts, counts = np.unique(orbit, return_index=True, return_counts=True)[1:]
        self.weight = dict(zip(firsts.tolist(), counts.tolist(), strict=True))
        if collective.root is not None:
            self.weight = {collective.root: 1}
        elif not is_whole and collective.name != "allreduce":
            self.weight = dict.fromkeys(collective.members, 1)
        self.members, self.is_group = list(collective.members), not is_whole
        self.one_part = collective.name == "allreduce"
        super().__init__(capacity, 1 / capacity / len(capacity))
        trees = 1 if shape == PAIRS else len(self.weight) * (2 if self.one_part else 1)
        self.pricing_s = _METRIC_S + trees * (_TREE_S + _TREE_ENTRY_S * routes.ranks**2)
        if self.is_group and shape == TREES:
            self.pricing_s += 2 * count_work(len(self.members), routes.ranks)

    def _colour_links(self, single: str | None) -> Ints:
        """Return a number for each link, equal for equal bandwidths and colours of both ends.

        `single` is the GPU that is the root of the collective, None if there is no root.
        """
        routes, colour = self.routes, colours(self.routes.topology, single)
        numbers: dict[object, int] = {}
        keys = zip(
            colour[routes.src].tolist(), colour[routes.dst].tolist(), routes.exact, strict=True
        )
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

    @property
    def link_prices(self) -> dict[Link, float]:
        """The prices of directed links that prove the bound, in relative units."""
        return dict(zip(self.routes.links, self.best[self.row].tolist(), strict=True))

    def price_columns(self) -> list[tuple[int, Column]]:
        """Return the parts' cheapest columns if they improve the program; store the bound.

        There are none if routes do not connect all ranks.
        """
        offers = self._offer(self.prices)
        if not offers:
            return []
        self.raise_bound(
            min(cost for cost, *_ in offers)
            if self.one_part
            else sum(cost * self.weight[part] for cost, part, _ in offers)
        )
        fresh = [(WHOLE if self.one_part else part, column) for _, part, column in offers]
        return [column for column in fresh if self.improves(column)]

    def group_of(self, column: tuple[int, Column]) -> int:
        """Return the number of the part of the data that a column carries."""
        return column[0]

    def count_uses(self, column: tuple[int, Column]) -> dict[int, int]:
        """Return how often a column uses each row."""
        return dict(column[1])

    def solve(self, fresh: Sequence[tuple[int, Column]], effort: Effort) -> bool:
        """Add the columns `fresh`, and divide each part of the collective among its columns.

        If there is one part, similar columns are added too. Return False if the program has no
        optimum.
        """
        if len(self.weight) == 1 or self.one_part:
            fresh = [*fresh, *self._find_similar(dict.fromkeys(column for _, column in fresh))]
        return super().solve(fresh, effort)

    def _describe(self) -> str:
        return f"single paths: {len(self.columns)} columns"

    def _offer(self, prices: Floats) -> list[tuple[float, int, Column]]:
        """Return the cheapest column of each part at the rows' prices; none if one has none.

        For an allreduce, it is the cheapest column of each rank. Each item has the cost of the
        column for one rank's part, the part, and what all parts that it represents send over each
        row.
        """
        distance = self.routes.distances(price_hops(prices[self.row]))
        out = []
        if self.shape == PAIRS:
            listed: Iterable[tuple[int, Floats | None]] = [(0, self._spanning_tree(distance))]
        elif self.shape == PATHS:
            listed = self._list_paths(distance)
        else:
            # Edmonds' algorithm needs a dense graph, so a pair without a route costs more than all
            # others together.
            far = float(distance[np.isfinite(distance)].sum()) + 1
            full = np.where(np.isfinite(distance), distance, far)
            listed = self._list_trees(full)
        for part, sends in listed:
            if sends is None or (sends[~self.routes.exists] > 0).any():
                if self.one_part and self.is_group:
                    continue  # a helper that routes do not join with all members
                return []
            load = np.bincount(
                self.row, weights=self.routes.loads(sends), minlength=len(self.row_capacity)
            )
            whole = np.rint(load).astype(np.int64)
            used = np.flatnonzero(whole)
            times = 1 if self.one_part else self.weight[part]
            column = tuple((int(row), int(whole[row]) * times) for row in used)
            out.append((float(prices[used] @ whole[used]), part, column))
        return out

    def _find_similar(self, given: Iterable[Column]) -> list[tuple[int, Column]]:
        """Return a few more columns that are nearly as cheap.

        Each avoids the links of `given` and of the columns before it.
        """
        out: list[tuple[int, Column]] = []
        prices, earlier = self.prices, np.zeros(len(self.prices))
        size = np.bincount(self.row)

        def avoid(column: Column) -> None:
            for row, times in column:
                earlier[row] += times / size[row]

        for column in given:
            avoid(column)
        for _ in range(_SIMILAR):
            raised = prices * (1 + _RAISE * earlier) + _RAISE * 1e-3 * float(prices.mean())
            cheapest = min(self._offer(raised), key=lambda offer: offer[0], default=None)
            if cheapest is None:
                break
            avoid(cheapest[2])
            out.append((WHOLE if self.one_part else cheapest[1], cheapest[2]))
        return out

    def _spanning_tree(self, distance: Floats) -> Floats | None:
        """Return the messages that rank u sends to rank v on a minimum spanning tree (Prim).

        There are two messages per edge: one in each direction if routes are mirrored, else both in
        the cheaper direction. Returns None if routes do not connect all ranks.
        """
        n = self.routes.ranks
        price = np.minimum(distance, distance.T)
        near, parent = price[0].copy(), np.zeros(n, dtype=np.int64)
        outside = np.ones(n, dtype=np.bool_)
        outside[0] = False
        sends: Floats = np.zeros((n, n))
        for _ in range(n - 1):
            node = int(np.argmin(np.where(outside, near, np.inf)))
            if not outside[node] or not np.isfinite(near[node]):
                return None
            u, v = int(parent[node]), node
            if distance[u, v] > distance[v, u]:
                u, v = v, u
            sends[u, v] += 1
            sends[(v, u) if self.routes.is_mirrored else (u, v)] += 1
            outside[node] = False
            closer = outside & (price[node] < near)
            near[closer], parent[closer] = price[node][closer], node
        return sends

    def _list_trees(self, distance: Floats) -> Iterable[tuple[int, Floats]]:
        """Yield, for each root, the messages that rank u sends to rank v on its cheapest trees.

        The collective determines whether they are an out-tree, an in-tree, or both.
        """
        down = up = None
        if self.name not in ("reduce", "reduce-scatter"):
            down = self._find_trees(distance)
        if self.name in ("reduce", "reduce-scatter", "allreduce"):
            up = self._find_trees(distance.T)
        for root in self.weight:
            sends: Floats = np.zeros_like(distance)
            for v, p in enumerate(down(root) if down else ()):
                if p >= 0:
                    sends[p, v] += 1
            for v, p in enumerate(up(root) if up else ()):
                if p >= 0:
                    sends[v, p] += 1
            yield root, sends

    def _find_trees(self, distance: Floats) -> Callable[[int], list[int]]:
        """Return the function that finds every rank's parent in the cheapest out-tree of a root."""
        if self.is_group:
            return SteinerTrees(distance, self.members).find
        return partial(cheapest_out_tree, distance)

    def _list_paths(self, distance: Floats) -> Iterable[tuple[int, Floats | None]]:
        """Yield, for each part, the messages that rank u sends to rank v on the cheapest paths.

        Paths lead from the part's rank to every rank (for gather, from every rank to it) and may be
        relayed by ranks. The messages are None if a rank cannot be reached.
        """
        turned = distance.T if self.name == "gather" else distance
        # A sparse matrix: of a dense one, SciPy drops all prices below 1e-8.
        n, ends = self.routes.ranks, np.nonzero(np.isfinite(turned))
        graph = csr_matrix((turned[ends], ends), shape=(n, n))
        lengths, befores = shortest_path(graph, indices=list(self.weight), return_predecessors=True)
        for part, length, before in zip(self.weight, lengths, befores, strict=True):
            if not np.isfinite(length[self.members]).all():
                yield part, None
                continue
            sends: Floats = np.zeros((n, n))
            # Start at the farthest rank: a rank's own share and those that it relays all cross the
            # edge from its predecessor.
            carried = np.zeros(n)
            carried[self.members] = 1.0
            for v in np.argsort(-length, kind="stable").tolist():
                if v != part and carried[v]:
                    sends[before[v], v] += carried[v]
                    carried[before[v]] += carried[v]
            yield part, sends.T if self.name == "gather" else sends
