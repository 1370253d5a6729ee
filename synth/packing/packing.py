"""The one linear program of all packings: columns that carry data share links.

Trees, paths, orders of ranks and channels are columns. Each uses rows (links, or sets of links that
symmetries map to each other) so many times per unit that it carries. Each part of the data is
divided among the columns of its own so that the busiest row takes the least time; if any column may
carry any of it, there is one part, and the same program finds the highest rates. A price is what a
unit of use of a row costs a column; the duals of the program are such prices.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np

from ...topo.graph import Topology
from ..cost.loads import DirectedLink
from ..machine.links import Ints, LinkRows
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.linear import ColumnGeneration, Floats, pack
from .division import TOLERANCE, Division, divide
from .weigh import round_shares

C = TypeVar("C", bound=Hashable)
# The part of packings whose data is one.
WHOLE = 0


class Packing(ColumnGeneration[C]):
    """Column generation of columns that share rows of links.

    A subclass prices columns, counts what they use, and says which part of the data each carries.
    `columns` maps each column to its uses of rows, by row number; `row_capacity` has the GB/s of
    each row.

    `shares` has for each column the share of its part that it carries, as a float. Times are in
    units of one part over 1 GB/s: `value` is the lower bound on the time that the prices `best`
    prove, `reached` the time that the shares take. A time of at most `enough` is fast enough. With
    `at_rates` there is one part, and `shares` are rates in GB/s, whose sum is 1 / `reached`.
    """

    at_rates = False
    tolerance = TOLERANCE

    def __init__(self, row_capacity: Floats, prices: Floats) -> None:
        """Set up the packing; `prices` of the rows are those before any column has a share."""
        super().__init__(prices)
        self.row_capacity = row_capacity
        self.shares: Floats = np.zeros(0)
        self.value, self.reached, self.enough = 0.0, np.inf, 0.0
        self.duals: Mapping[Hashable, float] = {}

    def group_of(self, column: C) -> Hashable:
        """Return which part of the data a column carries, as a key of `duals`; here all of it."""
        return WHOLE

    def count_uses(self, column: C) -> Mapping[int, float]:
        """Return how often a column and all its images together use each row, by row number.

        Subclasses implement it.
        """
        raise NotImplementedError

    def cost_of(self, column: C) -> float:
        """Return the price of a column with all its images."""
        return self._price(column, self.prices)

    def improves(self, column: C) -> bool:
        """Return whether a column is new, and costs less than its part's entry in `duals`.

        Its cost is at the prices `dual` of the latest solution.
        """
        if column in self.columns:
            return False
        limit = self.duals.get(self.group_of(column), np.inf) * (1 - self.tolerance)
        return self._price(column, self.dual) < limit

    def _price(self, column: C, prices: Floats) -> float:
        return sum(float(prices[row]) * times for row, times in self.count_uses(column).items())

    def raise_bound(self, least: float) -> None:
        """Store the lower bound on the time that `prices` prove, if it is the best so far.

        `least` is the sum over the parts of the cost of the cheapest column. By weak duality, no
        shares take less time than `least` over the cost of all rows' capacities.
        """
        value = least / float(self.row_capacity @ self.prices)
        if value > self.value:
            self.value, self.best = value, self.prices

    def is_enough(self) -> bool:
        """Return whether the columns reach the bound, or are as fast as required."""
        return self.reached <= max(self.value, self.enough) * (1 + self.tolerance)

    def solve(self, fresh: Sequence[C], effort: Effort) -> bool:
        """Add the columns `fresh`, and divide each part among its columns.

        Return False, and keep the former shares, if the linear program has no optimum.
        """
        self.columns.update((column, self.count_uses(column)) for column in fresh)
        solved = self._divide(effort)
        if solved is not None:
            self.take(solved)
            self.finished = self.is_enough()
        return solved is not None

    def _divide(self, effort: Effort) -> Division | None:
        uses = list(self.columns.values())
        if not self.at_rates:
            groups = [self.group_of(column) for column in self.columns]
            return divide(uses, self.row_capacity, groups, effort=effort)
        packed = pack(uses, self.row_capacity, effort)
        if packed is None:
            return None
        rates, prices = packed
        return Division(rates, 1 / max(float(rates.sum()), 1e-300), prices, {WHOLE: 1.0})

    def take(self, solved: Division) -> None:
        """Store the shares, time, prices and duals of the latest solution."""
        self.shares, self.reached = solved.shares, solved.time
        self.dual, self.duals = solved.prices, solved.duals

    def _describe(self) -> str:
        return f"packing: {len(self.columns)} columns, {1 / self.reached:.4g} GB/s a part"


class SharePacking(LinkRows, Packing[C]):
    """A packing into the links of a machine.

    With `images`, permutations of the devices, each column represents all its images, and links
    that they map to each other form one row.
    """

    smooths = False

    def __init__(self, topology: Topology, images: Ints | None) -> None:
        LinkRows.__init__(self, topology, images)
        # Before any column has a share, wide links are cheap.
        Packing.__init__(self, self.row_capacity, 1 / self.row_capacity)
        self.images = images

    @property
    def link_prices(self) -> dict[DirectedLink, float]:
        """The prices of directed links that prove the bound; none before there is a bound."""
        prices = self.best[self.row].tolist()
        return dict(zip(self.links, prices, strict=True)) if self.value else {}

    def round(self) -> list[Fraction]:
        """Return the shares of the columns as exact fractions of small denominators.

        They sum up to 1 in each part, and the busiest link's load hardly grows.
        """
        groups, uses = map(self.group_of, self.columns), list(self.columns.values())
        return round_shares(self.shares, uses, self.exact_capacity(), list(groups))
