"""Runs one rank's program on tensors, with the point-to-point operations of a process group.

A program is compiled once for each size, dtype and device: views are sliced and buffers allocated then, and a call only
posts, awaits and adds. Over gloo each operation is a Work of the backend, awaited exactly once (twice blocks); over NCCL
a tick's operations go out in batches of at most 256 on the current stream, and waiting does not stop the host.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..synth.ir.schedule import Schedule
from ..topo.errors import ExecutionError, InputError
from .codecs import Codec
from .coding import Coding
from .program.instructions import Await, Combine, Copy, Decode, Encode, Exchange, Pack, Place, Post, Program
from .program.layout import IN_PLACE
from .program.lowering import lower
from .ranks.faults import Faults

Reduce = Callable[[list[torch.Tensor], list[torch.Tensor]], object]

NCCL_BATCH = 256
"""Most operations in one batch: larger ones are known to hang."""
REDUCIBLE = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
"""Dtypes that can be added up."""
CACHED = 64
CACHED_BYTES = 1 << 30
"""Compiled programs that are kept, and what their buffers may come to, the least recently used going first."""
_BORROWED, _SEEN = 4, 16
"""Of a program's views on tensors of the caller, so many are kept; so many addresses are remembered without any."""
_MOST_MESSAGES = 1 << 16

REDUCTIONS: dict[dist.ReduceOp.RedOpType, Reduce] = {
    dist.ReduceOp.SUM: torch._foreach_add_,
    dist.ReduceOp.AVG: torch._foreach_add_,
    dist.ReduceOp.PRODUCT: torch._foreach_mul_,
    dist.ReduceOp.MAX: torch._foreach_maximum_,
    dist.ReduceOp.MIN: torch._foreach_minimum_,
}
"""In-place reductions of lists of tensors; AVG is a sum that is divided at the end."""

_SEND, _RECEIVE, _AWAIT, _PACK, _COMBINE, _COPY, _EXCHANGE, _CODE = range(8)
_Op = tuple[int, Any, Any, int]


@dataclass
class _Compiled:
    """A program with its buffers: operations on its own work buffer, and on tensors of the caller, by address."""

    program: Program
    call: str
    signature: int
    staging: torch.Tensor
    coding: Coding | None
    sent_bytes: int
    own: tuple[torch.Tensor, list[_Op]] | None = None
    borrowed: OrderedDict[int, list[_Op]] = field(default_factory=OrderedDict)
    seen: deque[int] = field(default_factory=lambda: deque(maxlen=_SEEN))

    @property
    def bytes(self) -> int:
        """What its buffers take."""
        coding = 0 if self.coding is None else self.coding.bytes
        return self.staging.nbytes + coding + (self.own[0].nbytes if self.own is not None else 0)


