"""Compiled programs: instructions bound to memory, so that a call only posts, waits and adds.

A program is one rank's list of instructions for a schedule. It runs on a work buffer, with scratch
memory from an arena that a transport's programs share and that moves when it grows. A tick is a
step of a schedule in which messages are posted together.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist

from ..topo.errors import InputError
from .candidates import Candidate
from .codec import BufferSizes, Codec, Encoding
from .players.in_order import PlayerInOrder
from .players.local import LocalOperations
from .program.contract import (
    AWAIT,
    EXCHANGE,
    LOCAL,
    RECEIVE,
    SEND,
    Listener,
    ObservedCalls,
    Operation,
    PlayedProgram,
    Player,
)
from .program.instructions import (
    Await,
    Combine,
    Copy,
    Divide,
    Encode,
    Exchange,
    Instruction,
    Pack,
    Post,
    Program,
    Span,
)
from .program.layout import IN_PLACE, Move
from .program.lowering import lower
from .ranks.links import MakePlayer
from .ranks.transport import Transport
from .reductions import ReduceOp, borrow, dtype_name, kind_of_reduction
from .scratch import Slicer, allocate, count_aligned, find_arena

# Limit on the operations in one batch. NCCL takes 2048 in a group, but launches a large group as
# several kernels, which each rank divides by itself: sends and their receives can end up in kernels
# that wait for each other (pytorch/pytorch#174288: 1000 hang, 256 do not).
NCCL_BATCH = 256
# A message's number has 16 bits of its tag.
_MAX_MESSAGES = 1 << 16
# Tags of plans' messages begin here: below this bit, 14 bits of a checksum of the call, then 16 of
# the message's number. Users' tags, which share gloo's connections, must be smaller.
FIRST_TAG = 1 << 30


@dataclass(frozen=True, eq=False)
class Buffers:
    """What a call works on; the same for all calls that differ in their number only.

    A collective on `numel` elements from flat `source` to flat `target`, the same tensor if it
    works in place, reduced by `op`. `residual` (flat float32, in place) is error feedback: it is
    added to the input and receives the rounding errors. With `bindings` programs run directly on
    the target, whose address stays the same, and are cached here; with None they run on their own
    work buffers.
    """

    numel: int
    source: torch.Tensor
    target: torch.Tensor
    op: ReduceOp = dist.ReduceOp.SUM
    residual: torch.Tensor | None = None
    bindings: WeakKeyDictionary[Compiled, Binding] | None = None

    def fill(self, work: torch.Tensor, fills: Sequence[Move]) -> None:
        """Copy the input to a program's work buffer, by the element ranges in `fills`."""
        for fill in fills:
            work[fill.to : fill.to + fill.hi - fill.lo].copy_(self.source[fill.lo : fill.hi])

    def drain(self, work: torch.Tensor, drains: Sequence[Move]) -> None:
        """Copy the result from a program's work buffer to the output, by the ranges in `drains`."""
        for drain in drains:
            part = work[drain.lo : drain.hi]
            self.target[drain.to : drain.to + len(part)].copy_(part)


@dataclass(frozen=True)
class BoundProgram:
    """A program bound to memory and ready to run on it.

    `player` runs it. `work` is the work buffer, a caller's tensor if `is_callers`; `errors`
    receives the rounding errors, and is empty without a codec. A call holds this until it ends,
    even if the arena moves meanwhile.
    """

    player: Player
    work: torch.Tensor
    errors: torch.Tensor
    is_callers: bool


class Binding:
    """The tensor that a program runs on: `borrowed` from a caller, or None for its own work buffer.

    Owns no memory. `bound` is the program on it, and None again when the arena with its scratch
    memory moves.
    """

    __slots__ = ("__weakref__", "borrowed", "bound")

    def __init__(self, borrowed: torch.Tensor | None = None) -> None:
        self.borrowed = borrowed
        self.bound: BoundProgram | None = None

    def unbind(self) -> None:
        """Drop the bound program; the arena calls this before its memory moves."""
        self.bound = None


def make_bindings(target: torch.Tensor) -> WeakKeyDictionary[Compiled, Binding] | None:
    """Return an empty dict for `Buffers.bindings`, for a target whose address stays the same.

    Return None on GPUs, where programs run on their own work buffers.
    """
    return WeakKeyDictionary() if target.device.type == "cpu" else None


