"""List the candidates of a plan, and find which of them are worth trying at a size.

A candidate is one of the plan's schedules with the runner that carries it out, by messages or in
another way. A schedule can be cut in more or fewer segments, which are sent one after the other
(pipelined); a family is a schedule with all its segmentations. A race times candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

from ..synth.cost.segmentation import Family, families, fastest, reroute, time_us
from ..synth.ir.schedule import Schedule
from ..synth.plan import Plan
from .candidates import Candidate, Choice
from .program.lowering import lower
from .ranks.machine import Machine
from .ranks.transport import Transport
from .runners.contract import Runner
from .runners.programs import Messages

T = TypeVar("T")

# Candidates whose predicted time exceeds this multiple of the best one do not race.
_NEAR = 1.4
# From this many schedules on, no further ones join a race but the plan's own. The best of each
# sender count, and so do the coarser segmentations that race beside each of the others.
_RACED = 4
# The factor between a segmentation and the next coarser one that races.
_STEP = 4
# From _LEAN_BYTES on, candidates that need more staging memory on some rank than _MAX_STAGING times
# the buffer do not race. With the copy of the buffer that is used in the race, the first call needs
# at most 2.5 times the buffer. Smaller calls need little memory anyway.
_LEAN_BYTES, _MAX_STAGING = 16 << 20, 1.5
# Elements of the buffer for which staging memory is computed, for a precision of a thousandth.
_SAMPLE_NUMEL = 1 << 20
# Schedules with more messages are not lowered to find their staging memory: it is small, since
# their segments are. Lowering this many messages takes about 50 ms.
_MAX_LOWERED_MESSAGES = 4096


class Candidates:
    """The candidates for a plan's calls, by the runners that all ranks have.

    `senders` are the runners (Messages) that send messages: a schedule goes by the first of them
    that reaches all its ranks. `others` carry out schedules in other ways, such as in shared
    memory. Both are the same on all ranks, and so are the candidates, which depend on nothing else.
    """

    def __init__(self, plan: Plan, senders: Sequence[Messages], others: Sequence[Runner]) -> None:
        self.plan, self.senders, self.others = plan, senders, others
        self._runners = {runner.name: runner for runner in (*senders, *others)}

    @cached_property
    def families(self) -> list[Family]:
        """The plan's schedules that Messages.is_usable allows, each with its segmentations.

        Of these, only those that Messages.takes allows.
        """
        sender = self.senders[0]
        usable = filter(sender.is_usable, self.plan.schedules)
        return [
            replace(
                family,
                stepwise=tuple(filter(sender.takes, family.stepwise)),
                piped=tuple(filter(sender.takes, family.piped)),
            )
            for family in families(usable, self.plan.router)
        ]

    @cached_property
    def sent(self) -> list[Candidate]:
        """The candidates that are sent as messages: each such schedule in each segmentation."""
        return [
            self.send(schedule)
            for family in self.families
            for schedule in (*family.stepwise, *family.piped)
        ]

    @cached_property
    def all(self) -> list[Candidate]:
        """All candidates, sent as messages or not, in one order on all ranks."""
        # Last, so that their presence does not change the indices of the others, which are cached.
        return [*self.sent, *(x for other in self.others for x in other.list_candidates(self.sent))]

    @cached_property
    def offered(self) -> Sequence[Any]:
        """All candidates, for a user's choose function.

        Those that are sent as messages are given by their schedules.
        """
        senders = {sender.name for sender in self.senders}
        return [x.schedule if x.runner in senders else x for x in self.all]

    @cached_property
    def index_of(self) -> dict[Candidate, int]:
        """The place of each candidate in `all`."""
        return {candidate: index for index, candidate in reversed([*enumerate(self.all)])}

    def send(self, schedule: Schedule) -> Candidate:
        """Return the candidate that sends a schedule's messages."""
        if len(self.senders) == 1:
            return Candidate(schedule, self.senders[0].name)
        reaching = (sender for sender in self.senders if sender.reaches(schedule))
        return Candidate(schedule, next(reaching, self.senders[0]).name)

    def find_planned(self, size_bytes: int, *, is_alone: bool) -> Candidate:
        """Return the candidate for the plan's own schedule at a size in bytes.

        If other runners than messages must be used where they can (`is_alone`), it is that of the
        first which can.
        """
        schedule = self.plan.entry_for(size_bytes).schedule
        found = (other.find_candidate(schedule) for other in self.others if is_alone)
        return next((x for x in found if x is not None), None) or self.send(schedule)

    def choose(self, candidate: Candidate | None, machine: Machine) -> Choice:
        """Return the choice of a candidate (None: the stock collective), made without a race.

        Times are predicted for `machine`.
        """
        predict = partial(self._predict_us, candidate, machine)
        return Choice(candidate, candidate or self.all[0], predict, {})

    def _predict_us(
        self, candidate: Candidate | None, machine: Machine, size_bytes: int
    ) -> float | None:
        if candidate is None or self._runners[candidate.runner] not in self.senders:
            return None
        host, on = self.senders[0].add_costs(machine.host), machine.topology
        schedule = candidate.schedule
        return time_us(schedule, on, host, size_bytes, batched=machine.batched) or None

    # What is worth trying

    def find_near_best(
        self, size_bytes: int, machine: Machine, *, is_raced: bool, is_alone: bool
    ) -> list[Candidate]:
        """Return the candidates whose predicted time on `machine` is near the best, the best first.

        Near is up to 1.4 times the best. These are the best segmentation of each such schedule,
        each followed by a coarser one, since the predicted costs of messages may be wrong. Once
        there are four or more, no further schedule is taken but the plan's own for the size, which
        comes last unless it is among them. If there are several senders, the best schedule of each
        comes before these. Candidates that need much memory (not `is_lean`) are left out, unless
        all do.

        If they will race (`is_raced`), candidates of other runners, whose time is not predicted,
        are added: one before the others, the rest before the last. With `is_alone` these are the
        only ones, if there are any.
        """
        ranking = fastest(
            self.families,
            machine.topology,
            self.senders[0].add_costs(machine.host),
            size_bytes,
            _NEAR,
            batched=machine.batched,
        )
        wanted: dict[Schedule, None] = dict.fromkeys(self._find_best_of_each(size_bytes, machine))
        uncut: set[Schedule] = set()
        for _, schedule in ranking:
            if schedule.uncut not in uncut and len(wanted) < _RACED:
                uncut.add(schedule.uncut)
                wanted[schedule] = None
                if coarser := _coarsen(schedule):
                    wanted[coarser] = None
        # Predictions are inaccurate if ranks share cores, so the plan's own choice always competes.
        wanted |= {reroute(self.plan.entry_for(size_bytes).schedule, self.plan.router): None}
        usable = [x for x in map(self.send, wanted) if x in self.index_of]
        lean = [x for x in usable if self.is_lean(x, size_bytes)]
        order = lean or usable
        ranked = [
            candidate
            for other in self.others
            for candidate in other.list_worth(order, size_bytes, is_alone=is_alone)
        ]
        if is_alone:
            order = ranked or order  # a plan may have helpers in all its schedules
        elif is_raced:
            # Trials have few entrants: the first ones of the list, and the last.
            order = [*ranked[:1], *order[:-1], *ranked[1:], *order[-1:]]
        return list(dict.fromkeys(order))

    def _find_best_of_each(self, size_bytes: int, machine: Machine) -> list[Schedule]:
        """Return the best schedule of each sender, if the plan has schedules for several.

        Only a race shows which pays, since what reaches further may be busy.
        """
        by_sender: dict[str, list[Family]] = {x.name: [] for x in reversed(self.senders)}
        for family in self.families:
            by_sender[self.send(family.base).runner].append(family)
        if len(by_sender) == 1 or not all(by_sender.values()):
            return []
        host, on = self.senders[0].add_costs(machine.host), machine.topology
        return [
            fastest(kind, on, host, size_bytes, batched=machine.batched)[0][1]
            for kind in by_sender.values()
        ]

    def broadcast(
        self,
        transport: Transport,
        size_bytes: int,
        find: Callable[[], tuple[Sequence[Candidate], T]],
        number: int | None,
    ) -> tuple[list[Candidate], T]:
        """Call `find` on rank 0; return its candidates and its second value on all ranks.

        Collective over `transport`; `size_bytes` is for errors. `number` is the group's number of
        the call that this belongs to (None: a new one).
        """
        answer: Any = None
        if transport.rank == 0:
            found, second = find()
            answer = [self.index_of[candidate] for candidate in found], second
        with transport.faults.stock(f"what to try at {size_bytes} bytes", number, is_part=True):
            indices, second = transport.control.exchange(answer)[0]
        return [self.all[index] for index in indices], second

    def is_lean(self, candidate: Candidate, size_bytes: int) -> bool:
        """Return whether a candidate needs little enough scratch memory to race at a size.

        From 16 MiB on, that is at most 1.5 times the buffer for received messages on any rank.
        """
        if size_bytes < _LEAN_BYTES or not self._runners[candidate.runner].stages:
            return True
        is_batched = self.senders[0].transport.links.is_batched
        return _find_staging(candidate.schedule, is_batched) <= _MAX_STAGING

    def find_coarser(self, candidate: Candidate, size_bytes: int) -> list[Candidate]:
        """Return a list of the candidate with a quarter of the segments.

        It is empty if there is none, or if that needs too much scratch memory to race at
        `size_bytes`.
        """
        coarser = _coarsen(candidate.schedule)
        if coarser is None:
            return []
        found = replace(candidate, schedule=coarser)
        return [found] if found in self.index_of and self.is_lean(found, size_bytes) else []

    def find_nearby(self, candidate: Candidate, size_bytes: int) -> list[Candidate]:
        """Return the candidates with the next coarser and finer segmentations that may race.

        Candidates that need too much scratch memory at `size_bytes` are left out.
        """
        schedule = candidate.schedule
        finer = [
            x
            for x in self.all
            if (x.runner, x.way) == (candidate.runner, candidate.way)
            and x.schedule.segments > schedule.segments
            and (x.schedule.uncut, x.schedule.stepwise) == (schedule.uncut, schedule.stepwise)
        ]
        finest = sorted(finer, key=lambda x: x.schedule.segments)[:1]
        return [
            *self.find_coarser(candidate, size_bytes),
            *(x for x in finest if self.is_lean(x, size_bytes)),
        ]


def _coarsen(schedule: Schedule) -> Schedule | None:
    """Return the schedule with a quarter of its segments, or None if it has only one."""
    if schedule.segments == 1:
        return None
    parts = schedule.segments // _STEP
    return replace(schedule, segments=parts) if parts > 1 else schedule.uncut


@lru_cache(maxsize=256)  # a plan's candidates, for a few plans
def _find_staging(schedule: Schedule, batched: bool) -> float:
    """Return the most staging memory that a rank needs for a schedule, in multiples of the buffer.

    Return 0 if the schedule has too many messages to lower, since these need little memory.
    """
    if len(schedule.transfers) * schedule.segments > _MAX_LOWERED_MESSAGES:
        return 0.0
    ranks = schedule.collective.ranks
    numel = _SAMPLE_NUMEL // ranks * ranks
    return (
        max(
            lower(schedule, rank, numel, batched=batched).staging_numel
            for rank in schedule.participants
        )
        / numel
    )
