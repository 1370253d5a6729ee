"""The best equal channels of a machine: how often to use each ring or chain, and in which sequence.

The busiest link decides the rate. For each number K of channels there are two starting points: the
linear program's weights, rounded, and the best K - 1 channels with one more. Both are improved by
exchanging one channel for another until nothing helps. Replacements are known orders or, for few
ranks, the cheapest of all orders under prices that rise with the links' loads.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np

from ...topo.errors import InfeasibleError, InputError
from ..forest.machine.links import Ints
from ..forest.machine.routes import OwnRoutes
from ..numeric.effort import Effort
from ..numeric.linear import Floats
from ..request import Request
from .channels import CHAIN, SHAPES, Channels, Order
from .columns import Column, Packed, pack_orders
from .orders import Orders
from .whole import count_orders, find_circuits, list_times, may_fit, name_order

# Maximum number of channels unless the caller sets a limit.
MAX_CHANNELS = 32
# Seconds of an idle core for rounding, beyond the effort of column generation.
_ROUNDING_WORK_S = 6.0
# Fraction of the best rate that may be lost in exchange for fewer channels.
LOSS = Fraction(5, 1000)
# Weight, relative to the busiest link, and exponent of the power mean over all links: exchanges
# that leave fewer links nearly as busy are better.
_SECOND, _POWER = 1e-4, 16
# How steeply prices rise with load: the busiest link is priced e^24 times as high as an idle one.
_STEEP = 24.0
# Smallest relative gain for which an exchange counts: above rounding errors.
_BETTER = 1e-9
# Maximum number of ranks for orders under rising prices, which take too long above it; maximum
# number of rounds; orders per set of prices.
_PRICED_RANKS, _MAX_PRICED, _PRICED_ORDERS = 10, 8, 4
# Number of shortest times that are tried with integer crossings by CP-SAT.
_TRIED = 2
# Seconds of an idle core per load compared in an exchange, and per call.
_ENTRY_S, _CALL_S = 2e-9, 5e-5


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
    orders = Orders(OwnRoutes(request.router), request.collective)
    packed = pack_orders(request, [shape], orders)
    rounding = Rounding(orders, packed, request.effort.extend(_ROUNDING_WORK_S))
    numbers = rounding.round(count) if count is not None else rounding.choose(limit)
    sequence = numbers[interleave(rounding.loads[numbers])]
    return Channels(shape, tuple(rounding.listed[number][1] for number in sequence))


class Rounding:
    """Search for equal channels among the known orders of a machine.

    Orders found meanwhile are added to the known ones.
    """

    def __init__(self, orders: Orders, packed: Packed, effort: Effort) -> None:
        shapes = {shape for shape, _ in packed.columns}
        assert len(shapes) == 1, "channels of one shape"
        self.shape = shapes.pop()
        self.orders, self.effort = orders, effort
        self.optimum = packed.algbw_GBps
        self.listed: list[Column] = list(packed.columns)
        self.known = {column: number for number, column in enumerate(self.listed)}
        self.loads: Floats = np.array([self._load(column) for column in self.listed])
        self.weights = packed.weights / packed.weights.sum()
        self.best: list[Ints] = []
        """The best channels known of each number from 1 on, as numbers of orders."""

    def _load(self, column: Column) -> Floats:
        out = np.zeros(len(self.orders.capacity))
        for row, times in self.orders.uses(*column).items():
            out[row] = times
        return out / self.orders.floats

    def rate_GBps(self, channels: Ints) -> Fraction:
        """Return the exact algbw of equal channels in GB/s, from the load of the busiest link."""
        total: Counter[int] = Counter()
        for number, count in Counter(channels.tolist()).items():
            for row, times in self.orders.uses(*self.listed[number]).items():
                total[row] += times * count
        return len(channels) / max(
            Fraction(load) / self.orders.capacity[row] for row, load in total.items()
        )

    def choose(self, limit: int) -> Ints:
        """Return the fewest channels, at most `limit`, with a rate within LOSS of the best."""
        rates: list[Fraction] = []
        for count in range(1, limit + 1):
            known = max(rates, default=Fraction(0)) * (1 + LOSS)
            rates.append(self.rate_GBps(self.round(count, float(known))))
            if float(rates[-1]) >= self.optimum * float(1 - LOSS):
                break
        enough = max(rates) * (1 - LOSS)
        return self.best[next(i for i, rate in enumerate(rates) if rate >= enough)]

    def round(self, count: int, known_GBps: float = 0.0) -> Ints:
        """Return the best `count` channels found.

        The costlier searches run only if a rate above `known_GBps` may be reached.
        """
        while len(self.best) < count:
            wanted = len(self.best) + 1
            starts = [self._fill(np.floor(self.weights * wanted + 1e-9).astype(np.int64), wanted)]
            if self.best:
                starts.append(
                    self._fill(np.bincount(self.best[-1], minlength=len(self.listed)), wanted)
                )
            channels = min(map(self._exchange, starts), key=self._busiest)
            if self._loses(channels) and self._may_reach(wanted, known_GBps):
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

    def _may_reach(self, count: int, known_GBps: float) -> bool:
        """Return whether `count` channels may exceed `known_GBps`.

        Checks the linear relaxation: fractions of known orders, under integer limits on crossings
        per link.
        """
        units = self.orders.times[self.shape] / self.orders.floats
        return not known_GBps or may_fit(self.loads, units, count, count / known_GBps, self.effort)

    def _fill(self, counts: Ints, wanted: int) -> Ints:
        """Return `wanted` channels: each order `counts` times, then the best one by one."""
        channels = np.repeat(np.arange(len(counts)), counts)[:wanted]
        while len(channels) < wanted:
            load = self.loads[channels].sum(axis=0)
            channels = np.append(channels, int(np.argmin(_judge(load + self.loads))))
            self.effort.spend(_CALL_S + _ENTRY_S * self.loads.size)
        return channels

    def _exchange(self, channels: Ints) -> Ints:
        """Return the channels after exchanges of one for a known order until nothing helps."""
        channels = channels.copy()
        now = float(_judge(self.loads[channels].sum(axis=0)))
        while not self.effort.is_over("equal channels"):
            total = self.loads[channels].sum(axis=0)
            best, where = now * (1 - _BETTER), None
            for number in np.unique(channels).tolist():
                score = _judge(total - self.loads[number] + self.loads)
                self.effort.spend(_CALL_S + _ENTRY_S * self.loads.size)
                other = int(np.argmin(score))
                if score[other] < best:
                    best, where = float(score[other]), (number, other)
            if where is None:
                break
            channels[int(np.flatnonzero(channels == where[0])[0])] = where[1]
            now = float(_judge(self.loads[channels].sum(axis=0)))
        return np.sort(channels)

    def _price_exchanges(self, channels: Ints) -> Ints:
        """Return the channels after exchanges that may bring in new orders.

        The new orders are the cheapest of all under prices that rise with load.
        """
        for _ in range(_MAX_PRICED):
            if not self._loses(channels) or self.effort.is_over("equal channels"):
                break
            total = self.loads[channels].sum(axis=0)
            before = len(self.listed)
            for number in np.unique(channels).tolist():
                rest = total - self.loads[number]
                steepness = np.exp(_STEEP * (rest / max(float(rest.max()), 1e-300) - 1))
                prices = steepness / self.orders.floats
                for offer in self.orders.cheapest(self.shape, prices, _PRICED_ORDERS, self.effort):
                    self._add(offer.order)
            if len(self.listed) == before:
                break
            improved = self._exchange(channels)
            if self._busiest(improved) >= self._busiest(channels) * (1 - _BETTER):
                break
            channels = improved
        return channels

    def _fit_whole(self, channels: Ints, known_GBps: float) -> Ints:
        """Return better channels found under integer limits on crossings per link.

        Only rates above `known_GBps` are searched for. If none is found, return `channels`
        unchanged.
        """
        count = len(channels)
        units = self.orders.times[self.shape] / self.orders.floats
        now = self._busiest(channels)
        longest = min(now, count / known_GBps) if known_GBps else now
        times = list_times(units, count / self.optimum, longest)
        # Find the shortest time that suffices for fractions of the known orders; integer counts may
        # need a little more.
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            fits = may_fit(self.loads, units, count, float(times[middle]), self.effort)
            low, high = (low, middle) if fits else (middle + 1, high)
        for time in times[low : low + _TRIED].tolist():
            if self.effort.is_over("equal channels"):
                break
            circuits = find_circuits(self.orders, self.shape, units, count, time, self.effort)
            numbers: Ints | None = np.array([self._add(order) for order in circuits], np.int64)
            if not circuits:
                numbers = count_orders(self.loads, units, count, time, self.effort)
            if numbers is not None and len(numbers):
                return np.sort(numbers)
        return channels

    def _add(self, order: Order) -> int:
        column = (self.shape, name_order(self.shape, order))
        if column not in self.known:
            self.known[column] = len(self.listed)
            self.listed.append(column)
            self.loads = np.vstack([self.loads, self._load(column)])
            self.weights = np.append(self.weights, 0.0)
        return self.known[column]


def _judge(load: Floats) -> Floats:
    """Return a score for each row of loads: the busiest link's load, plus a small tie-breaker.

    The tie-breaker grows with the number of links that are nearly as busy.
    """
    highest = load.max(axis=-1)
    ties = ((load / np.maximum(highest, 1e-300)[..., None]) ** _POWER).mean(axis=-1)
    judged: Floats = highest * (1 + _SECOND * ties)
    return judged


def interleave(loads: Floats) -> list[int]:
    """Return a sequence of channels in which every prefix is balanced.

    A row of `loads` is the load of each link by one channel. The next channel is always the one
    that keeps the busiest links of the prefix, in descending order, least loaded.
    """
    left, total, out = list(range(len(loads))), np.zeros(loads.shape[1]), list[int]()
    while left:
        sums = -np.sort(-(total + loads[left]), axis=1)
        evenness = np.round(sums / max(float(sums.max()), 1e-300), 9)
        chosen = left[int(np.lexsort(evenness.T[::-1])[0])]
        out.append(chosen)
        left.remove(chosen)
        total = total + loads[chosen]
    return out
