"""One path per pair of ranks, evened out by moving pairs off the busiest link.

For alltoall on machines with more pairs than column generation can serve and without symmetries to
reduce them. A pair moves if another route is less busy. With this many pairs, one path each is fine
enough: a link at nine tenths of its bandwidth gives up a tenth of its pairs.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra

from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ...numeric.effort import Effort
from ..machine.links import Floats, LinkArrays
from ..trees import RootedTree

# 32 bits take half the memory of 64: there may be millions of stops.
SmallInts = NDArray[np.int32]
# Maximum number of links on all pairs' paths together, repetitions included.
MAX_HOPS = 12_000_000
# Links whose time exceeds the required one by at most this fraction are left alone.
_CLOSE = 1e-3
# Exponent by which the busiest link's price rises while shortest paths are laid out.
_BUSY = 2.0
# Number of pairs that may fail to move, per pair that moved.
_TRIES = 64
# How steeply prices rise with load while pairs are moved, in the order of trial.
_STEEP = (40.0, 15.0, 80.0)
# How steeply prices rise with load for the lower bound.
_BOUND_STEEP = (10.0, 30.0, 100.0, 300.0)
# Seconds of an idle core: per link in a search for paths, per move of a pair, and per entry of
# `used` that is scanned.
_PATH_S, _MOVE_S, _ENTRY_S = 2e-7, 2e-4, 1e-9


class EvenedLoads(LinkArrays):
    """Loads of links, to be evened out.

    `load[l]` / `capacity[l]` is the time of link l. Times are in units of one part (such as the
    data of a pair of ranks) over 1 GB/s. A subclass moves data between links, in `relieve`.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self.ranks = len(topology.ranks)
        self.load: NDArray[np.float64] | NDArray[np.int64] = np.zeros(len(self.links))

    @property
    def busy(self) -> Floats:
        """The time of each link, in units of one part over 1 GB/s."""
        return self.load / self.capacity

    @property
    def reached(self) -> float:
        """The time of the busiest link, in units of one part over 1 GB/s."""
        return float(self.busy.max())

    def price_rising(self, steepness: float) -> Floats:
        """Return a price of each link that rises exponentially with its time.

        `steepness` is the exponent of the busiest link.
        """
        return np.exp(steepness * self.busy / max(self.reached, 1e-300)) / self.capacity

    def price_above(self, link: int, steepness: float, level: float) -> tuple[Floats, Floats]:
        """Return two arrays of link prices that steer data away from `link`.

        The first rises steeply with the time of a link, up to links that take `level`, and is
        prohibitive for `link`. The second adds a little to each link, so that ties go to fewest
        hops.
        """
        prices = np.exp(np.minimum(steepness * (self.busy / level - 1), 0.0)) / self.capacity
        prices[link] *= 1e6
        return prices, prices + 1e-6 * float(prices.mean())

    def even_out(self, enough: float, effort: Effort) -> None:
        """Move data off the busiest link until no link's time exceeds `enough`.

        Stop early if no move helps or the effort is spent.
        """
        while not effort.is_over("evening out loads"):
            busy = self.busy
            worst = int(np.argmax(busy))
            if busy[worst] <= enough * (1 + _CLOSE) or not self.relieve(worst, enough, effort):
                return

    def relieve(self, link: int, enough: float, effort: Effort) -> bool:
        """Move some data off a link to less busy routes; return whether anything was moved.

        `even_out` calls it with the number of the busiest link. Subclasses implement it.
        """
        raise NotImplementedError


