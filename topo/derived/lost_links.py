"""Tell lost links by the pairs of ranks that do not reach each other."""

from collections.abc import Collection, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from ..graph import Topology
from ..routes import Route, Router

if TYPE_CHECKING:
    from .forwarding import Forwarding

# Two ranks, the lower first.
Pair = tuple[int, int]
# A link by its two devices' ids, the lower first; both directions are meant.
Link = tuple[str, str]


class PairRoutes:
    """The links that sockets between each two ranks of a topology use, before any is lost.

    Sockets take the hardware's route; where there is none, GPUs forward. Only pairs of `ranks`
    (default: all) tell which links are lost.
    """

    def __init__(self, topology: Topology, ranks: Sequence[int] | None = None) -> None:
        self.topology, self._router = topology, Router(topology)
        self._ranks = range(len(topology.ranks)) if ranks is None else ranks
        self._forwarding: Forwarding | None = None
        self._links: dict[Pair, set[Link]] = {}

    def find_route(self, src: int, dst: int) -> Route:
        """Return the ids of the devices between two ranks, theirs included.

        If nothing joins the two, it is theirs alone.
        """
        route = self._router.route(src, dst)
        if route is not None:
            return route
        start, end = self.topology.ranks[src], self.topology.ranks[dst]
        if self._forwarding is None:
            from .forwarding import Forwarding  # needs networkx, which is slow to import

            self._forwarding = Forwarding(self.topology)
        return self._forwarding.routes_from(start).get(end, (start, end))

    def list_links(self, pair: Pair) -> set[Link]:
        """Return the links on the routes of both directions: either stops a connection."""
        if pair not in self._links:
            routes = self.find_route(*pair), self.find_route(*pair[::-1])
            self._links[pair] = {
                (min(link), max(link)) for route in routes for link in pairwise(route)
            }
        return self._links[pair]

    @property
    def _pairs(self) -> list[Pair]:
        return list(combinations(self._ranks, 2))

    def find_lost_links(self, unreached: Collection[Pair]) -> list[Link]:
        """Return the links that only the pairs `unreached`, which do not reach each other, use.

        One or several of them are lost; which ones, the pairs do not show, so none should be used.
        """
        lost: set[Link] = set().union(*map(self.list_links, unreached))
        for pair in self._pairs:
            if lost and pair not in unreached:
                lost -= self.list_links(pair)
        return sorted(lost)

    def find_unreached(self, links: Collection[Link]) -> list[Pair]:
        """Return the pairs of ranks that do not reach each other if some links are lost."""
        return [pair for pair in self._pairs if not self.list_links(pair).isdisjoint(links)]
