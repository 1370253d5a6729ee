"""One path per pair of ranks, for alltoall, so that no link is on more than it has room for.

For machines with more pairs than column generation can serve and without symmetries to reduce them.
Paths begin on shortest routes and negotiate for full links (McMurchie, Ebeling 1995): pairs leave
them for the route that is cheapest at that moment, and a link that stays full gets dearer with
every turn. With this many pairs, one path each is fine enough: a link at nine tenths of its
bandwidth gives up a tenth of its pairs.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra

from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ..machine.links import Floats, Ints, LinkArrays
from ..numeric.effort import Effort  # an allowance of work and time for searches
from .trees import RootedTree

# 32 bits take half the memory of 64: there may be millions of stops.
SmallInts = NDArray[np.int32]
# Maximum number of links on all pairs' paths together, repetitions included: 1,024 GPUs in a mesh
# have 22 million, take 70 s of an idle core and 5 GB.
MAX_HOPS = 30_000_000
# With more hops, a gap of _ENOUGH is not reduced further: the next steps take half a minute.
_MANY_HOPS, _ENOUGH = 10_000_000, 0.015
# Exponent by which the busiest link's price rises while shortest paths are laid out.
_BUSY = 2.0
# Gaps to the time that is enough, the loosest first; each layout begins with the last one.
_GAPS = (0.2, 0.1, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01, 0.0075, 0.005, 0.0025, 0.001)
# By how much a full link gets dearer in each turn, how much dearer it is per pair above its room
# (relative to the room), and the share of its price that does not depend on its load. Chosen by
# trial on damaged tori and meshes of 144 and 256 GPUs.
_HISTORY, _PRESENT, _IDLE = 0.1, 10.0, 0.2
# Turns without a new least excess after which a layout is given up.
_PATIENCE = 12
# How steeply prices rise with load for the lower bound.
_BOUND_STEEP = (10.0, 30.0, 100.0, 300.0)
# Most pairs of one source that move together, at the same prices.
_TOGETHER = 16
# Seconds of an idle core: per link in a search for paths, per move of a pair, and per entry of
# `used` that is scanned.
_PATH_S, _MOVE_S, _ENTRY_S = 2e-7, 2e-4, 1e-9


class LevelPaths(LinkArrays):
    """One path for each pair of ranks, for alltoall, on shortest routes or along given trees.

    `trees` has an out-tree per rank, None for shortest routes. For the path from rank s to rank t,
    row s * ranks + t of `stops` has the device numbers from t back to s, then -1; the same row of
    `used` has the numbers of the links. `load[l]` is the number of pairs whose path takes link l of
    `links`; times are in units of the data of one pair over 1 GB/s.
    """

    def __init__(self, topology: Topology, trees: list[RootedTree] | None = None) -> None:
        super().__init__(topology)
        self.ranks = len(topology.ranks)
        self._random = np.random.default_rng(1)
        self._matrix = self.make_matrix(np.arange(1, len(self.links) + 1).astype(np.float64))
        # Entry i of the matrix is the price of link `_entries[i]`.
        self._entries = self._matrix.data.astype(np.int64) - 1
        self.load: Ints = np.zeros(len(self.links), dtype=np.int64)
        rows = self._find_shortest() if trees is None else [self._take_tree(t) for t in trees]
        width = max(block.shape[1] for block in rows)
        self.stops: SmallInts = np.concatenate([_pad(block, width) for block in rows])
        self.used: SmallInts = np.concatenate(
            [self._links_of(_pad(block, width)) for block in rows]
        )
        self.load = np.bincount(self.used[self.used >= 0], minlength=len(self.links))

    @property
    def busy(self) -> Floats:
        """The time of each link: the pairs whose paths take it, by its GB/s."""
        return self.load / self.capacity

    @property
    def reached(self) -> float:
        """The time of the busiest link, in units of one pair's data over 1 GB/s."""
        return float(self.busy.max())

    def _find_shortest(self) -> list[SmallInts]:
        """Return the paths from each rank in turn; links that earlier ranks use much cost more.

        Raise InfeasibleError if the paths have too many hops in total.
        """
        out, hops = [], 0
        for source in range(self.ranks):
            prices = np.exp(_BUSY * self.busy / max(self.reached, 1e-300)) / self.capacity
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
        self._matrix.data = weight[self._entries]
        start = int(self.gpus[source])
        _, before = dijkstra(self._matrix, indices=start, return_predecessors=True)
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

    def even_out(self, enough: float, effort: Effort) -> None:
        """Move pairs off full links until the busiest link takes as little time as can be found.

        The search ends once that time is near `enough` (in the units of `reached`), or the effort
        is spent. If `enough` is 0, the lower bound of `find_prices` takes its place.
        """
        enough = enough or self.find_prices()[0]
        least = _ENOUGH if self.load.sum() > _MANY_HOPS else 0.0
        for gap in _GAPS:
            if gap >= least and self.reached > enough * (1 + gap):
                best = self.stops.copy(), self.used.copy(), self.load.copy()
                if not self._negotiate(enough * (1 + gap), effort):
                    self.stops, self.used, self.load = best
                    return

    def _negotiate(self, limit: float, effort: Effort) -> bool:
        """Move pairs until no link takes longer than `limit`; return whether that was reached."""
        wanted = self.capacity * limit
        room = np.floor(wanted * (1 + 1e-9)).astype(np.int64)
        history, least, patience = np.ones(len(self.links)), np.inf, _PATIENCE
        while True:
            full = np.flatnonzero(self.load > room)
            if not len(full):
                return True
            total = int((self.load - room)[full].sum())
            patience = _PATIENCE if total < least else patience - 1
            least = min(least, total)
            if patience < 0 or effort.is_over("evening out loads"):
                return False
            history[full] += _HISTORY
            effort.spend(_ENTRY_S * self.used.size)
            rows_on = self._list_rows(full)
            for link in self._random.permutation(full).tolist():
                excess = max(0, int(self.load[link] - room[link]))
                # Neighbouring rows have the same source, and one search serves several of them.
                rows = np.roll(rows_on[link], -int(self._random.integers(len(rows_on[link]) + 1)))
                rows = rows[:excess]
                rows = rows[(self.used[rows] == link).any(axis=1)]  # they may have moved since
                sources = np.flatnonzero(np.diff(rows // self.ranks)) + 1
                for together in np.split(rows, sources):
                    for i in range(0, len(together), _TOGETHER):
                        effort.spend(_MOVE_S + _PATH_S * len(self.links))
                        self._move(together[i : i + _TOGETHER], history, room, wanted)

    def _list_rows(self, links: Ints) -> dict[int, Ints]:
        """Return the rows of `used` that have each of some links."""
        is_listed = np.zeros(len(self.links) + 1, dtype=np.bool_)
        is_listed[links] = True  # the last entry stands for -1, after the end of a path
        rows, columns = np.nonzero(is_listed[self.used])
        crossed = self.used[rows, columns]
        order = np.argsort(crossed, kind="stable")
        starts = np.searchsorted(crossed[order], links)
        ends = np.searchsorted(crossed[order], links, side="right")
        return {
            link: rows[order[start:end]]
            for link, start, end in zip(links.tolist(), starts, ends, strict=True)
        }

    def _move(self, rows: Ints, history: Floats, room: Ints, wanted: Floats) -> None:
        """Move pairs of one source to the paths that are cheapest without them."""
        np.subtract.at(self.load, self.used[rows][self.used[rows] >= 0], 1)
        above = np.maximum(self.load + 1 - room, 0) / wanted
        prices = history * (1 + _PRESENT * above) * (_IDLE + self.load / wanted) / wanted
        stops = self._paths_from(int(rows[0]) // self.ranks, prices, rows % self.ranks)
        links = self._links_of(stops)
        np.add.at(self.load, links[links >= 0], 1)
        width = max(stops.shape[1], self.stops.shape[1])
        if width > self.stops.shape[1]:
            self.stops, self.used = _pad(self.stops, width), _pad(self.used, width - 1)
        self.stops[rows], self.used[rows] = _pad(stops, width), _pad(links, width - 1)

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


def explain_too_many(ranks: int) -> str:
    """Return the error message for `ranks` ranks, which have too many pairs to plan paths for."""
    return (
        f"paths for {ranks**2} pairs of ranks are more than are planned for; name another "
        "strategy, such as direct"
    )
