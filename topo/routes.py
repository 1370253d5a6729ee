"""Find the hardware's route from one GPU to another, through switches, sockets and NICs.

A sender cannot choose: peer-to-peer traffic takes the closest path, and other GPUs do not forward.
So there is one route per ordered pair: the one with least latency, then fewest hops, then most
bandwidth. A route is the tuple of device ids from one end to the other.

A `Router` is a rule of routes applied to one topology. Code that plans, costs or verifies receives
one; a subclass is another rule, and `router.on(topology)` applies a rule to another topology.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from .clock import pace
from .exact import fraction_gcd

if TYPE_CHECKING:
    from .graph import Topology

# Device ids from the sending to the receiving GPU, both included.
Route = tuple[str, ...]
# How each device is reached: the scaled latency, the hops, the rank by width of the narrowest link
# on the way (0 for the topology's narrowest links, -1 for the next wider ones and so on), the
# number of devices reached before it, and the device before it.
_Reached = dict[str, tuple[int, int, int, int, str]]
# With more GPUs, searching the routes of all pairs takes too long just to print a number of rounds.
_ROUTED_RANKS = 64

# The other end of a link, its latency in whole units, and its rank by width (0 or less, see above).
_Hop = tuple[str, int, int]


class _Near(NamedTuple):
    """The links of a topology: from each device to others but GPUs, and into each GPU.

    `widest` is the rank of the widest link.
    """

    between: dict[str, list[_Hop]]
    into: dict[str, list[_Hop]]
    widest: int


def route_links(route: Route) -> tuple[tuple[str, str], ...]:
    """Return the directed links that a route crosses, as (src, dst)."""
    return tuple(pairwise(route))


class Router:
    """The routes of one topology by the hardware's rule: least latency, through no other GPU.

    Routes from a source are searched on first use and cached. `steps` counts the work done so far,
    so that callers can limit it: links searched or crossed, and routes returned.
    """

    omits_pairs = False
    """Whether GPUs may have no route although a path through no other GPU joins them."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.steps = 0
        self._reached_from: dict[str, _Reached] = {}
        self._routes: dict[tuple[str, str], Route | None] = {}
        self._gpus = frozenset(topology.ranks)
        # A rule may search fewer links than the topology that it is for has.
        self._searched = topology

    @cached_property
    def _near(self) -> _Near:
        """The links as searches need them. On large machines that takes longer than a bound."""
        topology = self._searched
        # Integers compare several times as fast as fractions: latencies are scaled by their common
        # denominator, and widths are replaced by their rank.
        scale = lcm(*(x.denominator for x in topology.latency_us.values()))
        width = {c: -i for i, c in enumerate(sorted(set(topology.capacity_GBps.values())))}
        hops = {
            link: (link[1], int(topology.latency_us[link] * scale), width[capacity])
            for link, capacity in pace(topology.capacity_GBps.items(), "reading links for routes")
        }
        between = {
            device: [hops[device, near] for near in neighbours if near not in self._gpus]
            for device, neighbours in topology.out_neighbours.items()
        }
        into: dict[str, list[_Hop]] = {gpu: [] for gpu in topology.ranks}
        for (device, end), (_, latency, width_rank) in hops.items():
            if end in self._gpus:
                into[end].append((device, latency, width_rank))
        return _Near(between, into, min(width.values(), default=0))

    def route(self, src: int, dst: int) -> Route | None:
        """Return the route from rank `src` to rank `dst`; `find_route` takes device ids.

        Return None if every path leads through other GPUs, there is none, or `src` is `dst`.
        """
        return self.find_route(self.topology.ranks[src], self.topology.ranks[dst])

    def find_route(self, start: str, end: str) -> Route | None:
        """Return the route from one device to another, of any kind, by their ids.

        Return None if every path leads through GPUs, there is none, or `start` is `end`.
        """
        self.steps += 1
        if (start, end) not in self._routes:
            self._routes[start, end] = self._trace(start, end)
        return self._routes[start, end]

    def _trace(self, start: str, end: str) -> Route | None:
        reached = self._search(start)
        before = self._find_before(end, reached)
        if before is None or end == start:
            return None
        path = [end, before]
        while path[-1] != start:
            path.append(reached[path[-1]][-1])
        self.steps += len(path)
        return tuple(reversed(path))

    def reversed(self) -> Router:
        """Return a router of the reversed topology that gives the same routes, reversed."""
        return _ReversedRouter(self)

    def on(self, topology: Topology) -> Router:
        """Return the router of another topology that finds routes by the same rule."""
        return self if topology == self.topology else type(self)(topology)

    @cached_property
    def unit_GBps(self) -> Fraction:
        """The greatest bandwidth in GB/s of which those of all links are whole multiples.

        SCCL's rounds rest on it: in a round a link of n times this bandwidth carries n chunks. The
        links on routes between GPUs count; with more than 64 GPUs all links do. A topology without
        links has unit 1.
        """
        links = set(self.topology.capacity_GBps)
        ranks = range(len(self.topology.ranks))
        if len(ranks) <= _ROUTED_RANKS:
            links = {
                link
                for rank in ranks
                for route in self.routes_from(rank).values()
                for link in route_links(route)
            } or links
        widths = {self.topology.capacity_GBps[link] for link in links}
        return fraction_gcd(sorted(widths)) if widths else Fraction(1)

    def forget(self) -> None:
        """Drop all cached routes, to save memory when sources are queried one after another."""
        self._reached_from.clear()
        self._routes.clear()

    def routes_from(self, src: int) -> dict[str, Route]:
        """Return the routes from rank `src` to every GPU it reaches, by the receiving GPU's id."""
        return {
            gpu: route
            for dst, gpu in enumerate(self.topology.ranks)
            if (route := self.route(src, dst)) is not None
        }

    def latency_us(self, route: Route) -> Fraction:
        """Return the latency along a route in microseconds: the sum over its links."""
        return sum((self.topology.latency_us[link] for link in route_links(route)), Fraction(0))

    def bandwidth_GBps(self, route: Route) -> Fraction:
        """Return the bandwidth in GB/s of a route that is used alone, its narrowest link's."""
        return min(self.topology.capacity_GBps[link] for link in route_links(route))

    def before_each(self, start: str) -> Mapping[str, str]:
        """Return, by device id, the id of the device before it on its route from device `start`.

        `start` is its own predecessor, and devices without a route are missing. Raise
        NotImplementedError on a router that `reversed` returned.
        """
        reached = self._search(start)
        before = {device: key[-1] for device, key in reached.items()}
        for gpu in self._gpus - before.keys():
            near = self._find_before(gpu, reached)
            if near is not None:
                before[gpu] = near
        return before

    def _find_before(self, end: str, reached: _Reached) -> str | None:
        """Return the device before `end` on its route from the start of a search, None if none.

        Among equally good routes it is the device that was reached first.
        """
        if end in reached:
            return reached[end][-1]
        offers = []
        for near, hop_latency, width in self._near.into.get(end, ()):
            if near in reached:
                latency, hops, narrow, order, _ = reached[near]
                offers.append((latency + hop_latency, hops, max(narrow, width), order, near))
        self.steps += len(offers)
        return min(offers)[-1] if offers else None

    def _search(self, start: str) -> _Reached:
        """Return how `start` reaches each device that is not a GPU, nearest first, by Dijkstra.

        GPUs do not forward, so leaving them out loses nothing; a switch may have thousands.
        """
        if start in self._reached_from:
            return self._reached_from[start]
        reached: _Reached = {}
        between = self._near.between
        heap = [(0, 0, self._near.widest, 0, start, start)]
        count = 0
        while heap:
            latency, hops, narrow, _, device, previous = heapq.heappop(heap)
            if device in reached:
                continue
            reached[device] = latency, hops, narrow, len(reached), previous
            self.steps += len(between[device])
            for next_device, hop_latency, width in between[device]:
                if next_device not in reached:
                    count += 1
                    key = latency + hop_latency, hops + 1, max(narrow, width)
                    heapq.heappush(heap, (*key, count, next_device, device))
        self._reached_from[start] = reached
        return reached


class _ReversedRouter(Router):
    """The router of a reversed topology that gives the routes of the original one, reversed."""

    def __init__(self, forward: Router) -> None:
        super().__init__(forward.topology.reversed())
        self.forward, self.omits_pairs = forward, forward.omits_pairs

    def find_route(self, start: str, end: str) -> Route | None:
        """Return the reverse of the other topology's route from `end` to `start`."""
        route = self.forward.find_route(end, start)
        return None if route is None else route[::-1]

    def before_each(self, start: str) -> Mapping[str, str]:
        """Raise NotImplementedError: reversed routes do not form a tree from their source."""
        raise NotImplementedError("reversed routes do not form a tree from their source")

    def reversed(self) -> Router:
        """Return the original router."""
        return self.forward

    def on(self, topology: Topology) -> Router:
        """Return the router of another topology that finds routes by the same rule."""
        if topology == self.topology:
            return self
        return self.forward.on(topology.reversed()).reversed()
