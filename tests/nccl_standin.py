"""NCCL's rules for point-to-point operations, for one process that plays all ranks without a GPU.

CPU tensors stand for device tensors. While a rank's host runs (`host_of`), none of its operations
is carried out: torch's are put on the rank's current stream, batches on its communicator's, and the
host never waits. `play` then carries out all streams, in any order that NCCL and the waits between
streams allow. What NCCL leaves undefined, or hangs at, is an NcclError:

- operations between two ranks are matched in the order in which they are posted. Tags play no part,
  but the product gives each operation the one that its partner must have, so a wrong match is seen
  even where sizes are alike;
- a batch begins when those before it on its communicator are complete, and is complete when all its
  operations are: where nobody can go on, the error names rank, batch and operation;
- what is received is there once the stream has waited for the batch, and what is sent must stay
  until then: what torch's operations read and write is held against the batches that are open.
  Buffers hold NaN (other bytes for integers) when they are made, and again from the posting of a
  receive until its data comes; sums that read NaN are faults.

The rules are those of both of torch's engines, nccl-legacy and nccl2 (torch 2.15), the stricter one
where they differ: the caller holds what is received into until it has waited. nccl-legacy holds it;
nccl2 holds what a batch sends, and its allocator could give the rest to the next tensor of the
caller's stream while data still comes in.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest import mock
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.utils._python_dispatch import TorchDispatchMode

from topoplan.runtime.compiled import NCCL_BATCH
from topoplan.runtime.ranks.control import Control
from topoplan.runtime.ranks.faults import Faults
from topoplan.runtime.ranks.links import NcclLinks
from topoplan.runtime.ranks.transport import Transport

# What ProcessGroupNCCL has an NCCL type for (its table ncclDataType; the other 8-bit floats are
# left out).
DTYPES = (
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
_SUMS = {
    f"aten::{name}_"
    for name in (
        "_foreach_add",
        "_foreach_mul",
        "_foreach_maximum",
        "_foreach_minimum",
        "add",
        "div",
    )
}
_SUMS |= {"aten::_foreach_div_", "aten::_foreach_sub_"}
_COPIES = {
    "aten::copy_",
    "aten::_foreach_copy_",
    "aten::fill_",
    "aten::zero_",
    "aten::_foreach_zero_",
}
_EMPTY = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"}
# As bytes: NaN in all floating-point types, which views of scratch memory are read as.
_POISON = 0xFF


class NcclError(AssertionError):
    """What would hang over NCCL, or is undefined there."""


@dataclass(eq=False)
class Operation:
    """One send or receive, the `place`-th of a batch; `peer` is a rank of the group."""

    batch: Batch
    place: int
    kind: str
    peer: int
    tensor: torch.Tensor
    tag: int
    done: bool = False

    def finish(self) -> None:
        self.done = True
        self.batch.left -= 1

    @property
    def pair(self) -> tuple[int, int]:
        """Source and destination."""
        return (self.batch.rank, self.peer) if self.kind == "send" else (self.peer, self.batch.rank)

    def __str__(self) -> str:
        way = "to" if self.kind == "send" else "from"
        size = f"{self.tensor.numel()} x {str(self.tensor.dtype).removeprefix('torch.')}"
        return f"{self.batch}, operation {self.place}: {self.kind} {size} {way} rank {self.peer}"


@dataclass(eq=False)
class Batch:
    """What is posted between the start and the end of a group, the `number`-th of its rank; also
    the Work to wait for it.
    """

    stream: Stream
    number: int
    operations: list[Operation] = field(default_factory=list)
    left: int = 0

    @property
    def rank(self) -> int:
        return self.stream.host.rank

    @property
    def complete(self) -> bool:
        return self.left == 0

    def __str__(self) -> str:
        return f"rank {self.rank}, batch {self.number}"

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current stream wait; the host goes on."""
        for operation in self.operations:
            if (
                operation.kind == "receive"
                and self.stream.host.count_holders(operation.tensor) == 0
            ):
                raise NcclError(
                    f"{operation}: its buffer was let go before anything has waited for the batch"
                )
        current = self.stream.host.current
        current.open.remove(self)
        current.entries.append(Entry(lambda: None, self))
        return True


