"""The best rates of rings and chains, by column generation, and exact rates near them.

A column is an order of all ranks as a ring or a chain. A linear program weighs the columns so that
together they carry most without overloading a link. Its duals price the links, and the cheapest
orders under these prices become the next columns, until no order costs less than it gains. Prices
also prove a bound: no set of orders carries more than the priced capacity divided by the lowest
price of an order.

Rates are algbw, the size of the collective's buffer by time. A request is a collective on a
topology, with an `Effort`, an allowance of work and time for searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from ortools.sat.python import cp_model

from ...topo.errors import InfeasibleError
from ...topo.exact import fraction_gcd
from ..machine.routes import OwnRoutes
from ..numeric.cp_sat import solve
from ..numeric.effort import Effort
from ..packing.division import TOLERANCE, Division
from ..packing.packing import Packing
from ..packing.survey import survey  # what is known of a topology, cached
from ..packing.weigh import find_share_load, round_shares
from ..request import Request
from .channels import RING, Order
from .orders import Orders, Priced, hops, name_order

# Maximum number of orders added per turn, besides the reverse of each ring; and the number of
# columns from which no further turn follows.
_FRESH, _MAX_COLUMNS = 24, 1500
# Number of orders in use from which a search for cheap orders starts.
_STARTS = 4
# Seconds of an idle core for the first CP-SAT proof that no order is cheaper; doubled each time.
_PATIENCE_S = 1.0
# Above this, improving orders takes too long.
_MAX_RANKS = 200
# Integer rates are multiples of the capacities' common unit, divided by one of these.
_PARTS = (1, 2, 3, 4)
# Other rates lose at most this fraction by rounding.
_GOOD = Fraction(1, 10**10)
# With more units on a link, CP-SAT has too many counts to choose from.
_MAX_UNITS = 64
# Seconds of an idle core for each unit.
_WHOLE_WORK_S = 0.5
# The shape of an order, RING or CHAIN, and the order.
Column = tuple[str, Order]


def pack_orders(
    request: Request, shapes: Sequence[str], orders: Orders | None = None
) -> OrderPacking:
    """Return the best rings or chains found within the request's effort, with their rates.

    They are in the result's `columns`, their rates in `shares`. `shapes` are RING, CHAIN or both;
    `orders`, the loads of orders on the request's machine, may be passed if it exists already.
    Raise InfeasibleError if no ring (or chain) exists, if none was found within that effort, or if
    there are more ranks than the search supports.
    """
    if request.collective.ranks > _MAX_RANKS:
        raise InfeasibleError(
            f"{'+'.join(shapes)}: orders of {request.collective.ranks} GPUs are not searched for; "
            f"at most {_MAX_RANKS}"
        )
    orders = orders if orders is not None else Orders(OwnRoutes(request.router), request.collective)
    packing = OrderPacking(request, shapes, orders)
    if RING in shapes:
        packing.add_turned_boxes()
    if not packing.generate(request.effort, packing.name, request.progress):
        raise InfeasibleError(f"{packing.name}: the weights of the orders have no optimum")
    if not packing.columns:
        raise InfeasibleError(f"{packing.name}: none through all GPUs was found in time")
    return packing


class OrderPacking(Packing[Column]):
    """Column generation of orders of the given shapes (rings, chains).

    A column is an order with its shape, and `shares` are rates in GB/s of algbw (buffer size by
    time). If the packing is `proved`, no set of orders, known or not, carries more.
    """

    at_rates = True

    def __init__(self, request: Request, shapes: Sequence[str], orders: Orders) -> None:
        super().__init__(orders.floats, 1 / orders.floats / len(orders.floats))
        self.shapes, self.orders, self.effort = shapes, orders, request.effort
        self.name = "+".join(shapes)
        self.value = 1 / float(request.bound_GBps)
        self.patience_s, self.exact, self.optimal = _PATIENCE_S, False, False
        self.smooths = all(orders.is_small(shape) for shape in shapes)

    def add_turned_boxes(self) -> None:
        """Add rings that go from box to box, each beginning at another GPU of every box.

        Together they use all links out of the boxes equally, which is often optimal.
        """
        boxes = survey(self.orders.routes.topology).boxes
        if boxes is None:
            return
        rings = []
        for start in range(boxes.rails):
            ring = [rank for box in boxes.ranks for rank in (*box[start:], *box[:start])]
            order = name_order(RING, tuple(ring))
            if all(self.orders.routes.exists[hop] for hop in hops(RING, order)):
                rings.append((RING, order))
        if rings:
            self.solve(rings, self.effort)

    @property
    def algbw_GBps(self) -> float:
        """Return the total weight of all orders, in GB/s of algbw."""
        return float(self.shares.sum())

    @property
    def proved(self) -> bool:
        """Whether the orders reach the bound, or the cheapest order would not improve them."""
        return self.optimal or super().is_enough()

    def count_uses(self, column: Column) -> Mapping[int, int]:
        """Return how often an order uses each row (link)."""
        return self.orders.uses(*column)

    def price_columns(self) -> list[Column]:
        """Return cheap orders of all shapes that improve the program, cheapest first.

        Store the bound of the prices if the cheapest order of every shape is known. Raise
        InfeasibleError if there is no ring, or no chain.
        """
        priced = [self._price_shape(shape) for shape in self.shapes]
        offers = sorted((x for listed, _ in priced for x in listed), key=lambda offer: offer.price)
        self.exact = all(exact for _, exact in priced)
        # An order over links without a price proves no bound.
        if self.exact and offers and offers[0].price > 0:
            self.raise_bound(offers[0].price)
        listed = [(offer.shape, offer.order) for offer in offers]
        return [column for column in listed if not self.columns or self.improves(column)]

    def is_enough(self) -> bool:
        """Return whether the orders reach the bound, or are too many."""
        return bool(self.columns) and (self.proved or len(self.columns) > _MAX_COLUMNS)

    def back_off(self) -> bool:
        """Smooth less; without a proof of the optimum, search longer next time instead."""
        if super().back_off():
            return True
        self.patience_s *= 2
        self.optimal = self.exact
        return not self.optimal

    def _price_shape(self, shape: str) -> tuple[list[Priced], bool]:
        """Return cheap orders of one shape, and whether the cheapest of all is among them.

        Unsmoothed prices are worth a proof if heuristics find no order that improves the solution.
        """
        prices, effort = self.prices, self.effort
        if self.orders.is_small(shape):
            offers, exact = self.orders.cheapest(shape, prices, _FRESH, effort), True
        else:
            weighed = zip(self.columns, self.shares, strict=True)
            begun = [order for (kind, order), weight in weighed if weight > 0 and kind == shape]
            offers = self.orders.near_cheapest(shape, prices, begun[-_STARTS:], effort)
            exact = False
            if not self.smoothing and not any(
                self.improves((offer.shape, offer.order)) for offer in offers
            ):
                offers, exact = self.orders.prove(shape, prices, effort.grant(self.patience_s))
        if exact and not offers:
            kind = "cycle" if shape == RING else "path there and back"
            raise InfeasibleError(f"this graph has no {shape}: no {kind} visits every GPU once")
        return offers, exact

    def solve(self, fresh: Sequence[Column], effort: Effort) -> bool:
        """Add the orders `fresh` and solve the program; return False if it has no optimum.

        The reverse of each new ring, which nearly always costs the same, is added too.
        """
        exists, both = self.orders.routes.exists, list[Column]()
        for shape, order in fresh[:_FRESH]:
            both.append((shape, order))
            opposite = RING, (0, *order[:0:-1])
            if shape == RING and all(exists[hop] for hop in hops(*opposite)):
                both.append(opposite)
        solved = super().solve(both, effort)
        self.finished |= solved and effort.is_over(self.name)
        return solved

    def take(self, solved: Division) -> None:
        """Store the latest solution, but keep the former rates if its rates carry no more."""
        before = self.shares
        carried = before.sum()
        super().take(solved)
        # Another solution that carries no more often has more orders.
        if self.shares.sum() <= carried * (1 + TOLERANCE):
            self.shares = np.pad(before, (0, len(self.shares) - len(before)))

    def _describe(self) -> str:
        return f"{self.name}: {len(self.columns)} orders, {self.algbw_GBps:.4g} GB/s"


def find_exact_rates(packing: OrderPacking, effort: Effort) -> dict[Column, Fraction]:
    """Return the columns in use with exact rates in GB/s of algbw that overload no link.

    Keys are (shape, order). Integer multiples of a coarse unit are tried first (few columns, even
    shares), by CP-SAT. Otherwise the shares are rounded, and scaled to what the busiest link
    carries.
    """
    uses, capacity = list(packing.columns.values()), packing.orders.capacity
    rates = _find_whole_rates(packing.algbw_GBps, uses, capacity, effort)
    if rates is None:
        shares = round_shares(
            packing.shares / packing.algbw_GBps, uses, capacity, [0] * len(uses), _GOOD
        )
        load = find_share_load(uses, shares, capacity)
        rates = [share / load for share in shares]
    return {column: rate for column, rate in zip(packing.columns, rates, strict=True) if rate}


def _find_whole_rates(
    total: float, uses: Sequence[Mapping[int, int]], capacity: Sequence[Fraction], effort: Effort
) -> list[Fraction] | None:
    """Return rates that sum up to `total` and are multiples of one coarse unit.

    The unit is the capacities' common unit, or a half, third or quarter of it. The rates with the
    fewest columns are preferred. None if there are none, or they are not found in time.
    """
    for parts in _PARTS:
        step = fraction_gcd(list(set(capacity))) / parts
        wanted = round(total / float(step))
        if max(capacity) / step > _MAX_UNITS or abs(wanted * float(step) - total) > 1e-6 * total:
            continue
        model = cp_model.CpModel()
        count = [model.new_int_var(0, wanted, "") for _ in uses]
        used = [model.new_bool_var("") for _ in uses]
        load: list[list[cp_model.LinearExprT]] = [[] for _ in capacity]
        for k, on, column in zip(count, used, uses, strict=True):
            model.add(k <= wanted * on)
            for i, times in column.items():
                load[i].append(times * k)
        for i, terms in enumerate(load):
            model.add(sum(terms) <= int(capacity[i] / step))
        model.add(sum(count) == wanted)
        model.minimize(sum(used))
        solver, status = solve(model, effort.grant(_WHOLE_WORK_S), "whole rates")
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return [solver.value(k) * step for k in count]
    return None
