"""New schedules from old: turned round in time, and put one after the other."""

from __future__ import annotations

from dataclasses import replace

from ..topo.errors import InfeasibleError
from .collective import Chunk, Collective
from .schedule import Op, Schedule, Transfer


def reverse(schedule: Schedule) -> Schedule:
    """Every transfer turned round, the last step first, copies becoming additions.

    Allgather becomes reduce-scatter, broadcast reduce, gather and scatter each other; alltoall stays what it is. The
    result is for the reversed topology (SCCL, section 3.5). Each rank must get each chunk at most once.
    """
    last = schedule.steps - 1
    opposite = schedule.collective.reversed()
    op: Op = "reduce" if opposite.reduces else "copy"
    return replace(
        schedule,
        collective=opposite,
        chunks=tuple(Chunk(c.share, source=c.target, target=c.source) for c in schedule.chunks),
        transfers=tuple(
            sorted(Transfer(last - t.step, t.dst, t.src, t.chunk, op, t.route[::-1]) for t in schedule.transfers)
        ),
        step_s_per_GB=schedule.step_s_per_GB[::-1],
    )


def compose(reduce_scatter: Schedule, allgather: Schedule) -> Schedule:
    """Reduce-scatter, then allgather, as one allreduce. The chunks of both must be the same shares of the same ranks."""
    shares = [(c.share, c.target) for c in reduce_scatter.chunks]
    if shares != [(c.share, c.source) for c in allgather.chunks]:
        raise InfeasibleError("reduce-scatter and allgather cut the buffer differently; they do not make an allreduce")
    first = reduce_scatter.steps
    later = tuple(replace(t, step=t.step + first) for t in allgather.transfers)
    return Schedule(
        collective=Collective("allreduce", allgather.collective.ranks),
        strategy=allgather.strategy,
        chunks=tuple(Chunk(c.share) for c in allgather.chunks),
        transfers=reduce_scatter.transfers + later,
        step_s_per_GB=reduce_scatter.step_s_per_GB + allgather.step_s_per_GB,
    )
