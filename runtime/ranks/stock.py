"""Call the backend's own (stock) collectives on flat tensors; plans are raced against them."""

import atexit
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from ...synth.ir.collective import Collective
from ...synth.ir.demands import Demands
from ...topo.errors import ExecutionError
from .faults import Call, Faults, is_refusal

# The dtypes of REDUCIBLE_DTYPES that gloo and NCCL refuse in all collectives (torch 2.9 to 2.13).
_REFUSED = frozenset({torch.int16})

# Time for backends' threads to release callbacks at the interpreter's end, and polling interval. A
# callback is released within a millisecond of the end of its collective, for which other ranks may
# be needed; if they do not come in that time, it is made to fail, and gets the time again.
_RELEASE_S, _RELEASE_POLL_S = 5.0, 0.005
# Time from the last callback to the interpreter's end. gloo's thread lets go of the call's tensors
# then; for the last reference to one it needs the GIL, and on a busy machine it first waits for a
# core.
_FREE_S = 0.05

# torch's options of each collective.
_OPTIONS: dict[str, Callable[[], Any]] = {
    "allreduce": AllreduceOptions,
    "reduce": ReduceOptions,
    "broadcast": BroadcastOptions,
    "allgather": AllgatherOptions,
    "reduce-scatter": ReduceScatterOptions,
    "gather": GatherOptions,
    "scatter": ScatterOptions,
    "alltoall": AllToAllOptions,
    "alltoallv": AllToAllOptions,
}


def make_stock_call(
    collective: Collective,
    group: Any,
    source: torch.Tensor,
    target: torch.Tensor,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
) -> Callable[..., dist.Work | None]:
    """Return a function that runs a group's stock collective on flat `source` and `target`.

    For allreduce, reduce and broadcast both must be the same tensor. An uneven alltoall is given as
    Demands: pieces of any size, each with the rank that has it and the rank that needs it. For AVG
    the result is the sum, and the caller divides. The function waits for the end and returns None,
    or with `asynchronous=True` returns the Work it has started. It calls the group's own methods:
    the group need not be registered with torch, whose functions also take longer to check and log a
    small call than the group to start it.
    """
    name, is_root = collective.name, group.rank() == collective.root
    splits = (
        _count_splits(collective, group.rank(), source, target)
        if isinstance(collective, Demands)
        else ([], [])
    )
    options = _OPTIONS[name]()
    if name in ("allreduce", "reduce", "reduce-scatter"):
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op)
    if name in ("reduce", "broadcast", "gather", "scatter"):
        options.rootRank = collective.root or 0

    def parts(tensor: torch.Tensor) -> list[list[torch.Tensor]]:
        return [list(tensor.chunk(collective.ranks))] if is_root else []

    calls: dict[str, Callable[[], dist.Work | None]] = {
        "allreduce": lambda: group.allreduce([target], options),
        "reduce": lambda: group.reduce([target], options),
        "broadcast": lambda: group.broadcast([target], options),
        "allgather": lambda: _newest(group, "all_gather_single", "_allgather_base")(
            target, source, options
        ),
        "reduce-scatter": lambda: _newest(group, "reduce_scatter_single", "_reduce_scatter_base")(
            target, source, options
        ),
        "gather": lambda: group.gather(parts(target), [source], options),
        "scatter": lambda: group.scatter([target], parts(source), options),
        "alltoall": lambda: group.alltoall_base(target, source, [], [], options),
        "alltoallv": lambda: group.alltoall_base(target, source, *splits, options),
    }
    call = calls[name]

    def run(*, asynchronous: bool = False) -> dist.Work | None:
        options.asyncOp = asynchronous
        work = call()  # None if C++ has waited already
        if asynchronous or work is None:
            return work
        work.wait()
        return None

    return run


