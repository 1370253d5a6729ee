"""The plain group under a group of the backend "topo": gloo for CPUs, NCCL for GPUs.

Each method that may wait is defined here in Python. A method that a Python subclass of ProcessGroup
does not define is found by torch's C++ trampoline, which then calls the C++ base class *while it
holds the GIL* (PyProcessGroup.hpp, WORK_OVERRIDE). There `ProcessGroupGloo::barrier` waits for
`workMutex_`, which gloo's worker thread holds while it destroys a finished work; and destroying a
tensor that has a Python object needs the GIL: both wait for ever. The bindings of the plain group,
which is a C++ ProcessGroup, release the GIL.
"""

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ...topo.errors import ExecutionError, InputError
from ..compiled import FIRST_TAG
from ..ranks.cabled import find_cabling
from ..ranks.groups import Gloo, make_gloo, make_nccl
from ..ranks.stock import StartedStock
from ..reductions import kind_of_reduction, make_contiguous
from ..works import CpuWork, PlannedWork
from .call_check import CallCheck
from .communicators import Communicators
from .options import BackendOptions

# Number of first calls of a group that its ranks always compare: most mismatches exist from the
# start.
_COMPARED_CALLS = 64
# File descriptors of one gloo group besides its connections (measured with torch 2.13).
_DESCRIPTORS = 4


def backend_type(transport: str) -> Any:
    """Return torch's BackendType for "nccl", or gloo's for any other name."""
    types = dist.ProcessGroup.BackendType
    return types.NCCL if transport == "nccl" else types.GLOO


def check_descriptors(ranks: int) -> None:
    """Raise ExecutionError if this process cannot open enough files for another gloo group.

    gloo itself ends the process then: its listening thread throws.
    """
    try:
        in_use = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:  # not Linux
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and in_use + _DESCRIPTORS + ranks > limit:
        raise ExecutionError(
            f"a process group of {ranks} ranks takes {_DESCRIPTORS + ranks} file descriptors, and "
            f"this process has {in_use} "
            f"of at most {limit} in use; raise the limit (ulimit -n), or make fewer groups"
        )


def make_plain_group(place: Any, store: Store) -> tuple[dist.ProcessGroup, Gloo, dict[str, str]]:
    """Return a group of gloo for CPUs and NCCL for GPUs, its gloo backend, and its transports.

    Transports are "gloo" or "nccl" by device type. `place` is torch's DistributedBackendOptions;
    the ranks meet in `store`. Without NCCL, gloo is used for GPUs too. Raise ExecutionError if the
    process cannot open enough files.
    """
    check_descriptors(place.group_size)
    plain = dist.ProcessGroup(store, place.group_rank, place.group_size)
    gloo = make_gloo(place, PrefixStore("gloo", store))
    backends: dict[str, tuple[str, Any]] = {"cpu": ("gloo", gloo), "cuda": ("gloo", gloo)}
    if torch.cuda.is_available() and dist.is_nccl_available():
        backends["cuda"] = "nccl", make_nccl(place, PrefixStore("nccl", store))
    for device, (transport, backend) in backends.items():
        plain._register_backend(torch.device(device), backend_type(transport), backend)
    plain._set_default_backend(backend_type(backends["cuda"][0]))
    plain._set_group_name(place.group_id)
    return plain, gloo, {device: transport for device, (transport, _) in backends.items()}


