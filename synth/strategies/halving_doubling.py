"""Recursive halving, then doubling: a reduce-scatter and an allgather of log2 n steps each
(Rabenseifner 2004).

Ranks beyond the greatest power of two first give their vector to a partner, and get the result at
the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...topo.errors import InfeasibleError
from ..ir.schedule import Schedule
from ..request import Request, Send, build_schedule, check_size
from .placement import LARGE_BYTES, place


def build(request: Request) -> list[Schedule]:
    """Return one schedule, with the ranks placed for a large message."""
    n = request.collective.ranks
    if n < 2:
        raise InfeasibleError("halving-doubling needs at least two ranks")
    check_size("halving-doubling", n, 2 * n * n)
    chunks = request.collective.even_chunks(1 << (n.bit_length() - 1))

    def draw(order: Sequence[int]) -> Schedule:
        return build_schedule(request, "halving-doubling", chunks, _list_sends(order))

    return [place(request, draw, lambda order: {x[1:3] for x in _list_sends(order)}, LARGE_BYTES)]


def _list_sends(order: Sequence[int]) -> list[Send]:
    """Return all sends, position i being played by rank order[i]."""
    n = len(order)
    levels = n.bit_length() - 1
    power = 1 << levels
    # One step more at each end where n is no power of two.
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
                # Halving goes from far partners to near ones: chunk c agrees with its keeper in the
                # bits done so far.
                high = level + 1
                if c >> high == i >> high and (c >> level) & 1 == (partner >> level) & 1:
                    step = first + levels - 1 - level
                    sends.append((step, order[i], order[partner], c, "reduce"))
                if c >> level == i >> level:
                    sends.append((first + levels + level, order[i], order[partner], c, "copy"))
    return sends
