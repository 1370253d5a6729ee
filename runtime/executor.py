"""Runs one rank's program on tensors, with the point-to-point operations of a process group.

A program is compiled once for each size, dtype and device. Over gloo each operation is a Work of the backend, awaited
exactly once (twice blocks); over NCCL a tick's operations go out in batches on the current stream, and waiting does not stop
the host.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..synth.ir.schedule import Schedule
from ..topo.errors import ExecutionError, TopoplanError
from ..topo.graph import Topology
from .codecs import Codec
from .compiled import AWAIT, CODE, COMBINE, COPY, DIVIDE, PACK, RECEIVE, SEND, Compiled, Operation
from .program.instructions import Program
from .program.layout import ends_with_result
from .ranks.faults import Call
from .ranks.transport import Transport
from .reductions import IN_PLACE_REDUCTIONS, ReduceOp

MOST_COMPILED = 64
MOST_COMPILED_BYTES = 1 << 30
"""Limits on the compiled programs that are kept: their number, and what their buffers take. The least recently used go."""


class Executor:
    """Plays schedules over `transport`; all its ranks must make the same calls in the same order.

    `topology` names the links in errors, `codec` encodes what is sent. `sent_bytes` counts what this rank has sent.
    """

    def __init__(self, transport: Transport, topology: Topology | None, codec: Codec | None = None) -> None:
        self.group, self.faults, self.topology, self.codec = transport.group, transport.faults, topology, codec
        self.sent_bytes = 0
        self.rank, self.batched, group = transport.rank, transport.batched, transport.group
        # The backend itself: posting through the group costs 5 us more.
        self.backend: Any = group if self.batched else group._get_backend(torch.device("cpu"))
        self._compiled: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
        self._schedules: dict[int, Schedule] = {}
        self._spent: list[dist.Work] = []
        self._stream: torch.cuda.Stream | None = None

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
        """Play `schedule` for a buffer of `numel` elements, reading flat `source` and writing flat `target`.

        Where the collective works in place (allreduce, broadcast, reduce) both are the same elements. With a codec the sums
        are float32; `residual` (flat float32, in place) is added to the input and gets what rounding took away here.
        Averages come divided. `number` is the call's, where it was drawn before. Raises ExecutionError, naming who is to
        blame, when a peer fails or the deadline passes.
        """
        compiled = self._compile(schedule, numel, target, op, feedback=residual is not None)
        if self.batched:
            self._follow_last_call(target.device)
        self._play_on(compiled, source, target, op, residual, number)
        if op == dist.ReduceOp.AVG and not compiled.divides and ends_with_result(schedule.collective, self.rank):
            target.div_(schedule.collective.ranks)

    def _follow_last_call(self, device: torch.device) -> None:
        """Let the current stream wait for the one of the last call, where that is another: calls share buffers.

        A capture cannot wait for what is outside it; there it is for who captures to keep calls apart.
        """
        stream = torch.cuda.current_stream(device)
        if self._stream is not None and stream != self._stream and not torch.cuda.is_current_stream_capturing():
            stream.wait_stream(self._stream)
        self._stream = stream

    def _play_on(
        self,
        compiled: Compiled,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp,
        residual: torch.Tensor | None,
        number: int | None,
    ) -> None:
        in_place = compiled.in_place
        if in_place and target.dtype == compiled.staging.dtype:
            operations = compiled.on_callers_tensor(target)
            if operations is not None:
                with _feeding_back(compiled, target, residual):
                    self._play(compiled, operations, op, number)
                return
        work, operations = compiled.on_own_buffer()
        if in_place:
            work.copy_(source)
        for fill in compiled.program.fills:
            work[fill.to : fill.to + fill.hi - fill.lo].copy_(source[fill.lo : fill.hi])
        with _feeding_back(compiled, work, residual):
            self._play(compiled, operations, op, number)
        if in_place:
            target.copy_(work)
        for drain in compiled.program.drains:
            target[drain.to : drain.to + drain.hi - drain.lo].copy_(work[drain.lo : drain.hi])

    def forget(self, numel: int, dtype: torch.dtype, keep: Schedule | None) -> None:
        """Drop the programs compiled for a length and dtype, except those of one schedule."""
        for key in [k for k in self._compiled if k[1:3] == (numel, dtype) and k[0] != id(keep)]:
            del self._compiled[key]

    def _compile(self, schedule: Schedule, numel: int, like: torch.Tensor, op: ReduceOp, *, feedback: bool) -> Compiled:
        """Return the compiled program for a call, from those that are kept where it is among them."""
        key = id(schedule), numel, like.dtype, like.device, op, feedback
        compiled = self._compiled.pop(key, None)
        if compiled is None:
            self._schedules[id(schedule)] = schedule  # keeps the id from being used again
            compiled = Compiled(
                schedule, numel, like, op, self.group, batched=self.batched, codec=self.codec, feedback=feedback
            )
        self._compiled[key] = compiled
        while len(self._compiled) > 1 and (
            len(self._compiled) > MOST_COMPILED or sum(c.nbytes for c in self._compiled.values()) > MOST_COMPILED_BYTES
        ):
            self._compiled.popitem(last=False)
        return compiled

    def _play(self, compiled: Compiled, operations: list[Operation], op: ReduceOp, number: int | None) -> None:
        reduce = IN_PLACE_REDUCTIONS[op]
        call = self.faults.begin(compiled.call, self.topology, number)
        deadline = call.deadline
        send, receive, now = self.backend.send, self.backend.recv, time.monotonic
        works: list[dist.Work] = []
        current = 0  # the post that is being posted or awaited, for the error
        try:
            for code, a, b, tag in operations:
                if code == AWAIT:
                    current = tag
                    if not works[tag].wait(timedelta(seconds=max(0.001, deadline - now()))):
                        raise RuntimeError("it did not complete")
                elif code == SEND:
                    current = len(works)
                    works.append(send(a, b, tag))
                elif code == RECEIVE:
                    current = len(works)
                    works.append(receive(a, b, tag))
                elif code == COMBINE:
                    reduce(a, b)
                elif code == CODE:
                    a()
                elif code == DIVIDE:
                    torch._foreach_div_(a, b)
                elif code == PACK:
                    torch.cat(a, out=b)
                elif code == COPY:
                    torch._foreach_copy_(a, b)
                else:
                    exchange(a)
        except TopoplanError:
            raise
        except RuntimeError as error:
            self._spent = works
            raise self._explain(call, compiled.program, len(works), current, error) from error
        # A gloo Work let go right after its wait costs about as much again as the transfer (measured, 8 ranks on 2
        # cores): they are kept until the next call is through.
        self._spent = works
        self.sent_bytes += compiled.sent_bytes

    def _explain(self, call: Call, program: Program, posted: int, current: int, error: RuntimeError) -> ExecutionError:
        """Return the error that names who is to blame for a failed post or wait."""
        posts = program.posts
        post = posts[min(current, len(posts) - 1)]
        counts = dict(Counter(f"{x.kind} {x.peer}" for x in posts[:posted]))
        return self.faults.stuck(call, post.kind, post.peer, post.number, post.step, error, counts)


def exchange(batches: list[list[dist.P2POp]]) -> None:
    """Post batches one after the other; the current stream waits for each, the host for none."""
    for batch in batches:
        for work in dist.batch_isend_irecv(batch):
            work.wait()


@contextmanager
def _feeding_back(compiled: Compiled, work: torch.Tensor, residual: torch.Tensor | None) -> Iterator[None]:
    """Add the residual before a call, and fill it with what the call loses."""
    if residual is None or compiled.encoding is None:
        yield
        return
    work.add_(residual)
    compiled.encoding.errors.zero_()
    yield
    # an overflow, which a gradient scaler skips the step for, must not stay: what was lost of it is nothing to feed back
    torch.nan_to_num(compiled.encoding.errors, nan=0.0, posinf=0.0, neginf=0.0, out=residual)
