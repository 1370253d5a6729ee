"""Schedules that are played in shared memory: those of a plan, and flat ones for one host."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache, cached_property

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
from .instructions import Mode


class SharedSchedule(Schedule):
    """A schedule to be played in shared memory; it differs from the same one sent as messages."""

    @cached_property  # one object, since compiled programs are kept by the schedule's identity
    def as_messages(self) -> Schedule:
        """The same schedule, to be sent as messages."""
        return Schedule(**{x.name: getattr(self, x.name) for x in fields(Schedule)})


@dataclass(frozen=True)
class OneSidedSchedule(SharedSchedule):
    """A schedule that is to be played one-sided, by ranks that all share memory.

    `mode` says whether ranks read each other's memory or write it.
    """

    mode: Mode = "pull"

    @property
    def label(self) -> str:
        """The schedule's own label, and how it is played: "direct, one-sided"."""
        return f"{super().label}, {ONE_SIDED}{', pushed' if self.mode == 'push' else ''}"

    # A dataclass would make its own, which hashes a million fractions.
    __hash__ = Schedule.__hash__


@dataclass(frozen=True)
class HostsSchedule(SharedSchedule):
    """A schedule whose messages within hosts go through the hosts' memory, all others as before."""

    @property
    def label(self) -> str:
        """The schedule's own label, and how it is played: "ring x4, one-sided within hosts"."""
        return f"{super().label}, {ONE_SIDED} within hosts"

    __hash__ = Schedule.__hash__


def play_within_hosts(schedule: Schedule) -> HostsSchedule:
    """Return the same schedule, to be played one-sided within hosts."""
    return HostsSchedule(**{x.name: getattr(schedule, x.name) for x in fields(Schedule)})


def play_one_sided(schedule: Schedule, mode: Mode = "pull") -> OneSidedSchedule:
    """Return the same schedule, in one segment, to be played one-sided."""
    if isinstance(schedule, OneSidedSchedule):
        return schedule if schedule.mode == mode else replace(schedule, mode=mode)
    uncut = schedule.uncut
    return OneSidedSchedule(**{x.name: getattr(uncut, x.name) for x in fields(Schedule)}, mode=mode)


def stage(schedule: Schedule, topology: Topology) -> Schedule | None:
    """Return a schedule with the same messages, in steps in which a rank sends to one other.

    It also receives from one other alone. A step's messages go out by their distance, from a rank
    to that many ranks further. Return None if some rank sends a chunk in the step in which it
    receives it, since the messages of a step are sent as if at once.
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
def build_flat(
    collective: Collective, topology: Topology | None = None
) -> tuple[OneSidedSchedule, ...]:
    """Return the schedules for memory that all ranks reach, verified.

    Their messages have routes in the topology; without one all ranks reach it alike.

    In `direct` each rank adds up its part of the buffer from the memory of all, best for large
    buffers; in `one-shot` (of an allreduce) each adds up all of it, best for small ones. An empty
    tuple if a collective has none.
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
                flat.append(play_one_sided(renumber(schedule, collective, members)))
    except InfeasibleError:
        return ()
    return tuple(flat)
