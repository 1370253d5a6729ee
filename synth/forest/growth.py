"""Growth of one cheap out-tree, at prices that rise with every edge.

A device inside the tree, or reached from it, keeps its links in a heap, and only the cheapest that
leads on is offered. So where a rising price makes all offers of a switch stale, one is renewed and
not one for each of its thousands of GPUs.

The tree begins at a root and reaches GPUs over links and switches; an offer is the price of
reaching the next device.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from ..machine.links import LinkArrays

# With more GPUs, a switch is hung elsewhere when the links to it get dear. With fewer, trees begin
# as stars, from which negotiations get further where they have time: gaps with a dead NIC are .5 %
# from stars and 27 % from other trees on 256 GPUs, and 96 % and 19 % on 4,096 (measured).
_STAR_RANKS = 1024
# Relative error of sums of prices.
_CLOSE = 1 + 1e-9


class Growth:
    """A tree that grows from the GPU `start`, its root, until it has all GPUs within reach.

    GPUs and devices are numbers in `links`. `around` lists for each device the links out of it that
    may be used, `prices` has the price of each link (the caller raises them while the tree grows).
    The price of reaching a GPU also counts `hop` for each hop between it and the root. No GPU is
    more than `limit` hops from the root. `depth` has the hops to each GPU inside the tree, by its
    number.
    """

    def __init__(
        self,
        links: LinkArrays,
        around: Sequence[Iterable[int]],
        prices: list[float],
        hop: float,
        start: int,
        limit: int,
    ) -> None:
        self.src, self.dst, self.is_gpu = links.src.tolist(), links.dst.tolist(), links.rank_of >= 0
        self.around, self.prices, self.hop, self.limit = around, prices, hop, limit
        self.depth = {start: 0}
        # The link on which each switch is reached, and its price at that time.
        self._via: dict[int, int] = {}
        self._reached: dict[int, float] = {}
        # The links on which each switch could be reached, with prices.
        self._offered: dict[int, list[tuple[float, int]]] = {}
        self._is_star = len(links.gpus) <= _STAR_RANKS
        # The links out of each device that are left to follow, and the price of its offer.
        self._left: dict[int, list[tuple[float, int]]] = {}
        self._latest: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        self._open(start)

    def next_route(self) -> list[int] | None:
        """Add the GPU outside the tree that is cheapest to reach; return the links to it.

        They lead from a GPU inside the tree. Return None if no GPU can be reached within the limit.
        """
        while self._heap:
            offer, device = heappop(self._heap)
            if offer != self._latest[device]:
                continue
            cost = self._price(device)
            link = self._left[device][0][1]
            end, now = self.dst[link], cost + self.prices[link]
            if end in self.depth or now > offer * _CLOSE:
                self._offer(device, cost)
                continue
            heappop(self._left[device])
            self._offer(device, cost)
            if not self.is_gpu[end]:
                self._reach(end, now, link)
                continue
            links, origin = self._trace(device)
            self.depth[end] = self.depth[origin] + 1
            return [*links[::-1], link]
        return None

    def open(self, device: int) -> None:
        """Follow the links out of a GPU inside the tree, unless it is too deep.

        Call it after the prices of the route to it were raised.
        """
        if self.depth[device] < self.limit:
            self._open(device)

    def raise_limit(self, limit: int) -> None:
        """Allow the tree to get as deep as `limit` hops."""
        self.limit = limit
        for device in self.depth:
            self._open(device)

    def _open(self, device: int) -> None:
        self._left[device] = [(self.prices[i], i) for i in self.around[device]]
        heapify(self._left[device])
        self._offer(device, self._price(device))

    def _reach(self, switch: int, cost: float, link: int) -> None:
        """Note that a link leads to a switch at that price, and use it if it is the cheapest."""
        before = self._via.get(switch)
        if not self._is_star:
            heappush(self._offered.setdefault(switch, []), (cost, link))
        now = float("inf") if before is None else self._price(switch)
        # It may cost less now than when it was reached, if a switch before it was hung elsewhere:
        # a route that is cheaper than then alone might lead over the switch itself.
        if before is None or (self._is_star and cost * _CLOSE < min(now, self._reached[switch])):
            self._reached[switch], self._via[switch] = cost, link
            now = self._price(switch)
        if before is None:
            self._open(switch)
        elif self._via[switch] != before:
            self._offer(switch, now)

    def _offer(self, device: int, cost: float) -> None:
        """Offer the cheapest link that leads from a device, which costs `cost`, out of the tree."""
        left = self._left[device]
        while left and (self.dst[left[0][1]] in self.depth or self.prices[left[0][1]] > left[0][0]):
            link = heappop(left)[1]
            if self.dst[link] not in self.depth:
                heappush(left, (self.prices[link], link))
        self._latest[device] = -1.0
        if left:
            self._latest[device] = cost + left[0][0]
            heappush(self._heap, (self._latest[device], device))

    def _price(self, device: int) -> float:
        """Return the price of a device now; a switch may then be reached on another link."""
        offered = self._offered.get(device)
        if not offered:
            return self._sum(device)[0]
        while True:
            old, link = offered[0]
            now, links = self._sum(self.src[link])
            now += self.prices[link]
            if any(self.src[i] == device for i in links):  # the route would return to the switch
                now = float("inf")
            if now <= old * _CLOSE:
                self._via[device] = link
                return now
            heapreplace(offered, (now, link))

    def _sum(self, device: int) -> tuple[float, list[int]]:
        """Return the price of a device on the links on which it is reached now, and these."""
        links, origin = self._trace(device)
        return sum(self.prices[i] for i in links) + self.hop * self.depth[origin], links

    def _trace(self, device: int) -> tuple[list[int], int]:
        """Return the links to a device from the tree, last first, and the GPU that they leave."""
        links = []
        while device not in self.depth:
            links.append(self._via[device])
            device = self.src[links[-1]]
        return links, device
