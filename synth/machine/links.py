"""A topology's links as arrays, and rows of links that symmetries map to each other.

A packing divides data among trees or paths of links by a linear program. Averaging one over a
machine's symmetries keeps it equally good, so links that these map to each other (an orbit) can
share a row of the program, and one price.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ...topo.clock import pace
from ...topo.graph import Topology
from ...topo.routes import Route

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Link = tuple[str, str]
# Price of a hop, in mean link prices, added to the links' own: ties between equally cheap routes go
# to the fewest hops, and real differences in price are larger than this.
HOP_SHARE = 1e-6


class LinkArrays:
    """Directed links as numbered arrays.

    Link i leads from device `src[i]` to device `dst[i]`, both numbered in the topology's order,
    with `capacity[i]` GB/s (`exact[i]` as a fraction). `gpus[r]` is the device of rank r.
    """

    def __init__(self, topology: Topology, rates: Mapping[Link, Fraction] | None = None) -> None:
        """Number the links of `rates` (by default all of the topology's)."""
        rates = topology.capacity_GBps if rates is None else rates
        self.topology = topology
        self.names = [d.id for d in topology.devices]
        self.size = len(self.names)
        self.index = {name: i for i, name in enumerate(self.names)}
        self.links = list(rates)
        self.exact = list(rates.values())
        self.capacity: Floats = np.array([float(c) for c in self.exact])
        self.src = self.find_devices(a for a, _ in pace(self.links, "numbering links"))
        self.dst = self.find_devices(b for _, b in pace(self.links, "numbering links"))
        self.gpus = self.find_devices(topology.ranks)

    @cached_property
    def number(self) -> dict[Link, int]:
        """The number of each link; not made before it is asked for, as it takes longest."""
        return {link: i for i, link in enumerate(self.links)}

    @cached_property
    def rank_of(self) -> Ints:
        """The rank of each device, -1 if it is not a GPU."""
        out = np.full(self.size, -1, dtype=np.int64)
        out[self.gpus] = np.arange(len(self.gpus))
        return out

    def find_devices(self, names: Iterable[str]) -> Ints:
        """Return the numbers of the devices with the ids `names`."""
        return np.array([self.index[name] for name in names], dtype=np.int64)

    def make_key(self, a: NDArray[Any], b: NDArray[Any]) -> Ints:
        """Return one number per pair of device numbers (a[i], b[i]), unique to the pair."""
        return np.asarray(a * np.int64(self.size) + b)

    @cached_property
    def _sorted_keys(self) -> tuple[Ints, Ints]:
        key = self.make_key(self.src, self.dst)
        order = np.argsort(key)
        return key[order], order

    def find_links(self, a: NDArray[Any], b: NDArray[Any]) -> Ints:
        """Return the numbers of the links from devices `a[i]` to `b[i]`, all of which must exist.

        `a` and `b` are device numbers.
        """
        keys, order = self._sorted_keys
        return order[np.searchsorted(keys, self.make_key(a, b))]

    def make_matrix(self, prices: Floats) -> csr_matrix:
        """Return the sparse matrix of link prices, by the device numbers of source and target.

        `prices[i]` is the price of link i.
        """
        return csr_matrix((prices, (self.src, self.dst)), shape=(self.size, self.size))

    def move_links(self, image: Ints) -> Ints:
        """Return the number of each link's image under a symmetry.

        `image` holds the image of each device.
        """
        return self.find_links(image[self.src], image[self.dst])


class LinkRows(LinkArrays):
    """Links in rows of a linear program, one per set of links that symmetries map to each other.

    Link i counts in `row[i]`, and `row_capacity` is the total bandwidth in GB/s of all links of a
    row. `images` has a symmetry per row, the number of each device's image; without it every link
    has a row of its own.
    """

    def __init__(self, topology: Topology, images: Ints | None = None) -> None:
        super().__init__(topology)
        # The lowest number among a link's images is the same for all links of an orbit.
        moves = map(self.move_links, () if images is None else images)
        self.row = compact(reduce(np.minimum, moves, np.arange(len(self.links))))
        self.row_capacity: Floats = np.bincount(self.row, weights=self.capacity).astype(np.float64)

    def exact_capacity(self) -> list[Fraction]:
        """Return the total bandwidth of each row in GB/s, as fractions."""
        out = [Fraction(0)] * len(self.row_capacity)
        for row, capacity in zip(self.row.tolist(), self.exact, strict=True):
            out[row] += capacity
        return out

    def count_rows(self, routes: Iterable[Route | None], times: int = 1) -> Counter[int]:
        """Return how often routes cross links of each row, by row number.

        A route is a sequence of device ids and counts `times` times; None counts nothing.
        """
        out: Counter[int] = Counter()
        for route in routes:
            for link in pairwise(route or ()):
                out[int(self.row[self.number[link]])] += times
        return out


def compact(numbers: Ints) -> Ints:
    """Return the numbers renumbered from 0 on without gaps, in the same order."""
    return np.asarray(np.unique(numbers, return_inverse=True)[1], dtype=np.int64).reshape(-1)


def number_values(values: Sequence[Any]) -> Ints:
    """Return each value's index among the sorted distinct values."""
    number = {value: i for i, value in enumerate(sorted(set(values)))}
    return np.array([number[value] for value in values], dtype=np.int64)


def find_parts(size: int, a: Ints, b: Ints) -> Ints:
    """Return, for each node, the number of its connected component.

    There are `size` nodes, with an undirected edge between nodes `a[i]` and `b[i]` for each i.
    """
    graph = csr_matrix((np.ones(len(a)), (a, b)), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def find_orbits(count: int, images: Sequence[Ints]) -> Ints:
    """Return, for each item, the number of its orbit.

    Items that permutations map to each other share an orbit. There are `count` items; a permutation
    in `images` holds the index of each item's image.
    """
    moves = np.concatenate([*images, np.arange(0)]).astype(np.int64)
    return find_parts(count, np.tile(np.arange(count), len(images)), moves)
