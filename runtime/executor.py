"""The executor of one rank's program on tensors, with messages over gloo, NCCL or MPI.

A program is compiled once for each size, dtype and device, and played by the transport's player
(see players/), in the scratch memory that the transport's programs share (see scratch.py). Over
NCCL a tick's operations go out in batches on the current stream, and waiting does not stop the
host.
"""

import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..synth.ir.schedule import Schedule
from ..topo.errors import ExecutionError, InfeasibleError, TopoplanError
from ..topo.graph import Topology
from .codecs import Codec
from .compiled import (
    Binding,
    BoundProgram,
    Buffers,
    Compiled,
    CompiledOneSided,
    CompiledWithinHosts,
)
from .environment import parse_scratch
from .native.library import suits
from .players.local import is_numpys, make_quiet
from .players.on_devices import DeviceCalls, find_device_player
from .program.contract import Observer, Player, PlayError
from .program.layout import ends_with_result
from .program.one_sided.flat import HostsSchedule, OneSidedSchedule, SharedSchedule
from .ranks.faults import Call
from .ranks.transport import Transport
from .scratch import MAPPED_BYTES, process_budget, trim_heap
from .summaries.tallies import Tallies

# Limits on the cached programs: their number, and their instructions, counted again for each
# binding to memory. Each takes about 300 bytes in Python (measured): 40 MB. The least recently used
# programs are dropped.
_MAX_COMPILED, _MAX_OBJECTS = 64, 1 << 17


