"""Tabulate the routes between all pairs of GPUs as arrays of link numbers.

With a table, thousands of rank orders can be evaluated at once. The routes are those of Router, the
hardware's rule (least latency, through no other GPU), but one search over the switches finds all
routes from a GPU. If the hardware has no route for a pair of GPUs, other GPUs forward its data.
"""

from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ....topo.derived.forwarding import Forwarding
from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ....topo.routes import Router

Ints = NDArray[np.int64]
Links = NDArray[np.int32]


class RouteTable:
    """The routes between all pairs of GPUs of one topology.

    `number` maps each GPU's id to its rank in the topology, and `links` lists the directed links as
    (src, dst). `crossed[u, v]` holds the indices in `links` of the route from rank u to rank v, the
    last link first, padded with `len(links)`. `forwarded[u, v]` is true if other GPUs forward the
    data from u to v.

    Raise InfeasibleError if a GPU cannot reach another.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.links = sorted(topology.capacity_GBps)
        self.number = {gpu: i for i, gpu in enumerate(topology.ranks)}
        size = len(topology.ranks)
        self.forwarded: NDArray[np.bool_] = np.zeros((size, size), dtype=bool)
        number = {device: i for i, device in enumerate(topology.by_id)}
        self._gpus = np.array([number[gpu] for gpu in topology.ranks], dtype=np.int64)
        # Encode (source, destination) as one number, so that one binary search finds many links.
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

    def sum_latencies(self) -> tuple[Ints, Fraction]:
        """Return the latency of every route as whole numbers [source, destination], and their unit.

        The unit is in seconds; a latency is the sum over the links of a route.
        """
        latencies = [self.topology.latency_us[link] for link in self.links]
        scale = lcm(*(latency.denominator for latency in latencies))
        # The last number is that of the padding.
        whole = np.array([*(int(latency * scale) for latency in latencies), 0], dtype=np.int64)
        return whole[self.crossed].sum(axis=2), Fraction(1, scale * 10**6)

    def widest_GBps(self, routes: Links) -> Fraction:
        """Return the bandwidth in GB/s of the widest of `routes`, which are rows of `crossed`.

        The bandwidth of a route is that of its narrowest link.
        """
        return self._widths[int(self._width_of[routes].min(axis=-1).max())]

    def _search_all(self, number: dict[str, int]) -> tuple[Ints, dict[int, Ints]]:
        """Return the predecessor of every device on the routes from every GPU.

        The first result has a row for each GPU and a column for each device, with -1 for devices
        that the GPU cannot reach without forwarding. The second maps each GPU that needs
        forwarding, and only those, to a row that also covers the forwarded routes.
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
        """Return the links from GPU u to every GPU, in the format of `crossed`.

        The last link of each route comes first.
        """
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
    """Search for the same routes as Router, much faster if each switch has many GPUs.

    It searches over the switches alone, then adds the GPUs connected to them.
    """

    def __init__(self, topology: Topology, number: dict[str, int]) -> None:
        super().__init__(topology)
        self._number = number
        ends: dict[str, list[tuple[int, int, int]]] = {device: [] for device in number}
        for gpu, links in self._near.into.items():
            for device, us, width in links:
                ends[device].append((number[gpu], us, width))
        self._ends = {a: np.array(x, dtype=np.int64).reshape(-1, 3) for a, x in ends.items()}

    def fill(self, start: str, before: Ints) -> None:
        """Set `before[d]`, for each device d that `start` reaches, to the device before it.

        Devices in `before` are numbers, its other items stay; `start` is its own predecessor.
        """
        rows = []
        reached = self._search(start)
        self.forget()
        for device, (latency, hops, narrow, order, previous) in reached.items():
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
        # A GPU's best offer has the least latency, then the fewest hops, the widest route, and the
        # device that was reached first. The best is sorted last, so it overwrites the others.
        end, *_, device_before = offers[:, np.lexsort(offers[4:0:-1])[::-1]]
        before[end] = device_before
        before[self._number[start]] = self._number[start]
