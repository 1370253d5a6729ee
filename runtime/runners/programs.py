"""Runners that play compiled programs: the base of all of them, and the one that sends messages.

A candidate is a schedule with a way to carry it out; its program is one rank's list of
instructions. Buffers are what a call works on: its input and output, and its reduction. A program
is compiled once for each size, dtype and device, and played in the scratch memory that the programs
of a transport share (an arena, see scratch.py). A binding is the tensor that it runs on: the
caller's, or a work buffer of its own. Over NCCL the messages of a tick, a step of the schedule, go
out in batches on the current stream, and waiting does not stop the host.
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

from ...synth.cost.host_costs import HostCosts
from ...synth.ir.addition_order import rounded
from ...synth.ir.schedule import Schedule
from ...synth.plan import Plan
from ...topo.errors import ExecutionError, InputError, TopoplanError
from ...topo.graph import Topology
from ..candidates import MESSAGES, Candidate
from ..codec import Codec
from ..compiled import Binding, BoundProgram, Buffers, Compiled
from ..environment import parse_scratch
from ..players.local import is_numpys, make_quiet
from ..program.contract import ObservedCalls, Observer, Player, PlayError
from ..program.layout import ends_with_result
from ..ranks.faults import Call
from ..ranks.transport import Transport
from ..reductions import in_inference_mode
from ..scratch import MAPPED_BYTES, process_budget, trim_heap
from .contract import Play, Runner

# Limits on the cached programs: their number, and their instructions, counted again for each
# binding to memory. Each takes about 300 bytes in Python (measured): 40 MB. The least recently used
# programs are dropped.
_MAX_COMPILED, _MAX_OBJECTS = 64, 1 << 17


class ProgramRunner(Runner):
    """A runner that runs compiled programs over `transport`; ranks must make calls in one order.

    `topology` names the links in errors (None: errors name ranks), `codec` encodes messages (None:
    they are sent as they are). `rank` is this rank's number in plans.
    """

    def __init__(
        self, transport: Transport, topology: Topology | None, codec: Codec | None = None
    ) -> None:
        self.transport, self.faults = transport, transport.faults
        self.topology, self.codec = topology, codec
        self.rank = transport.control.label
        process_budget.environment_bytes = parse_scratch(None)
        self._compiled: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
        self._quietly = make_quiet()

    @abstractmethod
    def make_program(self, candidate: Candidate, buffers: Buffers) -> Compiled:
        """Return a candidate's program, compiled for buffers of this size, dtype and device."""

    def observe(self, observer: Observer) -> None:
        """Report the calls made from now on to an observer, too."""
        super().observe(observer)
        self._listen_anew()

    def ignore(self, observer: Observer) -> None:
        """Report no further call to an observer."""
        super().ignore(observer)
        self._listen_anew()

    def _listen_anew(self) -> None:
        for compiled in self._compiled.values():
            compiled.listeners = self.listen(compiled.calls)

    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        """Play this rank's program of a candidate once, compiling it if it is not cached.

        With a codec the sums are float32; averages come divided. `number` is the call's in its
        group (None: the next one). Raise ExecutionError, naming the rank to blame, if a peer fails
        or time is over.
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
        """Return a function that plays a program on the buffers' target, bound to it once; or None.

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
        """Return a function that runs a compiled program in place on the buffers' target.

        `binding` has the program bound to that memory. The function takes the call's number (None:
        the next one).
        """
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
            self.execute(compiled, (binding.bound or compiled.bind(binding)).player, number)
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
        self.execute(compiled, bound.player, number)
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
        """Return a candidate's program for buffers, from the cache, else compiled now and cached.

        The least recently used programs are dropped where the cache is full.
        """
        like, feedback = buffers.target, buffers.residual is not None
        key = candidate, buffers.numel, like.dtype, like.device, buffers.op, feedback
        compiled = self._compiled.pop(key, None)
        if compiled is None:
            compiled = self.make_program(candidate, buffers)
            size_bytes = self.wire_size(buffers.numel, like.dtype)
            compiled.calls = ObservedCalls(
                compiled.call,
                candidate.label,
                size_bytes,
                compiled.sent_bytes,
                compiled.crosses_links,
            )
            compiled.listeners = self.listen(compiled.calls)
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

    def execute(self, compiled: Compiled, player: Player, number: int | None) -> None:
        """Play a compiled program by its player, and tell the observers of it.

        `number` is the call's in its group (None: the next one). The bytes sent are added to
        `sent_bytes`. Raise ExecutionError if a rank fails; then all later calls of the transport
        raise it too.
        """
        number, deadline = self.faults.admit(number)
        listeners = compiled.listeners
        # The stamp of the first that has one; most calls have no listener at all.
        stamps = [x.begin() for x in listeners] if listeners else ()
        try:
            self._quietly(player.play, deadline, next(filter(None, stamps), None))
        except PlayError as interrupted:
            raise self.blame(compiled, number, deadline, interrupted) from interrupted
        except BaseException as error:
            self.break_off(compiled, error)
            raise
        self.sent_bytes += compiled.sent_bytes
        for listener in listeners:
            listener.end(number)

    def break_off(self, compiled: Compiled, error: BaseException) -> None:
        """Make all later calls fail after Ctrl-C or the like ended this one with `error`.

        The next call would receive messages of this one.
        """
        if self.faults.broken is None and not isinstance(error, TopoplanError):
            self.faults.break_off(
                ExecutionError(f"rank {self.rank}: {compiled.call} was interrupted ({error!r})")
            )

    def blame(
        self, compiled: Compiled, number: int, deadline: float, interrupted: PlayError
    ) -> ExecutionError:
        """Return the error to raise after the player of `compiled` has raised `interrupted`.

        It names the rank at fault, if that is found: this closes the rank's connections, and
        searches for some seconds. `number` is the call's in its group, `deadline` its limit
        (time.monotonic).
        """
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

    `topology` names the links in errors. With `rounds_once`, only those schedules are usable in
    which each contribution is rounded once, then their sum once.
    """

    name = MESSAGES
    stages = True  # received values need staging memory

    def __init__(
        self,
        transport: Transport,
        topology: Topology | None,
        codec: Codec | None = None,
        *,
        rounds_once: bool = False,
    ) -> None:
        super().__init__(transport, topology, codec)
        self._rounds_once = rounds_once
        self._ranks = frozenset(transport.control.labels)

    def takes(self, schedule: Schedule) -> bool:
        """Return whether a schedule may be sent in its number of segments; here always."""
        return True

    @property
    def why_alone(self) -> str | None:
        """Why schedules may only be sent as messages, None if other runners may carry them out."""
        if self.codec is None:
            return None
        return "values that are compressed are sent as messages"

    @property
    def why_no_stock(self) -> str | None:
        """Why the stock collective (the backend's own) cannot take their place, None if it can."""
        return None if self.codec is None else "the stock collective does not compress"

    @property
    def wire_format(self) -> str | None:
        """The name of the codec in which values are sent, None if they are not encoded."""
        return None if self.codec is None else self.codec.name

    def add_costs(self, host: HostCosts) -> HostCosts:
        """Return a host's costs per message and byte, with those of encoding and decoding added."""
        return host if self.codec is None else self.codec.add_costs(host)

    def make_program(self, candidate: Candidate, buffers: Buffers) -> Compiled:
        """Return the program that sends a candidate's messages, compiled for buffers like these."""
        return Compiled(candidate, buffers, self.transport, self.codec)

    def reaches(self, schedule: Schedule) -> bool:
        """Return whether the links join all ranks that a schedule has send or receive."""
        return self._ranks.issuperset(schedule.participants)

    def is_usable(self, schedule: Schedule) -> bool:
        """Return whether a schedule may be used.

        With a codec that is if all ranks get the same bits from it, rounded as allowed; without one
        always.
        """
        if self.codec is None:
            return True
        rounding = rounded(schedule.uncut)
        return rounding.uniform and (rounding.once or not self._rounds_once)

    def check(self, plan: Plan, *, takes_all: bool) -> None:
        """Raise InputError if no schedule of the plan is usable.

        With `takes_all`, every size uses the schedule that the plan names, so all must be usable.
        """
        given = [x.schedule for x in plan.entries] if takes_all else plan.schedules
        unusable = [schedule for schedule in given if not self.is_usable(schedule)]
        if not unusable or (not takes_all and len(unusable) < len(given)):
            return
        names = ", ".join(sorted({schedule.strategy for schedule in unusable}))
        if not self._rounds_once:
            raise InputError(
                "compress: ranks that round what they send would end with different sums by "
                f"{names}; synthesize without it"
            )
        raise InputError(
            f"reduction='once': {names} adds up partial sums, which would be rounded again; "
            "use a plan of the strategy direct, or reduction='hops'"
        )

    def count_roundings(self, plan: Plan) -> int:
        """Return the largest number of rounded values that one contribution is part of.

        The maximum is over a plan's usable schedules; 0 without a codec.
        """
        if self.codec is None:
            return 0
        usable = filter(self.is_usable, plan.schedules)
        return max(rounded(schedule.uncut).most for schedule in usable)

    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates `sent` unchanged: this runner sends them."""
        return [*sent]

    def find_candidate(self, schedule: Schedule) -> Candidate:
        """Return the candidate that sends a schedule's messages."""
        return Candidate(schedule, self.name)

    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """Return the candidates `sent` unchanged, in their order, at all sizes.

        `is_alone` is not used.
        """
        return [*sent]

    def can(self, candidate: Candidate, buffers: Buffers) -> None:
        """Return None: messages carry out every call."""
