"""Routes between GPUs under prices of directed links: the cheapest ones, and the hardware's.

Hardware takes one route per ordered pair (topo/routes.py). A pair that is connected only through
other GPUs has none.
"""

from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from ...topo.errors import InfeasibleError
from ...topo.routes import Route, Router
from .links import HOP_SHARE, Floats, Ints, LinkArrays
from .symmetry import mirrors, shifts


def price_hops(prices: Floats) -> Floats:
    """Return prices of links with a little more on each, so that ties go to fewest hops."""
    return prices + HOP_SHARE * max(float(prices.mean()), 1e-300)


class Metric:
    """Cheapest routes between GPUs that pass through no other GPU.

    `distance[u, v]` is the price from rank u to rank v, infinite if there is no route and from a
    rank to itself. Among routes of equal price those of fewest hops are taken.
    """

    def __init__(self, links: LinkArrays, prices: Floats, *, both: bool = False) -> None:
        """Find the routes under `prices`.

        With `both`, every link represents both of its directions.
        """
        self.names, self.gpus = links.names, links.gpus
        self.size, n = links.size, len(self.gpus)
        # Each GPU has a second node at which routes end and from which no edge leads on, so no
        # route passes through a GPU.
        receiver = np.arange(self.size)
        receiver[self.gpus] = self.size + np.arange(n)
        src, dst = links.src, links.dst
        if both:
            src, dst, prices = np.r_[src, dst], np.r_[dst, src], np.tile(prices, 2)
        entries = price_hops(prices), (src, receiver[dst])
        matrix = csr_matrix(entries, shape=(self.size + n, self.size + n))
        distance, self.before = dijkstra(matrix, indices=self.gpus, return_predecessors=True)
        self.distance: Floats = distance[:, self.size :]
        np.fill_diagonal(self.distance, np.inf)

    def route(self, u: int, v: int) -> Route:
        """Return the cheapest route from rank u to rank v, as devices.

        Raise InfeasibleError if there is none except through other GPUs.
        """
        path = [self.size + v]
        while path[-1] != self.gpus[u]:
            path.append(int(self.before[u, path[-1]]))
            if path[-1] < 0:  # SciPy's mark for no predecessor
                start, end = self.names[self.gpus[u]], self.names[self.gpus[v]]
                raise InfeasibleError(
                    f"no route leads from {start} to {end} except through other GPUs"
                )
        return tuple(
            self.names[i] if i < self.size else self.names[self.gpus[i - self.size]]
            for i in reversed(path)
        )

    def grow_tree(
        self, root: int, hop_price: float = 0.0, max_depth: int | None = None
    ) -> list[int] | None:
        """Return every rank's parent in a cheap and shallow out-tree from `root`, -1 at the root.

        The tree is grown by Prim-Dijkstra (Alpert et al. 1995). Each hop between a GPU and the root
        costs `hop_price` mean distances on top of the price; among equal offers the one nearer to
        the root is taken. None if some GPU cannot be reached within `max_depth` hops.
        """
        n = len(self.gpus)
        finite = self.distance[np.isfinite(self.distance)]
        step = max(hop_price, 1e-4) * (float(finite.mean()) if len(finite) else 1.0)
        depth = np.zeros(n, dtype=np.int64)
        key: Floats = self.distance[root] + step
        parent: Ints = np.full(n, root)
        inside = np.zeros(n, dtype=np.bool_)
        inside[root] = True
        for _ in range(n - 1):
            node = int(np.argmin(np.where(inside, np.inf, key)))
            if inside[node] or not np.isfinite(key[node]):
                return None
            inside[node] = True
            depth[node] = depth[parent[node]] + 1
            if max_depth is not None and depth[node] >= max_depth:
                continue
            offer = self.distance[node] + step * (depth[node] + 1)
            better = (offer < key) & ~inside
            key = np.where(better, offer, key)
            parent = np.where(better, node, parent)
        parent[root] = -1
        return [int(p) for p in parent]


