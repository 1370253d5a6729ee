"""Runners that play compiled programs: the base of all of them, and the one that sends messages.

A program is compiled once for each size, dtype and device, and played in the scratch memory that
the programs of a transport share (see scratch.py). Over NCCL a tick's operations go out in batches
on the current stream, and waiting does not stop the host.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ...synth.ir.addition_order import rounded
from ...synth.ir.schedule import Schedule
from ...topo.errors import ExecutionError, TopoplanError
from ...topo.graph import Topology
from ..candidates import MESSAGES, Candidate
from ..codecs import Codec
from ..compiled import Binding, BoundProgram, Buffers, Compiled
from ..environment import parse_scratch
from ..players.local import is_numpys, make_quiet
from ..program.contract import Observer, Player, PlayError
from ..program.layout import ends_with_result
from ..ranks.faults import Call
from ..ranks.transport import Transport
from ..reductions import in_inference_mode
from ..scratch import MAPPED_BYTES, process_budget, trim_heap
from ..summaries.tallies import Tallies, Tally
from .contract import Play, Runner

# Limits on the cached programs: their number, and their instructions, counted again for each
# binding to memory. Each takes about 300 bytes in Python (measured): 40 MB. The least recently used
# programs are dropped.
_MAX_COMPILED, _MAX_OBJECTS = 64, 1 << 17


class ProgramRunner(Runner):
    """Plays this rank's programs over `transport`; all its ranks make the same calls in one order.

    `topology` names the links in errors, `codec` encodes messages, `tallies` count the calls.
    """

    def __init__(
        self,
        transport: Transport,
        topology: Topology | None,
        codec: Codec | None = None,
        tallies: Tallies | None = None,
    ) -> None:
        self.transport, self.faults = transport, transport.faults
        self.topology, self.codec = topology, codec
        self.tallies = Tallies() if tallies is None else tallies
        self._observers: list[Observer] = []
        self.rank = transport.control.label
        process_budget.environment_bytes = parse_scratch(None)
        self._compiled: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
        self._quietly = make_quiet()

    @abstractmethod
    def make_program(self, candidate: Candidate, buffers: Buffers, tally: Tally) -> Compiled:
        """Return the program of a candidate for buffers of one kind."""

    def observe(self, observers: Sequence[Observer]) -> None:
        """See Runner."""
        self._observers = list(observers)
        for compiled in self._compiled.values():
            compiled.observers = self._find_observers(compiled)

    def _find_observers(self, compiled: Compiled) -> tuple[Observer, ...]:
        return tuple(x for x in self._observers if x.wants(compiled))

    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        """Play this rank's program of a candidate once, compiling it if it is not cached.

        With a codec the sums are float32; averages come divided. See Runner.
        """
        compiled = self.compile(candidate, buffers)
        target, arena = buffers.target, compiled.arena
        if target.is_cuda and torch.cuda.is_current_stream_capturing():
            # A graph does not wait for calls outside it: the capturing code must serialize its
            # replays with other calls.
            self._play_on(compiled, compiled.bind_apart(), buffers, number)
        else:
            if self.transport.device.type == "cuda" or self.transport.links.is_batched:
                arena.follow_last_call()
            arena.busy = True
            try:
                binding = compiled.find_binding(buffers)
                self._play_on(compiled, binding.bound or compiled.bind(binding), buffers, number)
            finally:
                arena.finish_call()
        if (
            buffers.op == dist.ReduceOp.AVG
            and not compiled.divides
            and ends_with_result(compiled.schedule.collective, self.rank)
        ):
            target.div_(compiled.schedule.collective.ranks)

    def bind(self, candidate: Candidate, buffers: Buffers) -> Play | None:
        """See Runner. The program is bound to the target once.

        None if a call takes copying, encoding, or dividing at the end.
        """
        compiled = self.compile(candidate, buffers)
        binding = compiled.find_binding(buffers)
        if (
            not compiled.in_place
            or self.codec
            or (buffers.op == dist.ReduceOp.AVG and not compiled.divides)
            or binding is compiled.own
        ):
            return None
        return self.make_play(candidate, buffers, compiled, binding)

    def make_play(
        self, candidate: Candidate, buffers: Buffers, compiled: Compiled, binding: Binding
    ) -> Play:
        """Return a function that plays a program in place on the target that it is bound to."""
        # Weak: a program that makes room for others is freed, however many calls have used it.
        play = partial(
            self._play_again, candidate, buffers, weakref.ref(compiled), weakref.ref(binding)
        )
        # torch carries out some operations of it on CPU tensors.
        if self.transport.links.uses_torch(is_numpys=is_numpys(buffers.target.dtype)):
            return partial(in_inference_mode, play)
        return play

    def _play_again(
        self,
        candidate: Candidate,
        buffers: Buffers,
        compiled_ref: weakref.ref[Compiled],
        binding_ref: weakref.ref[Binding],
        number: int | None = None,
    ) -> None:
        compiled, binding = compiled_ref(), binding_ref()
        if compiled is None or binding is None:
            self.run(candidate, buffers, number)
            return
        arena = compiled.arena
        arena.busy = True
        try:
            self.play(compiled, (binding.bound or compiled.bind(binding)).player, number)
        finally:
            arena.finish_call()

    def _play_on(
        self, compiled: Compiled, bound: BoundProgram, buffers: Buffers, number: int | None
    ) -> None:
        """Play a program, directly on the target or on its own work buffer.

        A work buffer is copied to before and from after. A residual is added before, and then
        filled with the call's rounding errors.
        """
        work, program, copies = bound.work, compiled.program, not bound.is_callers
        if copies and compiled.in_place:
            work.copy_(buffers.source)
        buffers.fill(work, program.fills)
        residual = buffers.residual if len(bound.errors) else None
        if residual is not None:
            work.add_(residual)
            bound.errors.zero_()
        self.play(compiled, bound.player, number)
        if residual is not None:
            # An overflow, for which a gradient scaler skips the step, must not be fed back.
            torch.nan_to_num(bound.errors, nan=0.0, posinf=0.0, neginf=0.0, out=residual)
        if copies and compiled.in_place:
            buffers.target.copy_(work)
        if copies:
            buffers.drain(work, program.drains)

    def wire_size(self, numel: int, dtype: torch.dtype) -> int:
        """Return the bytes of a buffer of `numel` elements as it is sent, after encoding if any."""
        if self.codec is None:
            return numel * dtype.itemsize
        return self.codec.nbytes(self.codec.padded(numel))

    def forget(self, numel: int, dtype: torch.dtype, keep: Candidate | None) -> None:
        """Drop the cached programs for a number of elements and a dtype, except those of `keep`."""
        for key in [k for k in self._compiled if k[1:3] == (numel, dtype) and k[0] != keep]:
            del self._compiled[key]

    def compile(self, candidate: Candidate, buffers: Buffers) -> Compiled:
        """Return the program of a candidate for buffers, which is cached."""
        like, feedback = buffers.target, buffers.residual is not None
        key = candidate, buffers.numel, like.dtype, like.device, buffers.op, feedback
        compiled = self._compiled.pop(key, None)
        if compiled is None:
            size_bytes = self.wire_size(buffers.numel, like.dtype)
            tally = self.tallies.find(candidate.label, size_bytes)
            compiled = self.make_program(candidate, buffers, tally)
            compiled.observers = self._find_observers(compiled)
            nbytes = buffers.numel * like.element_size()
            process_budget.note_buffer(nbytes)
            if like.device.type == "cpu" and nbytes >= MAPPED_BYTES:
                trim_heap()
            # Make room for it: drop programs, the least recently used first.
            kept = self._compiled
            objects = sum(program.count_objects() for program in kept.values())
            while kept and (len(kept) >= _MAX_COMPILED or objects > _MAX_OBJECTS):
                objects -= kept.popitem(last=False)[1].count_objects()
        self._compiled[key] = compiled
        return compiled

    def play(self, compiled: Compiled, player: Player, number: int | None) -> None:
        """Play a program that is bound to its buffers, and tell the observers of it."""
        number, deadline = self.faults.admit(number)
        observers = compiled.observers
        # The stamp of the first that has one; most calls have no observer at all.
        stamps = [x.begin(compiled) for x in observers] if observers else ()
        try:
            self._quietly(player.play, deadline, next(filter(None, stamps), None))
        except PlayError as interrupted:
            raise self.blame(compiled, number, deadline, interrupted) from interrupted
        except BaseException as error:
            self.break_off(compiled, error)
            raise
        for observer in observers:
            observer.end(compiled, number)
        self.sent_bytes += compiled.sent_bytes
        compiled.tally.add()

    def break_off(self, compiled: Compiled, error: BaseException) -> None:
        """End all calls after Ctrl-C or the like: the next call would meet messages of this one."""
        if self.faults.broken is None and not isinstance(error, TopoplanError):
            self.faults.break_off(
                ExecutionError(f"rank {self.rank}: {compiled.call} was interrupted ({error!r})")
            )

    def blame(
        self, compiled: Compiled, number: int, deadline: float, interrupted: PlayError
    ) -> ExecutionError:
        """Return the error to raise after a player has failed; it names the rank at fault."""
        post = interrupted.post
        return self.faults.stuck(
            Call(compiled.call, number, deadline, self.topology),
            post.kind,
            post.peer,
            post.number,
            post.step,
            interrupted,
            dict(Counter(f"{x.kind} {x.peer}" for x in interrupted.posted)),
        )


class Messages(ProgramRunner):
    """Sends a schedule's messages over the links of a transport, encoded if there is a codec.

    With `rounds_once` only those schedules may be used in which each contribution is rounded once,
    then their sum once.
    """

    name = MESSAGES
    stages = True

    def __init__(
        self,
        transport: Transport,
        topology: Topology | None,
        codec: Codec | None = None,
        tallies: Tallies | None = None,
        *,
        rounds_once: bool = False,
    ) -> None:
        super().__init__(transport, topology, codec, tallies)
        self.rounds_once = rounds_once
        self._ranks = frozenset(transport.control.labels)

    def make_program(self, candidate: Candidate, buffers: Buffers, tally: Tally) -> Compiled:
        """See ProgramRunner."""
        return Compiled(candidate, buffers, self.transport, self.codec, tally)

    def reaches(self, schedule: Schedule) -> bool:
        """Return whether the links join all ranks that a schedule has send or receive."""
        return self._ranks.issuperset(schedule.participants)

    def is_usable(self, schedule: Schedule) -> bool:
        """Return whether a schedule gives all ranks the same sum, as often rounded as allowed."""
        if self.codec is None:
            return True
        rounding = rounded(schedule.uncut)
        return rounding.uniform and (rounding.once or not self.rounds_once)

    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """See Runner."""
        return [*sent]

    def find_candidate(self, schedule: Schedule) -> Candidate:
        """See Runner."""
        return Candidate(schedule, self.name)

    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """See Runner."""
        return [*sent]

    def can(self, candidate: Candidate, buffers: Buffers) -> None:
        """See Runner: messages carry out every call."""
