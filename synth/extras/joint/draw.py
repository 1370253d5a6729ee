"""Make the schedule of one call of a joint plan from its trees and paths with their shares.

A joint plan is for groups of ranks that run collectives at the same time and share the links; a
call is one group's collective with its bytes and weight (joint_calls.py).
"""

from fractions import Fraction

import numpy as np

from ....topo.graph import Topology
from ....topo.routes import Route
from ...cost.affine import tighten, total_seconds
from ...cost.loads import DirectedLink
from ...ir.collective import Chunk
from ...ir.schedule import Schedule
from ...ir.transfers import COPY, REDUCE, Transfers
from ...packing.trees import levels
from .joint_calls import JointCall
from .packing import Columns

NAME = "joint"


def draw_schedule(call: JointCall, columns: Columns, topology: Topology) -> Schedule:
    """Return the schedule of a call: each column (a tree or path) carries a chunk, from step 0 on.

    `columns` are those that the packing chose, with their exact shares of the part of the buffer
    that each carries (see packing.py).
    """
    collective, rank = call.collective, {gpu: i for i, gpu in enumerate(topology.ranks)}
    whole = collective.even_chunks(1)[0].share
    chunks: list[Chunk] = []
    rows: list[tuple[int, int, int, int, int, int]] = []
    number: dict[Route, int] = {}
    depth = 0
    for column, share in columns:
        depths_up, heights = levels(column.list_parents(rank, "up"))
        depths, _ = levels(column.list_parents(rank, "down"))
        start = heights[column.root]
        depth = max(depth, *depths_up, *depths)
        for route in column.up:
            child, place = rank[route[0]], number.setdefault(route[1:-1], len(number))
            rows.append((heights[child], child, rank[route[-1]], len(chunks), REDUCE, place))
        for route in column.down:
            child, place = rank[route[-1]], number.setdefault(route[1:-1], len(number))
            step = start + depths[child] - 1
            rows.append((step, rank[route[0]], child, len(chunks), COPY, place))
        chunks.append(Chunk(share * whole, column.source, column.target))
    # The parts that stay where they are, such as a root's own part of a gather.
    moved = {(column.source, column.target) for column, _ in columns}
    chunks += [c for c in collective.even_chunks(1) if (c.source, c.target) not in moved]
    transfers = Transfers.from_columns(zip(*rows, strict=True), list(number)).sorted()
    named = {int(r) for r in np.unique(np.r_[transfers.src, transfers.dst])}
    schedule = Schedule(
        collective,
        NAME,
        tuple(chunks),
        transfers,
        (),
        trees=len(columns),
        depth=depth,
        helpers=tuple(sorted(named.difference(collective.members))),
    )
    return tighten(schedule, topology)


def measure_seconds(
    schedule: Schedule, topology: Topology, call: JointCall
) -> dict[DirectedLink, Fraction]:
    """Return how long each link is busy with a call, in seconds times the call's weight.

    `schedule` is the call's; links have the bandwidths of `topology`.
    """
    busy = total_seconds(schedule, topology)
    return {link: seconds * call.demand_GB for link, seconds in busy.items()}
