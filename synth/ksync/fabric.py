"""The graph that k-synchronous synthesis works on: ranks, edges between them, and the links that
edges share.

An edge joins two ranks that the hardware routes between without another GPU in the way; its route
may cross several physical links, and several edges may share one. Capacities are whole numbers:
chunks a round, in the link unit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from fractions import Fraction

from ...topo.graph import Topology
from ...topo.routes import Route, Router, route_links
from ..cost.loads import DirectedLink


@dataclass(frozen=True)
class Fabric:
    """Edges with their links: `edges[i]` = (u, v) takes `routes[i]`, a link carries
    `capacity[link]` chunks a round, and `unit_GBps` is the bandwidth of one chunk a round.
    """

    topology: Topology
    edges: tuple[tuple[int, int], ...]
    routes: tuple[Route, ...]
    capacity: dict[DirectedLink, int]
    unit_GBps: Fraction

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.topology.ranks)

    def into(self, rank: int) -> list[int]:
        """Return the numbers of the edges that end at `rank`."""
        return [i for i, (_, v) in enumerate(self.edges) if v == rank]

    def links_of(self, edge: int) -> tuple[DirectedLink, ...]:
        """Return the physical links that an edge crosses."""
        return route_links(self.routes[edge])

    def hops_from(self, sources: tuple[int, ...], *, backwards: bool = False) -> dict[int, int]:
        """Return the number of edges from the nearest of `sources` (to it, if `backwards`) to each
        rank within reach.
        """
        neighbours: dict[int, list[int]] = {r: [] for r in range(self.ranks)}
        for u, v in self.edges:
            neighbours[v if backwards else u].append(u if backwards else v)
        hops = dict.fromkeys(sources, 0)
        queue = deque(sources)
        while queue:
            rank = queue.popleft()
            for destination in neighbours[rank]:
                if destination not in hops:
                    hops[destination] = hops[rank] + 1
                    queue.append(destination)
        return hops


def fabric_of(router: Router) -> Fabric:
    """Return the fabric of a router's topology: an edge for every ordered pair of ranks with a route."""
    topology = router.topology
    rank_of = {device: r for r, device in enumerate(topology.ranks)}
    edges, routes = [], []
    for u in range(len(topology.ranks)):
        for destination, route in sorted(
            router.routes_from(u).items(), key=lambda item: rank_of[item[0]]
        ):
            edges.append((u, rank_of[destination]))
            routes.append(route)
    used = {link for route in routes for link in route_links(route)}
    unit = router.unit_GBps
    capacity = {link: int(topology.capacity_GBps[link] / unit) for link in sorted(used)}
    return Fabric(topology, tuple(edges), tuple(routes), capacity, unit)
