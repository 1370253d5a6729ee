"""The way of data between GPUs that no own route joins: other GPUs hand it on, as sockets do and as
stock collectives must.
"""

from __future__ import annotations

import networkx as nx

from ..graph import Topology
from ..routes import Route


class Forwarding:
    """Finds ways over any device of one topology: those of fewest hops, and of these the widest."""

    def __init__(self, topology: Topology) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        self._graph.add_nodes_from(d.id for d in topology.devices)
        widest = max(topology.capacity_GBps.values(), default=None)
        for (a, b), capacity in topology.capacity_GBps.items():
            assert widest is not None
            self._graph.add_edge(a, b, weight=1 + float(widest / capacity) * 1e-6)

    def routes_from(self, start: str) -> dict[str, Route]:
        """Return the way to every device that can be reached; together they form a tree."""
        return {
            end: tuple(way)
            for end, way in nx.single_source_dijkstra_path(
                self._graph, start, weight="weight"
            ).items()
        }
