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
from ..request import Request, Send, build_schedule, only_for, whole
from .placement import place

SMALL_BYTES = 1 << 16


def build(request: Request) -> list[Schedule]:
    """Return one schedule, with the ranks placed for a small message."""
    only_for(request, "recursive-doubling", ["allreduce", "allgather", "reduce-scatter"])
    if request.collective.name == "reduce-scatter":
        return [reverse(build(request.reversed())[0])]
    n = request.collective.ranks
    if n < 2:
        raise InfeasibleError("recursive-doubling needs at least two ranks")
    if request.collective.name == "allgather" and n & (n - 1):
        raise InfeasibleError(f"recursive-doubling gathers over a power of two of ranks, not {n}")
    sends_of = _allreduce if request.collective.name == "allreduce" else _allgather

    def draw(order: Sequence[int]) -> Schedule:
        sends = sends_of(order)
        return build_schedule(request, "recursive-doubling", whole(request.collective), sends)

    return [
        place(
            request, draw, lambda order: {(a, b) for _, a, b, _, _ in sends_of(order)}, SMALL_BYTES
        )
    ]


def _allreduce(order: Sequence[int]) -> list[Send]:
    n = len(order)
    levels = n.bit_length() - 1
    power, extra = 1 << levels, n - (1 << levels)
    first = 1 if extra else 0
    sends: list[Send] = [(0, order[power + i], order[i], 0, "reduce") for i in range(extra)]
    for level in range(levels):
        sends += [
            (first + level, order[i], order[i ^ (1 << level)], 0, "reduce") for i in range(power)
        ]
    return sends + [(first + levels, order[i], order[power + i], 0, "copy") for i in range(extra)]


def _allgather(order: Sequence[int]) -> list[Send]:
    n = len(order)
    return [
        (level, order[i], order[i ^ (1 << level)], order[j], "copy")
        for level in range(n.bit_length() - 1)
        for i in range(n)
        for j in range(n)
        if i >> level == j >> level
    ]
