"""Run a communicator's calls on CPUs through memory shared by all ranks, or by each host's.

A candidate is a schedule and the way to run it: one-sided, ranks read each other's values from the
memory themselves, without messages. A flat schedule sends directly between any two ranks. Helpers
are ranks outside a group that forward bytes for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Final

import torch

from ....synth.ir.schedule import Schedule
from ....topo.errors import InfeasibleError
from ...candidates import Candidate
from ...compiled import Binding, Buffers, Compiled
from ...observers import observe_links
from ...option_names import ONE_SIDED
from ...program.contract import PlayError
from ...ranks.transport import Transport
from ...runners.contract import Opening, Play, Runner, RunnerKind
from ...runners.programs import ProgramRunner
from ..native.library import suits
from ..one_sided.flat import PULLED, build_flat
from .memory import HostMemory, open_memory
from .programs import CompiledInMemory, CompiledWithinHosts

# Up to this size each rank adds up the whole buffer itself in the first schedule that is tried:
# adding takes less time than a second exchange.
_ONE_SHOT_BYTES: Final = 1 << 16
# Schedules that race within hosts besides the same ones sent as messages.
_RACED_WITHIN_HOSTS: Final = 3
_WITHIN_HOSTS: Final = f"{ONE_SIDED} within hosts"


class _MemoryRunner(ProgramRunner):
    """What both runners have in common."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening.transport, opening.plan.topology)
        self._plan, self._keeps_bits = opening.plan, opening.keeps_bits

    @property
    def _members_alone(self) -> list[Schedule]:
        """The plan's schedules without helpers, which share no memory with the members."""
        return [schedule for schedule in self._plan.schedules if not schedule.helpers]

    def can(self, candidate: Candidate, buffers: Buffers) -> str | None:
        """See Runner."""
        op = buffers.op if candidate.schedule.collective.reduces else None
        if suits(buffers.target.dtype, op):
            return None
        return f"the library in C++ has no {buffers.target.dtype} with {op}"


class InSharedMemory(_MemoryRunner):
    """Runs one-sided schedules in memory that all ranks share.

    Schedules are cut into slices by the memory's size, so candidates have one segment each.
    """

    name = "shared-memory"

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        # Why calls cannot be played that have too many chunks, by schedule, elements and dtype.
        self._too_fine: dict[tuple[Schedule, int, torch.dtype], str] = {}

    @cached_property
    def _flat(self) -> list[Candidate]:
        """The flat schedules; none if results must have the same bits."""
        if self._keeps_bits:
            return []
        return [Candidate(x, self.name, PULLED) for x in build_flat(self._plan.collective)]

    @cached_property
    def _candidates(self) -> list[Candidate]:
        """The plan's schedules, and flat ones after them."""
        own = [Candidate(x.uncut, self.name, PULLED) for x in self._members_alone]
        return list(dict.fromkeys([*own, *self._flat]))

    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """Return this runner's candidates: one-sided schedules. `sent` is not used."""
        return [*self._candidates]

    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """Return the candidate that runs a plan's schedule; None if it uses helper ranks."""
        return None if schedule.helpers else Candidate(schedule.uncut, self.name, PULLED)

    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """Return the candidates worth trying for a size in bytes, most promising first.

        These are flat schedules, then the one that the plan uses for the size. `sent` and
        `is_alone` are not used.
        """
        chosen = self.find_candidate(self._plan.entry_for(size_bytes).schedule)
        own = [] if chosen is None else [chosen]
        flat = [x for x in self._candidates if x in self._flat]
        if size_bytes <= _ONE_SHOT_BYTES:
            flat.reverse()
        elif len(flat) > 1:
            flat.pop()
        return [*flat, *own]

    def can(self, candidate: Candidate, buffers: Buffers) -> str | None:
        """Make the program for a call; return None, or why there is none.

        A schedule may have too many chunks for the memory.
        """
        why_not = super().can(candidate, buffers)
        if why_not is not None:
            return why_not
        key = candidate.schedule, buffers.numel, buffers.target.dtype
        if self._too_fine and key in self._too_fine:
            return self._too_fine[key]
        try:
            self.compile(candidate, buffers)
        except InfeasibleError as error:  # on all ranks alike
            self._too_fine[key] = str(error)
            return self._too_fine[key]
        return None

    def make_program(self, candidate: Candidate, buffers: Buffers) -> Compiled:
        """Return the compiled program of a candidate for buffers like these."""
        return CompiledInMemory(candidate, buffers, self.transport, None)

    def make_play(
        self, candidate: Candidate, buffers: Buffers, compiled: Compiled, binding: Binding
    ) -> Play:
        """Return a function that runs the `compiled` program on the target to which it is bound.

        The call is in place, so no scratch memory is needed, and torch adds nothing; `candidate`
        and `buffers` are not used.
        """
        bound = binding.bound or compiled.bind(binding)
        return partial(self._play_bound, compiled, bound.player.play)

    def _play_bound(self, compiled: Compiled, play: Play, number: int | None = None) -> None:
        """Play a program, of which a small call takes a few microseconds."""
        number, deadline = self.faults.admit(number)
        try:
            play(deadline)
        except PlayError as interrupted:
            raise self.blame(compiled, number, deadline, interrupted) from interrupted
        except BaseException as error:
            self.break_off(compiled, error)
            raise
        self.sent_bytes += compiled.sent_bytes
        for listener in compiled.listeners:
            listener.end(number)


class WithinHosts(_MemoryRunner):
    """Runs schedules on several hosts: messages within a host go through memory.

    Those between hosts go over the transport's links.
    """

    name = "within-hosts"
    stages = True

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        observe_links(self, opening.transport, opening.plan.topology)

    def _play(self, schedule: Schedule) -> Candidate:
        return Candidate(schedule, self.name, _WITHIN_HOSTS)

    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """Return this runner's candidates: those `sent` without helper ranks, and a few more."""
        messages = [x.schedule for x in sent if not x.schedule.helpers]
        return [*map(self._play, dict.fromkeys([*messages, *self._members_alone]))]

    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """Return the candidate that runs a plan's schedule; None if it uses helper ranks."""
        return None if schedule.helpers else self._play(schedule)

    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """Return the candidates worth trying for a size in bytes, most promising first.

        These are the schedules without helpers of `sent`, which are worth sending as messages at
        this size: all of them if `is_alone`, as none is sent so then, else the first two and the
        last.
        """
        within = [self._play(x.schedule) for x in sent if not x.schedule.helpers]
        room = len(within) if is_alone else _RACED_WITHIN_HOSTS
        return [*within[: room - 1], *within[room - 1 :][-1:]]

    def make_program(self, candidate: Candidate, buffers: Buffers) -> Compiled:
        """Return the compiled program of a candidate for buffers like these."""
        return CompiledWithinHosts(candidate, buffers, self.transport, None)


class MemoryOfHosts:
    """Opens the runners through shared memory for transports of ranks on CPUs."""

    def prepare(self, transport: Transport) -> str | None:
        """Return why a transport's ranks cannot share memory, None if they can. Collective."""
        memory = open_memory(transport)
        return memory if isinstance(memory, str) else None

    def open(self, opening: Opening) -> Runner | str:
        """Return the runner for the calls of `opening`, or why there is none."""
        memory = open_memory(opening.transport)
        if isinstance(memory, str):
            return memory
        if isinstance(memory, HostMemory):
            return opening.transport.links.why_no_host_memory or WithinHosts(opening)
        return InSharedMemory(opening)


HOSTS: RunnerKind = MemoryOfHosts()
