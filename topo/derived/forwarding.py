"""Find routes between GPUs that no direct hardware route connects: other GPUs relay the data.

Sockets relay data this way, and stock collectives must.
"""

from fractions import Fraction

import networkx as nx

from ..graph import Topology
from ..routes import Route

# Among paths with the same number of hops, the widest is chosen: a hop costs 1, plus this share
# times (widest bandwidth / its own), so little that a path's shares do not add up to a hop.
_WIDTH_SHARE = 1e-6


class Forwarding:
    """The routes of one topology if GPUs may forward data, unlike those of Router (topo/routes.py).

    They have the fewest hops; among routes with equally many hops, the widest is chosen.
    """

    def __init__(self, topology: Topology) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        self._graph.add_nodes_from(topology.by_id)
        widest = max(topology.capacity_GBps.values(), default=Fraction(0))
        for (a, b), capacity in topology.capacity_GBps.items():
            self._graph.add_edge(a, b, weight=1 + float(widest / capacity) * _WIDTH_SHARE)

    def routes_from(self, start: str) -> dict[str, Route]:
        """Return the route from device `start` to every device that it reaches, keyed by id.

        Together the routes form a tree. The route to `start` is itself alone.
        """
        return {
            end: tuple(path)
            for end, path in nx.single_source_dijkstra_path(self._graph, start).items()
        }
