"""List the routes between every two GPUs as arrays of link numbers, for thousands of rank orders
at once.

The routes are the Router's, found by one search over the switches for each GPU; where a pair has
none, other GPUs forward.
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
    """The routes of one topology. `number` is the number of each GPU by its id, `links` are the
    directed links; row (u, v) of `crossed` lists the numbers of those from GPU u to GPU v, padded
    with `len(links)`. `forwarded[u, v]`: other GPUs forward what u sends to v.

    Raises InfeasibleError where a GPU cannot reach another.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.links = sorted(topology.capacity_GBps)
        self.number = {gpu: i for i, gpu in enumerate(topology.ranks)}
        size = len(topology.ranks)
        self.forwarded: NDArray[np.bool_] = np.zeros((size, size), dtype=bool)
        number = {device: i for i, device in enumerate(topology.by_id)}
        self._gpus = np.array([number[gpu] for gpu in topology.ranks], dtype=np.int64)
        # Links by one number, (source, destination), so that a sorted search finds many at once.
        keys = np.array([number[a] * len(number) + number[b] for a, b in self.links], np.int64)
        self._link_of_key = np.argsort(keys)
        self._keys = keys[self._link_of_key]
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

    def widest_GBps(self, routes: Links) -> Fraction:
        """Return the width of the widest of some routes (rows of `crossed`), each as wide as its
        narrowest link.
        """
        narrowest = self._width_of[routes].min(axis=-1)
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
            # Only these GPUs pay for the search over all devices.
            tree = np.full(len(number), -1, dtype=np.int64)
            for end, route in forwarding.routes_from(gpu).items():
                tree[number[end]] = number[route[-2] if len(route) > 1 else end]
            apart = np.flatnonzero(tree[self._gpus] < 0)
            if len(apart):
                raise InfeasibleError(
                    f"{topology.name}: {gpu} cannot reach {topology.ranks[apart[0]]}; a job needs "
                    "a route between all of its GPUs"
                )
            forwarded[u] = tree
            self.forwarded[u] = missing
        return before, forwarded

    def _walk_from(self, u: int, before: Ints, forwarded: dict[int, Ints]) -> Links:
        """Return the links from GPU u to every GPU, as `crossed` has them, the last link first."""
        size, pad = before.shape[1], len(self.links)
        start, now = self._gpus[u], self._gpus
        columns: list[Ints] = []
        while (now != start).any():
            previous = before[u][now]
            if u in forwarded:
                previous = np.where(self.forwarded[u], forwarded[u][now], previous)
            number = np.searchsorted(self._keys, previous * size + now).clip(max=pad - 1)
            columns.append(np.where(now == start, pad, self._link_of_key[number]))
            now = np.where(now == start, start, previous)
        links: Links = np.array(columns, dtype=np.int32).reshape(len(columns), len(now)).T
        return links


class _SwitchSearch(Router):
    """Searches over switches alone, then adds the GPUs beside them: the Router's routes, found much
    faster where each switch has many GPUs.
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
        """Write into `before` the number of the device before each one reached from `start`."""
        settled = self._settle(start, self._between)
        rows = []
        for order, (device, (latency, hops, narrow, previous)) in enumerate(settled.items()):
            before[self._number[device]] = self._number[previous]
            ends = self._ends[device]
            if len(ends):
                end, us, width = ends.T
                key = latency + us, np.full_like(end, hops + 1), np.maximum(narrow, width)
                origin = np.full_like(end, order), np.full_like(end, self._number[device])
                rows.append(np.stack([end, *key, *origin]))
        if not rows:
            return
        offers = np.concatenate(rows, axis=1)
        # Of several offers to a GPU the least counts: by latency, hops, width, and the device that
        # was reached first. It is written last.
        end, *_, device_before = offers[:, np.lexsort(offers[4:0:-1])[::-1]]
        before[end] = device_before
        before[self._number[start]] = self._number[start]
