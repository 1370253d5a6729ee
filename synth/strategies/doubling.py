"""Recursive doubling and halving: partners 2^k apart exchange, log2 n steps in all.

In recursive doubling, partners exchange all data that they have: whole vectors, which are added, in
allreduce (Thakur, Rabenseifner, Gropp 2005); the parts gathered so far in allgather, for a power of
two. Recursive halving, then doubling, is an allreduce by a reduce-scatter and an allgather of log2
n steps each (Rabenseifner 2004). In allreduce, ranks beyond the greatest power of two first send
their vector to a partner, and get the result at the end.

A request is a collective on a topology, with limits and an allowance of work.
"""

from collections.abc import Callable, Sequence

from ...topo.errors import InfeasibleError
from ..ir.collective import Chunk
from ..ir.schedule import Schedule, reverse
from ..request import Request, Send, build_schedule, check_size
from .placement import LARGE_BYTES, SMALL_BYTES, place

ListSends = Callable[[Sequence[int]], list[Send]]


def build_recursive_doubling(request: Request) -> list[Schedule]:
    """Return one schedule of recursive doubling, with the ranks ordered for a small message.

    Raise InfeasibleError if an allgather is not over a power of two of ranks.
    """
    collective, n = request.collective, request.collective.ranks
    if collective.name == "reduce-scatter":
        return [reverse(build_recursive_doubling(request.reversed())[0])]
    if collective.name == "allgather" and n & (n - 1):
        raise InfeasibleError(f"recursive-doubling gathers over a power of two of ranks, not {n}")
    list_sends = _double_vectors if collective.name == "allreduce" else _double_parts
    return _place(request, "recursive-doubling", collective.even_chunks(1), list_sends, SMALL_BYTES)


def build_halving_doubling(request: Request) -> list[Schedule]:
    """Return one schedule of halving, then doubling, with the ranks ordered for a large message.

    Raise InfeasibleError for one rank, or too many.
    """
    n = request.collective.ranks
    check_size("halving-doubling", n, 2 * n * n)
    chunks = request.collective.even_chunks(1 << (n.bit_length() - 1))
    return _place(request, "halving-doubling", chunks, _halve_and_double, LARGE_BYTES)


def _place(
    request: Request, name: str, chunks: tuple[Chunk, ...], list_sends: ListSends, size_bytes: int
) -> list[Schedule]:
    """Return the schedule of sends between positions, with the ranks placed for a size."""
    if request.collective.ranks < 2:
        raise InfeasibleError(f"{name} needs at least two ranks")
    best = place(
        request,
        lambda order: build_schedule(request, name, chunks, list_sends(order)),
        lambda order: {send[1:3] for send in list_sends(order)},
        size_bytes,
    )
    return [best]


def _double_vectors(order: Sequence[int]) -> list[Send]:
    n = len(order)
    levels = n.bit_length() - 1
    power = 1 << levels
    # One more step at each end if n is not a power of two.
    first = int(n > power)
    sends: list[Send] = [(0, order[i], order[i - power], 0, "reduce") for i in range(power, n)]
    sends += [
        (first + level, order[i], order[i ^ (1 << level)], 0, "reduce")
        for level in range(levels)
        for i in range(power)
    ]
    return sends + [
        (first + levels, order[i - power], order[i], 0, "copy") for i in range(power, n)
    ]


def _double_parts(order: Sequence[int]) -> list[Send]:
    n = len(order)
    return [
        (level, order[i], order[i ^ (1 << level)], order[j], "copy")
        for level in range(n.bit_length() - 1)
        for i in range(n)
        for j in range(n)
        if i >> level == j >> level
    ]


def _halve_and_double(order: Sequence[int]) -> list[Send]:
    n = len(order)
    levels = n.bit_length() - 1
    power = 1 << levels
    first = int(n > power)
    last = first + 2 * levels
    sends: list[Send] = []
    for i in range(n - power):
        sends += [(0, order[power + i], order[i], c, "reduce") for c in range(power)]
        sends += [(last, order[i], order[power + i], c, "copy") for c in range(power)]
    for level in range(levels):
        for i in range(power):
            partner = i ^ (1 << level)
            for c in range(power):
                # Halving goes from far partners to near ones: the rank that holds chunk c agrees
                # with c in the bits done so far.
                high = level + 1
                if c >> high == i >> high and (c >> level) & 1 == (partner >> level) & 1:
                    step = first + levels - 1 - level
                    sends.append((step, order[i], order[partner], c, "reduce"))
                if c >> level == i >> level:
                    sends.append((first + levels + level, order[i], order[partner], c, "copy"))
    return sends
