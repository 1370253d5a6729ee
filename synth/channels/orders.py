"""Loads of rings and chains on the hardware's routes, and the cheapest orders under link prices.

An order is all ranks in the sequence of a ring, or of a chain that goes there and back. A price is
what a search lets an order pay for each unit of load on a link, so that the cheapest orders avoid
links that others load (columns.py, rounding.py).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..ir.collective import Collective
from ..machine.routes import OwnRoutes
from ..numeric.circuits import MAX_NODES, Circuit, cheapest_circuits, near_circuits, search_circuit
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.linear import Floats
from .channels import CHAIN, RING, Order

# Number of start nodes for circuits built by insertion, if an exact search would take too long.
_STARTS = 6


@dataclass(frozen=True)
class Priced:
    """An order of one shape (ring or chain) with its price per GB of the collective's buffer."""

    price: float
    shape: str
    order: Order


def hops(shape: str, order: Order) -> list[tuple[int, int]]:
    """Return the hops of an order as (source, destination) ranks.

    A ring goes around once, also from its last rank to its first; a chain has each hop in both
    directions.
    """
    if shape == RING:
        return list(pairwise((*order, order[0])))
    return [hop for a, b in pairwise(order) for hop in ((a, b), (b, a))]


def name_order(shape: str, order: Order) -> Order:
    """Return an order in its canonical form.

    Rings begin at rank 0, chains at the end with the lower number.
    """
    if shape == CHAIN:
        return min(order, order[::-1])
    start = order.index(0)
    return (*order[start:], *order[:start])


class Orders:
    """The rings and chains of one machine for one collective, with their loads and prices.

    A row is a link on any route; `used` has the numbers of the rows' links. 1 GB of the
    collective's buffer loads a link with `uses` / `ranks` GB. `capacity` is that of the rows in the
    unit of `uses`: GB/s times `ranks`.
    """

    def __init__(self, routes: OwnRoutes, collective: Collective) -> None:
        self.routes, self.ranks = routes, collective.ranks
        n = self.ranks
        self.times = {RING: (2 if collective.name == "allreduce" else 1) * (n - 1), CHAIN: n}
        self.used = np.flatnonzero(np.asarray(routes.crossed.sum(axis=0)).reshape(-1))
        self._row = {int(link): row for row, link in enumerate(self.used)}
        self.capacity = [routes.exact[link] * n for link in self.used]

    @cached_property
    def floats(self) -> Floats:
        """`capacity` as floats: of each row, in GB/s times the number of ranks."""
        return np.array([float(c) for c in self.capacity])

    def uses(self, shape: str, order: Order) -> Counter[int]:
        """Return how much an order loads each row (link), by row number.

        1 GB of the collective's buffer loads the link with this number / `ranks` GB.
        """
        crossed = Counter(row for hop in hops(shape, order) for row in self.rows(*hop))
        return Counter({row: times * self.times[shape] for row, times in crossed.items()})

    def rows(self, u: int, v: int) -> list[int]:
        """Return the rows of the links on the route from rank u to rank v."""
        crossed, pair = self.routes.crossed, u * self.ranks + v
        links = crossed.indices[crossed.indptr[pair] : crossed.indptr[pair + 1]]
        return [self._row[link] for link in links.tolist()]

    def distances(self, shape: str, prices: Floats) -> Floats:
        """Return the matrix of prices from which `cheapest_circuits` and others find orders.

        `prices` are per unit of load of each row. For rings, nodes are ranks, and entry (u, v) is
        the price of the hop from u to v. For chains, node 0 is an extra node, free to reach, at
        which chains begin and end; node r + 1 is rank r, and a hop counts in both directions.
        """
        per_link = np.zeros(len(self.routes.links))
        per_link[self.used] = prices
        hop = self.routes.distances(per_link) * self.times[shape]
        if shape == RING:
            return hop
        both = np.zeros((self.ranks + 1, self.ranks + 1))
        both[1:, 1:] = hop + hop.T
        return both

    def cheapest(self, shape: str, prices: Floats, count: int, effort: Effort) -> list[Priced]:
        """Return up to `count` cheap orders of one shape, the cheapest of all first.

        `prices` are per unit of load of each row. The result is empty if no order exists. The
        search is exact and only for few ranks: see `is_small`.
        """
        return self._name(shape, cheapest_circuits(self.distances(shape, prices), count, effort))

    def near_cheapest(
        self, shape: str, prices: Floats, begun: Iterable[Order], effort: Effort
    ) -> list[Priced]:
        """Return cheap orders of one shape, found by heuristics without proof, cheapest first.

        `prices` are per unit of load of each row. Some of the orders are improved from those in
        `begun`.
        """
        circuits = [x[1:] if shape == RING else tuple(rank + 1 for rank in x) for x in begun]
        distance = self.distances(shape, prices)
        return self._name(shape, near_circuits(distance, circuits, _STARTS, effort))

    def prove(self, shape: str, prices: Floats, effort: Effort) -> tuple[list[Priced], bool]:
        """Search for the cheapest order of one shape by CP-SAT; return it and whether it is proved.

        It is in a list, empty if no order was found; "proved" then means that none exists. `prices`
        are per unit of load of each row; work counts in `effort`.
        """
        distance = self.distances(shape, prices)
        circuit, proved = search_circuit(distance, effort, f"{shape}s")
        if circuit is None:
            return [], proved
        tour = [0, *circuit, 0]
        return self._name(shape, [(float(distance[tour[:-1], tour[1:]].sum()), circuit)]), proved

    def is_small(self, shape: str) -> bool:
        """Return whether there are few enough ranks for `cheapest` with this shape."""
        return self.ranks + (shape == CHAIN) <= MAX_NODES

    def _name(self, shape: str, circuits: Iterable[tuple[float, Circuit]]) -> list[Priced]:
        """Return different circuits as orders with their prices."""
        out: dict[Order, float] = {}
        for value, circuit in circuits:
            order = (0, *circuit) if shape == RING else tuple(node - 1 for node in circuit)
            out.setdefault(name_order(shape, order), value)
        return [Priced(value, shape, order) for order, value in out.items()]
