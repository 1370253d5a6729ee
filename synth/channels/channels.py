"""Sets of channels: what each carries, the schedule that they are, and the rate that it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ...topo.errors import InfeasibleError, InputError
from ...topo.graph import Topology
from ..cost.affine import total_seconds
from ..ir.collective import Chunk, Collective
from ..ir.schedule import Schedule
from ..ir.transform import compose
from ..request import Request, Send, build_schedule

RING, CHAIN = "ring", "chain"
SHAPES = (RING, CHAIN)
# Every rank once.
Order = tuple[int, ...]


@dataclass(frozen=True)
class Channels:
    """Orders of all ranks with equal shares of the buffer; an order that is listed several times
    has as many shares.

    A ring sends every rank's part around, each to the next (allgather, reduce-scatter, and
    allreduce as both). A chain, for allreduce, adds up from its last rank to its first, which is
    the root, and sends the sum back along the same path: what NCCL calls a tree inside a node.
    InputError where a channel misses a rank or has one twice.
    """

    shape: str
    orders: tuple[Order, ...]

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise InputError(f"channels: shape {self.shape!r}; expected one of {', '.join(SHAPES)}")
        if not self.orders:
            raise InputError("channels: there is none")
        for number, order in enumerate(self.orders):
            check_order(order, len(self.orders[0]), f"channel {number}")

    @property
    def ranks(self) -> int:
        """How many ranks every channel has."""
        return len(self.orders[0])


def check_order(order: Sequence[int], ranks: int, where: str) -> None:
    """Raise InputError unless an order has each of 0..ranks-1 once."""
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
    """Return the schedule of equal channels, each hop on the system's own route.

    InfeasibleError where two neighbours have no route, or chains are asked for something other than
    allreduce.
    """
    if channels.shape == CHAIN:
        return _schedule_chains(request, channels, name)
    return schedule_rings(
        request, [(order, Fraction(1, len(channels.orders))) for order in channels.orders], name
    )


def schedule_rings(
    request: Request, rings: Sequence[tuple[Order, Fraction]], name: str
) -> Schedule:
    """Return the schedule of rings, each with its share of the buffer: every rank's part travels
    around all of them.

    InfeasibleError where two neighbours have no route.
    """
    if request.collective.name != "allreduce":
        return _schedule_half(request, rings, name, request.collective.name)
    return compose(
        _schedule_half(request, rings, name, "reduce-scatter"),
        _schedule_half(request, rings, name, "allgather"),
    )


def algbw_GBps(schedule: Schedule, topology: Topology) -> Fraction:
    """Return the algbw that channels come near at large sizes, from the exact loads of their links;
    0 without links.
    """
    needed = max(total_seconds(schedule, topology).values(), default=Fraction(0))
    return 1 / needed if needed else Fraction(0)


def _schedule_half(
    request: Request, rings: Sequence[tuple[Order, Fraction]], name: str, collective: str
) -> Schedule:
    """Return the allgather, or reduce-scatter, in which every rank's part travels n - 1 hops around
    each ring.
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
    """Return the allreduce that adds up from the last rank of each chain to its first, and copies
    back.
    """
    if request.collective.name != "allreduce":
        raise InfeasibleError(
            f"{name}: chains, which add up and send back, are for allreduce; not "
            f"{request.collective.name}"
        )
    n = channels.ranks
    chunks = tuple(Chunk(Fraction(1, len(channels.orders))) for _ in channels.orders)
    sends: list[Send] = []
    for number, order in enumerate(channels.orders):
        for step in range(n - 1):
            sends.append((step, order[n - 1 - step], order[n - 2 - step], number, "reduce"))
            sends.append((n - 1 + step, order[step], order[step + 1], number, "copy"))
    return build_schedule(request, name, chunks, sends, trees=len(channels.orders))
