"""Runs one rank's program on tensors, with the point-to-point operations of a process group.

A program is compiled once for each size, dtype and device: views are sliced and buffers allocated then, and a call only
posts, waits and adds. Over gloo each operation is a Work of the process group, waited on exactly once (twice blocks);
over NCCL a tick's operations go out in batches of at most 256 on the current stream, and waiting does not stop the host.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ..synth.schedule import Schedule
from ..topo.errors import ExecutionError, InputError
from .program import Message, Program, Tick, lower

Reduce = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

NCCL_BATCH = 256
"""Most operations in one batch: larger ones are known to hang."""
REDUCIBLE = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
"""Dtypes that can be added up."""
IN_PLACE = ("allreduce", "broadcast", "reduce")
"""Collectives whose input and output are one tensor."""
CACHED = 64
"""Compiled programs that are kept, the least recently used going first."""

REDUCTIONS: dict[dist.ReduceOp.RedOpType, Reduce] = {
    dist.ReduceOp.SUM: lambda into, other: into.add_(other),
    dist.ReduceOp.AVG: lambda into, other: into.add_(other),
    dist.ReduceOp.PRODUCT: lambda into, other: into.mul_(other),
    dist.ReduceOp.MAX: lambda into, other: torch.maximum(into, other, out=into),
    dist.ReduceOp.MIN: lambda into, other: torch.minimum(into, other, out=into),
}
"""In-place reductions; AVG is a sum that is divided at the end."""


@dataclass(frozen=True)
class _Step:
    """A tick with its views: (peer, view) to send and receive, (into, other) to reduce in order, (into, other) to copy."""

    tick: Tick
    sends: tuple[tuple[int, torch.Tensor], ...]
    receives: tuple[tuple[int, torch.Tensor], ...]
    reduces: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    copies: tuple[tuple[torch.Tensor, torch.Tensor], ...]


@dataclass(frozen=True)
class _Compiled:
    """A program with its buffers."""

    program: Program
    work: torch.Tensor
    steps: tuple[_Step, ...]


class Executor:
    """Plays schedules over `group`, every call of which all its ranks must make in the same order."""

    def __init__(self, group: dist.ProcessGroup, timeout: timedelta) -> None:
        self.group, self.timeout = group, timeout
        self.rank = dist.get_rank(group)
        self.batched = "nccl" in dist.get_backend(group)
        self._compiled: OrderedDict[tuple[int, int, torch.dtype, torch.device], _Compiled] = OrderedDict()
        self._schedules: dict[int, Schedule] = {}
        self._spent: list[tuple[str, int, dist.Work]] = []

    def run(
        self,
        schedule: Schedule,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    ) -> None:
        """Play `schedule` for a buffer of `numel` elements, reading flat `source` and writing flat `target`.

        Where the collective works in place (allreduce, broadcast, reduce) both are the same elements.
        """
        compiled = self._compile(schedule, numel, target)
        program, work = compiled.program, compiled.work
        in_place = schedule.collective.name in IN_PLACE
        if in_place:
            work.copy_(source)
        for fill in program.fills:
            work[fill.to : fill.to + fill.hi - fill.lo].copy_(source[fill.lo : fill.hi])
        reduce = REDUCTIONS[op]
        try:
            for step in compiled.steps:
                self._play(step, reduce)
        finally:
            self._spent = []
        if in_place:
            target.copy_(work)
        for drain in program.drains:
            target[drain.to : drain.to + drain.hi - drain.lo].copy_(work[drain.lo : drain.hi])

    def _compile(self, schedule: Schedule, numel: int, like: torch.Tensor) -> _Compiled:
        key = id(schedule), numel, like.dtype, like.device
        found = self._compiled.pop(key, None)
        if found is None:
            self._schedules[id(schedule)] = schedule  # keeps the id from being used again
            program = lower(schedule, self.rank, numel)
            work = torch.empty(program.work_numel, dtype=like.dtype, device=like.device)
            staging = torch.empty(program.staging_numel, dtype=like.dtype, device=like.device)
            found = _Compiled(program, work, tuple(_sliced(tick, work, staging) for tick in program.ticks))
        self._compiled[key] = found
        while len(self._compiled) > CACHED:
            self._compiled.popitem(last=False)
        return found

    def _play(self, step: _Step, reduce: Reduce) -> None:
        if self.batched:
            self._exchange_batched(step)
        else:
            self._exchange(step)
        for into, other in step.reduces:
            reduce(into, other)
        for into, other in step.copies:
            into.copy_(other)

    def _exchange(self, step: _Step) -> None:
        """Gloo: post everything, then wait on each Work once."""
        pending: list[tuple[str, int, dist.Work]] = []
        peer = self.rank
        try:
            for peer, view in step.receives:
                pending.append(("receiving from", peer, self.group.recv([view], peer, 0)))
            for peer, view in step.sends:
                pending.append(("sending to", peer, self.group.send([view], peer, 0)))
        except RuntimeError as error:
            raise self._failure(step, "posting to", peer, error) from error
        for what, peer, work in pending:
            try:
                done = work.wait(self.timeout)
            except RuntimeError as error:
                raise self._failure(step, what, peer, error) from error
            if not done:
                raise self._failure(step, what, peer, RuntimeError("it did not complete"))
        # A gloo Work let go right after its wait costs about as much again as the transfer (measured, 8 ranks on 2
        # cores): each step's are kept until the next step's are through.
        self._spent = pending

    def _exchange_batched(self, step: _Step) -> None:
        """NCCL: in batches. The i-th message from u to v goes into the same batch at both, whatever else they do."""
        per_pair = max(1, NCCL_BATCH // (2 * max(1, self.group.size() - 1)))
        batches: dict[int, list[dist.P2POp]] = defaultdict(list)
        for operation, messages in ((dist.irecv, step.receives), (dist.isend, step.sends)):
            met: Counter[int] = Counter()
            for peer, view in messages:
                there = dist.get_global_rank(self.group, peer)
                batches[met[peer] // per_pair].append(dist.P2POp(operation, view, there, group=self.group))
                met[peer] += 1
        for number in sorted(batches):
            try:
                for work in dist.batch_isend_irecv(batches[number]):
                    work.wait()
            except RuntimeError as error:
                raise self._failure(step, "exchanging with", (step.receives or step.sends)[0][0], error) from error

    def _failure(self, step: _Step, what: str, peer: int, error: Exception) -> ExecutionError:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return ExecutionError(f"rank {self.rank}, tick {step.tick.number}: {what} rank {peer} failed: {reason}")


def _sliced(tick: Tick, work: torch.Tensor, staging: torch.Tensor) -> _Step:
    def landing(message: Message) -> torch.Tensor:
        if message.staged is None:
            return work[message.lo : message.hi]
        return staging[message.staged : message.staged + message.hi - message.lo]

    reduces: list[tuple[torch.Tensor, torch.Tensor]] = []
    for combine in tick.combines:
        mine = work[combine.lo : combine.hi]
        parts = [mine if at is None else staging[at : at + combine.hi - combine.lo] for at in combine.terms]
        total = parts[0]
        for part in parts[1:]:
            # Addition commutes bit for bit: once the rank's own value is reached, the sum goes on in its place.
            into, other = (mine, total) if part is mine else (total, part)
            reduces.append((into, other))
            total = into
    return _Step(
        tick=tick,
        sends=tuple((m.peer, work[m.lo : m.hi]) for m in tick.sends),
        receives=tuple((m.peer, landing(m)) for m in tick.receives),
        reduces=tuple(reduces),
        copies=tuple((work[m.to : m.to + m.hi - m.lo], staging[m.lo : m.hi]) for m in tick.places),
    )


def check_op(op: object, dtype: torch.dtype) -> dist.ReduceOp.RedOpType:
    """The reduction as an enumeration value; InputError where it, or the dtype with it, cannot be done."""
    if not isinstance(op, dist.ReduceOp.RedOpType):
        op = getattr(op, "op", op)
    if op not in REDUCTIONS:
        raise InputError(f"reduction {op} is not supported; expected SUM, AVG, PRODUCT, MAX or MIN")
    if dtype not in REDUCIBLE:
        names = ", ".join(str(d).removeprefix("torch.") for d in REDUCIBLE)
        raise InputError(f"{dtype} tensors cannot be reduced; expected one of {names}")
    if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
        raise InputError(f"AVG of {dtype} is not a whole number; use SUM, or a floating-point type")
    return op