class Compiled:
    """The program of one rank for a candidate (schedule and runner), a length, dtype and device.

    `find_binding` chooses the memory of a call, `bind` makes the program ready to run on it;
    `calls` describes calls to `listeners`, which time or count them. `codec` compresses messages,
    if given. `program` is what runs, `messages` the Program of messages, the same here.
    `sent_bytes` is what this rank sends in a call. `in_place` says that the call works in place, on
    the rank's own tensor, `divides` that the program divides the sums of an average itself. `call`
    describes the call in errors, `own` is the binding to a work buffer of the program's own. Raise
    InputError if two ranks have too many messages for each other.
    """

    # Whether messages cross links, which may become slow.
    crosses_links = True
    calls: ObservedCalls
    listeners: tuple[Listener, ...] = ()

    def __init__(
        self,
        candidate: Candidate,
        buffers: Buffers,
        transport: Transport,
        codec: Codec | None,
    ) -> None:
        self.schedule = schedule = candidate.schedule
        self.transport, self.group = transport, transport.group
        like, numel = buffers.target, buffers.numel
        self.numel, self.given_dtype = numel, like.dtype
        self.op, self.codec = buffers.op, codec
        collective = schedule.collective
        # Helpers have neither input nor output: they run on work buffers of their own.
        self.in_place = (
            collective.name in IN_PLACE and transport.control.label in collective.members
        )
        # An average is divided when sums are completed: except in an allreduce that is at the end
        # anyway, and encoded sums are rounded then.
        self.divides = (
            self.op == dist.ReduceOp.AVG and collective.name == "allreduce" and codec is None
        )
        self.ranks = collective.ranks
        self.dtype = like.dtype if codec is None else torch.float32
        op = self.op if collective.reduces else None
        call = describe_call(collective.name, op, collective.root, numel, like.dtype)
        self.call = f"{call} by {candidate.label}"
        self.program, sent = self.lower(numel)
        self.sent_bytes = sent if codec is not None else sent * like.element_size()
        self.encoding: BufferSizes = ()
        if codec is not None:
            feedback = buffers.residual is not None
            self.encoding = codec.list_buffers(self.messages, feedback=feedback)
            self.call += f", {codec.name} on the wire"
        # Ranks whose calls differ have different tags: their messages never meet, let alone add up.
        text = f"{self.call}, {len(schedule.transfers)} transfers"
        self._signature = zlib.crc32(text.encode()) & 0x3FFF
        # The work buffer can be the output itself if all of it is the result: the input must not be
        # written to.
        whole = (Move(0, self.program.work_numel, 0),)
        self._fits_target = self.in_place or self.program.drains == whole
        self.arena = find_arena(transport, like.device)
        self.own = Binding()
        self._bindings = WeakSet([self.own])

    def lower(self, numel: int) -> tuple[PlayedProgram, int]:
        """Return this rank's program for `numel` elements, and how many elements it sends.

        With a codec the second number is in bytes.
        """
        program = self.messages = lower(
            self.schedule,
            self.transport.control.label,
            numel,
            batched=self.transport.links.is_batched,
            codec=self.codec,
            averages=self.divides,
        )
        self.check_numbers(program)
        return program, sum(post.span.length for post in program.posts if post.kind == "send")

    def check_numbers(self, program: Program) -> None:
        """Raise InputError if a message's number is too large for its tag."""
        if any(post.number >= _MAX_MESSAGES for post in program.posts):
            raise InputError(
                f"{self.schedule.label} sends more than {_MAX_MESSAGES} messages between two ranks"
            )

    def count_objects(self) -> int:
        """Return the number of cached instructions, once more for each memory they are bound to."""
        return len(self.program.instructions) * (
            1 + sum(binding.bound is not None for binding in self._bindings)
        )

    def find_binding(self, buffers: Buffers) -> Binding:
        """Return which memory a call runs on: its target itself, or the program's work buffer.

        Views on the target own nothing: they are used only during a call on the caller's tensor at
        that address.
        """
        if buffers.bindings is None or not self._fits_target or buffers.target.dtype != self.dtype:
            return self.own
        binding = buffers.bindings.get(self)
        if binding is None:
            binding = buffers.bindings[self] = Binding(borrow(buffers.target))
            self._bindings.add(binding)
        return binding

    def bind(self, binding: Binding) -> BoundProgram:
        """Take scratch memory for a binding from the arena, and return the program bound to it.

        It is cached as `binding.bound`, and valid until the arena moves.
        """
        size = self._count_scratch(binding)
        # One lock for all arenas: another transport's call may free this one while it is idle.
        with self.arena.budget.lock:
            block = self.arena.reserve(size, binding) if size else allocate(0, self.arena.device)
            bound = binding.bound = self._bind(block, binding.borrowed)
        return bound

    def bind_apart(self) -> BoundProgram:
        """Bind the program to separate memory, for one call that a CUDA graph captures.

        The graph plays the call in that memory for as long as it lives; an arena may move.
        """
        return self._bind(allocate(self._count_scratch(self.own), self.arena.device), None)

    def _count_scratch(self, binding: Binding) -> int:
        width = self.dtype.itemsize
        work = 0 if binding.borrowed is not None else self.program.work_numel * width
        encoding = [numel * dtype.itemsize for numel, dtype in self.encoding]
        return sum(map(count_aligned, (self.staging_numel * width, work, *encoding)))

    def _bind(self, block: torch.Tensor, borrowed: torch.Tensor | None) -> BoundProgram:
        slicer = Slicer(block)
        staging = slicer.take(self.staging_numel, self.dtype)
        work = slicer.take(self.program.work_numel, self.dtype) if borrowed is None else borrowed
        encoding = None if self.codec is None else self.codec.open(self.encoding, slicer)
        return BoundProgram(
            self.make_player(work, staging, encoding),
            work,
            staging[:0] if encoding is None else encoding.errors,
            borrowed is not None,
        )

    @property
    def staging_numel(self) -> int:
        """The elements of staging, scratch memory for received messages, that a call needs."""
        return self.messages.staging_numel

    def make_player(
        self, work: torch.Tensor, staging: torch.Tensor, encoding: Encoding | None
    ) -> Player:
        """Return what runs the program on a work buffer, with `staging` for received messages.

        `encoding` has the codec's buffers, None without a codec.
        """
        operations, transport = self._slice(work, staging, encoding), self.transport
        if self._make_by_links is not None:
            return self._make_by_links(operations, {"work": work, "staging": staging})
        return PlayerInOrder(transport.links.backend, self.messages, operations)

    @cached_property
    def _make_by_links(self) -> MakePlayer | None:
        """What makes players of the program, if the links do not play it in its own order."""
        op = self.op if self.schedule.collective.reduces else None
        return self.transport.links.prepare(
            self.messages, self.ranks, self.dtype, op, encodes=self.codec is not None
        )

    def _slice(
        self, work: torch.Tensor, staging: torch.Tensor, encoding: Encoding | None
    ) -> list[Operation]:
        """Return the program's instructions with views in place of ranges."""
        transport, width = self.transport, work.element_size()
        local = LocalOperations(on_stream=transport.links.is_batched)
        buffers = {"work": work, "staging": staging}
        if encoding is not None:
            buffers["wire"] = encoding.wire

        def view(span: Span) -> torch.Tensor:
            return buffers[span.buffer][span.start : span.start + span.length]

        def views(spans: Iterable[Span]) -> list[torch.Tensor]:
            return [view(span) for span in spans]

        def count_bytes(spans: Iterable[Span]) -> int:
            return sum(span.length for span in spans) * width

        def bind(x: Instruction) -> Operation:  # noqa: PLR0911 (a table)
            match x:
                case Post():
                    code = SEND if x.kind == "send" else RECEIVE
                    return code, [view(x.span)], transport.control.number_of(x.peer), self.tag(x)
                case Await():
                    return AWAIT, None, None, x.post
                case Exchange():
                    return EXCHANGE, self.make_batches(x, view), x, 0
                case Pack():
                    action = local.pack(views(x.parts), view(x.into))
                    return LOCAL, action, None, count_bytes([x.into])
                case Divide():
                    return (
                        LOCAL,
                        local.divide(views(x.spans), self.ranks),
                        None,
                        count_bytes(x.spans),
                    )
                case Copy():
                    into, others = zip(*x.pairs, strict=True)
                    return LOCAL, local.copy(views(into), views(others)), None, count_bytes(into)
                case Combine():
                    into, others = zip(*x.pairs, strict=True)
                    action = local.combine(self.op, views(into), views(others))
                    return LOCAL, action, None, count_bytes(into)
            assert encoding is not None  # lowering encodes only with a codec
            if isinstance(x, Encode):
                return LOCAL, encoding.make_encoder(x, work), None, x.padded * width
            return LOCAL, encoding.make_decoder(x, staging), None, count_bytes([x.into])

        return [bind(x) for x in self.messages.instructions]

    def make_batches(
        self, exchange: Exchange, view: Callable[[Span], torch.Tensor]
    ) -> list[list[dist.P2POp]]:
        """Return the sends and receives of `exchange` in batches of at most NCCL_BATCH operations.

        `view` returns the tensor of a span. A pair of ranks has one message per tick and direction.
        Both ends of a message must put it into the same batch, so its number follows from the
        distance between the two ranks: each distance has one send and one receive per rank.
        """
        batches: dict[int, list[dist.P2POp]] = defaultdict(list)
        for post in exchange.posts:
            start, sign = (dist.isend, 1) if post.kind == "send" else (dist.irecv, -1)
            distance = (post.peer - self.program.rank) * sign % self.schedule.rank_limit
            # As bytes: NCCL lacks some of the dtypes (int16).
            data = view(post.span).view(torch.uint8)
            batches[(distance - 1) // (NCCL_BATCH // 2)].append(
                dist.P2POp(
                    start,
                    data,
                    dist.get_global_rank(self.group, self.transport.control.number_of(post.peer)),
                    self.group,
                    self.tag(post),
                )
            )
        return [batches[number] for number in sorted(batches)]

    def tag(self, post: Post) -> int:
        """Return the tag of a message, the same at its sender and its receiver.

        NCCL ignores tags: there only the order counts.
        """
        return FIRST_TAG | self._signature << 16 | post.number


def describe_call(name: str, op: object, root: int | None, numel: int, dtype: torch.dtype) -> str:
    """Describe a collective for errors: "allreduce (SUM) of 8 elements of float32".

    `op` is None if it reduces nothing, `root` None if it has no root. The text is the same on all
    ranks that make the same call.
    """
    kind = kind_of_reduction(op)
    reduction = "" if op is None else f" ({getattr(kind, 'name', kind)})"
    at = "" if root is None else f" at {root}"
    return f"{name}{reduction}{at} of {numel} elements of {dtype_name(dtype)}"
