"""The race of a joint plan as a whole: all groups' calls by plans against all by stock collectives.

Groups that start together slow each other down, so a group cannot tell by its own calls whether the
joint plan pays: all ranks of all groups time the same candidates at the same time, and make one
choice. Candidates are the schedules in the segmentations that the plans state, and in equally many
segments each: then the bytes that a group has in flight on a link are in proportion to its share.

A joint plan is one file of plans for several groups that make their calls at the same time, each
with a share of every link. A stock collective is gloo's, NCCL's or MPI's own, without a plan.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ....synth.extras.joint.plan import GroupPlan
from ....synth.ir.schedule import Schedule
from ...cache import Contest, find_cache
from ...candidates import STOCK
from ...compiled import Buffers
from ...race import Expected, Outcome, Race, race_on_scratch
from ...ranks.race_timing import RaceTimer
from .groups import JointGroups

log = logging.getLogger("topoplan")
# Numbers of segments that race first; then twice and half as many as the best, up to _MAX_SEGMENTS.
# On emulated machines 16 to 128 were best (benchmarks/joint_run.py).
_SEGMENTS, _MAX_SEGMENTS = (16, 64), 256
# The segments that the plans state.
_AS_PLANNED = 0
# A number of segments, _AS_PLANNED, or None for the stock collectives.
_Entrant = int | None


@dataclass(frozen=True)
class JointChoice:
    """What all groups of a joint plan use for calls of the planned sizes.

    `segments` is the number of pipelined segments of each schedule: 0 for what its plan states,
    None for the stock collectives instead. `raced_us` maps candidates' names to the median
    microseconds until all groups' calls have ended.
    """

    segments: int | None
    raced_us: dict[str, float]

    @property
    def label(self) -> str:
        """The name of the choice: "plan", "x64" or "stock"."""
        return _spell(self.segments)

    def schedule_of(self, group: GroupPlan) -> Schedule | None:
        """Return the schedule of a group's calls, None for the stock collective."""
        return None if self.segments is None else _cut(group, self.segments)


def race_jointly(
    groups: JointGroups, buffers: Mapping[int, Buffers], cache: Path | None
) -> JointChoice:
    """Race the candidates of a joint plan, and return the choice for all groups.

    `buffers` are scratch memory, by group number. Rank 0 of the first group caches the result in
    the folder `cache`. Collective over all ranks of `groups`; raise ExecutionError on every rank if
    one fails.
    """
    race = _JointRace(groups, buffers, cache)
    choice = race.run()
    for number, communicator in groups.own.items():
        dispatcher = communicator.dispatcher
        schedule = choice.schedule_of(groups.joint.groups[number])
        candidate = None if schedule is None else dispatcher.candidates.send(schedule)
        dispatcher.use(buffers[number], candidate)
    return choice


class _JointRace:
    def __init__(
        self, groups: JointGroups, buffers: Mapping[int, Buffers], cache: Path | None
    ) -> None:
        self.groups, self.joint, self.transport = groups, groups.joint, groups.transport
        self.own = {
            number: communicator.dispatcher.make_run(buffers[number])
            for number, communicator in groups.own.items()
        }
        own_stock = all(
            communicator.dispatcher.has_stock(buffers[number])
            for number, communicator in groups.own.items()
        )
        with self.transport.faults.stock("which stock collectives there are"):
            self.has_stock = all(self.transport.control.exchange(own_stock))
        self.first = self.joint.groups[0].call.collective.members[0]
        self.cache, self.contest = cache, None
        if self.transport.rank == self.first:
            self.contest = Contest(
                plan_hash=self.joint.hash,
                machine=groups.own[0].dispatcher.machine,
                device=self.transport.device,
                with_stock=self.has_stock,
                name=_spell,
                number=int,
                find=_find_segments,
            )

    def run(self) -> JointChoice:
        """Return the choice, by a cached race if that still holds."""
        stock: list[_Entrant] = [None] if self.has_stock else []
        expected = self._find_expected()
        race = make_race([_AS_PLANNED, *_SEGMENTS, *stock], expected)
        turns = RaceTimer(self.transport, "the race of a joint plan")
        outcome = race_on_scratch(race, turns, self._run_entrant)
        if outcome is None:
            assert expected is not None
            return JointChoice(expected.winner, expected.raced_us)
        choice = choose(outcome)
        if self.contest is not None:
            find_cache().keep_race(self.cache, self.contest, self._size_bytes, outcome)
            raced = ", ".join(f"{label} {us:.0f} us" for label, us in choice.raced_us.items())
            log.info("joint plan %s uses %s (%s)", self.joint.hash[:16], choice.label, raced)
        return choice

    def _run_entrant(self, entrant: _Entrant) -> None:
        def make_call(number: int) -> Callable[[], object]:
            if entrant is None:
                return partial(self.own[number], None)
            schedule = _cut(self.joint.groups[number], entrant)
            candidate = self.groups.own[number].dispatcher.candidates.send(schedule)
            return partial(self.own[number], candidate)

        self.groups.run({number: make_call(number) for number in self.own})

    @property
    def _size_bytes(self) -> int:
        return sum(call.size_bytes for call in self.joint.calls)

    def _find_expected(self) -> Expected[int] | None:
        """Return what an earlier race lets the first rank expect, None without one."""
        mine = None
        if self.contest is not None:
            mine = find_cache().find_race(self.cache, self.contest, self._size_bytes)
        with self.transport.faults.stock("the cached race of a joint plan"):
            expected: Expected[int] | None = self.transport.control.exchange(mine)[self.first]
        return expected


def _find_segments(number: int) -> int | None:
    return number if number <= _MAX_SEGMENTS else None


def make_race(entrants: Sequence[_Entrant], expected: Expected[int] | None = None) -> Race[int]:
    """Return the race of a joint plan: `entrants` first, then numbers of segments next to the best.

    `expected` is an earlier result, if any.
    """
    return Race(entrants, refine=_list_neighbours, expected=expected)


def choose(outcome: Outcome[int]) -> JointChoice:
    """Return the choice for all groups that the outcome of a race leads to."""
    ranked = sorted(outcome.times_s.items(), key=lambda item: item[1])
    return JointChoice(outcome.winner, {_spell(x): taken * 1e6 for x, taken in ranked})


def _list_neighbours(times_s: Mapping[_Entrant, float]) -> list[int]:
    """Return the numbers of segments next to the best one that are to be timed yet."""
    best = min((x for x in times_s if x is not None), key=times_s.__getitem__)
    return [x for x in (best // 2, best * 2) if 1 < x <= _MAX_SEGMENTS and x not in times_s]


def _spell(entrant: _Entrant) -> str:
    if entrant is None:
        return STOCK
    return "plan" if entrant == _AS_PLANNED else f"x{entrant}"


def _cut(group: GroupPlan, segments: int) -> Schedule:
    """Return a group's schedule in a number of segments, or in those that its plan states."""
    schedule = group.schedule
    return schedule if segments == _AS_PLANNED else replace(schedule.uncut, segments=segments)
