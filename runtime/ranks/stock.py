"""The backend's own (stock) collectives on flat tensors: plans are measured beside them, and they are used where they win."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from ...synth.ir.collective import Collective

# the new names are torch 2.13's, where the old ones warn
_ALL_GATHER: Callable[..., object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER: Callable[..., object] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def make_stock_call(
    collective: Collective,
    group: dist.ProcessGroup,
    source: torch.Tensor,
    target: torch.Tensor,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
) -> Callable[[], None]:
    """Return a function that calls the stock collective over `group`, reading flat `source` and writing flat `target`.

    Both are the same tensor for allreduce, reduce and broadcast. AVG is a sum: the caller divides.
    """
    rank, ranks, name = dist.get_rank(group), collective.ranks, collective.name
    is_root = rank == collective.root
    root = dist.get_global_rank(group, collective.root or 0)
    op = dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op

    def parts(tensor: torch.Tensor) -> list[torch.Tensor] | None:
        return list(tensor.chunk(ranks)) if is_root else None

    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: dist.all_reduce(target, op, group),
        "reduce": lambda: dist.reduce(target, root, op, group),
        "broadcast": lambda: dist.broadcast(target, root, group),
        "allgather": lambda: _ALL_GATHER(target, source, group),
        "reduce-scatter": lambda: _REDUCE_SCATTER(target, source, op, group),
        "gather": lambda: dist.gather(source, parts(target), root, group),
        "scatter": lambda: dist.scatter(target, parts(source), root, group),
        "alltoall": lambda: dist.all_to_all_single(target, source, group=group),
    }
    call = calls[name]

    def run() -> None:
        call()

    return run


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
