"""As many rings as chains: NCCL runs the number that both graphs have, so a number is sought at
which both lose little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from ...topo.routes import route_links
from ..channels.channels import RING, Channels, Order
from ..channels.columns import pack_orders
from ..channels.orders import Orders
from ..channels.rounding import Rounding, interleave
from ..forest.machine.routes import OwnRoutes
from ..ir.collective import Collective
from ..request import Request
from .graph_check import list_hops

# Shares of the best rates that a number of channels has to keep: of the faster of rings and chains,
# and of the other.
_NEAR_FASTER, _NEAR_SLOWER = Fraction(995, 1000), Fraction(98, 100)
_ROUNDING_WORK_S = 6.0
_WORTH_CHANGING = Fraction(2, 100)
# (compute capability, GB/s): NCCL's tuner counts no more for a tree's channel, as one block of
# threads copies no more.
_CHANNEL_GBps = ((100, 70), (90, 38), (0, 24))

# As many channels of each shape.
Sized = dict[str, Channels]


class Finder:
    """Finds equal channels of one shape, in several numbers, by one column generation; as
    channels.search does in one.
    """

    def __init__(self, request: Request, shape: str) -> None:
        orders = Orders(OwnRoutes(request.router), request.collective)
        packed = pack_orders(request, [shape], orders)
        self.shape = shape
        self._rounding = Rounding(orders, packed, request.effort.extend(_ROUNDING_WORK_S))

    def find_best(self, most: int) -> Channels:
        """Return the fewest channels, at most `most`, that lose next to nothing."""
        return self._name(self._rounding.choose(most))

    def find(self, count: int) -> Channels:
        """Return the best `count` channels that are found."""
        return self._name(self._rounding.round(count))

    def _name(self, numbers: NDArray[np.int64]) -> Channels:
        """Return channels in a sequence of which every prefix is balanced."""
        sequence = interleave(self._rounding.loads[numbers])
        return Channels(self.shape, tuple(self._rounding.listed[numbers[i]][1] for i in sequence))


def match_counts(request: Request, finders: Sequence[Finder], most: int) -> Sized:
    """Return as many channels of each shape, at most `most`: the fewest at which all are near what
    they reach at best.
    """
    given = {finder.shape: finder.find_best(most) for finder in finders}
    matching = _Matching(request, given, {finder.shape: finder for finder in finders}, most)
    chosen = matching.size_to(matching.choose_count())
    # Where the slower shape loses much by a number that suits the faster one, its own number may
    # suit both.
    for shape, channels in given.items():
        if matching.find_share(chosen, shape) < _NEAR_SLOWER:
            own = matching.size_to(most // len(channels.orders) * len(channels.orders))
            if matching.find_least_share(own) > matching.find_least_share(chosen) + _WORTH_CHANGING:
                chosen = own if matching.keeps_faster(own) else chosen
    return chosen


class _Matching:
    """Rings and chains as they were found, and the algbw that prefixes and repetitions of them have
    for allreduce.
    """

    def __init__(
        self, request: Request, given: Sized, finders: dict[str, Finder], most: int
    ) -> None:
        self._given, self._finders, self._most = given, finders, most
        self._reducing = request.of(Collective("allreduce", request.collective.ranks))
        self._rates = _Rates(self._reducing)
        self._by_count = {
            shape: self._rates.list_rates(channels, most) for shape, channels in given.items()
        }
        # Allgather and reduce-scatter are what rings do.
        self._serving = list(given) if request.collective.name == "allreduce" else [RING]

    def choose_count(self) -> int:
        """Return the fewest channels that lose little; none of them faster than one can be, where
        there is room for more.
        """
        faster = [
            max(self._by_count[shape][k] for shape in self._serving) for k in range(self._most)
        ]
        slower = [min(row[k] for row in self._by_count.values()) for k in range(self._most)]
        fitting = [k for k in range(self._most) if faster[k] >= max(faster) * _NEAR_FASTER]
        enough = max(slower[k] for k in fitting) * _NEAR_SLOWER
        fitting = [k for k in fitting if slower[k] >= enough]
        limit = _most_channel_GBps(self._reducing.topology)
        slow = [k for k in fitting if faster[k] * 2 / (k + 1) <= limit]
        return 1 + min(slow or fitting[-1:])

    def size_to(self, count: int) -> Sized:
        """Return `count` channels of each shape: the first ones, all in turn, or others that lose
        less by a search.
        """
        out: Sized = {}
        for shape, channels in self._given.items():
            orders = channels.orders
            out[shape] = Channels(shape, tuple(orders[i % len(orders)] for i in range(count)))
            if self.find_share(out, shape) < _NEAR_FASTER:
                searched = self._finders[shape].find(count)
                out[shape] = max(out[shape], searched, key=lambda each: self._rate(each))
        return out

    def _rate(self, channels: Channels) -> Fraction:
        """Return the algbw of channels."""
        return self._rates.list_rates(channels, len(channels.orders))[-1]

    def find_share(self, sized: Sized, shape: str) -> Fraction:
        """Return the share of its best algbw that a shape keeps."""
        return self._rate(sized[shape]) / max(self._by_count[shape])

    def find_least_share(self, sized: Sized) -> Fraction:
        """Return the share that the shape keeps that loses most."""
        return min(self.find_share(sized, shape) for shape in sized)

    def keeps_faster(self, sized: Sized) -> bool:
        """Return whether the faster shape keeps nearly what it reaches at best."""
        best = max(max(self._by_count[shape]) for shape in self._serving)
        return max(self._rate(sized[shape]) for shape in self._serving) >= best * _NEAR_FASTER


def _most_channel_GBps(topology: Topology) -> int:
    """Return what one channel of a tree copies at most on the slowest of the GPUs."""
    told = [str(topology.by_id[gpu].extra.get("sm", "")) for gpu in topology.ranks]
    slowest = min((int(text) if text.isdigit() else 0 for text in told), default=0)
    return next(rate for capability, rate in _CHANNEL_GBps if slowest >= capability)


def _resize(channels: Channels, count: int) -> Channels:
    """Return the first `count` channels, all of them in turn where there are fewer."""
    orders = channels.orders
    return Channels(channels.shape, tuple(orders[i % len(orders)] for i in range(count)))


class _Rates:
    """The algbw of channels for allreduce: on each link, how often the channels cross it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._crossed: dict[tuple[str, Order], Counter[tuple[str, str]]] = {}

    def list_rates(self, channels: Channels, most: int) -> list[Fraction]:
        """Return the algbw of the first 1, 2, ... `most` channels, all of them in turn where there
        are fewer.
        """
        total: Counter[tuple[str, str]] = Counter()
        n, capacity, out = channels.ranks, self._request.topology.capacity_GBps, []
        carried = Fraction(2 * (n - 1), n) if channels.shape == RING else Fraction(1)
        for number in range(most):
            total.update(
                self._find_crossed(channels.shape, channels.orders[number % len(channels.orders)])
            )
            out.append(
                min(capacity[link] / times for link, times in total.items())
                * (number + 1)
                / carried
            )
        return out

    def _find_crossed(self, shape: str, order: Order) -> Counter[tuple[str, str]]:
        """Return how often an order crosses each link."""
        crossed = self._crossed.get((shape, order))
        if crossed is None:
            crossed = self._crossed[shape, order] = Counter()
            for src, dst in list_hops(Channels(shape, (order,))):
                route = self._request.router.route(src, dst)
                assert route is not None, (src, dst)
                crossed.update(route_links(route))
        return crossed
