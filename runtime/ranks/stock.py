"""The backend's own (stock) collectives on flat tensors: plans are measured beside them, and they are used where they win."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

from ...synth.ir.collective import Collective
from .faults import Call, Faults

StockCall = Callable[..., dist.Work | None]
"""Makes a stock collective: waits for it, or returns its Work where it is called with `asynchronous=True`."""

# the new names are torch 2.13's, where the old ones warn
_ALL_GATHER: Callable[..., dist.Work | None] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER: Callable[..., dist.Work | None] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def make_stock_call(
    collective: Collective,
    group: dist.ProcessGroup,
    source: torch.Tensor,
    target: torch.Tensor,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
) -> StockCall:
    """Return a function that calls the stock collective over `group`, reading flat `source` and writing flat `target`.

    Both are the same tensor for allreduce, reduce and broadcast. AVG is a sum: the caller divides. With `asynchronous` it
    returns the Work of what it has started.
    """
    rank, ranks, name = group.rank(), collective.ranks, collective.name
    is_root = rank == collective.root
    root = dist.get_global_rank(group, collective.root or 0)
    op = dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op
    if name == "allreduce":
        return _make_allreduce(group, target, op)

    def parts(tensor: torch.Tensor) -> list[torch.Tensor] | None:
        return list(tensor.chunk(ranks)) if is_root else None

    calls: dict[str, Callable[[bool], dist.Work | None]] = {
        "reduce": lambda later: dist.reduce(target, root, op, group, later),
        "broadcast": lambda later: dist.broadcast(target, root, group, later),
        "allgather": lambda later: _ALL_GATHER(target, source, group, later),
        "reduce-scatter": lambda later: _REDUCE_SCATTER(target, source, op, group, later),
        "gather": lambda later: dist.gather(source, parts(target), root, group, later),
        "scatter": lambda later: dist.scatter(target, parts(source), root, group, later),
        "alltoall": lambda later: dist.all_to_all_single(target, source, group=group, async_op=later),
    }
    call = calls[name]

    def run(*, asynchronous: bool = False) -> dist.Work | None:
        return call(asynchronous)

    return run


def _make_allreduce(group: dist.ProcessGroup, target: torch.Tensor, op: dist.ReduceOp.RedOpType) -> StockCall:
    """Return an allreduce of `target`, right at the group: DDP makes one for every bucket, and torch's own function takes
    longer to check and to log it than the group to start it.
    """
    options = AllreduceOptions()
    options.reduceOp = dist.ReduceOp(op)

    def run(*, asynchronous: bool = False) -> dist.Work | None:
        options.asyncOp = asynchronous
        work: dist.Work | None = group.allreduce([target], options)  # None where C++ has waited already
        if asynchronous or work is None:
            return work
        work.wait()
        return None

    return run


class StartedStock:
    """A stock collective under way, `work`, as the `call` that `faults` knows it by; `finish` has what is left to do then."""

    def __init__(self, faults: Faults, call: Call, work: dist.Work, finish: Callable[[], None]) -> None:
        self._faults, self._call, self._work, self._finish = faults, call, work, finish

    def call_when_done(self, done: Callable[[BaseException | None], None]) -> bool:
        """Have `done` called at the end, with None, or with the ExecutionError where the collective fails. Returns False where
        the backend has no futures (gloo's reduce-scatter): then somebody has to `wait`.
        """
        try:
            future = self._work.get_future()
        except RuntimeError:
            return False

        def end(future: torch.futures.Future[list[torch.Tensor]]) -> None:
            failed: Exception | None = None
            try:
                future.value()
            except RuntimeError as error:
                failed = self._faults.stuck_in_stock(self._call, error)
            else:
                try:
                    self._finish()
                except Exception as error:  # handed to whoever waits
                    failed = error
            done(failed)

        future.add_done_callback(end)
        return True

    def wait(self) -> None:
        """Wait until it is through. Raises ExecutionError where it fails."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._faults.stuck_in_stock(self._call, error) from error
        self._finish()


def is_possible(call: Callable[[], object], group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """Return whether the backend can make a stock `call` at all: tried, and agreed on by all ranks of `group` (None: all).

    Raises RuntimeError where the ranks no longer reach each other: then a failed call says nothing of the backend.
    """
    failed: Exception | None = None
    try:
        call()
    except (RuntimeError, ValueError) as error:
        failed = error
    any_failed = torch.tensor([failed is not None], dtype=torch.int32, device=device)
    try:
        dist.all_reduce(any_failed, dist.ReduceOp.MAX, group)
        return not any_failed.item()
    except RuntimeError as error:
        raise (failed if isinstance(failed, RuntimeError) else error) from None
