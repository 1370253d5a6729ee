"""Search the best equal rings or trees of several equal hosts: a linear program, and its rounding.

A channel is a circuit from a NIC through all GPUs of a host and back; for a tree, a path from a NIC
through them, which data takes in both directions. The linear program's columns are priced NIC by
NIC, by the cheapest of all such circuits.
"""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from .....topo.errors import InfeasibleError
from ....numeric.circuits import MAX_NODES, cheapest_circuits
from ....numeric.effort import Effort
from ....numeric.linear import Floats
from ....numeric.whole_counts import exchange, fill_up, interleave, round_down
from ....packing.packing import Packing
from ...stock.constants import RING, PathType
from ...stock.nic_rates import count_passes
from ...stock.paths import StockPath
from .network import HostChannel, HostNetwork, Row

# Circuits that are taken for each NIC and set of prices.
_OFFERS = 4
# Share by which a column must improve the program: above rounding errors.
_TOLERANCE = 1e-7
# A link's price per GB/s beside its dual, relative to the mean price: near NICs and short paths
# are taken where nothing else decides.
_MIN_PRICE = 1e-5
# Columns, after which no more are sought.
_MAX_COLUMNS = 2000


class ChannelSearch(Packing[HostChannel]):
    """The search for the channels of one pattern (rings or trees) with the highest total rate.

    `pattern` is NCCL's number, RING or TREE. `capacity` has the rate of each link at each level of
    P2P, in GB/s, or as a multiple of another algbw; `optimum` then is one, too. With `near` a
    channel takes a NIC only from and to GPUs that are near it, if two are, or for a tree one.
    `optimum` is the algbw in GB/s that no set of such channels exceeds, as far as the effort
    reached. The search runs when an instance is made. Raise InfeasibleError if there are more GPUs
    on a host than the search takes, or no channel goes through all of them.
    """

    at_rates = True
    tolerance = _TOLERANCE

    def __init__(
        self,
        network: HostNetwork,
        pattern: int,
        capacity: Mapping[Row, Fraction],
        effort: Effort,
        near: bool = False,
    ) -> None:
        self._ends = [_list_ends(network, pattern, net, near) for net in range(len(network.nets))]
        self.network, self.pattern, self.effort = network, pattern, effort
        if len(network.gpus) + 1 > MAX_NODES:
            raise InfeasibleError(
                f"graph files for several hosts are made for at most {MAX_NODES - 1} GPUs on each, "
                f"and here are {len(network.gpus)}"
            )
        self.rows = {row: number for number, row in enumerate(capacity)}
        floats: Floats = np.array([float(rate) for rate in capacity.values()])
        super().__init__(floats, 1 / floats / len(floats))
        self.generate(effort, "channels between hosts")
        self.optimum = float(self.shares.sum())
        self.listed: list[HostChannel] = list(self.columns)
        self.loads = np.zeros((len(self.listed), len(floats)))
        for number, uses in enumerate(self.columns.values()):
            self.loads[number, list(uses)] = list(uses.values())
        self.loads /= floats

    # -- the linear program

    def price_columns(self) -> list[HostChannel]:
        """Return channels that improve the program; record the bound that the prices prove.

        Raise InfeasibleError if no path from a NIC visits all GPUs of a host.
        """
        offers = sorted(
            (offer for net in range(len(self.network.nets)) for offer in self._price_nic(net)),
            key=lambda offer: offer[0],
        )
        if not offers:
            raise InfeasibleError("no path from a NIC through all GPUs of a host exists")
        if offers[0][0] > 0:
            self.raise_bound(offers[0][0])
        return [channel for _, channel in offers if not self.columns or self.improves(channel)]

    def _price_nic(self, net: int) -> list[tuple[float, HostChannel]]:
        distance = self._measure(net)
        return [
            (price, HostChannel(tuple(node - 1 for node in circuit), (net, net)))
            for price, circuit in cheapest_circuits(distance, _OFFERS, self.effort)
        ]

    def count_uses(self, column: HostChannel) -> dict[int, float]:
        """Return how much a channel loads each row (a link at a level of P2P) of the program."""
        loads = self.network.count_loads(self.pattern, column)
        return {self.rows[row]: float(load) for row, load in loads.items() if row in self.rows}

    def is_enough(self) -> bool:
        """Return whether the search may stop: at the bound, or with too many channels."""
        return super().is_enough() or len(self.columns) > _MAX_COLUMNS

    def _describe(self) -> str:
        return f"channels between hosts: {len(self.columns)}"

    def _measure(self, net: int) -> Floats:
        """Return the prices of hops: node 0 is the NIC `net`, node g + 1 is GPU g."""
        count, is_ring = len(self.network.gpus), self.pattern == RING
        passes, neighbours = count_passes(self.pattern, count, self.network.hosts)
        out = np.zeros((count + 1, count + 1))
        for level, (gpu_paths, nics) in self.network.paths.items():
            hop = np.zeros((count, count))
            for pair, path in gpu_paths.paths.items():
                hop[pair] = self._price_path(level, path)
            back, away = (
                np.array([self._price_path(level, paths[gpu, net]) for gpu in range(count)])
                for paths in (nics.back, nics.out)
            )
            out[1:, 1:] += float(passes) * (hop if is_ring else hop + hop.T)
            # A tree has the NIC at its first GPU only.
            out[0, 1:] += float(neighbours) * (back if is_ring else back + away)
            out[1:, 0] += float(neighbours) * away if is_ring else 0.0
        return out + self._ends[net]

    def _price_path(self, level: PathType | None, path: StockPath) -> float:
        if path.type == PathType.DIS:
            return np.inf
        least = _MIN_PRICE * float(self.prices.mean())
        rows = (self.rows.get((level, link)) for link in path.links)
        return sum(max(float(self.prices[row]), least) for row in rows if row is not None)

    # -- rounding

    def round(self, count: int) -> tuple[HostChannel, ...]:
        """Return the best `count` equal channels found; any first few of them are balanced, too."""
        begun = round_down(self.shares / self.shares.sum(), count)
        filled = fill_up(self.loads, begun, count, self.effort)
        chosen = exchange(self.loads, filled, self.effort, "channels between hosts")
        return tuple(self.listed[chosen[at]] for at in interleave(self.loads[chosen]))


def _list_ends(network: HostNetwork, pattern: int, net: int, near: bool) -> Floats:
    """Return infinite prices for the hops from and to a NIC that are not wanted, else zero."""
    count, nics = len(network.gpus), network.paths[None][1]
    ends = np.zeros((count + 1, count + 1))
    types = np.array(
        [[paths[g, net].type for g in range(count)] for paths in (nics.back, nics.out)]
    )
    if pattern != RING:
        types = types.max(axis=0, keepdims=True)
    far = types > np.maximum(types.min(axis=1, keepdims=True), PathType.PXN)
    allowed = ~far
    # The two ends of a ring are different GPUs.
    if near and allowed.any(axis=0).sum() >= min(len(types), count):
        ends[0, 1:][far[0]] = np.inf
        if pattern == RING:
            ends[1:, 0][far[1]] = np.inf
    return ends
