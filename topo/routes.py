"""Which way data goes from one GPU to another: the path through switches, sockets and NICs that the hardware takes.

A sender does not choose: peer-to-peer traffic takes the closest path, and other GPUs do not forward. So there is
one route an ordered pair: the one with least latency, then fewest hops, then most bandwidth.
"""

from __future__ import annotations

import heapq
from fractions import Fraction
from itertools import pairwise

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
        self._from: dict[str, dict[str, Route]] = {}

    def route(self, src: int, dst: int) -> Route | None:
        """The route from rank `src` to rank `dst`, or None where only other GPUs could forward."""
        ranks = self.topology.ranks
        return self.routes_from(src).get(ranks[dst])

    def routes_from(self, src: int) -> dict[str, Route]:
        """Routes from rank `src` to every GPU it reaches, by the receiving GPU's id."""
        start = self.topology.ranks[src]
        if start not in self._from:
            self._from[start] = self._search(start)
        return self._from[start]

    def latency_us(self, route: Route) -> Fraction:
        """Latency along a route: the sum over its links."""
        return sum((self.topology.latency_us[link] for link in route_links(route)), Fraction(0))

    def bandwidth_GBps(self, route: Route) -> Fraction:
        """Bandwidth of a route that is used alone: that of its narrowest link."""
        return min(self.topology.capacity_GBps[link] for link in route_links(route))

    def _search(self, start: str) -> dict[str, Route]:
        topology = self.topology
        index = {d.id: i for i, d in enumerate(topology.devices)}
        found: dict[str, Route] = {}
        done: set[str] = set()
        heap: list[tuple[Fraction, int, Fraction, tuple[int, ...], Route]] = [
            (Fraction(0), 0, Fraction(0), (index[start],), (start,))
        ]
        while heap:
            latency, hops, narrow, key, route = heapq.heappop(heap)
            here = route[-1]
            if here in done:
                continue
            done.add(here)
            if here != start and topology.by_id[here].kind == "gpu":
                found[here] = route
                continue
            for there in topology.out_neighbours[here]:
                if there in done:
                    continue
                link = here, there
                width = -topology.capacity_GBps[link]
                heapq.heappush(
                    heap,
                    (
                        latency + topology.latency_us[link],
                        hops + 1,
                        width if hops == 0 else max(narrow, width),
                        (*key, index[there]),
                        (*route, there),
                    ),
                )
        return found
