"""The best rates of rings and chains, by column generation.

A column is an order of all ranks as a ring or a chain. A linear program weighs the columns so that
together they carry most without overloading a link. Its duals price the links, and the cheapest
orders under these prices become the next columns, until no order costs less than it gains. Prices
also prove a bound: no set of orders carries more than the priced capacity divided by the lowest
price of an order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ...topo.errors import InfeasibleError
from ..forest.machine.routes import OwnRoutes
from ..numeric.effort import Effort
from ..numeric.exact_rates import exact_rates
from ..numeric.linear import Floats, SmoothedPrices, pack
from ..request import Request
from .channels import RING, Order
from .orders import Orders, Priced, hops

# Relative gap to the bound at which rates count as optimal, and by which an order must cost less
# than it gains: above the rounding errors of sums over links.
_TOLERANCE = 1e-9
# Maximum number of columns added per turn, and in total.
_FRESH, _MAX_COLUMNS = 24, 1500
# Number of orders in use from which a search for cheap orders starts.
_STARTS = 4
# Seconds of an idle core for the first CP-SAT proof that no order is cheaper; doubled each time.
_PATIENCE_S = 1.0
# Above this, improving orders takes too long.
_MAX_RANKS = 200
Column = tuple[str, Order]


@dataclass
class Packed:
    """Columns with the weights at which they carry most together.

    Each column maps rows (links) to the number of units of that row it uses. `capacity` is the
    capacity of each row, and `weights` are floats in GB/s of algbw. `proved` means that no set of
    orders, known or not, carries more.
    """

    columns: dict[Column, Mapping[int, int]]
    capacity: Sequence[Fraction]
    weights: Floats
    proved: bool

    @property
    def algbw_GBps(self) -> float:
        """Return the total weight of all columns, in GB/s of algbw."""
        return float(self.weights.sum())


def find_exact_rates(packed: Packed, effort: Effort) -> dict[Column, Fraction]:
    """Return the columns in use with exact rates in GB/s of algbw that overload no link.

    If the rates of the links allow it, few columns are used.
    """
    rates = exact_rates(packed.weights, list(packed.columns.values()), packed.capacity, effort)
    return {column: rate for column, rate in zip(packed.columns, rates, strict=True) if rate}


def pack_orders(request: Request, shapes: Sequence[str], orders: Orders | None = None) -> Packed:
    """Return the best columns of the given shapes found within the request's effort.

    Raise InfeasibleError if no ring (or chain) exists, if none was found within that effort, or if
    there are more ranks than the search supports.
    """
    if request.collective.ranks > _MAX_RANKS:
        raise InfeasibleError(
            f"{'+'.join(shapes)}: orders of {request.collective.ranks} GPUs are not searched for; "
            f"at most {_MAX_RANKS}"
        )
    orders = orders if orders is not None else Orders(OwnRoutes(request.router), request.collective)
    return _Generation(request, shapes, orders).run()


class _Generation:
    def __init__(self, request: Request, shapes: Sequence[str], orders: Orders) -> None:
        self.request, self.shapes, self.orders = request, shapes, orders
        self.effort: Effort = request.effort
        self.name = "+".join(shapes)
        self.columns: dict[Column, Mapping[int, int]] = {}
        self.weights: Floats = np.zeros(0)
        self.patience_s = _PATIENCE_S
        self.small = all(orders.is_small(shape) for shape in shapes)

    def run(self) -> Packed:
        """Generate columns until they are proved optimal or the effort is spent, and weigh them."""
        capacity = self.orders.floats
        enough = float(self.request.bound_GBps)
        dual: Floats = 1 / capacity / len(capacity)
        smooth, proved = SmoothedPrices(dual), False
        while True:
            trial = smooth.mix(dual)
            offers, exact = self._price(trial, urgent=smooth.weight == 0.0)
            if exact and offers:
                bound = float(capacity @ trial) / offers[0].price
                if bound < enough:
                    enough, smooth.best = bound, trial
            fresh = [offer for offer in offers if self._improves(offer, dual)]
            if fresh:
                dual = self._weigh(fresh)
                if self.small:
                    smooth.reset()
            elif not smooth.back_off():
                proved = exact
                # Without a proof, a better order may still exist: search longer next time.
                self.patience_s *= 2
            proved = proved or float(self.weights.sum()) >= enough * (1 - _TOLERANCE)
            if proved or len(self.columns) > _MAX_COLUMNS or self.effort.is_over(self.name):
                break
        if not self.columns:
            raise InfeasibleError(f"{self.name}: none through all GPUs was found in time")
        return Packed(self.columns, self.orders.capacity, self.weights, proved)

    def _price(self, prices: Floats, urgent: bool) -> tuple[list[Priced], bool]:
        """Return cheap orders of all shapes, cheapest first, and whether this is exact.

        It is exact if the cheapest order of every shape is among them. `urgent` requests a proof if
        heuristics find no order that improves the solution.
        """
        priced = [self._price_shape(shape, prices, urgent) for shape in self.shapes]
        offers = [offer for listed, _ in priced for offer in listed]
        return sorted(offers, key=lambda offer: offer.price), all(exact for _, exact in priced)

    def _price_shape(self, shape: str, prices: Floats, urgent: bool) -> tuple[list[Priced], bool]:
        if self.orders.is_small(shape):
            offers, exact = self.orders.cheapest(shape, prices, _FRESH, self.effort), True
        else:
            weighed = zip(self.columns, self.weights, strict=True)
            begun = [order for (kind, order), weight in weighed if weight > 0 and kind == shape]
            offers = self.orders.near_cheapest(shape, prices, begun[-_STARTS:], self.effort)
            exact = False
            if urgent and not any(self._improves(offer, prices) for offer in offers):
                offers, exact = self.orders.prove(shape, prices, self.effort.grant(self.patience_s))
        if exact and not offers:
            kind = "cycle" if shape == RING else "chain"
            raise InfeasibleError(
                f"{shape}: the topology has no {kind} through all GPUs that no other GPU must "
                "forward for"
            )
        return offers, exact

    def _improves(self, offer: Priced, dual: Floats) -> bool:
        if not self.columns or (offer.shape, offer.order) in self.columns:
            return not self.columns
        uses = self.orders.uses(offer.shape, offer.order).items()
        return sum(float(dual[row]) * times for row, times in uses) < 1 - _TOLERANCE

    def _weigh(self, fresh: Sequence[Priced]) -> Floats:
        """Add columns, solve the linear program, and return its duals.

        The opposite of each new ring, which is nearly always as cheap, is added too.
        """
        exists = self.orders.routes.exists
        for offer in fresh[:_FRESH]:
            given = offer.shape, offer.order
            self.columns[given] = self.orders.uses(*given)
            opposite = RING, (0, *offer.order[:0:-1])
            if offer.shape == RING and all(exists[hop] for hop in hops(*opposite)):
                self.columns[opposite] = self.orders.uses(*opposite)
        solved = pack(list(self.columns.values()), self.orders.floats, self.effort)
        if solved is None:
            raise InfeasibleError(f"{self.name}: the weights of the orders have no optimum")
        self.weights, dual = solved
        self.request.say(f"{self.name}: {len(self.columns)} orders, {self.weights.sum():.4g} GB/s")
        return dual
