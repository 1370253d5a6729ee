"""The rate that found rings and trees reach on a machine's links, each hop on the system's own
route, in exact fractions.

The loads are those of the schedules that `synth/channels` makes of rings and chains
(`schedule_trees` makes one of trees that branch), summed up without making them: a log of 512 ranks
and 32 channels has millions of transfers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ...topo.routes import Router, route_links
from .found import Order, Parents

DirectedLink = tuple[str, str]
RINGS, TREES = "rings", "trees"


@dataclass(frozen=True)
class Rate:
    """What channels of equal shares reach: `algbw_GBps` at large sizes, the `link` that limits
    them, how often each channel crosses it, and that link's bandwidth. `load` is what the link
    carries of each byte of the buffer, `alike` how many links are as busy.
    """

    shape: str
    channels: int
    algbw_GBps: Fraction
    link: DirectedLink
    link_GBps: Fraction
    crossings: tuple[int, ...]
    load: Fraction
    alike: int

    @property
    def crossing_channels(self) -> int:
        """How many channels cross the link."""
        return sum(count > 0 for count in self.crossings)


def rate_rings(
    collective: str, orders: Sequence[Order], topology: Topology, router: Router
) -> Rate:
    """Return the rate of rings for allreduce, allgather or reduce-scatter. InfeasibleError where
    neighbours have no route.
    """
    n = len(orders[0])
    each_hop = Fraction(n - 1, n) * (2 if collective == "allreduce" else 1)
    hops = [[(order[i], order[(i + 1) % n]) for i in range(n)] for order in orders]
    return _rate(RINGS, hops, each_hop, topology, router)


def rate_trees(trees: Sequence[Parents], topology: Topology, router: Router) -> Rate:
    """Return the rate of an allreduce that adds up along trees, and sends the sums back."""
    hops = [[hop for rank, parent in enumerate(tree) if parent != -1 for hop in ((rank, parent), (parent, rank))]
            for tree in trees]  # fmt: skip
    return _rate(TREES, hops, Fraction(1), topology, router)


def _rate(
    shape: str,
    hops: Iterable[Sequence[tuple[int, int]]],
    each_hop: Fraction,
    topology: Topology,
    router: Router,
) -> Rate:
    """Return the rate of channels, each a list of hops that carry `each_hop` of the channel's
    share.
    """
    listed = [tuple(channel) for channel in hops]
    crossing_of: dict[tuple[tuple[int, int], ...], Counter[DirectedLink]] = {}
    total: defaultdict[DirectedLink, int] = defaultdict(int)
    for channel, count in Counter(listed).items():
        crossed: Counter[DirectedLink] = Counter()
        crossing_of[channel] = crossed
        for src, dst in channel:
            route = router.route(src, dst)
            if route is None:
                a, b = topology.ranks[src], topology.ranks[dst]
                raise InfeasibleError(
                    f"{shape} of the file send from {a} to {b}, and on {topology.name} only other "
                    "GPUs lie between them"
                )
            crossed.update(route_links(route))
        for link, times in crossed.items():
            total[link] += times * count
    share = each_hop / len(listed)
    busy = {x: count / topology.capacity_GBps[x] for x, count in total.items()}
    busiest = max(busy.values())
    link = next(x for x in sorted(busy) if busy[x] == busiest)
    alike = sum(value == busiest for value in busy.values())
    load, capacity = total[link] * share, topology.capacity_GBps[link]
    crossings = tuple(crossing_of[channel][link] for channel in listed)
    return Rate(shape, len(listed), capacity / load, link, capacity, crossings, load, alike)
