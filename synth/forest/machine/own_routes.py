"""The system's own routes between all GPUs of a machine as a matrix, so that prices and loads are
quick to sum up.

Hardware takes one route an ordered pair (topo/routes.py). A pair between which only other GPUs
could forward has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ....topo.routes import Route, Router
from .metric import HOP_SHARE, Metric
from .symmetry import mirrors, shifts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class OwnRoutes:
    """The routes of one topology. `links` are its directed links; row u n + v of `crossed` counts
    those from rank u to v.
    """

    def __init__(self, router: Router) -> None:
        self.topology = topology = router.topology
        self.links = list(topology.capacity_GBps)
        self.number = {link: i for i, link in enumerate(self.links)}
        self.capacity: Floats = np.array([float(c) for c in topology.capacity_GBps.values()])
        self.size = len(topology.ranks)
        self._router = router
        starts, columns = [0], list[int]()
        for u in range(self.size):
            for v in range(self.size):
                route = self._router.route(u, v) if u != v else None
                if route is not None:
                    columns += [self.number[link] for link in pairwise(route)]
                starts.append(len(columns))
        shape = self.size**2, len(self.links)
        self.crossed = csr_matrix((np.ones(len(columns)), columns, starts), shape=shape)
        self.exists: NDArray[np.bool_] = (np.diff(starts) > 0).reshape(self.size, self.size)

    def route(self, u: int, v: int) -> Route:
        """Return the route from rank u to rank v, which must exist."""
        route = self._router.route(u, v)
        assert route is not None, (u, v)
        return route

    def distances(self, prices: Floats) -> Floats:
        """Return the price of the route from rank u to rank v in row u, column v; infinite where
        there is none.
        """
        distance: Floats = (self.crossed @ prices).reshape(self.size, self.size)
        distance[~self.exists] = np.inf
        return distance

    def loads(self, sends: Floats) -> Floats:
        """Return what each link carries when rank u sends `sends[u, v]` to rank v."""
        out: Floats = self.crossed.T @ sends.reshape(-1)
        return out

    @cached_property
    def is_mirrored(self) -> bool:
        """Whether links are as wide in both directions, and data comes back on the way on which it
        went.
        """
        if not self.topology.is_symmetric:
            return False
        back = np.array([self.number[b, a] for a, b in self.links], dtype=np.int64)
        ranks = np.arange(self.size)
        turned = (ranks[:, None] + self.size * ranks[None, :]).reshape(-1)
        return self._is_same(turned, back)

    @cached_property
    def symmetries(self) -> list[tuple[Ints, Ints]]:
        """Known symmetries of the machine that take routes to routes: the images of its ranks, and
        of its links.
        """
        out = []
        for image in [*(turn[1] for turn in shifts(self.topology)), *mirrors(self.topology)]:
            moved = self._move(image)
            if self._keeps(*moved):
                out.append(moved)
        return out

    def keeps(self, image: Ints) -> bool:
        """Return whether a symmetry, the image of each device, takes every route to a route."""
        return self._keeps(*self._move(image))

    def _move(self, image: Ints) -> tuple[Ints, Ints]:
        """Return the images of ranks and of links under a symmetry, the image of each device."""
        names = [d.id for d in self.topology.devices]
        index = {name: i for i, name in enumerate(names)}
        rank_of = {index[gpu]: r for r, gpu in enumerate(self.topology.ranks)}
        ranks = [rank_of[int(image[index[gpu]])] for gpu in self.topology.ranks]
        links = [self.number[names[image[index[a]]], names[image[index[b]]]] for a, b in self.links]
        return np.array(ranks, dtype=np.int64), np.array(links, dtype=np.int64)

    def _keeps(self, ranks: Ints, links: Ints) -> bool:
        """Return whether a symmetry, the images of ranks and links, takes every route to a
        route.
        """
        return self._is_same((ranks[:, None] * self.size + ranks[None, :]).reshape(-1), links)

    def _is_same(self, pairs: Ints, links: Ints) -> bool:
        """Return whether the route of every pair's image crosses the images of its links."""
        moved = csr_matrix(
            (self.crossed.data, links[self.crossed.indices], self.crossed.indptr),
            self.crossed.shape,
        )
        return bool(abs(moved - self.crossed[pairs]).nnz == 0)


class RoutedMetric(Metric):
    """Distances between GPUs along the system's own routes, under prices of directed links."""

    def __init__(self, routes: OwnRoutes, prices: Floats) -> None:
        self.gpus = np.arange(routes.size)
        self._routes = routes
        self.distance = routes.distances(prices + HOP_SHARE * max(float(prices.mean()), 1e-300))

    def route(self, u: int, v: int) -> Route:
        """Return the route from rank u to rank v, as devices."""
        return self._routes.route(u, v)


def find_orbits(count: int, images: Iterable[Ints]) -> Ints:
    """Return the number of each item's orbit under permutations of `count` items."""
    moves = list(images)
    if not moves:
        return np.arange(count)
    src, dst = np.tile(np.arange(count), len(moves)), np.concatenate(moves)
    _, orbit = connected_components(
        csr_matrix((np.ones(len(src)), (src, dst)), shape=(count, count)), directed=False
    )
    return np.asarray(orbit, dtype=np.int64)
