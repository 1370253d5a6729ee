"""Trees of demands, packed into the links by column generation.

Demands are pieces of data, the ranks that hold each one, and those that need it. Pieces with the
same holders and the same receivers that lack them are one class. A column carries a share of one
class: a tree from a holder to all receivers (for one receiver, a path), whose branches are sends
from rank to rank; if there are several holders, a tree from each that is used. The linear program
divides each class among its columns so that the busiest link takes the least time. Its duals price
the links; the cheapest trees at these prices are the next columns, and prove the bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import gcd

import numpy as np
from scipy.sparse.csgraph import dijkstra

from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ...ir.demands import Demands
from ...machine.links import Floats, Ints
from ...machine.routes import OwnRoutes
from ...numeric.effort import Effort
from ...numeric.linear import Optimum, Rows, minimise
from ...numeric.steiner import SteinerTrees, close
from ...packing.packing import SharePacking

# Price of a hop, in mean link prices: ties go to the fewest hops, and no bound notices.
_HOP_SHARE = 1e-11
# Work in seconds of an idle core: for all distances per rank cubed, and per class that is priced.
_CLOSE_S, _CLASS_S, _TREE_S = 2e-9, 3e-5, 2e-3
# Rounds of columns with earlier sends, and the depth that a new one must gain.
_EARLY_TURNS, _EARLIER = 8, 1e-6
# Holders that a message names.
_MAX_LISTED = 8

# A send from rank to rank.
Hop = tuple[int, int]


@dataclass(frozen=True)
class Delivery:
    """A column: the sends that carry a share of class `part` from its holders to its receivers.

    `part` is the class's place in `Demands.classes`. `hops` are the sends, each from rank to rank;
    each rank that is no holder receives once, and a send comes after the one that its source
    received. `links` are the numbers of the links that the sends cross, with repetitions.
    """

    part: int
    hops: tuple[Hop, ...]
    links: tuple[int, ...]

    @cached_property
    def depths(self) -> list[int]:
        """The step of each send, from 0 on, if each is made as soon as it can be."""
        ready: dict[int, int] = defaultdict(int)
        out = []
        for src, dst in self.hops:
            out.append(ready[src])
            ready[dst] = ready[src] + 1
        return out

    @cached_property
    def total_depth(self) -> int:
        """The steps of all sends, counted from 1, added up."""
        return sum(self.depths) + len(self.depths)


class DemandPacking(SharePacking[Delivery]):
    """Column generation for demands; `run` does it, and `list_columns` returns the outcome.

    `classes` are the holders and missing receivers of each class, and `demand` its size in units; a
    unit is `unit_GB` of a buffer of 1 GB. Times are those of a unit over 1 GB/s. With `routes`,
    ranks send to each other on the hardware's routes only; else on any path, through any device.
    """

    def __init__(self, demands: Demands, topology: Topology, routes: OwnRoutes | None) -> None:
        super().__init__(topology, None)
        self.demands, self.routes = demands, routes
        self.classes = list(demands.classes)
        sizes = list(demands.classes.values())
        shared = gcd(*sizes)
        # A share of class k is a share of `demand[k]` units.
        self.demand = [size // shared for size in sizes]
        self.unit_GB = Fraction(shared, demands.size)
        n, many = len(topology.ranks), sum(len(needed) > 1 for _, needed in self.classes)
        self.pricing_s = _CLOSE_S * n**3 + _CLASS_S * len(sizes) + _TREE_S * many
        self._crossed: dict[Hop, tuple[int, ...]] = {}

    def group_of(self, column: Delivery) -> Hashable:
        """Return the class of which a column carries a share."""
        return column.part

    def count_uses(self, column: Delivery) -> Counter[int]:
        """Return how many units a column sends over each row (link) to carry its whole class."""
        times = self.demand[column.part]
        return Counter(
            {r: k * times for r, k in Counter(self.row[list(column.links)].tolist()).items()}
        )

    def run(
        self,
        effort: Effort,
        say: Callable[[str], None] | None = None,
        start: Iterable[Delivery] = (),
    ) -> None:
        """Generate columns until they are optimal or the effort is spent; begin with `start`.

        Of equally fast shares on the hardware's routes, those of few and early sends are taken.
        `say` is called with lines of progress. Raise InfeasibleError if a piece cannot reach its
        receivers.
        """
        self.columns |= {column: self.count_uses(column) for column in start}
        if not self.generate(effort, "packing demands", say):
            raise InfeasibleError(
                "the packing of demands has no optimum; are the bandwidths of very different sizes?"
            )
        if self.routes is not None:
            self._send_early(effort)

    def _send_early(self, effort: Effort) -> None:
        """Move shares to columns of few and early sends, with as little time for each link.

        The shares minimise the depths of all sends, added up. This is a linear program, too, whose
        duals price links, so that trees of shortest paths over them are more columns to try.
        """
        for _ in range(_EARLY_TURNS):
            solved = self._find_earliest(effort)
            if solved is None:
                return
            self.shares = solved.x
            fresh = self._find_early_columns(solved)
            effort.spend(self.pricing_s)
            if not fresh or effort.is_over("early sends"):
                return
            self.columns |= {column: self.count_uses(column) for column in fresh}
            # The new columns carry nothing until the next solution, of which there may be none.
            self.shares = np.append(self.shares, np.zeros(len(self.columns) - len(self.shares)))

    def _find_earliest(self, effort: Effort) -> Optimum | None:
        """Return the shares of least depth within the time that the columns reach."""
        uses = [
            (row, number, times)
            for number, column in enumerate(self.columns.values())
            for row, times in column.items()
        ]
        rows, columns, times = map(np.array, zip(*uses, strict=True))
        loads, whole, all_columns = Rows(), Rows(), np.arange(len(self.columns))
        capacity = self.row_capacity * self.reached
        loads.extend(rows, columns, times / capacity[rows], np.ones(len(capacity)))
        part = np.array([column.part for column in self.columns])
        whole.extend(part, all_columns, np.ones(len(part)), np.ones(len(self.classes)))
        depth = np.array([column.total_depth for column in self.columns], dtype=np.float64)
        return minimise(depth, loads, whole, effort)

    def _find_early_columns(self, solved: Optimum) -> list[Delivery]:
        """Return new columns that lessen the depth of all sends, given the duals of the last ones.

        Tried are trees of shortest paths and cheapest trees, with a price for each send.
        """
        used = np.maximum(-solved.at_most_duals, 0.0) / (self.row_capacity * self.reached)
        length, before = self._find_distances(used, len(self.classes) / sum(self.demand))
        fresh = []
        for part, dual in enumerate(solved.equal_duals.tolist()):
            for hops in (
                self._find_paths(part, length, before),
                self._find_tree(part, length, before)[0],
            ):
                column = self._make_column(part, hops)
                price = sum(float(used[row]) * k for row, k in self.count_uses(column).items())
                if column not in self.columns and price + column.total_depth < dual - _EARLIER:
                    fresh.append(column)
        return fresh

    def _make_column(self, part: int, hops: tuple[Hop, ...]) -> Delivery:
        return Delivery(part, hops, tuple(i for hop in hops for i in self._list_links(hop)))

    def list_columns(self) -> list[tuple[Delivery, Fraction]]:
        """Return the columns that carry data, with their exact shares of their classes."""
        shares = zip(self.columns, self.round(), strict=True)
        return [(column, share) for column, share in shares if share]

    def price_columns(self) -> list[Delivery]:
        """Return new columns that cost less than their class's dual; store the bound.

        Raise InfeasibleError if a piece cannot reach its receivers.
        """
        length, before = self._find_distances(self.prices)
        fresh, total = list[Delivery](), 0.0
        for part in range(len(self.classes)):
            hops, price = self._find_tree(part, length, before)
            total += price * self.demand[part]
            column = self._make_column(part, hops)
            if self.improves(column):
                fresh.append(column)
        self.raise_bound(total)
        return fresh

    def _find_distances(self, prices: Floats, per_send: float = 0.0) -> tuple[Floats, Ints]:
        """Return the price of the cheapest path between ranks, and the rank before its end.

        Rows have `prices`, and each send costs `per_send` more. Set `far`, a price above that of
        any path, for ranks without one.
        """
        by_link, n = prices[self.row], len(self.gpus)
        by_link = by_link + _HOP_SHARE * float(by_link.sum()) / max(1, len(by_link))
        if self.routes is not None:
            distance = self.routes.distances(by_link) + per_send
            before = None
        else:
            # Paths may pass through GPUs, which relay, so none over other ranks is cheaper.
            distance, self._before = dijkstra(
                self.make_matrix(by_link), indices=self.gpus, return_predecessors=True
            )
            self._crossed.clear()
            distance = distance[:, self.gpus]
            before = np.repeat(np.arange(n)[:, None], n, axis=1)
        finite = np.isfinite(distance)
        self.far = float(distance[finite].sum()) + 1
        full = np.where(finite, distance, self.far)
        return close(full) if before is None else (full, before)

    def _list_links(self, hop: Hop) -> tuple[int, ...]:
        """Return the numbers of the links that a send crosses."""
        if hop not in self._crossed:
            if self.routes is not None:
                self._crossed[hop] = self.routes.list_links(*hop)
            else:
                src, dst = hop
                nodes = [int(self.gpus[dst])]
                while nodes[-1] != self.gpus[src]:
                    nodes.append(int(self._before[src, nodes[-1]]))
                ends = pairwise(self.names[node] for node in reversed(nodes))
                self._crossed[hop] = tuple(self.number[link] for link in ends)
        return self._crossed[hop]

    def _find_tree(self, part: int, length: Floats, before: Ints) -> tuple[tuple[Hop, ...], float]:
        """Return the sends of a class's cheapest tree, and a lower bound on the price of any."""
        holders, receivers = self.classes[part]
        nearest = np.array(holders)[np.argmin(length[np.ix_(holders, receivers)], axis=0)]
        distances = length[nearest, receivers]
        farthest = float(distances.max())
        if farthest >= self.far:
            # Devices, since ranks may be those of a part of the machine.
            gpus = self.topology.ranks
            listed = ", ".join(gpus[rank] for rank in holders[:_MAX_LISTED])
            raise InfeasibleError(
                f"{self.demands.name} on {self.topology.name!r} is impossible: no route leads to "
                f"{gpus[receivers[int(distances.argmax())]]} from "
                f"{listed}{' ...' if len(holders) > _MAX_LISTED else ''}"
            )
        if len(receivers) == 1:
            return self._find_paths(part, length, before), farthest
        root = len(length)
        trees = SteinerTrees.from_any(length, before, holders, receivers)
        parents = dict(enumerate(trees.find(root)))
        return _list_hops(parents, root), float(trees.bound_price(root))

    def _find_paths(self, part: int, length: Floats, before: Ints) -> tuple[Hop, ...]:
        """Return the sends of the shortest paths from a class's holders to its receivers."""
        holders, receivers = self.classes[part]
        root, parents = len(length), dict.fromkeys(holders, len(length))
        nearest = np.array(holders)[np.argmin(length[list(holders)], axis=0)].tolist()
        for rank in receivers:
            holder = nearest[rank]
            while rank not in parents:
                parents[rank] = int(before[holder, rank])
                rank = parents[rank]
        return _list_hops(parents, root)


def _list_hops(parents: Mapping[int, int], root: int) -> tuple[Hop, ...]:
    """Return the sends of a tree, the first ones first, except those from its root."""
    children: dict[int, list[int]] = defaultdict(list)
    for rank, parent in parents.items():
        children[parent].append(rank)
    hops, ready = list[Hop](), children[root]
    for parent in ready:
        hops += [(parent, rank) for rank in children[parent]]
        ready += children[parent]
    return tuple(hops)
