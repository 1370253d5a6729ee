"""Make schedules for memory that all ranks can read and write.

Flat ones send everything directly from rank to rank, whatever the links: none relays.
"""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Final

import numpy as np

from ....synth.cost.affine import tighten
from ....synth.ir.collective import Collective
from ....synth.ir.schedule import Schedule, renumber
from ....synth.ir.transfers import Transfers
from ....synth.numeric.effort import Effort
from ....synth.request import Request
from ....synth.strategies import direct
from ....synth.verify import verify
from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ....topo.presets import preset
from ...option_names import ONE_SIDED

# The ways in which a rank plays a schedule one-sided, in words for tables: it reads the memory of
# others, or it writes to theirs.
PULLED: Final = ONE_SIDED
PUSHED: Final = f"{ONE_SIDED}, pushed"


def stage(schedule: Schedule, topology: Topology) -> Schedule | None:
    """Return the schedule, unsegmented, with each step divided into steps of one peer per rank.

    In every new step a rank sends to at most one rank and receives from at most one: in the k-th
    part of an old step, rank r sends to rank (r + k) mod `ranks`. Parts without messages are left
    out. The steps' times are those on `topology`.

    Return None if a rank both sends and receives a chunk in one step: if the step were divided,
    the rank might send the received value instead of its old one.
    """
    uncut = schedule.uncut
    t, ranks = uncut.transfers, uncut.collective.ranks
    sent, received = (
        (t.step * ranks + rank) * len(uncut.chunks) + t.chunk for rank in (t.src, t.dst)
    )
    if np.isin(sent, received).any():
        return None
    places = t.step * ranks + (t.dst - t.src) % ranks
    steps, step = np.unique(places, return_inverse=True)
    staged = replace(
        uncut,
        transfers=Transfers.from_columns((step, *t.columns[1:]), t.routes).sorted(),
        step_s_per_GB=(Fraction(0),) * len(steps),
    )
    return tighten(staged, topology)


@cache
def build_flat(collective: Collective, topology: Topology | None = None) -> tuple[Schedule, ...]:
    """Return verified schedules for memory that all ranks reach; empty if a collective has none.

    Their messages have routes in `topology`; None means that all ranks reach it alike.

    In `direct` each rank adds up its part of the buffer from the memory of all, best for large
    buffers; in `one-shot` (of an allreduce) each adds up all of it, best for small ones.
    """
    topology, members = topology or preset(f"switch:{collective.ranks}"), collective.members
    request = Request(collective.among(members), topology, Effort(1.0))
    builders = [direct.build]
    if collective.name == "allreduce":
        builders.append(direct.build_one_shot)
    flat = []
    try:
        for build in builders:
            for schedule in build(request):
                verify(schedule, topology)
                flat.append(renumber(schedule, collective, members).uncut)
    except InfeasibleError:
        return ()
    return tuple(flat)