def _count_splits(
    demands: Demands, rank: int, source: torch.Tensor, target: torch.Tensor
) -> tuple[list[int], list[int]]:
    """Return the elements of an uneven alltoall's parts in the output, and in the input."""
    sizes = [0] * demands.ranks, [0] * demands.ranks
    for piece in demands.pieces:
        (holder,), (receiver,) = piece.holders, piece.receivers
        if receiver == rank:
            sizes[0][holder] = piece.size
        if holder == rank:
            sizes[1][receiver] = piece.size
    for listed, tensor in zip(sizes, (target, source), strict=True):
        width = tensor.numel() // max(1, sum(listed))
        listed[:] = [size * width for size in listed]
    return sizes


def _newest(group: Any, name: str, older: str) -> Callable[..., dist.Work | None]:
    """Return a method by its name since torch 2.13, or else by the older one.

    The older one warns in torch 2.13.
    """
    method: Callable[..., dist.Work | None] = getattr(group, name, None) or getattr(group, older)
    return method


@dataclass
class _LastCallback:
    """When a backend's thread called the last callback, on time.monotonic's clock."""

    called_s: float = -_FREE_S


_last = _LastCallback()
# Callbacks that a backend's thread has not released yet, and the faults of their groups; see
# `_await_callbacks`. A forked child has no such thread, and must leave the connections alone.
_callbacks: WeakKeyDictionary[Callable[..., None], Faults] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_callbacks.clear)


@atexit.register
def _await_callbacks() -> None:
    """Wait, before the interpreter ends, until the backend's threads have released our callbacks.

    gloo's thread needs the GIL to free a callback that has run. If the interpreter is finalizing by
    then, Python ends the thread, and C++ aborts the process ("terminate called without an active
    exception").
    """
    _wait_for_release()
    for faults in set(_callbacks.values()):
        faults.break_off(ExecutionError("the process ended during the call"))
    _wait_for_release()
    time.sleep(max(0.0, _last.called_s + _FREE_S - time.monotonic()))


def _wait_for_release() -> None:
    ends = time.monotonic() + _RELEASE_S
    while _callbacks and time.monotonic() < ends:
        time.sleep(_RELEASE_POLL_S)


class StartedStock:
    """A stock collective in progress; handle its end by `call_when_done` or by `wait`, not both.

    If `work` ends well, `finish` is called; if not, `faults` finds the rank at fault for `call`,
    unless the backend refused it: then the error is the backend's own, and the group works on.
    """

    def __init__(
        self, faults: Faults, call: Call, work: dist.Work, finish: Callable[[], None]
    ) -> None:
        self._faults, self._call, self.work, self._finish = faults, call, work, finish

    def call_when_done(self, done: Callable[[BaseException | None], None]) -> bool:
        """Have `done` called at the end, with None or with the error; do not wait.

        Return False, and do nothing, if the backend has no futures (gloo's reduce-scatter): then
        the caller must call `wait`.
        """
        try:
            future = self.work.get_future()
        except RuntimeError:
            return False

        def end(future: torch.futures.Future[list[torch.Tensor]]) -> None:
            failed: Exception | None = None
            _last.called_s = time.monotonic()
            try:
                future.value()
            except RuntimeError as error:
                failed = (
                    error if is_refusal(error) else self._faults.stuck_in_stock(self._call, error)
                )
            else:
                try:
                    self._finish()
                except Exception as error:  # handed to whoever waits
                    failed = error
            done(failed)

        _callbacks[end] = self._faults
        future.add_done_callback(end)
        return True

    def wait(self) -> None:
        """Wait until it is complete, then call `finish`.

        Raise ExecutionError if it fails, and the backend's own error if that refuses it.
        """
        try:
            self.work.wait()
        except RuntimeError as error:
            if is_refusal(error):
                raise
            raise self._faults.stuck_in_stock(self._call, error) from error
        self._finish()


def has_stock(dtype: torch.dtype) -> bool:
    """Return whether gloo and NCCL have collectives for `dtype`, which plans must support.

    The answer depends on the dtype alone, so that ranks need not ask each other.
    """
    return dtype not in _REFUSED
