"""Calls of a collective, checked and flattened: run now, later, or repeatedly.

How a tensor passes through a collective: `Communicator` asks its `CallCache` for the
`PersistentCall` of the tensor; the call asks the dispatcher which candidate is used, has its
program bound to the tensor (compiled.py), and from then on only plays it (players/).
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
import torch.distributed as dist

from ..topo.errors import InputError
from .compiled import Buffers, make_bindings
from .dispatcher import CallPath
from .ranks.faults import Faults
from .reductions import (
    ReduceOp,
    borrow,
    check_reduction,
    check_residual,
    check_tensors,
    flatten,
)

# Buffers whose calls are cached, or that were seen once: a large model has some 100 DDP buckets.
_MAX_BUFFERS = 128
# From this size on, slicing views of a tensor that may never come again takes less time, and less
# memory, than copying it.
_BOUND_AT_ONCE_BYTES = 1 << 20
_profiler = torch.autograd.profiler
# A tensor's address, number of elements and dtype.
Key = tuple[int, int, torch.dtype]


class PersistentCall:
    """A collective on `buffers`, which can run repeatedly as long as their memory stays valid.

    `path` carries it out (a CallPath: the dispatcher, with any layers). After each run the
    functions in the list `then` are called in turn, such as one that copies the result from the
    flat target to an output that is not contiguous; callers may append others. The target of a
    cached call is a view of the caller's tensor that does not keep its memory alive.
    """

    def __init__(self, path: CallPath, buffers: Buffers) -> None:
        self.path, self.buffers, self.op = path, buffers, buffers.op
        self.then: list[Callable[[], object]] = []
        self.play: Callable[..., None] | None = None
        """How the call is run once its schedule is settled: the program, bound to the target.

        It is none of several stock collectives that may be in progress at once.
        """
        self._has_run = False
        self._faults: Faults | None = None

    def run(self, number: int | None = None) -> None:
        """Run the collective once, then the functions in `then`.

        `number` identifies the call within its group, the same on all ranks. A call that waited in
        a queue has drawn its number before, in the order of the calls; None draws the next one.
        """
        if self.play is not None and not _profiler._is_profiler_enabled:
            self.play(number)
        elif self.buffers.numel:
            self.path.run(self.buffers, number)
            # By the thread that runs calls, like compiling: two threads must not compile at once.
            if self._has_run and self.play is None:
                self.play = self.path.bind(self.buffers)
                self._faults = self.path.base.transport.faults
            self._has_run = True
        self.finish()

    def draw_number(self) -> int:
        """Return the number of the group's next call, to be passed to `run`."""
        return (self._faults or self.path.base.transport.faults).draw_number()

    def finish(self) -> None:
        """Call the functions in `then`, after the stock collective was started without `run`.

        The stock collective is the backend's own; it must have ended.
        """
        for step in self.then:
            step()