class Executor:
    """Plays schedules over `group`, every call of which all its ranks must make in the same order; `codec` compresses what
    is sent. `sent_bytes` counts what this rank has sent.
    """

    def __init__(self, group: dist.ProcessGroup, faults: Faults, codec: Codec | None = None) -> None:
        self.group, self.faults, self.codec = group, faults, codec
        self.sent_bytes = 0
        self.rank = dist.get_rank(group)
        self.batched = "nccl" in dist.get_backend(group)
        # The backend itself: posting through the group costs 5 us more.
        self.backend: Any = group if self.batched else group._get_backend(torch.device("cpu"))
        self._compiled: OrderedDict[tuple[Any, ...], _Compiled] = OrderedDict()
        self._schedules: dict[int, Schedule] = {}
        self._spent: list[dist.Work] = []

    def run(
        self,
        schedule: Schedule,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        residual: torch.Tensor | None = None,
    ) -> None:
        """Play `schedule` for a buffer of `numel` elements, reading flat `source` and writing flat `target`.

        Where the collective works in place (allreduce, broadcast, reduce) both are the same elements. With a codec the sums
        are float32; `residual` (flat float32, in place) is added to the input and gets what rounding took away here. Raises
        ExecutionError, naming who is to blame, when a peer fails or the deadline passes.
        """
        compiled = self._compile(schedule, numel, target, op, residual is not None)
        program = compiled.program
        in_place = schedule.collective.name in IN_PLACE
        if in_place and target.dtype == compiled.staging.dtype:
            operations = self._borrow(compiled, target)
            if operations is not None:
                with _feedback(compiled, target, residual):
                    self._play(compiled, operations, op)
                return
        work, operations = self._own(compiled)
        if in_place:
            work.copy_(source)
        for fill in program.fills:
            work[fill.to : fill.to + fill.hi - fill.lo].copy_(source[fill.lo : fill.hi])
        with _feedback(compiled, work, residual):
            self._play(compiled, operations, op)
        if in_place:
            target.copy_(work)
        for drain in program.drains:
            target[drain.to : drain.to + drain.hi - drain.lo].copy_(work[drain.lo : drain.hi])

    # -- compiling -----------------------------------------------------------------------------------------------

    def forget(self, numel: int, dtype: torch.dtype, keep: Schedule | None) -> None:
        """Let go of what was compiled for a length and dtype, but for one schedule."""
        for key in [k for k in self._compiled if k[1:3] == (numel, dtype) and k[0] != id(keep)]:
            del self._compiled[key]

    def _compile(
        self, schedule: Schedule, numel: int, like: torch.Tensor, op: dist.ReduceOp.RedOpType, feedback: bool
    ) -> _Compiled:
        key = id(schedule), numel, like.dtype, like.device, op, feedback
        found = self._compiled.pop(key, None)
        if found is None:
            self._schedules[id(schedule)] = schedule  # keeps the id from being used again
            program = lower(schedule, self.rank, numel, rounds=self.batched, codec=self.codec)
            if any(post.number >= _MOST_MESSAGES for post in program.posts):
                raise InputError(f"{schedule.label} sends more than {_MOST_MESSAGES} messages between two ranks")
            dtype = like.dtype if self.codec is None else torch.float32
            staging = torch.empty(program.staging_numel, dtype=dtype, device=like.device)
            coding = None if self.codec is None else Coding(program, self.codec, like.device, feedback)
            sent = sum(post.place.length for post in program.posts if post.kind == "send")
            # Ranks whose calls differ have different tags: their messages never meet, let alone add up.
            call = f"{op.name}, {numel} elements of {str(like.dtype).removeprefix('torch.')}, by {schedule.label}"
            if self.codec is not None:
                call += f", {self.codec.name} on the wire"
            text = f"{call}, {len(schedule.transfers)} transfers"
            sent_bytes = sent if self.codec is not None else sent * like.element_size()
            found = _Compiled(program, call, zlib.crc32(text.encode()) & 0x7FFF, staging, coding, sent_bytes)
        self._compiled[key] = found
        while len(self._compiled) > 1 and (
            len(self._compiled) > CACHED or sum(c.bytes for c in self._compiled.values()) > CACHED_BYTES
        ):
            self._compiled.popitem(last=False)
        return found

    def _own(self, compiled: _Compiled) -> tuple[torch.Tensor, list[_Op]]:
        """The program's operations on a work buffer of its own."""
        if compiled.own is None:
            staging = compiled.staging
            work = torch.empty(compiled.program.work_numel, dtype=staging.dtype, device=staging.device)
            compiled.own = work, self._sliced(compiled, work)
        return compiled.own

    def _borrow(self, compiled: _Compiled, tensor: torch.Tensor) -> list[_Op] | None:
        """Operations right on the caller's tensor, once an address comes back: slicing costs more than copying once.

        The views own nothing and are used only while the caller's tensor, at that address, is in the call.
        """
        if tensor.device.type != "cpu":
            return None
        address = tensor.data_ptr()
        found = compiled.borrowed.pop(address, None)
        if found is None:
            if address not in compiled.seen:
                compiled.seen.append(address)
                return None
            raw = (ctypes.c_uint8 * tensor.nbytes).from_address(address)
            work = torch.from_numpy(np.ctypeslib.as_array(raw)).view(tensor.dtype)
            found = self._sliced(compiled, work)
        compiled.borrowed[address] = found
        if len(compiled.borrowed) > _BORROWED:
            compiled.borrowed.popitem(last=False)
        return found

    def _sliced(self, compiled: _Compiled, work: torch.Tensor) -> list[_Op]:
        """The program's instructions with views in the place of ranges."""

        coding = compiled.coding

        def view(place: Place) -> torch.Tensor:
            buffer = work if place.buffer == "work" else compiled.staging
            if place.buffer == "wire" and coding is not None:
                buffer = coding.wire
            return buffer[place.at : place.at + place.length]

        out: list[_Op] = []
        for x in compiled.program.instructions:
            if isinstance(x, Post):
                tag = compiled.signature << 16 | x.number
                out.append((_SEND if x.kind == "send" else _RECEIVE, [view(x.place)], x.peer, tag))
            elif isinstance(x, Await):
                out.append((_AWAIT, None, None, x.post))
            elif isinstance(x, Pack):
                out.append((_PACK, [view(part) for part in x.parts], view(x.into), 0))
            elif isinstance(x, (Combine, Copy)):
                code = _COMBINE if isinstance(x, Combine) else _COPY
                out.append((code, [view(a) for a, _ in x.pairs], [view(b) for _, b in x.pairs], 0))
            elif isinstance(x, Encode) and coding is not None:
                out.append((_CODE, coding.encoder(x, work), None, 0))
            elif isinstance(x, Decode) and coding is not None:
                out.append((_CODE, coding.decoder(x, compiled.staging), None, 0))
            elif isinstance(x, Exchange):
                out.append((_EXCHANGE, self._batches(x, view), x, 0))
        return out

    def _batches(self, exchange: Exchange, view: Callable[[Place], torch.Tensor]) -> list[list[dist.P2POp]]:
        """A tick's operations, at most NCCL_BATCH at once. The i-th between two ranks goes into the same batch at both."""
        per_pair = max(1, NCCL_BATCH // (2 * max(1, self.group.size() - 1)))
        batches: dict[int, list[dist.P2POp]] = defaultdict(list)
        met: Counter[tuple[str, int]] = Counter()
        for post in exchange.posts:
            operation = dist.isend if post.kind == "send" else dist.irecv
            there = dist.get_global_rank(self.group, post.peer)
            number = met[post.kind, post.peer] // per_pair
            batches[number].append(dist.P2POp(operation, view(post.place), there, group=self.group))
            met[post.kind, post.peer] += 1
        return [batches[number] for number in sorted(batches)]

    # -- playing -------------------------------------------------------------------------------------------------

    def _play(self, compiled: _Compiled, operations: list[_Op], op: dist.ReduceOp.RedOpType) -> None:
        reduce = REDUCTIONS[op]
        deadline = self.faults.begin(compiled.call)
        send, receive, now = self.backend.send, self.backend.recv, time.monotonic
        works: list[dist.Work] = []
        at = 0
        try:
            for code, a, b, number in operations:
                if code == _AWAIT:
                    at = number
                    if not works[number].wait(timedelta(seconds=max(0.001, deadline - now()))):
                        raise RuntimeError("it did not complete")
                elif code == _SEND:
                    at = len(works)
                    works.append(send(a, b, number))
                elif code == _RECEIVE:
                    at = len(works)
                    works.append(receive(a, b, number))
                elif code == _COMBINE:
                    reduce(a, b)
                elif code == _CODE:
                    a()
                elif code == _PACK:
                    torch.cat(a, out=b)
                elif code == _COPY:
                    torch._foreach_copy_(a, b)
                else:
                    self._exchange(a)
        except RuntimeError as error:
            self._spent = works
            raise self._stuck(compiled.program, len(works), at, error) from error
        # A gloo Work let go right after its wait costs about as much again as the transfer (measured, 8 ranks on 2
        # cores): they are kept until the next call is through.
        self._spent = works
        self.sent_bytes += compiled.sent_bytes

    def _stuck(self, program: Program, posted: int, at: int, error: RuntimeError) -> ExecutionError:
        posts = program.posts
        post = posts[min(at, len(posts) - 1)]
        counts = dict(Counter(f"{x.kind} {x.peer}" for x in posts[:posted]))
        return self.faults.stuck(post.kind, post.peer, post.number, post.step, error, counts)

    def _exchange(self, batches: list[list[dist.P2POp]]) -> None:
        for batch in batches:
            for work in dist.batch_isend_irecv(batch):
                work.wait()


@contextmanager
def _feedback(compiled: _Compiled, work: torch.Tensor, residual: torch.Tensor | None) -> Iterator[None]:
    """Error feedback around a call: what was lost before goes in, what this call loses comes out."""
    if residual is None or compiled.coding is None:
        yield
        return
    work.add_(residual)
    compiled.coding.errors.zero_()
    yield
    # an overflow, which a gradient scaler skips the step for, must not stay: what was lost of it is nothing to feed back
    torch.nan_to_num(compiled.coding.errors, nan=0.0, posinf=0.0, neginf=0.0, out=residual)


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
