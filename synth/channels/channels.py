"""Sets of channels, the schedules built from them, and the rate that each set reaches.

A channel is an order of all ranks, as a ring or a chain, with its part of the buffer. A `Request`
says what is planned: a collective on a topology, with the hardware's routes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ...topo.errors import InfeasibleError, InputError
from ...topo.graph import Topology
from ..cost.affine import total_seconds
from ..ir.collective import Chunk, Collective
from ..ir.schedule import Schedule, compose
from ..request import Request, Send, build_schedule

RING, CHAIN = "ring", "chain"
SHAPES = (RING, CHAIN)
# Every rank once.
Order = tuple[int, ...]


@dataclass(frozen=True)
class Channels:
    """Orders of all ranks, one per channel, with equal shares of the buffer.

    An order that is listed several times gets one share per occurrence.

    `shape` is RING or CHAIN. A ring sends every rank's part, one n-th of the channel's share for n
    ranks, around, each rank to the next (allgather, reduce-scatter, and both in sequence for
    allreduce). A chain, for allreduce only, adds up from its last rank to its
    first, the root, and sends the sum back along the same path: what NCCL calls a tree inside a
    node.

    Raise InputError if a channel misses a rank or lists one twice.
    """

    shape: str
    orders: tuple[Order, ...]

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise InputError(f"channels: shape {self.shape!r}; expected one of {', '.join(SHAPES)}")
        if not self.orders:
            raise InputError("channels: there is none")
        for number, order in enumerate(self.orders):
            check_order(order, self.ranks, f"channel {number}")

    @property
    def ranks(self) -> int:
        """Return the number of ranks in every channel."""
        return len(self.orders[0])


def check_order(order: Sequence[int], ranks: int, where: str) -> None:
    """Raise InputError unless an order lists each of 0..ranks-1 exactly once.

    `where` names the order in the message.
    """
    faults = {
        "misses rank {}": set(range(ranks)) - set(order),
        "has rank {} more than once": {rank for rank in order if order.count(rank) > 1},
        f"has rank {{}}, of {ranks} ranks": set(order) - set(range(ranks)),
    }
    wrong = [
        text.format(", ".join(map(str, sorted(which)))) for text, which in faults.items() if which
    ]
    if wrong:
        raise InputError(f"{where} {' and '.join(wrong)}; expected every rank once")


def schedule_channels(request: Request, channels: Channels, name: str) -> Schedule:
    """Return the schedule of equal channels, each hop on the hardware's route.

    `name` is the strategy that the schedule records. Raise InfeasibleError if two neighbours have
    no route, or if chains are requested for a collective other than allreduce.
    """
    if channels.shape == CHAIN:
        return _schedule_chains(request, channels, name)
    return schedule_rings(
        request, [(order, Fraction(1, len(channels.orders))) for order in channels.orders], name
    )


def schedule_rings(
    request: Request, rings: Sequence[tuple[Order, Fraction]], name: str
) -> Schedule:
    """Return the schedule of rings, given as (order, share of the buffer).

    Every rank's part is split over all rings by their shares and travels around each of them.
    `name` is the strategy that the schedule records. Raise InfeasibleError if two neighbours have
    no route.
    """
    if request.collective.name != "allreduce":
        return _schedule_half(request, rings, name, request.collective.name)
    return compose(
        _schedule_half(request, rings, name, "reduce-scatter"),
        _schedule_half(request, rings, name, "allgather"),
    )


def algbw_GBps(schedule: Schedule, topology: Topology) -> Fraction:
    """Return the algbw in GB/s that the schedule of channels approaches at large sizes.

    It is computed exactly from the loads of the links; 0 if the schedule uses no links.
    """
    needed = max(total_seconds(schedule, topology).values(), default=Fraction(0))
    return 1 / needed if needed else Fraction(0)


def _schedule_half(
    request: Request, rings: Sequence[tuple[Order, Fraction]], name: str, collective: str
) -> Schedule:
    """Return an allgather or reduce-scatter over rings.

    Every rank's part travels n - 1 hops around each ring.
    """
    n, scattering = request.collective.ranks, collective == "reduce-scatter"
    chunks: list[Chunk] = []
    sends: list[Send] = []
    for rank in range(n):
        for order, ring_share in rings:
            start = order.index(rank) + (1 if scattering else 0)
            share = ring_share / n
            chunks.append(Chunk(share, target=rank) if scattering else Chunk(share, source=rank))
            for step in range(n - 1):
                src, dst = order[(start + step) % n], order[(start + step + 1) % n]
                sends.append((step, src, dst, len(chunks) - 1, "reduce" if scattering else "copy"))
    return build_schedule(request.of(Collective(collective, n)), name, tuple(chunks), sends)


def _schedule_chains(request: Request, channels: Channels, name: str) -> Schedule:
    """Return the allreduce over chains.

    Each chain adds up from its last rank to its first and copies the sum back.
    """
    if request.collective.name != "allreduce":
        raise InfeasibleError(
            f"{name}: chains, which add up and send back, are for allreduce; not "
            f"{request.collective.name}"
        )
    count, last = len(channels.orders), request.collective.ranks - 1
    sends: list[Send] = []
    for number, order in enumerate(channels.orders):
        for step, (a, b) in enumerate(pairwise(order)):
            sends.append((last - 1 - step, b, a, number, "reduce"))
            sends.append((last + step, a, b, number, "copy"))
    return build_schedule(request, name, request.collective.even_chunks(count), sends, trees=count)
