"""The way of data between every two GPUs as arrays of link numbers, for thousands of orders of
ranks at once.

The routes are the Router's, found with one search over the switches a GPU; where a pair has none,
other GPUs forward.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..errors import InfeasibleError
from ..graph import Topology
from ..routes import Router
from .forwarding import Forwarding

Ints = NDArray[np.int64]
Links = NDArray[np.int32]


class RouteTable:
    """The routes of one topology. `number` has each GPU's by its id, `links` are the directed
    links; row (u, v) of `crossed` has the numbers of those from GPU u to GPU v, filled up with
    `len(links)`. `forwarded[u, v]`: other GPUs hand on what u sends to v.

    Raises InfeasibleError where a GPU cannot reach another.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.links = sorted(topology.capacity_GBps)
        self.number = {gpu: i for i, gpu in enumerate(topology.ranks)}
        size = len(topology.ranks)
        self.forwarded: NDArray[np.bool_] = np.zeros((size, size), dtype=bool)
        number = {d.id: i for i, d in enumerate(topology.devices)}
        self._gpus = np.array([number[gpu] for gpu in topology.ranks], dtype=np.int64)
        ends = np.array([(number[a], number[b]) for a, b in self.links], dtype=np.int64).reshape(
            -1, 2
        )
        keys = ends[:, 0] * len(number) + ends[:, 1]
        by_key = np.argsort(keys)
        self._keys, self._link_of_key = keys[by_key], by_key
        rates = [topology.capacity_GBps[link] for link in self.links]
        self._widths = sorted(set(rates))
        at = {rate: i for i, rate in enumerate(self._widths)}
        self._width_of = np.array([*(at[rate] for rate in rates), len(at)])
        before, forwarding = self._search_all(number)
        walks = [self._walk_from(u, before, forwarding) for u in range(size)]
        longest = max((walk.shape[1] for walk in walks), default=0)
        self.crossed: Links = np.full((size, size, longest), len(self.links), dtype=np.int32)
        for u, walk in enumerate(walks):
            self.crossed[u, :, : walk.shape[1]] = walk

    def widest_GBps(self, ways: Links) -> Fraction:
        """Return the width of the widest of some ways (rows of `crossed`), each as wide as its
        narrowest link.
        """
        narrowest = self._width_of[ways].min(axis=-1)
        return self._widths[int(narrowest.max())]

    def _search_all(self, number: dict[str, int]) -> tuple[Ints, dict[int, Ints]]:
        """Return the device before each device (a column) on the own routes from each GPU (a row),
        and the same for GPUs (keys) with pairs that others must forward for.
        """
        topology = self.topology
        search = _SwitchSearch(topology, number)
        before = np.full((len(self._gpus), len(number)), -1, dtype=np.int64)
        forwarding: Forwarding | None = None
        forwarded: dict[int, Ints] = {}
        for u, gpu in enumerate(topology.ranks):
            search.fill(gpu, before[u])
            missing = before[u, self._gpus] < 0
            if not missing.any():
                continue
            forwarding = forwarding or Forwarding(topology)
            tree = np.full(len(number), -1, dtype=np.int64)
            for end, way in forwarding.routes_from(gpu).items():
                tree[number[end]] = number[way[-2] if len(way) > 1 else end]
            if (tree[self._gpus] < 0).any():
                apart = topology.ranks[int(np.flatnonzero(tree[self._gpus] < 0)[0])]
                raise InfeasibleError(
                    f"{topology.name}: {gpu} cannot reach {apart}; a job needs a way between all "
                    "of its GPUs"
                )
            forwarded[u] = tree
            self.forwarded[u] = missing
        return before, forwarded

    def _walk_from(self, u: int, before: Ints, forwarded: dict[int, Ints]) -> Links:
        """Return the links from GPU u to every GPU, as `crossed` has them, the last link first."""
        size, pad = before.shape[1], len(self.links)
        start = self._gpus[u]
        now = self._gpus.copy()
        table = (
            np.where(self.forwarded[u][:, None], forwarded[u], before[u])
            if u in forwarded
            else before[u]
        )
        rows = np.arange(len(now))
        columns: list[Ints] = []
        while (now != start).any():
            previous = table[rows, now] if table.ndim == 2 else table[now]
            link = self._link_of_key[
                np.searchsorted(self._keys, previous * size + now).clip(max=pad - 1)
            ]
            columns.append(np.where(now == start, pad, link))
            now = np.where(now == start, start, previous)
        links: Links = np.array(columns, dtype=np.int32).reshape(len(columns), len(now)).T
        return links


class _SwitchSearch(Router):
    """A router that searches over switches alone and then puts the GPUs beside them, which is the
    same and much quicker.
    """

    def __init__(self, topology: Topology, number: dict[str, int]) -> None:
        super().__init__(topology)
        self._number = number
        self._between = {
            a: [x for x in out if x[0] not in self._gpus] for a, out in self._out.items()
        }
        self._ends = {
            a: np.array(
                [(number[b], us, width) for b, us, width in out if b in self._gpus], dtype=np.int64
            ).reshape(-1, 3)
            for a, out in self._out.items()
        }

    def fill(self, start: str, before: Ints) -> None:
        """Write the number of the device before each one that is reached from `start` into
        `before`.
        """
        settled = self._settle(start, self._between)
        rows = []
        for order, (device, (latency, hops, narrow, previous)) in enumerate(settled.items()):
            before[self._number[device]] = self._number[previous]
            ends = self._ends[device]
            if len(ends):
                row = np.empty((len(ends), 6), dtype=np.int64)
                row[:, 0], row[:, 1], row[:, 2] = ends[:, 0], latency + ends[:, 1], hops + 1
                row[:, 3], row[:, 4], row[:, 5] = (
                    np.maximum(narrow, ends[:, 2]),
                    order,
                    self._number[device],
                )
                rows.append(row)
        if not rows:
            return
        offers = np.concatenate(rows)
        # of several offers to a GPU the least counts: by latency, hops, width, and which device was
        # reached first
        best_last = np.lexsort((offers[:, 4], offers[:, 3], offers[:, 2], offers[:, 1]))[::-1]
        before[offers[best_last, 0]] = offers[best_last, 5]
        before[self._number[start]] = self._number[start]
