"""The race of a joint plan as a whole: all groups' calls by plans against all by stock collectives.

Groups that start together slow each other down, so a group cannot tell by its own calls whether
the joint plan pays: all ranks of all groups time the same candidates at the same time, and make one
choice. Candidates are the schedules in the segmentations that the plans state, and in equally many
segments each: then the bytes that a group has in flight on a link are in proportion to its share.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

from ....synth.extras.joint.plan import GroupPlan
from ....synth.ir.schedule import Schedule
from ...cache import CachedRace, CachedRaces
from ...choose import FAR_OFF, is_worthwhile
from ...compiled import Buffers
from ...ranks.turns import Turns
from ...summaries.summary import STOCK
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

    `segments` is how many each schedule has, 0 for what its plan states, None for the stock
    collectives; `raced_us` maps the names of the candidates to median microseconds until all
    groups' calls have ended.
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
    """Race on the scratch memory `buffers`, which are by group, and settle all groups' choice.

    Rank 0 of the first group caches the result in the folder `cache`. Collective over all ranks of
    the groups' transport; raise ExecutionError on every rank if one of them fails.
    """
    race = _Race(groups, buffers, cache)
    choice = race.run()
    for number, communicator in groups.own.items():
        schedule = race.schedules.get((number, choice.segments))
        communicator.engine.settle(buffers[number], schedule)
    return choice


class _Race:
    def __init__(
        self, groups: JointGroups, buffers: Mapping[int, Buffers], cache: Path | None
    ) -> None:
        self.groups, self.joint, self.transport = groups, groups.joint, groups.transport
        self.turns = Turns(self.transport, "the race of a joint plan")
        self.own = {
            number: communicator.engine.make_run(buffers[number])
            for number, communicator in groups.own.items()
        }
        self.schedules: dict[tuple[int, _Entrant], Schedule] = {}
        """Compiled programs are kept by the identity of the schedule."""
        own_stock = all(
            communicator.engine.has_stock(buffers[number])
            for number, communicator in groups.own.items()
        )
        with self.transport.faults.stock("which stock collectives there are"):
            self.has_stock = all(self.transport.control.exchange(own_stock))
        self.races: CachedRaces | None = None
        if self.transport.rank == self.joint.groups[0].call.collective.members[0]:
            engine = groups.own[0].engine
            self.races = CachedRaces(
                cache,
                self.joint.hash,
                engine.machine,
                self.transport.device,
                None,
                with_stock=self.has_stock,
            )

    def run(self) -> JointChoice:
        """Return the choice, by a cached race if that still holds."""
        cached = self._find_cached()
        stock: list[_Entrant] = [None] if self.has_stock else []
        if cached is not None:
            times_s = self._measure(cached.own, *stock)
            choice = _decide(times_s)
            near_us = abs(times_s[choice.segments] * 1e6 - cached.time_us)
            if choice.segments == cached.winner and near_us <= FAR_OFF * cached.time_us:
                return JointChoice(choice.segments, cached.raced_us)
        times_s = self._measure(_AS_PLANNED, *_SEGMENTS, *stock)
        while fresh := _list_neighbours(times_s):
            times_s |= self._measure(_find_fastest(times_s), *fresh)
        choice = _decide(times_s)
        self._save(choice, times_s)
        return choice

    def _measure(self, *entrants: _Entrant) -> dict[_Entrant, float]:
        """Return the median seconds of each candidate until all groups' calls have ended."""
        calls = [partial(self._carry_out, entrant) for entrant in entrants]
        return dict(zip(entrants, self.turns.measure_medians_s(calls), strict=True))

    def _carry_out(self, entrant: _Entrant) -> None:
        def make_call(number: int) -> Callable[[], object]:
            if entrant is None:
                return partial(self.own[number], None)
            key = number, entrant
            if key not in self.schedules:
                self.schedules[key] = _cut(self.joint.groups[number], entrant)
            return partial(self.own[number], self.schedules[key])

        self.groups.run({number: make_call(number) for number in self.own})

    @property
    def _size_bytes(self) -> int:
        return sum(call.size_bytes for call in self.joint.calls)

    def _find_cached(self) -> CachedRace | None:
        cached = None if self.races is None else self.races.find(self._size_bytes)
        with self.transport.faults.stock("the cached race of a joint plan"):
            exchanged = self.transport.control.exchange(cached)
        answer = exchanged[self.joint.groups[0].call.collective.members[0]]
        is_race = (
            isinstance(answer, CachedRace)
            and answer.own <= _MAX_SEGMENTS
            and answer.winner in (None, answer.own)
            and (self.has_stock or answer.winner is not None)
        )
        return answer if is_race else None

    def _save(self, choice: JointChoice, times_s: Mapping[_Entrant, float]) -> None:
        if self.races is None:
            return
        own = _find_fastest(times_s)
        race = CachedRace(
            winner=choice.segments,
            own=own,
            labels=(choice.label, _spell(own)),
            time_us=times_s[choice.segments] * 1e6,
            raced_us=choice.raced_us,
            raced_on=date.today().isoformat(),
        )
        self.races.save(self._size_bytes, race)
        raced = ", ".join(f"{label} {us:.0f} us" for label, us in choice.raced_us.items())
        log.info("joint plan %s uses %s (%s)", self.joint.hash[:16], choice.label, raced)


def _find_fastest(times_s: Mapping[_Entrant, float]) -> int:
    """Return the fastest candidate but stock."""
    return min((x for x in times_s if x is not None), key=times_s.__getitem__)


def _list_neighbours(times_s: Mapping[_Entrant, float]) -> list[_Entrant]:
    """Return the numbers of segments next to the best one that are to be timed yet."""
    best = _find_fastest(times_s)
    return [x for x in (best // 2, best * 2) if 1 < x <= _MAX_SEGMENTS and x not in times_s]


def _decide(times_s: Mapping[_Entrant, float]) -> JointChoice:
    own = _find_fastest(times_s)
    wins = is_worthwhile(times_s[own], times_s.get(None, float("inf")))
    ranked = sorted(times_s.items(), key=lambda item: item[1])
    return JointChoice(own if wins else None, {_spell(x): taken * 1e6 for x, taken in ranked})


def _spell(entrant: _Entrant) -> str:
    if entrant is None:
        return STOCK
    return "plan" if entrant == _AS_PLANNED else f"x{entrant}"


def _cut(group: GroupPlan, segments: int) -> Schedule:
    """Return a group's schedule in a number of segments, or in those that its plan states."""
    schedule = group.schedule
    return schedule if segments == _AS_PLANNED else replace(schedule.uncut, segments=segments)
