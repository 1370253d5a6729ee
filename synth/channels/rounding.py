"""The best equal channels of a machine: how often to use each ring or chain, and in which sequence.

The busiest link decides the rate. For each number K of channels there are two starting points: the
linear program's weights, rounded, and the best K - 1 channels with one more. Both are improved by
exchanging one channel for another until nothing helps. Replacements are known orders or, for few
ranks, the cheapest of all orders under prices that rise with the links' loads.

K channels of a given rate cross each link an integer number of times. A linear program with these
integer capacities bounds the rate; CP-SAT then looks for the channels: as counts of all orders for
so few ranks that these can be listed; else as K circuits at once where these are few, and as counts
of known orders.

A channel is an order of all ranks, as a ring or a chain; equal channels carry equal parts of the
buffer. A request is a collective on a topology, with an allowance of work for searches.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import permutations

import numpy as np
from ortools.sat.python import cp_model

from ...topo.errors import InfeasibleError, InputError
from ..machine.links import Ints
from ..machine.routes import OwnRoutes
from ..numeric.cp_sat import solve
from ..numeric.effort import Effort
from ..numeric.linear import Floats, Rows, minimise
from ..numeric.whole_counts import BETTER, exchange, fill_up, interleave, round_down
from ..packing.weigh import find_max_load
from ..request import Request
from .channels import CHAIN, SHAPES, Channels, Order
from .columns import Column, OrderPacking, pack_orders
from .orders import Orders, hops, name_order

# Maximum number of channels unless the caller sets a limit.
MAX_CHANNELS = 32
# Seconds of an idle core for rounding, beyond the effort of column generation.
_ROUNDING_WORK_S = 6.0
# Fraction of the best rate that may be lost in exchange for fewer channels.
LOSS = Fraction(5, 1000)
# How steeply prices rise with load: the busiest link is priced e^24 times as high as an idle one.
_STEEP = 24.0
# Maximum number of ranks for orders under rising prices, which take too long above it; maximum
# number of rounds; orders per set of prices.
_PRICED_RANKS, _MAX_PRICED, _PRICED_ORDERS = 10, 8, 4
# Number of shortest times that are tried with integer crossings by CP-SAT.
_TRIED = 2
# Tolerance of times and counts of crossings, in crossings: above their rounding errors.
_SLACK, _CLOSE = 1e-9, 1e-6
# Maximum number of ranks whose orders are all listed: 5 have 24 rings and 60 chains. Circuits take
# far longer there, since exchanging two channels gives the same channels.
_LISTED_RANKS = 5
# Maximum number of arcs of all channels together in a search for circuits: models grow with them.
_CIRCUIT_ARCS = 460
# Seconds of an idle core per model.
_WORK_S = 0.4


def find_channels(
    request: Request, shape: str, limit: int = MAX_CHANNELS, count: int | None = None
) -> Channels:
    """Return the equal channels of one shape with the best rate (`channels.algbw_GBps`) found.

    Their number is the lowest, up to `limit`, whose rate is within rounding.LOSS of that of the
    best number; if `count` is given, it is `count`. They are listed in a sequence of which every
    prefix is balanced.

    Raise InputError if the shape, limit or count is invalid. Raise InfeasibleError if no ring (or
    chain) passes through all GPUs, or if the shape does not support the collective: chains, which
    add up and send back, are for allreduce only.
    """
    name = request.collective.name
    if shape not in SHAPES:
        raise InputError(f"channels: shape {shape!r}; expected one of {', '.join(SHAPES)}")
    if limit < 1 or (count is not None and count < 1):
        raise InputError(
            f"channels: at most {limit if count is None else count}; expected at least 1"
        )
    if name not in ("allreduce", "allgather", "reduce-scatter") or (
        shape == CHAIN and name != "allreduce"
    ):
        raise InfeasibleError(
            f"channels: {shape}s have no {name}; rings have allreduce, allgather, reduce-scatter, "
            "chains allreduce"
        )
    rounding = prepare(request, shape)
    return rounding.name(rounding.round(count) if count is not None else rounding.choose(limit))


class Rounding:
    """A search for equal channels among the known orders of a machine.

    `packed` is the solved linear program of rates, with orders of one shape. `listed` are the
    orders, numbered by their places; those found meanwhile are added. `loads` has a row for each:
    how many seconds it keeps each link busy for each GB of buffer that it carries.
    """

    def __init__(self, orders: Orders, packed: OrderPacking, effort: Effort) -> None:
        shapes = {shape for shape, _ in packed.columns}
        assert len(shapes) == 1, "channels of one shape"
        self.shape = shapes.pop()
        self.orders, self.effort = orders, effort
        # How long a crossing keeps each link busy.
        self.units = orders.times[self.shape] / orders.floats
        self.optimum = packed.algbw_GBps
        self.listed: list[Column] = list(packed.columns)
        self.known = {column: number for number, column in enumerate(self.listed)}
        self.loads: Floats = np.array([self._load(column) for column in self.listed])
        self.weights = packed.shares / packed.shares.sum()
        self.best: list[Ints] = []
        """The best channels known of each number from 1 on, as numbers of orders."""

    def _load(self, column: Column) -> Floats:
        uses = self.orders.uses(*column)
        return np.array([uses[row] for row in range(len(self.orders.floats))]) / self.orders.floats

    def name(self, numbers: Ints) -> Channels:
        """Return the channels whose orders have these numbers in `listed`.

        They are listed in a sequence of which every prefix loads links evenly.
        """
        sequence = numbers[interleave(self.loads[numbers])]
        return Channels(self.shape, tuple(self.listed[number][1] for number in sequence))

    def rate_GBps(self, channels: Ints) -> Fraction:
        """Return the exact algbw in GB/s of equal channels, given as numbers of orders in `listed`.

        It follows from the load of the busiest link.
        """
        times = Counter(channels.tolist())
        uses = [self.orders.uses(*self.listed[number]) for number in times]
        return len(channels) / find_max_load(uses, list(times.values()), self.orders.capacity)

    def choose(self, limit: int) -> Ints:
        """Return the fewest channels, at most `limit`, whose rate is nearly the best.

        It is within the share LOSS of it. Channels are numbers of orders in `listed`.
        """
        rates: list[Fraction] = []
        for count in range(1, limit + 1):
            known = max(rates, default=Fraction(0)) * (1 + LOSS)
            rates.append(self.rate_GBps(self.round(count, float(known))))
            if float(rates[-1]) >= self.optimum * float(1 - LOSS):
                break
        enough = max(rates) * (1 - LOSS)
        return self.best[next(i for i, rate in enumerate(rates) if rate >= enough)]

    def round(self, count: int, known_GBps: float = 0.0) -> Ints:
        """Return the best `count` channels found, as numbers of orders in `listed`.

        The costlier searches run only if a rate above `known_GBps` may be reached.
        """
        while len(self.best) < count:
            wanted = len(self.best) + 1
            begun = [round_down(self.weights, wanted), *self.best[-1:]]
            filled = (fill_up(self.loads, given, wanted, self.effort) for given in begun)
            starts = map(self._exchange, filled)
            channels = min(starts, key=self._busiest)
            # The linear relaxation shows whether these many channels may exceed the known rate.
            if self._loses(channels) and (
                not known_GBps
                or _may_fit(self.loads, self.units, wanted, wanted / known_GBps, self.effort)
            ):
                if self.orders.ranks <= _PRICED_RANKS:
                    channels = self._price_exchanges(channels)
                if self._loses(channels):
                    channels = self._fit_whole(channels, known_GBps)
            self.best.append(channels)
        return self.best[count - 1]

    def _busiest(self, channels: Ints) -> float:
        return float(self.loads[channels].sum(axis=0).max())

    def _loses(self, channels: Ints) -> bool:
        return len(channels) < self.optimum * float(1 - LOSS) * self._busiest(channels)

    def _exchange(self, channels: Ints) -> Ints:
        return exchange(self.loads, channels, self.effort, "equal channels")

    def _price_exchanges(self, channels: Ints) -> Ints:
        """Return the channels after exchanges that may bring in new orders.

        The new orders are the cheapest of all under prices that rise with load.
        """
        for _ in range(_MAX_PRICED):
            if not self._loses(channels) or self.effort.is_over("equal channels"):
                break
            total, before = self.loads[channels].sum(axis=0), len(self.listed)
            for number in np.unique(channels).tolist():
                rest = total - self.loads[number]
                prices = np.exp(_STEEP * (rest / max(float(rest.max()), 1e-300) - 1))
                prices /= self.orders.floats
                for offer in self.orders.cheapest(self.shape, prices, _PRICED_ORDERS, self.effort):
                    self._add(offer.order)
            if len(self.listed) == before:
                break
            improved = self._exchange(channels)
            if self._busiest(improved) >= self._busiest(channels) * (1 - BETTER):
                break
            channels = improved
        return channels

    def _fit_whole(self, channels: Ints, known_GBps: float) -> Ints:
        """Return better channels found under integer limits on crossings per link.

        Only rates above `known_GBps` are searched for. If none is found, return `channels`
        unchanged.
        """
        count, units = len(channels), self.units
        lists_all = self.orders.ranks <= _LISTED_RANKS
        if lists_all:
            self._add_all()
        now = self._busiest(channels)
        longest = min(now, count / known_GBps) if known_GBps else now
        times = _list_times(units, count / self.optimum, longest).tolist()
        # Find the shortest time that suffices for fractions of the known orders; integer counts may
        # need a little more.
        low = bisect_left(
            times, True, key=lambda time: _may_fit(self.loads, units, count, time, self.effort)
        )
        for time in times[low : low + _TRIED]:
            if self.effort.is_over("equal channels"):
                break
            circuits = (
                []
                if lists_all
                else _find_circuits(self.orders, self.shape, units, count, time, self.effort)
            )
            numbers = np.array([self._add(order) for order in circuits], dtype=np.int64)
            if not circuits:
                numbers = _count_orders(self.loads, units, count, time, self.effort)
            if len(numbers):
                return np.sort(numbers)
        return channels

    def _add_all(self) -> None:
        """Make all orders known that the routes allow."""
        n, exists = self.orders.ranks, self.orders.routes.exists
        for order in permutations(range(n)):
            is_named = order == name_order(self.shape, order)
            if is_named and all(exists[hop] for hop in hops(self.shape, order)):
                self._add(order)

    def _add(self, order: Order) -> int:
        column = (self.shape, name_order(self.shape, order))
        if column not in self.known:
            self.known[column] = len(self.listed)
            self.listed.append(column)
            self.loads = np.vstack([self.loads, self._load(column)])
            self.weights = np.append(self.weights, 0.0)
        return self.known[column]


def prepare(request: Request, shape: str) -> Rounding:
    """Return a search for equal channels of one shape (ring or chain), in any number.

    It solves the linear program of rates once. Raise InfeasibleError if no ring (or chain) exists
    or was found.
    """
    orders = Orders(OwnRoutes(request.router), request.collective)
    packed = pack_orders(request, [shape], orders)
    return Rounding(orders, packed, request.effort.extend(_ROUNDING_WORK_S))


def _list_times(units: Floats, shortest: float, longest: float) -> Floats:
    """Return the times at which some link may be crossed once more than just before.

    They range from `shortest` (included) to `longest` (excluded). `units` is how long one crossing
    keeps each link busy, in the same unit of time.
    """
    of_units = (
        np.arange(np.ceil(shortest / unit - _SLACK), np.ceil(longest / unit)) * unit
        for unit in np.unique(np.round(units, 12)).tolist()
    )
    times = np.unique(np.round(np.concatenate([[shortest], *of_units]), 12))
    return times[(times >= shortest * (1 - _SLACK)) & (times < longest * (1 - _CLOSE))]


def _count_crossings(loads: Floats, units: Floats, time: float) -> tuple[Ints, Ints]:
    """Return the crossings of each link by each order, and the crossings allowed per link.

    Rows are links and columns are orders. Links with identical crossings share one row.
    """
    crossings, kind = np.unique(
        np.rint(loads / units).astype(np.int64).T, axis=0, return_inverse=True
    )
    allowed = np.full(len(crossings), np.iinfo(np.int64).max)
    np.minimum.at(allowed, kind.reshape(-1), np.floor(time / units + _CLOSE).astype(np.int64))
    return crossings, allowed


def _may_fit(loads: Floats, units: Floats, count: int, time: float, effort: Effort) -> bool:
    """Return whether fractions of the orders that add up to `count` keep within integer limits.

    The limits are the numbers of crossings that each link allows within `time`.
    """
    crossings, allowed = _count_crossings(loads, units, time)
    rows, (link, order) = Rows(), np.nonzero(crossings)
    rows.extend(link, order, crossings[link, order].astype(float), allowed.astype(float))
    optimum = minimise(-np.ones(len(loads)), rows, None, effort)
    return optimum is not None and -optimum.value >= count - _CLOSE


def _count_orders(loads: Floats, units: Floats, count: int, time: float, effort: Effort) -> Ints:
    """Return the indices of `count` orders that keep no link busy for longer than `time`.

    An order may be repeated. The result is empty if no such orders were found.
    """
    model = cp_model.CpModel()
    times = [model.new_int_var(0, count, "") for _ in loads]
    model.add(sum(times) == count)
    for crossing, most in zip(*_count_crossings(loads, units, time), strict=True):
        users = np.flatnonzero(crossing).tolist()
        model.add(
            cp_model.LinearExpr.weighted_sum([times[j] for j in users], crossing[users].tolist())
            <= int(most)
        )
    solver, status = solve(model, effort.grant(_WORK_S), "equal channels")
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return np.array([], dtype=np.int64)
    return np.repeat(np.arange(len(loads)), [solver.value(x) for x in times])


def _find_circuits(
    orders: Orders, shape: str, units: Floats, count: int, time: float, effort: Effort
) -> list[Order]:
    """Return `count` orders that keep no link busy for longer than `time`.

    The result is empty if none were found, or if there are too many ranks and channels to search.
    """
    n, routes = orders.ranks, orders.routes
    exists = routes.exists & routes.exists.T if shape == CHAIN else routes.exists
    pairs = [(u, v) for u, v in permutations(range(n), 2) if exists[u, v]]
    if len(pairs) * count > _CIRCUIT_ARCS:
        return []
    model = cp_model.CpModel()
    load: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    taken: list[dict[tuple[int, int], cp_model.IntVar]] = []
    for _ in range(count):
        hop = {pair: model.new_bool_var("") for pair in pairs}
        first = 1 if shape == CHAIN else 0  # a chain is a circuit through a node of its own
        arcs = [(u + first, v + first, arc) for (u, v), arc in hop.items()]
        for end in range(1, n + 1) if first else ():
            arcs += [(0, end, model.new_bool_var("")), (end, 0, model.new_bool_var(""))]
        model.add_circuit(arcs)
        for (u, v), arc in hop.items():
            for a, b in ((u, v), (v, u))[: 1 + first]:
                for row in orders.rows(a, b):
                    load[row].append(arc)
        taken.append(hop)
    for row, crossing in load.items():
        model.add(sum(crossing) <= int(np.floor(time / units[row] + _CLOSE)))
    solver, status = solve(model, effort.grant(_WORK_S), "equal channels")
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    out = []
    for hop in taken:
        after = {u: v for (u, v), arc in hop.items() if solver.boolean_value(arc)}
        # Start at the rank that follows none or, in a ring, at rank 0.
        order = [next((rank for rank in range(n) if rank not in after.values()), 0)]
        while len(order) < n:
            order.append(after[order[-1]])
        out.append(tuple(order))
    return out
