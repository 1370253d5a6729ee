"""Runs one rank's program on tensors, with point-to-point messages over gloo, NCCL or MPI.

A program is compiled once for each size, dtype and device, and played by what the transport has for
that (see players/), in the scratch memory that the transport's programs share (see scratch.py):
over NCCL a tick's operations go out in batches on the current stream, and waiting does not stop the
host.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..synth.ir.schedule import Schedule
from ..topo.errors import ExecutionError
from ..topo.graph import Topology
from .codecs import Codec
from .compiled import Binding, Bound, Compiled
from .players.contract import Player, PlayError, Stamp
from .players.local import make_quiet
from .players.slow_links import LEAST_WATCHED_BYTES, SlowLinks
from .program.layout import ends_with_result
from .ranks.blame import describe_route
from .ranks.faults import Call
from .ranks.transport import Transport
from .reductions import ReduceOp
from .scratch import MAPPED_BYTES, find_budget, free_arenas, trim_heap

MOST_COMPILED = 64
# Limits on the programs that are cached: their number, and their instructions, those that are bound
# to memory counted again. Each takes about 300 bytes of Python's (measured): 40 MB. The least
# recently used programs go.
_MOST_OBJECTS = 1 << 17


class Executor:
    """Plays schedules over `transport`; all its ranks must make the same calls in the same order.

    `topology` names the links in errors, `codec` encodes what is sent. `sent_bytes` counts what
    this rank has sent; `stamp`, where it is set, is told when messages go and come.
    """

    def __init__(
        self, transport: Transport, topology: Topology | None, codec: Codec | None = None
    ) -> None:
        self.transport, self.faults, self.topology, self.codec = (
            transport,
            transport.faults,
            topology,
            codec,
        )
        self.sent_bytes = 0
        self.stamp: Stamp | None = None
        self.rank = transport.rank
        self._budget = find_budget()
        self._budget.read_environment()
        self._compiled: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
        self._schedules: dict[int, Schedule] = {}
        self._quietly = make_quiet()
        is_watched = (
            transport.device.type == "cpu" and not transport.batched
        )  # on GPUs calls are through later
        self._watch = (
            SlowLinks(self.rank, transport.size, self.faults.store, self._describe_link)
            if is_watched
            else None
        )

    def run(
        self,
        schedule: Schedule,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp = dist.ReduceOp.SUM,
        residual: torch.Tensor | None = None,
        number: int | None = None,
    ) -> None:
        """Play `schedule` for a buffer of `numel` elements, reading flat `source` and writing flat
        `target`.

        Where the collective works in place (allreduce, broadcast, reduce) both are the same
        elements. With a codec the sums are float32; `residual` (flat float32, in place) is added to
        the input and gets what rounding took away here. Averages come divided. `number` is the
        call's, where it was drawn before. Raises ExecutionError, naming who is to blame, when a
        peer fails or the deadline passes.
        """
        compiled = self._compile(schedule, numel, target, op, feedback=residual is not None)
        arena = compiled.arena
        if target.is_cuda and torch.cuda.is_current_stream_capturing():
            # Nothing of a graph waits for what is outside it: the capturing code must order its
            # replays with other calls.
            self._play_on(compiled, compiled.bind_apart(), source, target, residual, number)
        else:
            if self.transport.device.type == "cuda" or self.transport.batched:
                arena.follow_last_call()
            arena.busy = True
            try:
                binding = compiled.find_binding(target)
                bound = binding.bound or compiled.bind(binding)
                self._play_on(compiled, bound, source, target, residual, number)
            finally:
                arena.finish_call()
        if (
            op == dist.ReduceOp.AVG
            and not compiled.divides
            and ends_with_result(schedule.collective, self.rank)
        ):
            target.div_(schedule.collective.ranks)

    def make_again(
        self, schedule: Schedule, numel: int, target: torch.Tensor, op: ReduceOp
    ) -> Callable[..., None] | None:
        """Return `run`, in place on a CPU tensor whose memory stays where it is, as a function of
        the call's number, if it was drawn; None where that is not to be had: with a codec, and
        where dividing comes after.
        """
        compiled = self._compile(schedule, numel, target, op, feedback=False)
        binding = (
            compiled.on_callers_tensor(target) if compiled.in_place and self.codec is None else None
        )
        if binding is None or (op == dist.ReduceOp.AVG and not compiled.divides):
            return None
        return partial(self._play_again, compiled, binding)

    def _play_again(self, compiled: Compiled, binding: Binding, number: int | None = None) -> None:
        arena = compiled.arena
        arena.busy = True
        try:
            self._play(compiled, (binding.bound or compiled.bind(binding)).player, number)
        finally:
            arena.finish_call()

    def _play_on(
        self,
        compiled: Compiled,
        bound: Bound,
        source: torch.Tensor,
        target: torch.Tensor,
        residual: torch.Tensor | None,
        number: int | None,
    ) -> None:
        """Play a program on a work buffer of its own, between copying to and from it, or right on
        `target`.
        """
        work, program = bound.work, compiled.program
        copies = not bound.is_callers
        if copies and compiled.in_place:
            work.copy_(source)
        for fill in program.fills:
            work[fill.to : fill.to + fill.hi - fill.lo].copy_(source[fill.lo : fill.hi])
        with _feeding_back(bound, residual):
            self._play(compiled, bound.player, number)
        if copies and compiled.in_place:
            target.copy_(work)
        for drain in program.drains if copies else ():
            target[drain.to : drain.to + drain.hi - drain.lo].copy_(work[drain.lo : drain.hi])

    def free_scratch(self) -> None:
        """Give back the scratch memory of the transport; calls take memory anew as they need it."""
        free_arenas(self.transport)

    def forget(self, numel: int, dtype: torch.dtype, keep: Schedule | None) -> None:
        """Drop the programs compiled for a length and dtype, except those of one schedule."""
        for key in [k for k in self._compiled if k[1:3] == (numel, dtype) and k[0] != id(keep)]:
            del self._compiled[key]

    def _compile(
        self, schedule: Schedule, numel: int, like: torch.Tensor, op: ReduceOp, *, feedback: bool
    ) -> Compiled:
        """Return the compiled program for a call, from those that are kept where it is among
        them.
        """
        key = id(schedule), numel, like.dtype, like.device, op, feedback
        compiled = self._compiled.pop(key, None)
        if compiled is None:
            self._schedules[id(schedule)] = schedule  # keeps the id from being used again
            compiled = Compiled(
                schedule, numel, like, op, self.transport, codec=self.codec, feedback=feedback
            )
            nbytes = numel * like.element_size()
            self._budget.note_buffer(nbytes)
            if like.device.type == "cpu" and nbytes >= MAPPED_BYTES:
                trim_heap()
            self._make_room()
        self._compiled[key] = compiled
        return compiled

    def _make_room(self) -> None:
        """Drop programs, the least recently used first, until one more is within the limits."""
        objects = sum(compiled.count_objects() for compiled in self._compiled.values())
        while self._compiled and (len(self._compiled) >= MOST_COMPILED or objects > _MOST_OBJECTS):
            _, dropped = self._compiled.popitem(last=False)
            objects -= dropped.count_objects()

    def _play(self, compiled: Compiled, player: Player, number: int | None = None) -> None:
        number, deadline = self.faults.admit(number)
        watch = (
            self._watch
            if compiled.sent_bytes >= LEAST_WATCHED_BYTES and self.stamp is None
            else None
        )
        record = None if watch is None else watch.begin(compiled)
        try:
            self._quietly(player.play, deadline, self.stamp or record)
        except PlayError as interrupted:
            call = Call(compiled.call, number, deadline, self.topology)
            raise self._explain(call, interrupted) from interrupted
        if watch is not None:
            watch.end(compiled, compiled.call, number, record)
        self.sent_bytes += compiled.sent_bytes

    def _describe_link(self, src: int, dst: int) -> str:
        return describe_route(Call("", 0, 0.0, self.topology).find_route, src, dst)

    def _explain(self, call: Call, interrupted: PlayError) -> ExecutionError:
        """Return the error that names who is to blame for a failed post or wait."""
        post = interrupted.post
        counts = dict(Counter(f"{x.kind} {x.peer}" for x in interrupted.posted))
        return self.faults.stuck(
            call, post.kind, post.peer, post.number, post.step, interrupted, counts
        )


@contextmanager
def _feeding_back(bound: Bound, residual: torch.Tensor | None) -> Iterator[None]:
    """Add the residual before a call, and fill it with what the call loses."""
    if residual is None or not len(bound.errors):
        yield
        return
    bound.work.add_(residual)
    bound.errors.zero_()
    yield
    # an overflow, which a gradient scaler skips the step for, must not stay: what was lost of it is
    # nothing to feed back
    torch.nan_to_num(bound.errors, nan=0.0, posinf=0.0, neginf=0.0, out=residual)
