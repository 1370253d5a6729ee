"""Derive schedules from schedules: reversed in time, or one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...topo.errors import InfeasibleError
from .collective import Chunk
from .schedule import Schedule
from .transfers import COPY, REDUCE, Transfers


def reverse(schedule: Schedule) -> Schedule:
    """Return the schedule of the opposite collective on the reversed topology.

    Every transfer is reversed, the last step first, and copies become additions. Allgather becomes
    reduce-scatter, broadcast reduce, and gather scatter, or the reverse; alltoall stays alltoall
    (SCCL, section 3.5). Each rank must get each chunk at most once.
    """
    opposite = schedule.collective.reversed()
    t = schedule.transfers
    step = schedule.steps - 1 - t.step
    op = np.full(len(t), REDUCE if opposite.reduces else COPY)
    routes = [route[::-1] for route in t.routes]
    return replace(
        schedule,
        collective=opposite,
        chunks=tuple(Chunk(c.share, source=c.target, target=c.source) for c in schedule.chunks),
        transfers=Transfers(step, t.dst, t.src, t.chunk, op, t.route, routes).sorted(),
        step_s_per_GB=schedule.step_s_per_GB[::-1],
    )


def compose(reduce_scatter: Schedule, allgather: Schedule) -> Schedule:
    """Return an allreduce: the reduce-scatter, then the allgather.

    Raise InfeasibleError unless both have the same chunks, owned by the same ranks.
    """
    shares = [(c.share, c.target) for c in reduce_scatter.chunks]
    if shares != [(c.share, c.source) for c in allgather.chunks]:
        raise InfeasibleError(
            "reduce-scatter and allgather cut the buffer differently; they do not make an allreduce"
        )
    step, *rest = allgather.transfers.columns
    later = Transfers.from_columns((step + reduce_scatter.steps, *rest), allgather.transfers.routes)
    return Schedule(
        collective=replace(allgather.collective, name="allreduce"),
        strategy=allgather.strategy,
        chunks=tuple(Chunk(c.share) for c in allgather.chunks),
        transfers=Transfers.joined([reduce_scatter.transfers, later]),
        step_s_per_GB=reduce_scatter.step_s_per_GB + allgather.step_s_per_GB,
        trees=allgather.trees,
        depth=allgather.depth,
        helpers=tuple(sorted({*reduce_scatter.helpers, *allgather.helpers})),
    )
