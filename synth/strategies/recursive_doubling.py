"""Recursive doubling: in step k partners 2^k apart exchange all they have, log2 n steps in all.

Allreduce exchanges and adds whole vectors; ranks beyond the greatest power of two first give theirs
to a partner, and get the result at the end (Thakur, Rabenseifner, Gropp 2005). Allgather, for a
power of two, exchanges what was gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...topo.errors import InfeasibleError
from ..ir.schedule import Schedule
from ..ir.transform import reverse
from ..request import Request, Send, build_schedule, whole
from .placement import SMALL_BYTES, place


def build(request: Request) -> list[Schedule]:
    """Return one schedule, with the ranks placed for a small message."""
    collective, n = request.collective, request.collective.ranks
    if collective.name == "reduce-scatter":
        return [reverse(build(request.reversed())[0])]
    if n < 2:
        raise InfeasibleError("recursive-doubling needs at least two ranks")
    if collective.name == "allgather" and n & (n - 1):
        raise InfeasibleError(f"recursive-doubling gathers over a power of two of ranks, not {n}")
    list_sends = _allreduce if collective.name == "allreduce" else _allgather

    def draw(order: Sequence[int]) -> Schedule:
        return build_schedule(request, "recursive-doubling", whole(collective), list_sends(order))

    return [place(request, draw, lambda order: {x[1:3] for x in list_sends(order)}, SMALL_BYTES)]


def _allreduce(order: Sequence[int]) -> list[Send]:
    n = len(order)
    levels = n.bit_length() - 1
    power = 1 << levels
    # One step more at each end where n is no power of two.
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


def _allgather(order: Sequence[int]) -> list[Send]:
    n = len(order)
    return [
        (level, order[i], order[i ^ (1 << level)], order[j], "copy")
        for level in range(n.bit_length() - 1)
        for i in range(n)
        for j in range(n)
        if i >> level == j >> level
    ]
