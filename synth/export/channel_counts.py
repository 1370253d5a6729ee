"""The number of rings and chains for a file.

NCCL runs only as many channels as both graphs have, so a number is chosen at which both lose
little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import cycle, islice

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

# Shares of their best rates that a number of channels must keep: for the faster of rings and
# chains, and for the other.
_NEAR_FASTER, _NEAR_SLOWER = Fraction(995, 1000), Fraction(98, 100)
# Work of rounding, in seconds of an idle core.
_ROUNDING_WORK_S = 6.0
# Gain in share for which the faster shape may have another number of channels.
_WORTH_CHANGING = Fraction(2, 100)
# (compute capability, GB/s): the largest rate that NCCL's tuner assumes for a tree's channel, since
# one block of threads copies no faster.
_CHANNEL_GBps = ((100, 70), (90, 38), (0, 24))

# The channels of each shape, in equal numbers.
Sized = dict[str, Channels]


class Finder:
    """A finder of equal channels of one shape, in any number, by a single column generation.

    (channels.rounding does the same for one number.)
    """

    def __init__(self, request: Request, shape: str) -> None:
        orders = Orders(OwnRoutes(request.router), request.collective)
        packed = pack_orders(request, [shape], orders)
        self.shape = shape
        self._rounding = Rounding(orders, packed, request.effort.extend(_ROUNDING_WORK_S))

    def find_best(self, most: int) -> Channels:
        """Return the fewest channels, at most `most`, that lose almost nothing."""
        return self._name(self._rounding.choose(most))

    def find(self, count: int) -> Channels:
        """Return the best `count` channels that the search finds."""
        return self._name(self._rounding.round(count))

    def _name(self, numbers: NDArray[np.int64]) -> Channels:
        """Return channels in a sequence with balanced prefixes."""
        sequence = interleave(self._rounding.loads[numbers])
        return Channels(self.shape, tuple(self._rounding.listed[numbers[i]][1] for i in sequence))


def match_counts(request: Request, finders: Sequence[Finder], most: int) -> Sized:
    """Return the same number of channels of each shape, at most `most`.

    It is the smallest number at which all shapes are near their best rates.
    """
    given = {finder.shape: finder.find_best(most) for finder in finders}
    matching = _Matching(request, given, {finder.shape: finder for finder in finders}, most)
    chosen = matching.size_to(matching.choose_count())
    # If the slower shape loses much by a number that suits the faster one, its own number may suit
    # both.
    for shape, channels in given.items():
        if matching.find_share(chosen, shape) < _NEAR_SLOWER:
            own = matching.size_to(most // len(channels.orders) * len(channels.orders))
            if matching.find_least_share(own) > matching.find_least_share(chosen) + _WORTH_CHANGING:
                chosen = own if matching.keeps_faster(own) else chosen
    return chosen


class _Matching:
    """Rings and chains as given, and the algbw of their prefixes and repetitions for allreduce."""

    def __init__(
        self, request: Request, given: Sized, finders: dict[str, Finder], most: int
    ) -> None:
        self._given, self._finders, self._most = given, finders, most
        self._reducing = request.of(Collective("allreduce", request.collective.ranks))
        self._rates = _Rates(self._reducing)
        self._by_count = {
            shape: self._rates.list_rates(channels, most) for shape, channels in given.items()
        }
        # Allgather and reduce-scatter only run on rings.
        self._serving = list(given) if request.collective.name == "allreduce" else [RING]

    def choose_count(self) -> int:
        """Return the smallest number of channels that loses little.

        If `most` allows, it is large enough that no channel must exceed the rate of a single
        channel.
        """
        faster = [
            max(self._by_count[shape][k] for shape in self._serving) for k in range(self._most)
        ]
        slower = [min(row[k] for row in self._by_count.values()) for k in range(self._most)]
        fitting = [k for k in range(self._most) if faster[k] >= max(faster) * _NEAR_FASTER]
        enough = max(slower[k] for k in fitting) * _NEAR_SLOWER
        fitting = [k for k in fitting if slower[k] >= enough]
        limit = _max_channel_GBps(self._reducing.topology)
        slow = [k for k in fitting if faster[k] * 2 / (k + 1) <= limit]
        return 1 + min(slow or fitting[-1:])

    def size_to(self, count: int) -> Sized:
        """Return `count` channels of each shape.

        These are the given ones, repeated in turn, or those of a search if they lose less.
        """
        out: Sized = {}
        for shape, channels in self._given.items():
            orders = channels.orders
            out[shape] = Channels(shape, tuple(orders[i % len(orders)] for i in range(count)))
            if self.find_share(out, shape) < _NEAR_FASTER:
                searched = self._finders[shape].find(count)
                out[shape] = max(out[shape], searched, key=self._rate)
        return out

    def _rate(self, channels: Channels) -> Fraction:
        return self._rates.list_rates(channels, len(channels.orders))[-1]

    def find_share(self, sized: Sized, shape: str) -> Fraction:
        """Return the share of its best algbw that a shape keeps."""
        return self._rate(sized[shape]) / max(self._by_count[shape])

    def find_least_share(self, sized: Sized) -> Fraction:
        """Return the share of its best algbw that the shape with the greatest loss keeps."""
        return min(self.find_share(sized, shape) for shape in sized)

    def keeps_faster(self, sized: Sized) -> bool:
        """Return whether the faster shape keeps nearly its best rate."""
        best = max(max(self._by_count[shape]) for shape in self._serving)
        return max(self._rate(sized[shape]) for shape in self._serving) >= best * _NEAR_FASTER


def _max_channel_GBps(topology: Topology) -> int:
    """Return the most GB/s that one channel of a tree copies on the slowest of the GPUs."""
    texts = [str(topology.by_id[gpu].extra.get("sm", "")) for gpu in topology.ranks]
    slowest = min((int(text) if text.isdigit() else 0 for text in texts), default=0)
    return next(rate for capability, rate in _CHANNEL_GBps if slowest >= capability)


class _Rates:
    """The algbw in GB/s of channels for allreduce, from how often they cross each link."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._crossed: dict[tuple[str, Order], Counter[tuple[str, str]]] = {}

    def list_rates(self, channels: Channels, most: int) -> list[Fraction]:
        """Return the algbw in GB/s of the first 1, 2, ... `most` channels.

        Channels are repeated if there are fewer.
        """
        total: Counter[tuple[str, str]] = Counter()
        n, capacity, rates = channels.ranks, self._request.topology.capacity_GBps, []
        carried = Fraction(2 * (n - 1), n) if channels.shape == RING else Fraction(1)
        for count, order in enumerate(islice(cycle(channels.orders), most), 1):
            total.update(self._find_crossed(channels.shape, order))
            slowest = min(capacity[link] / times for link, times in total.items())
            rates.append(slowest * count / carried)
        return rates

    def _find_crossed(self, shape: str, order: Order) -> Counter[tuple[str, str]]:
        crossed = self._crossed.get((shape, order))
        if crossed is None:
            crossed = self._crossed[shape, order] = Counter()
            for src, dst in list_hops(Channels(shape, (order,))):
                route = self._request.router.route(src, dst)
                assert route is not None, (src, dst)
                crossed.update(route_links(route))
        return crossed