class PlainCalls(dist.ProcessGroup):
    """A process group that passes all collectives, messages and settings to the group `plain`.

    Subclasses set the attributes. `planned` has the communicators that run plans; `transports`
    names the backend ("gloo", "nccl") of each device type; `ranks` are the group's global ranks;
    `check` compares calls between ranks; `options` are the backend's.
    """

    options: BackendOptions
    plain: dist.ProcessGroup
    planned: Communicators
    transports: Mapping[str, str]
    ranks: Sequence[int]
    check: CallCheck
    _number = 0

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> dist.Work:
        """Send the list's one tensor to rank `dstRank` of the group; return the work to wait for.

        Raise InputError if `tag` is one of those reserved for plans' messages.
        """
        return self.plain.send(tensors, dstRank, _check_tag(tag))

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> dist.Work:
        """Receive the list's one tensor from rank `srcRank` of the group; return the work.

        Raise InputError if `tag` is one of those reserved for plans' messages.
        """
        return self.plain.recv(tensors, srcRank, _check_tag(tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        """Receive the list's one tensor from whichever rank sends it first; return the work.

        Raise InputError if `tag` is one of those reserved for plans' messages.
        """
        return self.plain.recv_anysource(tensors, _check_tag(tag))

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives were called; the same on all ranks."""
        return self._number

    def _is_compared(self) -> bool:
        # A lost link may be the store's, too.
        return (
            len(self.ranks) > 1 and not self.planned.around.takes_all and not self.planned.plans.off
        )

    def _begin(self, what: str, *, is_new: bool = False, is_awaited: bool = False) -> int:
        """Return the number of a collective that is being called.

        The first calls of a group, and those of an unsettled size (`is_new`), are compared in the
        background; `is_awaited` says that the call waits for the answer. Raise ExecutionError if
        the ranks are known to differ.
        """
        self._number += 1
        if self.check.error is not None:
            raise self.check.error
        if (is_new or self._number <= _COMPARED_CALLS) and self._is_compared():
            self.check.post(self._number, what, is_awaited=is_awaited)
        return self._number

    def _leave(self, name: str, *args: Any, **kwargs: Any) -> dist.Work:
        """Call a collective of the plain group, in the order of this group's calls."""
        tensor = next(find_tensors(args), None)
        start = partial(getattr(self.plain, name), *args, **kwargs)
        if name == "monitored_barrier":  # it has no work: it is over when it returns
            self._begin(name)
            self.planned.queue(torch.empty(0)).submit(start, [], waits=True, may_be_stock=True)
            return None  # type: ignore[return-value]
        return self._call_plain(name, tensor, start, after_all=name == "barrier")

    def _call_plain(
        self,
        what: str,
        tensor: torch.Tensor | None,
        start: Callable[[], Any],
        *,
        after_all: bool = False,
    ) -> dist.Work:
        """Start a collective of the plain group after earlier calls that may be its own, too.

        With `after_all` it starts after all earlier calls, as gloo's barriers must.
        """
        number = self._begin(what)
        device = "cpu" if tensor is None else tensor.device.type
        if device == "cpu":
            self.planned.around.check_stock(what)
        planned = self.planned
        # A work of NCCL makes streams wait, and a barrier the host: both are passed on. Errors of
        # relays between cabled hosts say nothing of cables.
        is_explained = (
            tensor is not None
            and not tensor.is_cuda
            and (number <= _COMPARED_CALLS or find_cabling() is not None)
            and self._is_compared()
        )

        def begin() -> dist.Work:
            return self._explain(start(), number, what, None) if is_explained else start()

        if planned.is_idle(device) if after_all else not planned.holds_stock(device):
            return begin()
        results: list[torch.Tensor] = []

        def run_call() -> None:
            work: Any = begin()
            if work is None:  # NCCL's, of a call whose caller waits: it is on the current stream
                return
            work.wait()
            with suppress(RuntimeError):  # reduce-scatter and barriers of gloo have no future
                # Waited for: our own works have ended before their futures have a value.
                results.extend(find_tensors([work.get_future().wait()]))

        return planned.queue(torch.empty(0) if tensor is None else tensor).submit(
            run_call, results, waits=False, may_be_stock=True
        )

    def _explain(
        self, work: dist.Work, number: int, what: str, results: list[torch.Tensor] | None
    ) -> dist.Work:
        """Return a work for a stock collective in progress, whose error names the rank to blame.

        `results` are its tensors (None: those of the backend's own work). A work without a future
        is returned unchanged.
        """
        if isinstance(work, PlannedWork) or any(tensor.is_cuda for tensor in results or []):
            return work
        try:
            future = work.get_future()
        except RuntimeError:  # gloo's reduce-scatter and barriers have none
            return work
        faults = self.planned.transport("cpu").faults
        faults.find_mismatch = self.check.find_error
        tensors: list[torch.Tensor] = [] if results is None else results
        explained = CpuWork(tensors)
        explained.stand_for(work)

        def fill() -> None:
            if results is None:
                tensors.extend(find_tensors([future.value()]))

        stock = StartedStock(faults, faults.begin(f"{what} by gloo", number=number), work, fill)
        self.check.watch(explained)
        stock.call_when_done(explained.finish)
        return explained

    def _copy_by_plain(
        self, tensor: torch.Tensor, start: Callable[[torch.Tensor], dist.Work]
    ) -> dist.Work:
        """Start a broadcast by the plain group: gloo treats all tensors as contiguous."""
        given = (
            make_contiguous(tensor) if self.transports.get(tensor.device.type) == "gloo" else tensor
        )
        work = start(given)
        if given is tensor:
            return work

        def finish() -> None:
            work.wait()
            tensor.detach().copy_(given)

        copied = self.planned.queue(tensor).submit(finish, [tensor], waits=False)
        copied.stand_for(work)
        return copied

    def _reduce_by_plain(
        self,
        tensors: Sequence[torch.Tensor],
        opts: Any,
        start: Callable[[list[torch.Tensor]], dist.Work],
        *,
        has_result: bool = True,
    ) -> dist.Work:
        """Start a reduction of `tensors` by the plain group.

        They hold the result if this rank `has_result`. gloo has no AVG, so that is a sum, divided
        afterwards; and gloo treats all tensors as contiguous.
        """
        op, first = opts.reduceOp, tensors[0]
        self.planned.check_plain(first, op)
        by_gloo = self.transports.get(first.device.type) == "gloo"
        averages = (
            by_gloo and kind_of_reduction(op) == dist.ReduceOp.AVG and first.is_floating_point()
        )
        given = [make_contiguous(tensor) if by_gloo else tensor for tensor in tensors]
        if not averages and all(a is b for a, b in zip(given, tensors, strict=True)):
            return start(given)
        opts.reduceOp = dist.ReduceOp.SUM if averages else op
        work = start(given)
        opts.reduceOp = op

        def finish() -> None:
            work.wait()
            for tensor, own in zip(tensors, given, strict=True):
                if averages and has_result:
                    own.detach().div_(self.size())
                if own is not tensor:
                    tensor.detach().copy_(own)

        reduced = self.planned.queue(first).submit(finish, list(tensors), waits=False)
        reduced.stand_for(work)
        return reduced


def _check_tag(tag: int) -> int:
    """Return the tag of a user's message; raise InputError if messages of plans may use it.

    Both share the same connections.
    """
    if tag >= FIRST_TAG:
        raise InputError(
            f"tag {tag}: the backend topo reserves tags from {FIRST_TAG} on; use a smaller one"
        )
    return tag


def find_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments of a collective, also those in nested lists and tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from find_tensors(value)


# Names of the methods that all ranks must call in one order.
COLLECTIVES = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "_allgather_base",
    "_reduce_scatter_base",
)
# Names of the other methods that wait, or change settings of the plain group.
FORWARDED = (
    "_add_ephemeral_timeout",
    "_enable_collectives_timing",
    "_end_coalescing",
    "_register_on_completion_hook",
    "_set_sequence_number_for_group",
    "_start_coalescing",
    "_wait_for_pending_works",
    "get_group_store",
    "merge_remote_group",
    "new_window",
    "register_abort_hook",
    "register_post_hook",  # hooks see the calls that no plan carries out
    "register_pre_hook",
    "split_group",
    "unregister_abort_hook",
    "unregister_post_hook",
    "unregister_pre_hook",
)


def _pass_on(name: str) -> Callable[..., Any]:
    """Return a method that calls the plain group's: collectives in the order of calls."""

    def method(self: PlainCalls, *args: Any, **kwargs: Any) -> Any:
        if name in COLLECTIVES:
            return self._leave(name, *args, **kwargs)
        return getattr(self.plain, name)(*args, **kwargs)

    method.__name__, method.__qualname__ = name, f"PlainCalls.{name}"
    method.__doc__ = f"See torch.distributed.ProcessGroup.{name}."
    return method


for _name in (*COLLECTIVES, *FORWARDED):
    if hasattr(dist.ProcessGroup, _name):  # newer versions of torch have more names
        setattr(PlainCalls, _name, _pass_on(_name))
