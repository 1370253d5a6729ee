"""Bounds of a group: some GPUs of a machine, with and without the help of others.

Members are the GPUs that make the call, helpers others that relay, copy and add for them. The
multipath bound is for any use of the links, the single-path bound for the hardware's routes alone.
An `Effort` is an allowance of work and time for searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ...topo.derived.degrade import keep_gpus
from ...topo.errors import InfeasibleError
from ...topo.routes import Router
from ..ir.collective import Collective
from ..ir.schedule import Schedule, renumber
from ..numeric.effort import Effort
from .certificate import Bound
from .single_path import Bounds, find_bounds

# Work for the bounds of one machine, in seconds of an idle core, and its share of the time left.
_BOUND_WORK_S, _BOUND_CLOCK = 20.0, 0.3


@dataclass(frozen=True)
class GroupBounds:
    """The bounds of a group's collective.

    `allowed` hold with the helpers that a plan may use. `alone` is the single-path bound without
    help, None if the members cannot reach each other; `with_helpers` is that with the helpers, or
    with all other GPUs if the plan may use none.
    """

    allowed: Bounds
    alone: Bound | None
    with_helpers: Bound


@dataclass(frozen=True)
class SubMachine:
    """Some GPUs of a machine as a machine of their own, and a collective on it.

    `collective` and `router` number the GPUs from 0; `ranks` are their numbers on the whole
    machine.
    """

    collective: Collective
    router: Router
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, collective: Collective, router: Router, ranks: Iterable[int]) -> SubMachine:
        """Return the part of a router's machine that has only the GPUs `ranks`.

        The collective's members must be among them.
        """
        kept = tuple(sorted(ranks))
        machine = keep_gpus(router.topology, kept)
        return cls(collective.among(kept), router.on(machine), kept)

    def find_bounds(self, effort: Effort, progress: Callable[[str], None] | None = None) -> Bounds:
        """Return the bounds of the collective on this machine, all of whose GPUs may help.

        The search takes a part of `effort`. `progress` is called with lines of text. Raise
        InfeasibleError if the links do not connect the members.
        """
        granted = effort.grant(_BOUND_WORK_S, _BOUND_CLOCK)
        return find_bounds(self.collective, self.router, granted, progress)

    def lift(self, schedules: Iterable[Schedule], whole: Collective) -> list[Schedule]:
        """Return schedules of this machine with their ranks numbered as on the whole machine.

        `whole` is the collective there. Ranks that are no members of it become helpers.
        """
        bases: dict[Schedule, Schedule] = {}
        out = []
        for schedule in schedules:
            base = replace(schedule, segments=1)
            if base not in bases:
                bases[base] = renumber(base, whole, self.ranks)
            out.append(replace(bases[base], segments=schedule.segments))
        return out


def find_group_bounds(
    collective: Collective,
    helpers: Sequence[int],
    router: Router,
    effort: Effort | None = None,
    progress: Callable[[str], None] | None = None,
) -> GroupBounds:
    """Return the bounds of a group on the router's machine, with and without the helpers.

    `progress` is called with lines of text. Raise InfeasibleError if members and helpers are not
    connected.
    """
    effort = effort if effort is not None else Effort()
    members, everyone = tuple(collective.members), range(len(router.topology.ranks))
    allowed = SubMachine.of(collective, router, (*members, *helpers)).find_bounds(effort, progress)
    if not helpers:
        helped = SubMachine.of(collective, router, everyone).find_bounds(effort, progress)
        return GroupBounds(allowed, allowed.single_path, helped.single_path)
    return GroupBounds(
        allowed, _find_bound_alone(collective, router, effort, progress), allowed.single_path
    )


def _find_bound_alone(
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> Bound | None:
    """Return the single-path bound without help; None if the members cannot reach each other."""
    try:
        part = SubMachine.of(collective, router, collective.members)
        return part.find_bounds(effort, progress).single_path
    except InfeasibleError:
        return None
