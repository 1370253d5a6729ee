"""Who sends how much to whom in a group, by the algorithm that carries out its collective.

`ring`: every collective around the ring of the group's ranks in order, as NCCL's rings go from host
to host, and as Horovod's, MSCCL's and most others do: each rank sends 2 (n - 1) / n of the buffer
to the next for allreduce, (n - 1) / n for allgather and reduce-scatter.

`stock`: gloo's, as torch.distributed calls them: `all_reduce` is gloo::allreduce with its usual
algorithm, a ring that sends to the rank *before* (gloo/allreduce.cc; its other one, bcube, torch
never asks for), `all_gather` a ring to the rank after (gloo/allgather.cc), `all_to_all` every pair
directly (gloo/alltoall.cc), and `reduce_scatter` an allreduce of which each rank keeps its part:
torch does not use gloo's halving and doubling (gloo/reduce_scatter.h). The directions matter on
uneven links.

Both: alltoall sends 1 / n of the buffer to each other rank; sendrecv (the stages of a pipeline) the
whole buffer to the next rank and to the one before, and nothing around the ends. Sizes of buffers
are counted as for algbw.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...topo.errors import InputError

RING, STOCK, PLAN = "ring", "stock", "plan"
TARGETS = (RING, STOCK, PLAN)
COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "alltoall", "sendrecv")
AROUND, PAIRS, LINE, SPREAD = "around", "pairs", "line", "spread"


@dataclass(frozen=True)
class Pattern:
    """The messages of one group: from its i-th to its j-th rank for each (i, j) of `sends`, with
    `bytes_each` bytes.

    `shape` is "around" (a ring), "pairs" (everybody to everybody), "line" (neighbours, both ways)
    or "spread" (a plan's, which does not depend on the order inside the group; `sends` then says
    only who is in it).
    """

    shape: str
    sends: tuple[tuple[int, int], ...]
    bytes_each: Fraction


def pattern_of(target: str, collective: str, ranks: int, size_bytes: int) -> Pattern:
    """Return the messages of a collective in a group of so many ranks, by the algorithms of
    `target`.
    """
    if collective not in COLLECTIVES:
        raise InputError(f"{collective!r} is not placed; expected one of {', '.join(COLLECTIVES)}")
    n, size = ranks, Fraction(size_bytes)
    if n == 1:
        return Pattern(AROUND, (), size)
    if collective == "alltoall":
        return Pattern(PAIRS, tuple((i, j) for i in range(n) for j in range(n) if i != j), size / n)
    if collective == "sendrecv":
        return Pattern(
            LINE, tuple(pair for i in range(n - 1) for pair in ((i, i + 1), (i + 1, i))), size
        )
    twice = collective == "allreduce" or (target == STOCK and collective == "reduce-scatter")
    if target == PLAN:
        return Pattern(
            SPREAD, tuple((i, (i + 1) % n) for i in range(n)), size * (2 if twice else 1)
        )
    backwards = target == STOCK and collective != "allgather"
    ring = tuple(((i + 1) % n, i) if backwards else (i, (i + 1) % n) for i in range(n))
    return Pattern(AROUND, ring, size * (2 if twice else 1) * (n - 1) / n)
