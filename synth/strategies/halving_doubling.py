"""Recursive halving, then doubling: a reduce-scatter and an allgather of log2 n steps each
(Rabenseifner 2004).

Ranks beyond the greatest power of two first give their vector to a partner, and get the result at
the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...topo.errors import InfeasibleError
from ..ir.schedule import Schedule
from ..request import MOST_TRANSFERS, Request, Send, build_schedule, only_for
from .placement import place

LARGE_BYTES = 1 << 26


def build(request: Request) -> list[Schedule]:
    """Return one schedule, with the ranks placed for a large message."""
    only_for(request, "halving-doubling", ["allreduce"])
    n = request.collective.ranks
    if n < 2:
        raise InfeasibleError("halving-doubling needs at least two ranks")
    if 2 * n * n > MOST_TRANSFERS:
        raise InfeasibleError(
            f"halving-doubling: {n} ranks take {2 * n * n} transfers, more than are planned for"
        )
    chunks = request.collective.even_chunks(1 << (n.bit_length() - 1))

    def draw(order: Sequence[int]) -> Schedule:
        return build_schedule(request, "halving-doubling", chunks, _sends(order))

    return [
        place(request, draw, lambda order: {(a, b) for _, a, b, _, _ in _sends(order)}, LARGE_BYTES)
    ]


def _sends(order: Sequence[int]) -> list[Send]:
    """Return all sends, position i being played by rank order[i]."""
    n = len(order)
    levels = n.bit_length() - 1
    power, extra = 1 << levels, n - (1 << levels)
    first = 1 if extra else 0
    last = first + 2 * levels
    sends: list[Send] = []
    for i in range(extra):
        sends += [(0, order[power + i], order[i], c, "reduce") for c in range(power)]
        sends += [(last, order[i], order[power + i], c, "copy") for c in range(power)]
    for level in range(levels):
        for i in range(power):
            partner = i ^ (1 << level)
            for c in range(power):
                # Halving goes from far partners to near ones: chunk c agrees with its keeper in the
                # bits done so far.
                high = level + 1
                if c >> high == i >> high:
                    step = first + levels - 1 - level
                    if (c >> level) & 1 == (partner >> level) & 1:
                        sends.append((step, order[i], order[partner], c, "reduce"))
                if c >> level == i >> level:
                    sends.append((first + levels + level, order[i], order[partner], c, "copy"))
    return sends