class LevelPaths(EvenedLoads):
    """One path for each pair of ranks, for alltoall.

    For the path from rank s to rank t, row s * ranks + t of `stops` has the device numbers from t
    back to s, then -1; the same row of `used` has the numbers of the links. `load[l]` is the number
    of pairs whose path takes link l of `links`.
    """

    def __init__(self, topology: Topology, trees: list[RootedTree] | None = None) -> None:
        super().__init__(topology)
        self.load = np.zeros(len(self.links), dtype=np.int64)
        rows = self._find_shortest() if trees is None else [self._take_tree(t) for t in trees]
        width = max(block.shape[1] for block in rows)
        self.stops: SmallInts = np.concatenate([_pad(block, width) for block in rows])
        self.used: SmallInts = np.concatenate(
            [self._links_of(_pad(block, width)) for block in rows]
        )
        self.load = np.bincount(self.used[self.used >= 0], minlength=len(self.links))

    def _find_shortest(self) -> list[SmallInts]:
        """Return the paths from each rank in turn; links that earlier ranks use much cost more.

        Raise InfeasibleError if the paths have too many hops in total.
        """
        out, hops = [], 0
        for source in range(self.ranks):
            prices = self.price_rising(_BUSY)
            prices += 1e-6 * float(prices.mean())  # fewest hops first among equals
            out.append(self._paths_from(source, prices, np.arange(self.ranks)))
            used = self._links_of(out[-1])
            used = used[used >= 0]
            self.load = self.load + np.bincount(used, minlength=len(self.links))
            hops += len(used)
            if hops > MAX_HOPS:
                raise InfeasibleError(explain_too_many(self.ranks))
        return out

    def _paths_from(self, source: int, weight: Floats, targets: NDArray[np.int64]) -> SmallInts:
        matrix, start = self.make_matrix(weight), int(self.gpus[source])
        _, before = dijkstra(matrix, indices=start, return_predecessors=True)
        return _walk_back(before, self.gpus[targets])

    def _take_tree(self, tree: RootedTree) -> SmallInts:
        """Return the paths from a tree's root, whose edges are links, down to every rank."""
        before = np.full(self.size, -1, dtype=np.int64)
        for route in tree.down:
            for a, b in pairwise(route or ()):
                before[self.index[b]] = self.index[a]
        return _walk_back(before, self.gpus)

    def _links_of(self, stops: SmallInts) -> SmallInts:
        """Return the numbers of the links on paths, -1 after the last.

        Paths are rows of devices, from the end of the path back to its start.
        """
        real = stops[:, 1:] >= 0
        src = np.where(real, stops[:, 1:], self.src[0])
        dst = np.where(real, stops[:, :-1], self.dst[0])
        return np.where(real, self.find_links(src, dst), -1).astype(np.int32)

    def relieve(self, link: int, enough: float, effort: Effort) -> bool:
        """Move some of the pairs on a link to less busy paths; return whether any was moved."""
        rows = np.flatnonzero((self.used == link).any(axis=1))
        effort.spend(_ENTRY_S * self.used.size)
        level = float(self.load[link] / self.capacity[link])
        excess = int(self.load[link] - enough * self.capacity[link])
        # Move a quarter of the excess at a time, from as many different ranks as possible, so that
        # other links fill up evenly.
        spread = np.argsort(_count_before(rows // self.ranks), kind="stable")
        wanted = max(1, excess // 4)
        moved = tried = 0
        for steep in _STEEP:
            for row in rows[spread].tolist():
                effort.spend(_MOVE_S + _PATH_S * len(self.links))
                if self._move(row, self.price_above(link, steep, level)[1], level):
                    moved += 1
                else:
                    tried += 1
                if moved >= wanted or tried > _TRIES * (moved + 1) or effort.left_s <= 0:
                    break
            if moved:
                break
        return moved > 0

    def _move(self, row: int, weight: Floats, level: float) -> bool:
        """Move a pair to its cheapest path if all links on it then take less time than `level`.

        Return whether the pair was moved.
        """
        source, target = divmod(row, self.ranks)
        stops = self._paths_from(source, weight, np.array([target]))
        links, load = self._links_of(stops)[0], self.load.copy()
        load[self.used[row][self.used[row] >= 0]] -= 1
        load[links] += 1
        if (load[links] / self.capacity[links]).max() >= level * (1 - 1e-12):
            return False
        width = max(stops.shape[1], self.stops.shape[1])
        self.stops, self.used = _pad(self.stops, width), _pad(self.used, width - 1)
        self.stops[row] = _pad(stops, width)[0]
        self.used[row] = _pad(links[None], width - 1)[0]
        self.load = load
        return True

    def find_prices(self) -> tuple[float, Floats]:
        """Return the best lower bound found on the time, and the link prices that prove it.

        The time is that of `reached`. The prices tried rise with the load of the links.
        """
        best = 0.0, 1 / self.capacity
        for steep in _BOUND_STEEP:
            prices = np.exp(steep * (self.busy / self.reached - 1)) / self.capacity
            distance = dijkstra(self.make_matrix(prices), indices=self.gpus)[:, self.gpus]
            value = float(distance.sum() / (self.capacity @ prices))
            if value > best[0]:
                best = value, prices
        return best


def _walk_back(before: NDArray[np.int64], targets: NDArray[np.int64]) -> SmallInts:
    """Return rows of devices from each target back to the source, then -1.

    `before` holds each device's predecessor, negative for the source.
    """
    columns = [targets.astype(np.int64)]
    while True:
        last = columns[-1]
        earlier = np.where(last >= 0, np.maximum(before[np.maximum(last, 0)], -1), -1)
        if not (earlier >= 0).any():
            return np.stack(columns, axis=1).astype(np.int32)
        columns.append(earlier)


def _pad(rows: SmallInts, width: int) -> SmallInts:
    missing = max(0, width - rows.shape[1])
    return np.pad(rows, ((0, 0), (0, missing)), constant_values=-1) if missing else rows


def _count_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each value occurs earlier in the array."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    out = np.empty(len(values), dtype=np.int64)
    out[order] = np.arange(len(values)) - np.searchsorted(ranked, ranked)
    return out


def explain_too_many(ranks: int) -> str:
    """Return the error message for too many pairs of ranks."""
    return (
        f"paths for {ranks**2} pairs of ranks are more than are planned for; name another "
        "strategy, such as direct"
    )
