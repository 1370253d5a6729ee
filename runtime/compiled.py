"""A program with its views: every instruction bound to memory, so that a call only posts, waits and
adds.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from ..synth.ir.collective import Collective
from ..synth.ir.schedule import Schedule
from ..topo.errors import InputError
from .codecs import Codec
from .players.as_they_come import PlayerAsTheyCome
from .players.contract import AWAIT, EXCHANGE, LOCAL, RECEIVE, SEND, Operation, Player
from .players.in_order import PlayerInOrder
from .players.in_waves import PlayerInWaves, can_play_in_waves
from .players.local import Local, LocalOperations
from .players.requests import Requests
from .program.dependencies import find_dependencies
from .program.instructions import (
    Await,
    Combine,
    Copy,
    Decode,
    Divide,
    Encode,
    Exchange,
    Pack,
    Post,
    Program,
    Span,
)
from .program.layout import IN_PLACE, Move
from .program.lowering import lower
from .program.waves import Wave, find_waves
from .ranks.transport import Transport
from .reductions import ReduceOp, borrow, dtype_name
from .scratch import Slicer, allocate, count_aligned, find_arena

# Most operations in one batch. NCCL takes 2048 in a group, but launches a large one as several
# kernels, which each rank cuts for itself: sends and their receives can come to lie in kernels that
# wait for each other (pytorch/pytorch#174288: 1000 hang, 256 do not).
NCCL_BATCH = 256
# Views on callers' tensors are kept for this many addresses; this many addresses are remembered
# without views.
_MOST_BORROWED, _MOST_SEEN = 4, 16
# From this size on, slicing views of a tensor that may never come again takes less than copying it
# (and its memory).
_SLICED_AT_ONCE_BYTES = 1 << 20
_MOST_MESSAGES = 1 << 16
# Tags of plans' messages begin here: a number of 16 bits, below it a checksum of the call of 14,
# and this bit.
FIRST_TAG = 1 << 30


@dataclass(frozen=True)
class Bound:
    """A program bound to memory, ready to be played: its player, its work buffer, and room for
    rounding errors.

    `is_callers` says that the work buffer is a caller's tensor. A call holds this until it ends,
    whatever becomes of the arena that its views are of.
    """

    player: Player
    work: torch.Tensor
    errors: torch.Tensor
    is_callers: bool


class Binding:
    """Where a program is played: on its own work buffer (None) or right on a caller's tensor. It
    owns no memory.

    `bound` is there while the arena, of which the program has its scratch memory, stays where it
    is.
    """

    __slots__ = ("__weakref__", "borrowed", "bound")

    def __init__(self, borrowed: torch.Tensor | None = None) -> None:
        self.borrowed = borrowed
        self.bound: Bound | None = None

    def unbind(self) -> None:
        """Let the views of the arena go."""
        self.bound = None


class Compiled:
    """The program of one rank for a schedule, a length, a dtype and a device; see `bind` for the
    memory that it works on.

    Raises InputError where two ranks have too many messages for each other.
    """

    def __init__(
        self,
        schedule: Schedule,
        numel: int,
        like: torch.Tensor,
        op: ReduceOp,
        transport: Transport,
        *,
        codec: Codec | None,
        feedback: bool,
    ) -> None:
        self.transport, self.group = transport, transport.group
        self.op, self.codec = op, codec
        self.in_place = schedule.collective.name in IN_PLACE
        # An average is divided where sums are completed: elsewhere than in an allreduce that is the
        # end anyway, and encoded sums are rounded there.
        self.divides = (
            op == dist.ReduceOp.AVG and schedule.collective.name == "allreduce" and codec is None
        )
        self.ranks = schedule.collective.ranks
        self.program = program = lower(
            schedule,
            transport.rank,
            numel,
            batched=transport.batched,
            codec=codec,
            averages=self.divides,
        )
        if any(post.number >= _MOST_MESSAGES for post in program.posts):
            raise InputError(
                f"{schedule.label} sends more than {_MOST_MESSAGES} messages between two ranks"
            )
        self.dtype = like.dtype if codec is None else torch.float32
        self.encoding = None if codec is None else EncodingSizes.of(program, feedback=feedback)
        self.call = describe_call(schedule.collective, op, numel, like.dtype, schedule.label)
        if codec is not None:
            self.call += f", {codec.name} on the wire"
        # Ranks whose calls differ have different tags: their messages never meet, let alone add up.
        self._signature = (
            zlib.crc32(f"{self.call}, {len(schedule.transfers)} transfers".encode()) & 0x3FFF
        )
        sent = sum(post.span.length for post in program.posts if post.kind == "send")
        self.sent_bytes = sent if codec is not None else sent * like.element_size()
        # The work buffer can be the output itself where all of it is the result: the input is not
        # to be written to.
        whole = (Move(0, program.work_numel, 0),)
        self._fits_target = self.in_place or program.drains == whole
        self.arena = find_arena(transport, like.device)
        self.own = Binding()
        self._borrowed: OrderedDict[int, Binding] = OrderedDict()
        self._seen: deque[int] = deque(maxlen=_MOST_SEEN)

    def count_objects(self) -> int:
        """Return how many instructions are cached, as such and bound to memory."""
        bindings = (self.own, *self._borrowed.values())
        return len(self.program.instructions) * (1 + sum(x.bound is not None for x in bindings))

    def find_binding(self, target: torch.Tensor) -> Binding:
        """Return where to play a call whose result goes to `target`: right there, or on a work
        buffer of the program's.
        """
        on_target = (
            self.on_callers_tensor(target)
            if self._fits_target and target.dtype == self.dtype
            else None
        )
        return on_target or self.own

    def on_callers_tensor(self, tensor: torch.Tensor) -> Binding | None:
        """Return where to play right on a CPU tensor of the caller: a large one, or one whose
        address comes back. None for others, for which slicing costs more than copying.

        The views own nothing and are used only while the caller's tensor, at that address, is in
        the call.
        """
        if tensor.device.type != "cpu":
            return None
        address = tensor.data_ptr()
        binding = self._borrowed.pop(address, None)
        if binding is None:
            if tensor.nbytes < _SLICED_AT_ONCE_BYTES and address not in self._seen:
                self._seen.append(address)
                return None
            binding = Binding(borrow(tensor))
        self._borrowed[address] = binding
        if len(self._borrowed) > _MOST_BORROWED:
            self._borrowed.popitem(last=False)
        return binding

    def bind(self, binding: Binding) -> Bound:
        """Return a binding's program bound to memory of the arena, and have it cached there while
        the arena stays.
        """
        size = self._count_scratch(binding)
        with self.arena.budget.lock:
            block = self.arena.reserve(size, binding) if size else allocate(0, self.arena.device)
            bound = self._bind(block, binding.borrowed)
            binding.bound = bound
        return bound

    def bind_apart(self) -> Bound:
        """Return the program bound to memory of its own, for one call that a CUDA graph captures.

        The graph plays the call in that memory for as long as it lives, which an arena is not to be
        promised for.
        """
        return self._bind(allocate(self._count_scratch(self.own), self.arena.device), None)

    def _count_scratch(self, binding: Binding) -> int:
        """Return the bytes of scratch memory that a binding takes."""
        width, program = self.dtype.itemsize, self.program
        work = 0 if binding.borrowed is not None else program.work_numel * width
        encoding = 0 if self.encoding is None else self.encoding.nbytes
        return count_aligned(program.staging_numel * width) + count_aligned(work) + encoding

    def _bind(self, block: torch.Tensor, borrowed: torch.Tensor | None) -> Bound:
        slicer = Slicer(block)
        staging = slicer.take(self.program.staging_numel, self.dtype)
        work = slicer.take(self.program.work_numel, self.dtype) if borrowed is None else borrowed
        encoding = None
        if self.codec is not None and self.encoding is not None:
            encoding = EncodingBuffers(self.codec, self.encoding, slicer)
        errors = staging[:0] if encoding is None else encoding.errors
        return Bound(self._make_player(work, staging, encoding), work, errors, borrowed is not None)

    def _make_player(
        self, work: torch.Tensor, staging: torch.Tensor, encoding: EncodingBuffers | None
    ) -> Player:
        operations, transport = self._slice(work, staging, encoding), self.transport
        if transport.lane is not None:
            requests = Requests(transport.lane, self.program, operations)
            as_they_come = PlayerAsTheyCome(requests, self.dependencies)
            waves = self.waves if can_play_in_waves(requests) else None
            return as_they_come if waves is None else PlayerInWaves(requests, waves, as_they_come)
        # gloo's backend itself: posting through the group costs 5 us more.
        backend = self.group if transport.batched else self.group._get_backend(torch.device("cpu"))
        return PlayerInOrder(backend, self.program, operations)

    @cached_property
    def dependencies(self) -> list[tuple[int, ...]]:
        """Which instructions must be through before each of them (see program/dependencies.py)."""
        return find_dependencies(self.program)

    @cached_property
    def waves(self) -> list[Wave] | None:
        """The program as waves (see program/waves.py), if it is small."""
        return find_waves(self.program, self.dependencies)

    def _slice(
        self, work: torch.Tensor, staging: torch.Tensor, encoding: EncodingBuffers | None
    ) -> list[Operation]:
        """Return the program's instructions with views in place of ranges."""
        width, local = work.element_size(), LocalOperations(on_stream=self.transport.batched)

        def view(span: Span) -> torch.Tensor:
            buffer = work if span.buffer == "work" else staging
            if span.buffer == "wire" and encoding is not None:
                buffer = encoding.wire
            return buffer[span.start : span.start + span.length]

        operations: list[Operation] = []
        for x in self.program.instructions:
            if isinstance(x, Post):
                operations.append(
                    (SEND if x.kind == "send" else RECEIVE, [view(x.span)], x.peer, self._tag(x))
                )
            elif isinstance(x, Await):
                operations.append((AWAIT, None, None, x.post))
            elif isinstance(x, Pack):
                operations.append(
                    _local(
                        local.pack([view(part) for part in x.parts], view(x.into)),
                        x.into.length * width,
                    )
                )
            elif isinstance(x, (Combine, Copy)):
                into, others = [view(a) for a, _ in x.pairs], [view(b) for _, b in x.pairs]
                action = (
                    local.combine(self.op, into, others)
                    if isinstance(x, Combine)
                    else local.copy(into, others)
                )
                operations.append(_local(action, sum(a.length for a, _ in x.pairs) * width))
            elif isinstance(x, Divide):
                action = local.divide([view(span) for span in x.spans], self.ranks)
                operations.append(_local(action, sum(span.length for span in x.spans) * width))
            elif isinstance(x, Encode) and encoding is not None:
                operations.append(_local(encoding.make_encoder(x, work), x.padded * width))
            elif isinstance(x, Decode) and encoding is not None:
                operations.append(_local(encoding.make_decoder(x, staging), x.into.length * width))
            elif isinstance(x, Exchange):
                operations.append((EXCHANGE, self.make_batches(x, view), x, 0))
        return operations

    def make_batches(
        self, exchange: Exchange, view: Callable[[Span], torch.Tensor]
    ) -> list[list[dist.P2POp]]:
        """Return a tick's operations in batches of at most NCCL_BATCH; there is one message a tick
        and direction for a pair.

        Both ends of a message must find the same batch for it: its number follows from the distance
        between them, of which each stands for one send and one receive of a rank.
        """
        batches: dict[int, list[dist.P2POp]] = defaultdict(list)
        for post in exchange.posts:
            sends = post.kind == "send"
            peer = dist.get_global_rank(self.group, post.peer)
            distance = (
                post.peer - self.program.rank if sends else self.program.rank - post.peer
            ) % self.ranks
            # As bytes: NCCL has no type for all that can be sent (int16).
            data = view(post.span).view(torch.uint8)
            operation = dist.P2POp(
                dist.isend if sends else dist.irecv, data, peer, self.group, self._tag(post)
            )
            batches[(distance - 1) // (NCCL_BATCH // 2)].append(operation)
        return [batches[number] for number in sorted(batches)]

    def _tag(self, post: Post) -> int:
        """Return the tag of a message, alike at both its ends. NCCL takes no notice of it: there
        the order alone counts.
        """
        return FIRST_TAG | self._signature << 16 | post.number


def _local(action: Local, size_bytes: int) -> Operation:
    return LOCAL, action, None, size_bytes


def describe_call(
    collective: Collective, op: ReduceOp, numel: int, dtype: torch.dtype, how: str
) -> str:
    """Return what a call is, alike on all ranks that make the same one: "allreduce (SUM) of 8
    elements of float32 by ring".
    """
    reduction = f" ({op.name})" if collective.reduces else ""
    root = "" if collective.root is None else f" at {collective.root}"
    return f"{collective.name}{reduction}{root} of {numel} elements of {dtype_name(dtype)} by {how}"


@dataclass(frozen=True)
class EncodingSizes:
    """What encoding takes: bytes on the wire, values to encode and decoded ones, and errors (none
    without feedback).
    """

    wire_bytes: int
    values: int
    errors: int

    @classmethod
    def of(cls, program: Program, *, feedback: bool) -> EncodingSizes:
        """Return what a program's encoding takes."""
        most = max((x.padded for x in program.instructions if isinstance(x, Encode)), default=0)
        return cls(program.wire_bytes, most, program.work_numel if feedback else 0)

    @property
    def nbytes(self) -> int:
        """Bytes that the buffers take in an arena."""
        width = torch.float32.itemsize
        return (
            count_aligned(self.wire_bytes)
            + 2 * count_aligned(self.values * width)
            + count_aligned(self.errors * width)
        )


class EncodingBuffers:
    """The buffers that encoding takes, cut from scratch memory."""

    def __init__(self, codec: Codec, sizes: EncodingSizes, slicer: Slicer) -> None:
        self.codec = codec
        self.wire = slicer.take(sizes.wire_bytes, torch.uint8)
        self.values = slicer.take(sizes.values, torch.float32)
        self.rounded = slicer.take(sizes.values, torch.float32)
        self.errors = slicer.take(sizes.errors, torch.float32)

    def make_encoder(self, x: Encode, work: torch.Tensor) -> Callable[[], None]:
        """Return one Encode on a work buffer as a function, with all views sliced."""

        def views(
            of: torch.Tensor, rows: Sequence[tuple[Span, int]], *, laid: bool
        ) -> list[torch.Tensor]:
            starts = [start if laid else span.start for span, start in rows]
            return [of[lo : lo + span.length] for lo, (span, _) in zip(starts, rows, strict=True)]

        ends = [(start + span.length, following) for (span, start), following in zip(
            x.parts, [*(start for _, start in x.parts[1:]), x.padded], strict=True)]  # fmt: skip
        pads = [self.values[lo:hi] for lo, hi in ends if lo < hi]
        given, laid = views(work, x.parts, laid=False), views(self.values, x.parts, laid=True)
        values, rounded = self.values[: x.padded], self.rounded[: x.padded]
        wire = self.wire[x.into.start : x.into.start + x.into.length]
        kept, keeps = views(self.rounded, x.keeps, laid=True), views(work, x.keeps, laid=False)
        felt = x.errors if len(self.errors) else ()
        lost, before = views(self.errors, felt, laid=False), views(work, felt, laid=False)
        after = views(self.rounded, felt, laid=True)
        codec = self.codec

        def encode() -> None:
            torch._foreach_copy_(laid, given)
            if pads:
                torch._foreach_zero_(pads)
            codec.encode(values, wire, rounded)
            if keeps or lost:
                codec.decode(wire, rounded)
            if lost:
                torch._foreach_add_(lost, before)
                torch._foreach_sub_(lost, after)
            if keeps:
                torch._foreach_copy_(keeps, kept)

        return encode

    def make_decoder(self, x: Decode, staging: torch.Tensor) -> Callable[[], None]:
        """Return one Decode as a function, with its views sliced."""
        wire = self.wire[x.message.start : x.message.start + x.message.length]
        values = staging[x.into.start : x.into.start + x.into.length]
        return lambda: self.codec.decode(wire, values)
