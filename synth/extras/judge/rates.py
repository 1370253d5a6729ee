"""Exact rates of given rings and trees, with each hop on the hardware's route.

The loads equal those of the schedules that `synth/channels` makes of rings and chains
(nccl_files/binary_trees.py makes one of branching trees), summed up without building the schedules:
a log of 512 ranks and 32 channels would have millions of transfers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ....topo.errors import InfeasibleError
from ....topo.routes import Router, route_links
from .file_contents import Order, Parents

DirectedLink = tuple[str, str]
RINGS, TREES = "rings", "trees"


@dataclass(frozen=True)
class Rate:
    """The algbw in GB/s of channels with equal shares at large sizes, and the link that limits it.

    `shape` is "rings" or "trees". `link` is the one that limits the rate, the busiest for its
    capacity `link_GBps`. `crossings` has, for each channel, how often it crosses that link, `load`
    is the number of bytes on the link per byte of the buffer, and `alike` is the number of links
    that are as busy, this one included.
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
    def crossing_count(self) -> int:
        """The number of channels that cross `link`, the busiest link for its capacity."""
        return sum(count > 0 for count in self.crossings)


def rate_rings(collective: str, orders: Sequence[Order], router: Router) -> Rate:
    """Return the rate of rings for allreduce, allgather or reduce-scatter.

    `orders` have numbers of the GPUs of the router's topology. Raise InfeasibleError if two
    neighbours have no route.
    """
    n = len(orders[0])
    # A ring's reduce-scatter and its allgather each send (n - 1) / n of the buffer over every hop.
    each_hop = Fraction(n - 1, n) * (2 if collective == "allreduce" else 1)
    return _rate(RINGS, [tuple(pairwise((*order, order[0]))) for order in orders], each_hop, router)


def rate_trees(trees: Sequence[Parents], router: Router) -> Rate:
    """Return the rate of an allreduce that reduces along trees and broadcasts the sums back.

    Each tree has the parent of each GPU, -1 for the root, by the numbers of the GPUs in the
    router's topology. Raise InfeasibleError if two neighbours have no route.
    """
    hops = [
        tuple(
            hop
            for rank, parent in enumerate(tree)
            if parent != -1
            for hop in ((rank, parent), (parent, rank))
        )
        for tree in trees
    ]
    return _rate(TREES, hops, Fraction(1), router)


def _rate(
    shape: str,
    hops: Sequence[tuple[tuple[int, int], ...]],
    each_hop: Fraction,
    router: Router,
) -> Rate:
    """Return the rate of channels whose hops each carry `each_hop` of their channel's share."""
    topology = router.topology
    crossings: dict[tuple[tuple[int, int], ...], Counter[DirectedLink]] = {}
    total: Counter[DirectedLink] = Counter()
    # NCCL often lists the same channel several times, so each distinct one is routed once.
    for channel, count in Counter(hops).items():
        crossed = crossings[channel] = Counter()
        for src, dst in channel:
            route = router.route(src, dst)
            if route is None:
                raise InfeasibleError(
                    f"{shape} of the file send from {topology.ranks[src]} to "
                    f"{topology.ranks[dst]}, which {topology.name} connects through other GPUs only"
                )
            crossed.update(route_links(route))
        for link, times in crossed.items():
            total[link] += times * count
    busy = {link: count / topology.capacity_GBps[link] for link, count in total.items()}
    busiest = max(busy.values())
    alike = [link for link in sorted(busy) if busy[link] == busiest]
    load = total[alike[0]] * each_hop / len(hops)
    return Rate(
        shape,
        len(hops),
        topology.capacity_GBps[alike[0]] / load,
        alike[0],
        topology.capacity_GBps[alike[0]],
        tuple(crossings[channel][alike[0]] for channel in hops),
        load,
        len(alike),
    )