class Executor:
    """Runs this rank's programs over `transport`; all its ranks make the same calls in one order.

    `topology` names the links in errors, `codec` encodes messages. `sent_bytes` counts the bytes
    that this rank has sent, `tallies` the calls.
    """

    def __init__(
        self, transport: Transport, topology: Topology | None, codec: Codec | None = None
    ) -> None:
        self.transport, self.faults = transport, transport.faults
        self.topology, self.codec = topology, codec
        self.sent_bytes = 0
        self.tallies = Tallies()
        self._observers: list[Observer] = []
        self.rank = transport.control.label
        process_budget.environment_bytes = parse_scratch(None)
        self._compiled: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
        # One-sided schedules with too many chunks for the shared memory: sent as messages.
        self._too_fine: set[tuple[Schedule, int, torch.dtype]] = set()
        self._on_devices: DeviceCalls | None = None
        self._quietly = make_quiet()

    def observe(self, observers: Sequence[Observer]) -> None:
        """Tell these observers, and no others, of calls from now on."""
        self._observers = list(observers)
        for compiled in self._compiled.values():
            compiled.observers = self._find_observers(compiled)

    def _find_observers(self, compiled: Compiled) -> tuple[Observer, ...]:
        return tuple(x for x in self._observers if x.wants(compiled))

    def run(self, schedule: Schedule, buffers: Buffers, number: int | None = None) -> None:
        """Run this rank's program of `schedule` once, compiling it if it is not cached.

        With a codec the sums are float32; averages come divided. `number` is the call's number in
        its group if it was drawn before (None: the next one). Raise ExecutionError, naming the rank
        to blame, if a peer fails or the deadline passes.
        """
        if isinstance(schedule, OneSidedSchedule) and (calls := self._find_device_calls()):
            sent_bytes = calls.run(schedule, buffers, number)
            if sent_bytes is not None:
                self.sent_bytes += sent_bytes
                return
            schedule = schedule.as_messages
        compiled = self._compile(schedule, buffers)
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
            and ends_with_result(schedule.collective, self.rank)
        ):
            target.div_(schedule.collective.ranks)

    def _find_device_calls(self) -> DeviceCalls | None:
        """Return what carries out calls on devices; None where ranks on CPUs share memory."""
        if self._on_devices is None and (player := find_device_player(self.transport.links)):
            self._on_devices = player.make_calls(self.transport, self.topology, self.tallies)
        return self._on_devices

    def bind(self, schedule: Schedule, buffers: Buffers) -> Callable[..., None] | None:
        """Return a function that repeats `run` on buffers with `bindings`, quickly, or None.

        It takes the number of the call (None: the next one). The program is bound to the target
        once. None if a call takes more than running the program: copying, encoding, or dividing at
        the end.
        """
        if isinstance(schedule, OneSidedSchedule) and self.transport.links.device_player:
            return None
        compiled = self._compile(schedule, buffers)
        binding = compiled.find_binding(buffers)
        if (
            not compiled.in_place
            or self.codec
            or (buffers.op == dist.ReduceOp.AVG and not compiled.divides)
            or binding is compiled.own
        ):
            return None
        if isinstance(compiled, CompiledOneSided):  # which needs no scratch memory in place
            return partial(
                self._play_shared, compiled, (binding.bound or compiled.bind(binding)).player.play
            )
        # Weak: a program that makes room for others is freed, however many calls have used it.
        return partial(
            self._play_again, schedule, buffers, weakref.ref(compiled), weakref.ref(binding)
        )

    def _play_again(
        self,
        schedule: Schedule,
        buffers: Buffers,
        compiled_ref: weakref.ref[Compiled],
        binding_ref: weakref.ref[Binding],
        number: int | None = None,
    ) -> None:
        compiled, binding = compiled_ref(), binding_ref()
        if compiled is None or binding is None:
            self.run(schedule, buffers, number)
            return
        arena = compiled.arena
        arena.busy = True
        try:
            self._play(compiled, (binding.bound or compiled.bind(binding)).player, number)
        finally:
            arena.finish_call()

    def _play_shared(
        self, compiled: Compiled, play: Callable[[float], None], number: int | None = None
    ) -> None:
        """Play a one-sided program, of which a small call takes a few microseconds."""
        number, deadline = self.faults.admit(number)
        try:
            play(deadline)
        except PlayError as interrupted:
            raise self._blame(compiled, number, deadline, interrupted) from interrupted
        except BaseException as error:
            self._break_off(compiled, error)
            raise
        self.sent_bytes += compiled.sent_bytes
        compiled.tally.add()

    def uses_torch(self, schedule: Schedule, buffers: Buffers) -> bool:
        """Return whether torch carries out some operations of a program in place on CPU tensors."""
        is_shared = isinstance(schedule, OneSidedSchedule)
        if is_shared and self._can_share(schedule, buffers):
            return False
        return self.transport.links.uses_torch(is_numpys=is_numpys(buffers.target.dtype))

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
        self._play(compiled, bound.player, number)
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

    def forget(self, numel: int, dtype: torch.dtype, keep: Schedule | None) -> None:
        """Drop the cached programs for a number of elements and a dtype, except those of `keep`.

        Calls of this size are counted anew.
        """
        self.tallies.restart(self.wire_size(numel, dtype))
        for key in [k for k in self._compiled if k[1:3] == (numel, dtype) and k[0] != id(keep)]:
            del self._compiled[key]

    def _compile(self, schedule: Schedule, buffers: Buffers) -> Compiled:
        if isinstance(schedule, SharedSchedule) and not self._can_share(schedule, buffers):
            schedule = schedule.as_messages
        like, feedback = buffers.target, buffers.residual is not None
        key = id(schedule), buffers.numel, like.dtype, like.device, buffers.op, feedback
        compiled = self._compiled.pop(key, None)
        if compiled is None:
            size_bytes = self.wire_size(buffers.numel, like.dtype)
            tally = self.tallies.find(schedule.label, size_bytes)
            if isinstance(schedule, OneSidedSchedule):
                try:
                    compiled = CompiledOneSided(
                        schedule, buffers, self.transport, self.codec, tally
                    )
                except InfeasibleError:  # on all ranks alike
                    self._too_fine.add((schedule, buffers.numel, like.dtype))
                    return self._compile(schedule.as_messages, buffers)
            else:
                is_shared = isinstance(schedule, HostsSchedule)
                make = CompiledWithinHosts if is_shared else Compiled
                compiled = make(schedule, buffers, self.transport, self.codec, tally)
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

    def _can_share(self, schedule: Schedule, buffers: Buffers) -> bool:
        """Return whether a call can be played in shared memory; the same on all ranks."""
        op = buffers.op if schedule.collective.reduces else None
        dtype = buffers.target.dtype
        return (
            self.codec is None
            and suits(dtype, op)
            and not (self._too_fine and (schedule, buffers.numel, dtype) in self._too_fine)
        )

    def _play(self, compiled: Compiled, player: Player, number: int | None) -> None:
        number, deadline = self.faults.admit(number)
        observers = compiled.observers
        # The stamp of the first that has one; most calls have no observer at all.
        stamps = [x.begin(compiled) for x in observers] if observers else ()
        try:
            self._quietly(player.play, deadline, next(filter(None, stamps), None))
        except PlayError as interrupted:
            raise self._blame(compiled, number, deadline, interrupted) from interrupted
        except BaseException as error:
            self._break_off(compiled, error)
            raise
        for observer in observers:
            observer.end(compiled, number)
        self.sent_bytes += compiled.sent_bytes
        compiled.tally.add()

    def _break_off(self, compiled: Compiled, error: BaseException) -> None:
        """End all calls after Ctrl-C or the like: the next call would meet messages of this one."""
        if self.faults.broken is None and not isinstance(error, TopoplanError):
            self.faults.break_off(
                ExecutionError(f"rank {self.rank}: {compiled.call} was interrupted ({error!r})")
            )

    def _blame(
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
