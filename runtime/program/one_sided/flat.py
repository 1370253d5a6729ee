"""Schedules that are played one-sided: those of a plan, and flat ones for one host's memory."""

from dataclasses import dataclass, fields
from functools import cache

from ....synth.ir.collective import Collective
from ....synth.ir.schedule import Schedule
from ....synth.numeric.effort import Effort
from ....synth.request import Request
from ....synth.strategies import direct
from ....synth.verify import verify
from ....topo.errors import InfeasibleError
from ....topo.presets import preset

# What executes schedules: point-to-point operations, one-sided programs, or the faster of both.
POINT_TO_POINT, ONE_SIDED, AUTO = "point-to-point", "one-sided", "auto"
EXECUTORS = (AUTO, ONE_SIDED, POINT_TO_POINT)


@dataclass(frozen=True)
class OneSidedSchedule(Schedule):
    """A schedule that is to be played one-sided; it differs from the same one sent as messages."""

    @property
    def label(self) -> str:
        """The schedule's own label, and how it is played: "direct, one-sided"."""
        return f"{super().label}, {ONE_SIDED}"

    # A dataclass would make its own, which hashes a million fractions.
    __hash__ = Schedule.__hash__

    @property
    def as_messages(self) -> Schedule:
        """The same schedule, to be sent as messages."""
        return Schedule(**{x.name: getattr(self, x.name) for x in fields(Schedule)})


def play_one_sided(schedule: Schedule) -> OneSidedSchedule:
    """Return the same schedule, in one segment, to be played one-sided."""
    if isinstance(schedule, OneSidedSchedule):
        return schedule
    uncut = schedule.uncut
    return OneSidedSchedule(**{x.name: getattr(uncut, x.name) for x in fields(Schedule)})


@cache
def build_flat(collective: Collective) -> tuple[OneSidedSchedule, ...]:
    """Return the schedules for memory that all ranks reach alike, verified.

    In `direct` each rank adds up its part of the buffer from the memory of all, best for large
    buffers; in `one-shot` (of an allreduce) each adds up all of it, best for small ones. An empty
    tuple if a collective has none.
    """
    topology = preset(f"switch:{collective.ranks}")
    request = Request(collective, topology, Effort(1.0))
    builders = [direct.build]
    if collective.name == "allreduce":
        builders.append(direct.build_one_shot)
    flat = []
    try:
        for build in builders:
            for schedule in build(request):
                verify(schedule, topology)
                flat.append(play_one_sided(schedule))
    except InfeasibleError:
        return ()
    return tuple(flat)
