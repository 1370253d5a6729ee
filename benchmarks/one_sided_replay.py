"""Simulate the one-sided programs of all ranks on integers, in memory with weak ordering.

A check independent of schedules and players. Ranks advance in random order. A put lands at any time
until the release after it; a read sees memory as it was at any time since the last acquire of its
rank. Each slot remembers which put wrote it, so that a read before the write, or after the next
one, is an error even where the numbers agree.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from topoplan.runtime.extras.one_sided.instructions import (
    END,
    Fold,
    OneSidedProgram,
    Part,
    Put,
    Signal,
    Slot,
    Wait,
)
from topoplan.topo.errors import VerificationError

Values = NDArray[np.int64]
# A run and a signal number, as in a counter.
_Progress = tuple[int, int]


@dataclass(frozen=True)
class Memory:
    """The rules of the simulated memory. All but the defaults are deliberate faults, for tests.

    `halves` is how many copies of its window a rank uses in turn; without `acquires` a wait lets
    later reads see old values; without `counts_runs` a wait compares signal numbers alone.
    """

    halves: int = 2
    acquires: bool = True
    counts_runs: bool = True


@dataclass
class _Written:
    """What a slot held from a time on: the run and the number of the put, and its values."""

    time: int
    run: int
    values: Values


@dataclass
class _Rank:
    """A rank in progress: the call, slice and instruction it is at, and its puts in flight."""

    call: int = 0
    part: int = 0
    at: int = 0
    run: int = 2
    counter: _Progress = (1, END)
    acquired: int = 0
    in_flight: list[tuple[tuple[int, int, int], _Written]] = field(default_factory=list)


class OneSidedReplay:
    """Simulates several calls; `calls[c][r]` is the program of rank r in call c.

    `works[c][r]` are the work buffers, arrays of integers that are changed in place. Divisions of
    averages are left out. `seed` draws the order in which ranks advance; `memory` has the rules.
    """

    def __init__(
        self,
        calls: Sequence[Sequence[OneSidedProgram]],
        works: Sequence[Sequence[Values]],
        seed: int,
        memory: Memory | None = None,
    ) -> None:
        self._calls, self._works = calls, works
        self._memory = Memory() if memory is None else memory
        self._random = random.Random(seed)
        self._ranks = [_Rank() for _ in calls[0]]
        # By owner, half and first element of a slot: all that was written there, oldest first.
        self._slots: dict[tuple[int, int, int], list[_Written]] = {}
        # By owner and half: when each element of the window was last written, by any put.
        window_numel = max(program.window_numel for of_call in calls for program in of_call)
        self._newest = np.full((len(self._ranks), self._memory.halves, window_numel), -1)
        self._time = 0

    def run(self) -> None:
        """Simulate all calls.

        Raise VerificationError on a read of a wrong value, on a wait for a signal that never comes,
        and if all ranks are blocked.
        """
        for programs in self._calls:
            _check_signals(programs)
        left = set(range(len(self._ranks)))
        stuck: set[int] = set()
        while left:
            choices = sorted(left - stuck)
            if not choices:
                raise VerificationError(self._describe_deadlock(left))
            rank = self._random.choice(choices)
            # Some ranks take many instructions in a row, so that ranks are far apart at times.
            for _ in range(self._random.choice((1, 1, 3, 40))):
                self._time += 1
                self._land_some(rank)
                if not self._advance(rank):
                    stuck.add(rank)
                    break
                stuck.clear()
                if self._ranks[rank].call == len(self._calls):
                    left.discard(rank)
                    break

    def _describe_deadlock(self, left: set[int]) -> str:
        waits = []
        for rank in sorted(left):
            state = self._ranks[rank]
            x = self._calls[state.call][rank].instructions[state.at]
            waits.append(f"rank {rank} in call {state.call} at {x}")
        return f"deadlock: {'; '.join(waits)}"

    def _land_some(self, rank: int) -> None:
        """Let some puts of any rank land, in any order."""
        state = self._random.choice(self._ranks)
        while state.in_flight and self._random.random() < 0.3:
            self._land(state, self._random.randrange(len(state.in_flight)))

    def _land(self, state: _Rank, number: int) -> None:
        key, written = state.in_flight.pop(number)
        written.time = self._time
        self._slots.setdefault(key, []).append(written)
        owner, half, start = key
        self._newest[owner, half, start : start + len(written.values)] = self._time

    def _advance(self, rank: int) -> bool:
        """Carry out the rank's next instruction; return False if it has to wait."""
        state = self._ranks[rank]
        program = self._calls[state.call][rank]
        work = self._works[state.call][rank]
        x = program.instructions[state.at]
        match x:
            case Put():
                self._put(state, program, x.slot, self._part_of(program, state, work, x.piece))
            case Signal():
                while state.in_flight:
                    self._land(state, self._random.randrange(len(state.in_flight)))
                state.counter = (state.run, x.number)
            case Wait():
                if not self._is_reached(
                    state.run - x.behind, x.number, self._ranks[x.peer].counter
                ):
                    return False
                if self._memory.acquires:
                    state.acquired = self._time
            case Fold():
                terms = [self._read(rank, program, work, term) for term in x.terms]
                total: Values = np.add.reduce(terms, axis=0, dtype=np.int64)
                self._part_of(program, state, work, x.into)[:] = total
                if x.also is not None:
                    self._put(state, program, x.also, total)
        state.at += 1
        if state.at == len(program.instructions):
            state.at, state.part, state.run = 0, state.part + 1, state.run + 1
            if state.part == program.slices:
                state.part, state.call = 0, state.call + 1
        return True

    def _is_reached(self, run: int, number: int, counter: _Progress) -> bool:
        if self._memory.counts_runs:
            return counter >= (run, number)
        return counter[1] >= number

    def _part_of(self, program: OneSidedProgram, state: _Rank, work: Values, x: Part) -> Values:
        lo, hi = program.cut(x.length, state.part)
        return work[x.start + lo : x.start + hi]

    def _put(self, state: _Rank, program: OneSidedProgram, slot: Slot, values: Values) -> None:
        if slot.start + len(values) > program.window_numel:
            raise VerificationError(f"{slot} does not fit into a window of {program.window_numel}")
        key = slot.owner, state.run % self._memory.halves, slot.start
        state.in_flight.append((key, _Written(0, state.run, values.copy())))

    def _read(self, rank: int, program: OneSidedProgram, work: Values, term: Part | Slot) -> Values:
        state = self._ranks[rank]
        if isinstance(term, Part):
            return self._part_of(program, state, work, term)
        half = state.run % self._memory.halves
        history = self._slots.get((term.owner, half, term.start), [])
        seen = self._random.randint(state.acquired, self._time)
        before = [x for x in history if x.time <= seen]
        lo, hi = program.cut(term.length, state.part)
        self._check_overlaps(rank, term, half, hi - lo, seen)
        if not before or before[-1].run != state.run or len(before[-1].values) != hi - lo:
            what = f"of run {before[-1].run}" if before else "nothing"
            raise VerificationError(
                f"rank {rank} reads {term} in run {state.run} and sees {what}: it was not written "
                "yet, or written again"
            )
        return before[-1].values

    def _check_overlaps(self, rank: int, slot: Slot, half: int, length: int, seen: int) -> None:
        """Raise VerificationError if another slot's newer put covers a part of this one."""
        own = self._slots.get((slot.owner, half, slot.start), [])
        since = max((x.time for x in own if x.time <= seen), default=-1)
        newest = self._newest[slot.owner, half, slot.start : slot.start + length]
        if newest.max(initial=-1) <= since:
            return
        for (owner, other_half, start), history in self._slots.items():
            if (owner, other_half) != (slot.owner, half) or start == slot.start:
                continue
            for x in history:
                is_over = start < slot.start + length and slot.start < start + len(x.values)
                if is_over and since < x.time <= seen:
                    raise VerificationError(
                        f"rank {rank} reads {slot}, which a put of run {x.run} at {start} overwrote"
                    )


def _check_signals(programs: Sequence[OneSidedProgram]) -> None:
    """Raise VerificationError if a rank waits for a number that its peer never signals.

    A later signal would end the wait, too, but perhaps much later.
    """
    numbers = [
        {x.number for x in program.instructions if isinstance(x, Signal)} for program in programs
    ]
    for rank, program in enumerate(programs):
        if END not in numbers[rank]:
            raise VerificationError(f"rank {rank} does not signal the end of its run")
        for x in program.instructions:
            if isinstance(x, Wait) and x.number not in numbers[x.peer]:
                raise VerificationError(f"rank {rank} waits for a signal that is missing: {x}")