@dataclass
class Mark:
    """A place on a stream; complete when what is before it is done."""

    complete: bool = False

    def reach(self) -> None:
        self.complete = True


@dataclass(frozen=True)
class Entry:
    """What is next on a stream: `run` it, once `waits_for` is complete."""

    run: Callable[[], None]
    waits_for: Batch | Mark | None = None


@dataclass(eq=False)
class Stream:
    """One stream of a rank, and the batches that it has not waited for. It stands for a
    torch.cuda.Stream.
    """

    host: Host
    entries: deque[Entry] = field(default_factory=deque)
    open: list[Batch] = field(default_factory=list)

    def wait_stream(self, other: Stream) -> None:
        """Wait for what is on another stream by now."""
        mark = Mark()
        other.entries.append(Entry(mark.reach))
        self.entries.append(Entry(lambda: None, mark))
        self.open = [batch for batch in self.open if batch in other.open]


def extent_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses between which a tensor's elements lie."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (a_lo, a_hi), (b_lo, b_hi) = extent_of(a), extent_of(b)
    return max(a_lo, b_lo) < min(a_hi, b_hi)


def poison(tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point and tensor.element_size() > 1:
        tensor.fill_(float("nan"))
    else:
        tensor.view(torch.uint8).fill_(_POISON)


def tensors_in(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [x for item in value for x in tensors_in(item)] if isinstance(value, (list, tuple)) else []
    )


@dataclass(frozen=True)
class Uses:
    """What one of torch's operations does with its arguments, by their names, and how many results
    it has.
    """

    name: str
    names: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    results: int
    returns_view: bool


_USES: dict[object, Uses] = {}


def find_uses(schema: Any) -> Uses:
    names = tuple(a.name for a in schema.arguments)
    writes = tuple(
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )
    only_written = writes if "out" in writes or schema.name in _COPIES else ()
    reads = tuple(name for name in names if name not in only_written)
    returns_view = any(r.alias_info is not None for r in schema.returns) and not writes
    return Uses(schema.name, names, reads, writes, len(schema.returns), returns_view)


class Host(TorchDispatchMode):
    """One rank's host: puts torch's operations on the rank's stream, and checks them against the
    batches that are open.
    """

    def __init__(self, rank: int, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rank, self.most = rank, most
        self.streams = [Stream(self), Stream(self)]
        self.current = self.streams[0]
        self.communicator: deque[Batch] = deque()
        self.posted = 0
        self.counts: Counter[str] = Counter()
        """What was posted: sends, receives, and the bytes of each."""
        self._aliases: defaultdict[int, WeakSet[Operation]] = defaultdict(WeakSet)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's compiler takes seconds to import

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _USES:
            _USES[func] = find_uses(func._schema)
        uses = _USES[func]
        given = {
            key: args[i] if i < len(args) else kwargs.get(key) for i, key in enumerate(uses.names)
        }
        reads = [x for key in uses.reads for x in tensors_in(given[key])]
        writes = [x for key in uses.writes for x in tensors_in(given[key])]
        if uses.name in _EMPTY:
            fresh = func(*args, **kwargs)
            poison(fresh)
            return fresh
        if not writes and (uses.returns_view or not reads):
            return func(*args, **kwargs)  # a view, or fresh memory: nothing is read
        name = uses.name
        self._check(name, reads, writes)
        if writes:
            self.current.entries.append(
                Entry(lambda: self._run(name, reads, lambda: func(*args, **kwargs)))
            )
            return given[uses.writes[0]] if uses.results else None
        result = func(*args, **kwargs)  # for its shape alone: it is computed again on the stream
        outputs = tensors_in(result if isinstance(result, (list, tuple)) else [result])
        if len(outputs) != uses.results:
            raise NcclError(f"rank {self.rank}: the host waits for the stream, in {name}")

        def compute() -> None:
            again = func(*args, **kwargs)
            for output, value in zip(outputs, tensors_in([again]), strict=True):
                output.copy_(value)

        self.current.entries.append(Entry(lambda: self._run(name, reads, compute)))
        return result

    def _check(self, name: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
        for batch in self.current.open:
            for operation in batch.operations:
                if any(overlap(operation.tensor, x) for x in writes):
                    before = "it is sent" if operation.kind == "send" else "its data has come"
                    raise NcclError(
                        f"{operation}: {name} writes to the buffer before {before}; nothing has "
                        "waited for the batch"
                    )
                if operation.kind == "receive" and any(overlap(operation.tensor, x) for x in reads):
                    raise NcclError(
                        f"{operation}: {name} reads the buffer before anything has waited for the "
                        "batch"
                    )

    def _run(self, name: str, reads: list[torch.Tensor], run: Callable[[], object]) -> None:
        if name in _SUMS:
            for x in reads:
                if x.dtype.is_floating_point and bool(torch.isnan(x).any()):
                    raise NcclError(
                        f"rank {self.rank}: {name} reads what was never written or received"
                    )
        run()

    def post(self, operations: Sequence[dist.P2POp]) -> Batch:
        """Post operations as one group."""
        batch = Batch(self.current, self.posted)
        self.posted += 1
        for place, x in enumerate(operations):
            kind = "send" if x.op is dist.isend else "receive"
            # An alias of its own, so that it can be told who else holds the memory.
            operation = Operation(batch, place, kind, x.group_peer, x.tensor.detach(), x.tag)
            self._aliases[x.tensor.untyped_storage()._cdata].add(operation)
            batch.operations.append(operation)
            batch.left += 1
            self.counts[f"{kind}s"] += 1
            self.counts[f"{kind} bytes"] += x.tensor.nbytes
            if x.group is None or x.group.rank() != self.rank or x.group_peer == self.rank:
                raise NcclError(f"{operation}: over the group of another rank, or to itself")
            if not x.tensor.is_contiguous() or x.tensor.dtype not in DTYPES or not x.tensor.numel():
                raise NcclError(
                    f"{operation}: NCCL takes contiguous tensors, with elements, of types that it "
                    "has"
                )
        if not 0 < len(operations) <= self.most:
            raise NcclError(
                f"{batch} has {len(operations)} operations; at most {self.most} are known not to "
                "hang"
            )
        for a in batch.operations:
            for b in batch.operations:
                if a is not b and a.kind == "receive" and overlap(a.tensor, b.tensor):
                    raise NcclError(
                        f"{a}: into the buffer of operation {b.place} ({b.kind}) of the same batch"
                    )
        self.current.entries.append(Entry(lambda: self._launch(batch)))
        for stream in self.streams:
            stream.open.append(batch)
        return batch

    def count_holders(self, tensor: torch.Tensor) -> int:
        """Return how many tensors, besides those of operations that were posted, are in the memory
        of a tensor.
        """
        storage = tensor.untyped_storage()
        return (
            int(torch._C._storage_Use_Count(storage._cdata))
            - 1
            - len(self._aliases[storage._cdata])
        )

    def _launch(self, batch: Batch) -> None:
        self.communicator.append(batch)
        for operation in batch.operations:
            if operation.kind == "receive":
                poison(operation.tensor)


class _Group(dist.ProcessGroup):
    """What torch and the product see of the group: a rank and a size."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]


class StandInLinks(NcclLinks):
    """NCCL's, by which messages alone are played."""

    memory_runner = None


class OneHost(Control):
    """Ranks that need not ask each other where they are."""

    def find_cores_of_ranks(self) -> list[tuple[str, frozenset[int]]]:
        return [("host", frozenset(range(8)))]


class StandInTransport(Transport):
    """A transport over the stand-in; made while its rank's host runs."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        timeout, cpu = timedelta(seconds=60), torch.device("cpu")
        faults = Faults(group, timeout, HashStore(), addresses={})
        self._begin(OneHost(group, cpu, timeout, faults, owns_group=False))
        self.links = StandInLinks(group, cpu, faults)
        self._memory = "the stand-in has no shared memory"


class NcclStandIn:
    """All ranks of one group, its communicator, and their streams. `most` is the limit on the
    operations of a batch.
    """

    def __init__(self, ranks: int, most: int = NCCL_BATCH) -> None:
        self.hosts = [Host(rank, most) for rank in range(ranks)]
        # Every other rank of the world is in the group, the last one first: ranks of the group and
        # the world's differ.
        self._global = [2 * (ranks - rank) - 1 for rank in range(ranks)]
        self._worlds = [_Group(number, 2 * ranks) for number in self._global]
        self._groups = [_Group(rank, ranks) for rank in range(ranks)]
        self._transports: dict[int, StandInTransport] = {}

    @contextmanager
    def host_of(self, rank: int, stream: int = 0) -> Iterator[StandInTransport]:
        """Run as the host of a rank, with its transport, on one of its two streams."""
        world, group, host = dist.distributed_c10d._world, self._groups[rank], self.hosts[rank]
        host.current = host.streams[stream]
        members = {number: own for own, number in enumerate(self._global)}
        places = (
            mock.patch.object(world, "_default_pg", self._worlds[rank]),
            mock.patch.dict(world.pg_map, {group: ("nccl", HashStore())}),
            mock.patch.dict(world.pg_group_ranks, {group: members}),
            mock.patch.object(
                dist, "batch_isend_irecv", lambda operations: [host.post(operations)]
            ),
            mock.patch.object(torch.cuda, "current_stream", lambda device=None: host.current),
            mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
        )
        with ExitStack() as stack:
            for place in places:
                stack.enter_context(place)
            if rank not in self._transports:
                self._transports[rank] = StandInTransport(group)
            with host:
                yield self._transports[rank]

    def play(self, seed: int = 0) -> None:
        """Carry out all that is on the streams. Raises NcclError where it cannot be, or has no
        defined result.
        """
        chance = random.Random(seed)
        unmatched: dict[tuple[int, int], dict[str, deque[Operation]]] = defaultdict(
            lambda: defaultdict(deque)
        )
        matched: list[tuple[Operation, Operation]] = []
        begun: set[Batch] = set()
        while True:
            for host in self.hosts:
                if host.communicator and host.communicator[0] not in begun:
                    begun.add(host.communicator[0])
                    for operation in host.communicator[0].operations:
                        queues = unmatched[operation.pair]
                        queues[operation.kind].append(operation)
                        while queues["send"] and queues["receive"]:
                            matched.append(
                                _match(queues["send"].popleft(), queues["receive"].popleft())
                            )
            streams = [stream for host in self.hosts for stream in host.streams if stream.entries]
            ready = [
                x
                for x in streams
                if (awaited := x.entries[0].waits_for) is None or awaited.complete
            ]
            if not ready and not matched:
                break
            if ready and (not matched or chance.random() < 0.5):
                chance.choice(ready).entries.popleft().run()
            else:
                send, receive = matched.pop(chance.randrange(len(matched)))
                receive.tensor.view(torch.uint8).copy_(send.tensor.view(torch.uint8))
                for operation in (send, receive):
                    operation.finish()
                    host = operation.batch.stream.host
                    if host.communicator and host.communicator[0].complete:
                        host.communicator.popleft()
        self._check_end()

    def _check_end(self) -> None:
        stuck = [
            x
            for host in self.hosts
            if host.communicator
            for x in host.communicator[0].operations
            if not x.done
        ]
        if stuck:
            raise NcclError(f"nobody can go on; without a partner: {'; '.join(map(str, stuck))}")
        for stream in [stream for host in self.hosts for stream in host.streams]:
            for batch in stream.open:
                if batch.stream is stream:
                    raise NcclError(f"{batch} is never awaited")


def _match(send: Operation, receive: Operation) -> tuple[Operation, Operation]:
    if (send.tensor.numel(), send.tensor.dtype) != (receive.tensor.numel(), receive.tensor.dtype):
        raise NcclError(f"matched by their order, and differ: {send}; {receive}")
    if send.tag != receive.tag:
        raise NcclError(
            "matched by their order, and are not meant for each other (tags "
            f"{send.tag}, {receive.tag}): "
            f"{send}; {receive}"
        )
    return send, receive