class OwnRoutes(LinkArrays):
    """The hardware's routes by a router, one per pair of ranks, as a sparse matrix.

    Row u n + v of `crossed` counts the links from rank u to rank v, of n ranks. `exists[u, v]`
    tells whether there is such a route.
    """

    def __init__(self, router: Router) -> None:
        super().__init__(router.topology)
        self.ranks = len(router.topology.ranks)
        self._router = router
        starts, columns = [0], list[int]()
        for u in range(self.ranks):
            for v in range(self.ranks):
                route = router.route(u, v) if u != v else None
                columns += [self.number[link] for link in pairwise(route or ())]
                starts.append(len(columns))
        # SciPy may sort the columns of its rows, which are in the order of the route here.
        self._ordered = np.array(columns, dtype=np.int32)
        shape = self.ranks**2, len(self.links)
        self.crossed = csr_matrix((np.ones(len(columns)), columns, starts), shape=shape)
        self.exists: NDArray[np.bool_] = (np.diff(starts) > 0).reshape(self.ranks, self.ranks)

    def route(self, u: int, v: int) -> Route:
        """Return the route from rank u to rank v, which must exist."""
        route = self._router.route(u, v)
        assert route is not None, (u, v)
        return route

    def distances(self, prices: Floats) -> Floats:
        """Return the price of the route from rank u (row) to rank v (column), under link prices.

        An entry is infinite if there is no route.
        """
        distance: Floats = (self.crossed @ prices).reshape(self.ranks, self.ranks)
        distance[~self.exists] = np.inf
        return distance

    @cached_property
    def _links_to(self) -> NDArray[np.int32]:
        """The links of the route to rank v from rank u, in row [v, u], one more than their numbers.

        Rows are filled up with zeros.
        """
        hops = np.diff(self.crossed.indptr)
        out = np.zeros((self.ranks**2, int(hops.max(initial=1))), dtype=np.int32)
        out[np.arange(out.shape[1]) < hops[:, None]] = self._ordered + 1
        return np.ascontiguousarray(out.reshape(self.ranks, self.ranks, -1).swapaxes(0, 1))

    def list_links(self, u: int, v: int) -> tuple[int, ...]:
        """Return the numbers of the links on the route from rank u to rank v, in order."""
        return tuple(i - 1 for i in self._links_to[v, u].tolist() if i)

    def distances_of(self, starts: Ints, prices: Floats) -> Floats:
        """Return the price of the route to each rank v from rank `starts[v]`, by link prices.

        An entry is infinite if there is no route.
        """
        ranks = np.arange(self.ranks)
        distance: Floats = _pad(prices)[self._links_to[ranks, starts]].sum(axis=1)
        distance[~self.exists[starts, ranks]] = np.inf
        return distance

    def distances_from(self, rank: int, prices: Floats) -> Floats:
        """Return the price of the route from a rank to each other, infinite if there is none."""
        distance: Floats = _pad(prices)[self._links_to[:, rank]].sum(axis=1)
        distance[~self.exists[rank]] = np.inf
        return distance

    def distances_to(self, ranks: Ints, prices: Floats) -> Floats:
        """Return the price of the route to each of `ranks` (row) from every rank (column).

        An entry is infinite if there is no route. For few of all ranks this is far quicker than
        `distances`.
        """
        distance: Floats = _pad(prices)[self._links_to[ranks]].sum(axis=2)
        distance[~self.exists[:, ranks].T] = np.inf
        return distance

    def loads(self, sends: Floats) -> Floats:
        """Return the load of each link if rank u sends `sends[u, v]` to rank v."""
        return np.asarray(self.crossed.T @ sends.reshape(-1))

    @cached_property
    def is_mirrored(self) -> bool:
        """Whether each route is the reverse of the route back.

        Links must also have the same bandwidth in both directions.
        """
        if not self.topology.is_symmetric:
            return False
        ranks = np.arange(self.ranks)
        turned = (ranks[:, None] + self.ranks * ranks[None, :]).reshape(-1)
        return self._is_same(turned, self.find_links(self.dst, self.src))

    @cached_property
    def symmetries(self) -> list[tuple[Ints, Ints]]:
        """Known symmetries of the machine that map routes to routes.

        Each is a pair: the images of the ranks, and the images of the links.
        """
        images = [*(turn[1] for turn in shifts(self.topology)), *mirrors(self.topology)]
        return [(self._move_ranks(i), self.move_links(i)) for i in images if self.keeps(i)]

    def keeps(self, image: Ints) -> bool:
        """Return whether a symmetry, given as the image of each device, maps routes to routes."""
        ranks = self._move_ranks(image)
        pairs = (ranks[:, None] * self.ranks + ranks[None, :]).reshape(-1)
        return self._is_same(pairs, self.move_links(image))

    def _move_ranks(self, image: Ints) -> Ints:
        return self.rank_of[image[self.gpus]]

    def _is_same(self, pairs: Ints, links: Ints) -> bool:
        """Return whether the route of every pair's image crosses the images of its links."""
        moved = csr_matrix(
            (self.crossed.data, links[self.crossed.indices], self.crossed.indptr),
            self.crossed.shape,
        )
        return bool(abs(moved - self.crossed[pairs]).nnz == 0)


def _pad(prices: Floats) -> Floats:
    """Return prices by one more than the number of the link; number 0, for no link, costs 0."""
    return np.concatenate((np.zeros(1), prices))


class RoutedMetric(Metric):
    """Distances between GPUs along the hardware's routes, under prices of directed links.

    `distance[u, v]` is the price from rank u to rank v, infinite without a route.
    """

    def __init__(self, routes: OwnRoutes, prices: Floats) -> None:
        self.gpus = np.arange(routes.ranks)
        self._routes = routes
        self.distance = routes.distances(price_hops(prices))

    def route(self, u: int, v: int) -> Route:
        """Return the hardware's route from rank u to rank v, as devices."""
        return self._routes.route(u, v)
