"""One path for each pair of ranks, evened out: pairs move off the busiest link as long as another
way is less busy.

For alltoall on machines with more pairs than column generation can serve and without symmetries
that would stand for them. With so many pairs, one way each is fine enough: a link at nine tenths of
its bandwidth gives up a tenth of its pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ...effort import Effort
from ..trees import RootedTree

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
# Links on all pairs' paths together, repetitions included, that are laid out at most.
MOST_HOPS = 12_000_000
_CLOSE = 1e-3
_BUSY = 2.0
_TRIES = 64
_STEEP = (40.0, 15.0, 80.0)
# Seconds of a quiet core: for each link looked at in a search for paths, to move a pair, and to
# look a pair's link up.
_PATH_S, _MOVE_S, _ENTRY_S = 2e-7, 2e-4, 1e-9


class LevelPaths:
    """The paths of all pairs of ranks: row s * ranks + t of `stops` has the devices from t back to
    s, then -1.

    `load[l]` is the number of pairs whose path takes link l of `links`, and `reached` the time that
    all pairs take, in units of one pair's part over 1 GB/s.
    """

    def __init__(self, topology: Topology, trees: list[RootedTree] | None = None) -> None:
        self.topology = topology
        self.names = [d.id for d in topology.devices]
        index = {name: i for i, name in enumerate(self.names)}
        self.links = list(topology.capacity_GBps)
        self.capacity: Floats = np.array([float(c) for c in topology.capacity_GBps.values()])
        self.src = np.array([index[a] for a, _ in self.links], dtype=np.int32)
        self.dst = np.array([index[b] for _, b in self.links], dtype=np.int32)
        self.gpus = np.array([index[g] for g in topology.ranks], dtype=np.int32)
        self.size, self.ranks = len(self.names), len(self.gpus)
        # Links are looked up by their ends, as one number, in sorted order.
        key = self.src.astype(np.int64) * self.size + self.dst
        self._order = np.argsort(key)
        self._key = key[self._order]
        self.load = np.zeros(len(self.links), dtype=np.int64)
        rows = (
            [self._take_tree(tree, index) for tree in trees]
            if trees is not None
            else self._find_shortest()
        )
        width = max(block.shape[1] for block in rows)
        self.stops: Ints = np.concatenate([_pad(block, width) for block in rows])
        self.used: Ints = np.concatenate([self._links_of(_pad(block, width)) for block in rows])
        self.load = np.bincount(self.used[self.used >= 0], minlength=len(self.links))

    @property
    def reached(self) -> float:
        """How long all pairs take, in units of one pair's part over 1 GB/s."""
        return float((self.load / self.capacity).max())

    def _find_shortest(self) -> list[Ints]:
        """Return the paths from each rank in turn, in which links that earlier ranks use much cost
        more.
        """
        out, hops = [], 0
        for source in range(self.ranks):
            busy = self.load / self.capacity
            prices = np.exp(_BUSY * busy / max(float(busy.max()), 1e-300)) / self.capacity
            out.append(self._paths_from(source, prices))
            used = self._links_of(out[-1])
            used = used[used >= 0]
            self.load += np.bincount(used, minlength=len(self.links))
            hops += len(used)
            if hops > MOST_HOPS:
                raise InfeasibleError(explain_too_many(self.ranks))
        return out

    def _paths_from(self, source: int, prices: Floats) -> Ints:
        """Return the cheapest paths from a rank to every rank, fewest hops first among equals."""
        weight = prices + 1e-6 * float(prices.mean())
        matrix = csr_matrix((weight, (self.src, self.dst)), shape=(self.size, self.size))
        _, before = dijkstra(matrix, indices=int(self.gpus[source]), return_predecessors=True)
        return _walk_back(before, self.gpus)

    def _take_tree(self, tree: RootedTree, index: dict[str, int]) -> Ints:
        """Return the paths from a tree's root, whose edges are links, down to every rank."""
        before = np.full(self.size, -9999, dtype=np.int64)
        for route in tree.down:
            for a, b in zip(route or (), (route or ())[1:], strict=False):
                before[index[b]] = index[a]
        return _walk_back(before, self.gpus)

    def _links_of(self, stops: Ints) -> Ints:
        """Return the numbers of the links on paths given as rows of devices from the end back; -1
        after the last.
        """
        real = stops[:, 1:] >= 0
        key = stops[:, 1:].astype(np.int64) * self.size + stops[:, :-1]
        place = np.searchsorted(self._key, np.where(real, key, self._key[0]))
        return np.where(real, self._order[place], -1).astype(np.int32)

    def even_out(self, enough: float, effort: Effort) -> None:
        """Move pairs off the busiest link until no link takes longer than `enough`, no move helps,
        or the work is done.
        """
        while not effort.is_over("evening paths out"):
            busy = self.load / self.capacity
            worst = int(np.argmax(busy))
            if busy[worst] <= enough * (1 + _CLOSE):
                return
            if not self._relieve(worst, enough, effort):
                return

    def _relieve(self, link: int, enough: float, effort: Effort) -> bool:
        """Move some of the pairs on a link to less busy paths; return whether any could be."""
        rows = np.flatnonzero((self.used == link).any(axis=1))
        effort.spend(_ENTRY_S * self.used.size)
        level = float(self.load[link] / self.capacity[link])
        excess = max(1, int(self.load[link] - enough * self.capacity[link]))
        # A part of what is too much at a time, of as many different ranks as there are: then other
        # links fill up evenly.
        sources = rows // self.ranks
        spread = np.argsort(_count_before(sources), kind="stable")
        wanted = max(1, excess // 4)
        moved = tried = 0
        for steep in _STEEP:
            for row in rows[spread].tolist():
                busy = self.load / self.capacity
                prices = np.exp(np.minimum(steep * (busy / level - 1), 0.0)) / self.capacity
                prices[link] *= 1e6
                effort.spend(_MOVE_S + _PATH_S * len(self.links))
                if self._move(row, prices, level):
                    moved += 1
                else:
                    tried += 1
                if moved >= wanted or tried > _TRIES * (moved + 1) or effort.left_s <= 0:
                    break
            if moved:
                break
        return moved > 0

    def _move(self, row: int, prices: Floats, level: float) -> bool:
        """Move a pair to its cheapest path, if all links on it then take less time than `level`;
        return whether it did.
        """
        source, target = divmod(row, self.ranks)
        weight = prices + 1e-6 * float(prices.mean())
        matrix = csr_matrix((weight, (self.src, self.dst)), shape=(self.size, self.size))
        _, before = dijkstra(matrix, indices=int(self.gpus[source]), return_predecessors=True)
        stops = _walk_back(before, self.gpus[target : target + 1])
        old = self.used[row][self.used[row] >= 0]
        links = self._links_of(stops)[0]
        load = self.load.copy()
        load[old] -= 1
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
        """Return the best lower bound on the time found from prices that rise with how busy links
        are, and those prices.
        """
        best = 0.0, 1 / self.capacity
        busy = self.load / self.capacity / self.reached
        for steep in (10.0, 30.0, 100.0, 300.0):
            prices = np.exp(steep * (busy - 1)) / self.capacity
            matrix = csr_matrix((prices, (self.src, self.dst)), shape=(self.size, self.size))
            distance = dijkstra(matrix, indices=self.gpus)[:, self.gpus]
            value = float(distance.sum() / (self.capacity @ prices))
            if value > best[0]:
                best = value, prices
        return best


def _walk_back(before: NDArray[np.int64], targets: Ints) -> Ints:
    """Return rows of devices from each target back to the source, whose `before` is negative; -1
    after it.
    """
    columns = [targets.astype(np.int64)]
    while True:
        last = columns[-1]
        earlier = np.where(last >= 0, before[np.maximum(last, 0)], -1)
        earlier = np.where(earlier < 0, -1, earlier)
        if not (earlier >= 0).any():
            return np.stack(columns, axis=1).astype(np.int32)
        columns.append(earlier)


def _pad(rows: Ints, width: int) -> Ints:
    """Return the rows widened to `width` with -1."""
    missing = width - rows.shape[1]
    return rows if missing <= 0 else np.pad(rows, ((0, 0), (0, missing)), constant_values=-1)


def _count_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each value stands earlier in the list."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    first = np.searchsorted(ranked, ranked)
    out = np.empty(len(values), dtype=np.int64)
    out[order] = np.arange(len(values)) - first
    return out


def explain_too_many(ranks: int) -> str:
    """Return the message that there are too many pairs of ranks for paths."""
    return f"paths for {ranks**2} pairs of ranks are more than are planned for; name another strategy, such as direct"
