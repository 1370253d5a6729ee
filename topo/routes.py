"""Which way data goes from one GPU to another: the path through switches, sockets and NICs that the hardware takes.

A sender does not choose: peer-to-peer traffic takes the closest path, and other GPUs do not forward. So there is
one route an ordered pair: the one with least latency, then fewest hops, then most bandwidth.
"""

from __future__ import annotations

import heapq
from fractions import Fraction
from itertools import pairwise
from math import lcm

from .graph import Topology

Route = tuple[str, ...]
"""Device ids from the sending to the receiving GPU, both included."""


def route_links(route: Route) -> tuple[tuple[str, str], ...]:
    """The directed links that a route crosses, as (src, dst)."""
    return tuple(pairwise(route))


class Router:
    """Routes of one topology, found per source when first asked for."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._before: dict[str, dict[str, str]] = {}
        self.steps = 0
        """Links looked at or crossed so far, and routes asked for: what the work is measured by."""
        self._gpus = frozenset(topology.ranks)
        scale = lcm(*(x.denominator for x in topology.latency_us.values()))
        width = {c: -i for i, c in enumerate(sorted(set(topology.capacity_GBps.values())))}
        self._out = {
            here: [
                (there, int(topology.latency_us[here, there] * scale), width[topology.capacity_GBps[here, there]])
                for there in near
            ]
            for here, near in topology.out_neighbours.items()
        }
        self._widest = min(width.values(), default=0)

    def route(self, src: int, dst: int) -> Route | None:
        """The route from rank `src` to rank `dst`, or None where only other GPUs could forward."""
        return self.between(self.topology.ranks[src], self.topology.ranks[dst])

    def between(self, start: str, here: str) -> Route | None:
        """The route from one device to another, of any kind, by their ids; None where only GPUs could forward."""
        before = self._search(start)
        self.steps += 1
        if here not in before or here == start:
            return None
        path = [here]
        while path[-1] != start:
            path.append(before[path[-1]])
        self.steps += len(path)
        return tuple(reversed(path))

    def forget(self) -> None:
        """Let go of what was found: for those who ask for one source after the other, of many."""
        self._before.clear()

    def routes_from(self, src: int) -> dict[str, Route]:
        """Routes from rank `src` to every GPU it reaches, by the receiving GPU's id."""
        found = ((gpu, self.route(src, dst)) for dst, gpu in enumerate(self.topology.ranks))
        return {gpu: route for gpu, route in found if route is not None}

    def latency_us(self, route: Route) -> Fraction:
        """Latency along a route: the sum over its links."""
        return sum((self.topology.latency_us[link] for link in route_links(route)), Fraction(0))

    def bandwidth_GBps(self, route: Route) -> Fraction:
        """Bandwidth of a route that is used alone: that of its narrowest link."""
        return min(self.topology.capacity_GBps[link] for link in route_links(route))

    def _search(self, start: str) -> dict[str, str]:
        """The device before each that is reached (Dijkstra); of routes alike in all, the one found first."""
        if start in self._before:
            return self._before[start]
        before: dict[str, str] = {}
        heap = [(0, 0, self._widest, 0, start, start)]
        count = 0
        while heap:
            latency, hops, narrow, _, here, previous = heapq.heappop(heap)
            if here in before:
                continue
            before[here] = previous
            if here != start and here in self._gpus:
                continue
            self.steps += len(self._out[here])
            for there, more, width in self._out[here]:
                if there not in before:
                    count += 1
                    heapq.heappush(heap, (latency + more, hops + 1, max(narrow, width), count, there, here))
        self._before[start] = before
        return before
