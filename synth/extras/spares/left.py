"""Find what is left of a machine without some links: its topology, and routes between its ranks."""

from collections.abc import Mapping, Sequence, Set
from itertools import permutations

from ....topo.derived.degrade import Change, degrade
from ....topo.derived.lost_links import Link, Pair
from ....topo.graph import Topology
from ....topo.routes import Route, Router


def without_links(topology: Topology, links: Sequence[Link]) -> Topology:
    """Return the topology without some links, in both directions.

    Each of `links` is (device id, device id).
    """
    if not links:
        return topology
    return degrade(topology, Change(without_links=tuple(f"{a}:{b}" for a, b in links)))


class ReachedRouter(Router):
    """The hardware's routes, except between the pairs of ranks `unreached`, the lower rank first.

    Lost links have disconnected these. Sockets keep the routes that they had: if another path is
    left, they do not find it.
    """

    def __init__(self, topology: Topology, unreached: Set[Pair]) -> None:
        super().__init__(topology)
        self.unreached, self.omits_pairs = unreached, bool(unreached)
        gpus = topology.ranks
        self._closed = {pair for a, b in unreached for pair in permutations((gpus[a], gpus[b]))}

    def find_route(self, start: str, end: str) -> Route | None:
        """Return the hardware's route between two devices; None between disconnected ranks."""
        return None if (start, end) in self._closed else super().find_route(start, end)

    def before_each(self, start: str) -> Mapping[str, str]:
        """Return, by device id, the device before it on its route from `start`."""
        before = super().before_each(start)
        return {x: near for x, near in before.items() if (start, x) not in self._closed}

    def on(self, topology: Topology) -> Router:
        """Return a router for another topology; the same GPUs, by their ids, have no routes."""
        if topology == self.topology:
            return self
        number = {gpu: rank for rank, gpu in enumerate(topology.ranks)}  # of some GPUs, perhaps
        gpus = self.topology.ranks
        pairs = [(gpus[a], gpus[b]) for a, b in self.unreached]
        kept = (sorted((number[x], number[y])) for x, y in pairs if x in number and y in number)
        return ReachedRouter(topology, frozenset((a, b) for a, b in kept))