class CallCache:
    """The recurring calls of one path: in-place calls on CPU tensors at the same addresses.

    Checking and flattening take longer than a small message. If there are too many, the oldest are
    dropped, used or not: recording each use would take a measurable part of a small call.
    """

    def __init__(self, path: CallPath) -> None:
        self.path = path
        # The calls on each buffer, one per reduction; none if the buffer was seen only once.
        self._calls: OrderedDict[Key, list[PersistentCall]] = OrderedDict()

    def find_play(self, tensor: torch.Tensor, op: object) -> Callable[..., None] | None:
        """Return a function that repeats a tensor's cached call at once; None: use `prepare`.

        None if no call with reduction `op` is cached for the tensor's address, size and dtype, if
        the call has run less than twice or its schedule is not chosen yet, if it takes more than
        running one program, or while torch's profiler is on. The function takes the number of the
        call (None: the next one).

        As few attributes of the tensor are read as possible: each takes some hundredths of a small
        call. Reductions are compared one by one: hashing one takes as long.
        """
        if _profiler._is_profiler_enabled:
            return None
        try:
            calls = self._calls.get((tensor.data_ptr(), tensor.numel(), tensor.dtype))
            if calls is None or not tensor.is_contiguous():
                return None
        # A sparse tensor, which has no address, or no tensor at all: the checks refuse it.
        except (RuntimeError, AttributeError):
            return None
        for call in calls:
            if op is call.op or op == call.op:
                return call.play
        return None

    def prepare(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor | None = None,
        op: object = None,
        residual: torch.Tensor | None = None,
        *,
        is_scratch: bool = False,
    ) -> PersistentCall:
        """Return a call of the plan's collective from `tensor` to `output`, to be run later.

        Without `tensor` it works in place in `output`. The default `op` is a sum. `residual` (flat
        float32, with compression only) is error feedback: it is added to the input and receives the
        rounding errors.

        The caller must keep `output` alive until the call has run, as a cached call owns no memory.
        `is_scratch=True` says that the caller drops `output`: the call then keeps it alive itself,
        and is not cached. Raise InputError if the tensors do not fit the collective or each other.
        """
        in_place = tensor is None and residual is None
        is_fixed = (
            not is_scratch
            and output.device.type == "cpu"
            and output.layout is torch.strided
            and output.is_contiguous()
        )
        key = (output.data_ptr(), output.numel(), output.dtype) if is_fixed else None
        cached = None if key is None else self._find(key, dist.ReduceOp.SUM if op is None else op)
        if cached is not None and in_place:
            return cached
        base = self.path.base
        check_tensors(
            base.plan.collective.name,
            (output,) if tensor is None else (output, tensor),
            base.device.type,
            compressed=base.messages.codec is not None,
        )
        kind = dist.ReduceOp.SUM if op is None else check_reduction(op, output.dtype)
        if residual is not None:
            if base.messages.codec is None:
                raise InputError(
                    "residual without compression: nothing is lost that could be fed back"
                )
            check_residual(output, kind, residual)
            residual = residual.view(-1)
        numel = output.numel() if tensor is None else self._count_elements(output, tensor)
        target = flatten(output)
        if cached is None and key is not None:
            cached = self._add(key, numel, target, kind)
        if cached is not None and in_place:
            return cached
        source = target if tensor is None else flatten(tensor)
        bindings = None if cached is None else cached.buffers.bindings
        if cached is None and _is_bound_at_once(target):
            bindings = make_bindings(target)
        call = PersistentCall(self.path, Buffers(numel, source, target, kind, residual, bindings))
        if not output.is_contiguous():
            call.then.append(lambda: output.detach().copy_(target.view(output.shape)))
        return call

    def _find(self, key: Key, op: object) -> PersistentCall | None:
        for call in self._calls.get(key, ()):
            if op is call.op or op == call.op:
                return call
        return None

    def _add(
        self, key: Key, numel: int, target: torch.Tensor, op: ReduceOp
    ) -> PersistentCall | None:
        """Cache an in-place call if its target is large or was seen before.

        Otherwise note that the target was seen.
        """
        if key not in self._calls and not _is_bound_at_once(target):
            self._calls[key] = []
            call = None
        else:
            target = borrow(target)
            buffers = Buffers(numel, target, target, op, bindings=make_bindings(target))
            call = PersistentCall(self.path, buffers)
            self._calls.setdefault(key, []).append(call)
        if len(self._calls) > _MAX_BUFFERS:
            self._calls.popitem(last=False)
        return call

    def _count_elements(self, output: torch.Tensor, tensor: torch.Tensor) -> int:
        """Return the number of elements of the whole buffer.

        Raise InputError if input and output do not fit together.
        """
        base = self.path.base
        collective, size = base.plan.collective, base.size
        name, at_root = collective.name, collective.root == base.rank
        of_input, of_output = tensor.numel(), output.numel()
        if name == "allgather" or (name == "gather" and at_root):
            numel, expected = of_output, of_input * size
        elif name == "reduce-scatter" or (name == "scatter" and at_root):
            numel, expected = of_input, of_output * size
        elif name == "alltoall":
            numel, expected = of_input, of_output
        else:
            numel = expected = (of_input if name == "gather" else of_output) * size
        if numel != expected or numel % size:
            raise InputError(
                f"{name} over {size} ranks: input of {of_input} and output of {of_output} "
                "elements do not fit together"
            )
        return numel


def _is_bound_at_once(target: torch.Tensor) -> bool:
    return target.device.type == "cpu" and target.nbytes >= _BOUND_AT_ONCE_BYTES
