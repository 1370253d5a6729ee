"""Call MPI's own collectives on flat tensors; plans are raced against them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from ...synth.ir.collective import Collective
from .channel import MpiChannel

ReduceOp = dist.ReduceOp.RedOpType


def has_collective(
    channel: MpiChannel, collective: Collective, dtype: torch.dtype, op: ReduceOp
) -> bool:
    """Return whether MPI has a collective for a dtype and reduction; it adds no half precision."""
    return not collective.reduces or (
        dtype in _name_types(channel.mpi) and op in _name_operations(channel.mpi)
    )


def make_collective(
    channel: MpiChannel,
    collective: Collective,
    source: torch.Tensor,
    target: torch.Tensor,
    op: ReduceOp,
) -> Callable[[], None]:
    """Return a function that calls MPI's collective on flat `source` and `target`.

    For allreduce, reduce and broadcast both must be the same tensor. AVG is a sum: the caller
    divides. The function returns when this rank is done, and has no deadline. Raise KeyError if
    there is no such collective (see `has_collective`).
    """
    mpi, comm, root = channel.mpi, channel.comm, collective.root or 0
    given, got = _view(channel, source, collective), _view(channel, target, collective)
    mine = channel.rank == root
    operation = _name_operations(channel.mpi)[op] if collective.reduces else None
    calls: dict[str, Callable[[], None]] = {
        "allreduce": lambda: comm.Allreduce(mpi.IN_PLACE, got, operation),
        # In place on the root; the other ranks' tensors stay unchanged.
        "reduce": lambda: comm.Reduce(
            mpi.IN_PLACE if mine else got, got if mine else None, operation, root
        ),
        "broadcast": lambda: comm.Bcast(got, root),
        "allgather": lambda: comm.Allgather(given, got),
        "reduce-scatter": lambda: comm.Reduce_scatter_block(given, got, operation),
        "gather": lambda: comm.Gather(given, got if mine else None, root),
        "scatter": lambda: comm.Scatter(given if mine else None, got, root),
        "alltoall": lambda: comm.Alltoall(given, got),
    }
    call = calls[collective.name]
    if target.device.type != "cuda":
        return call

    def call_on_gpu() -> None:
        torch.cuda.current_stream(target.device).synchronize()  # MPI knows nothing of streams
        call()

    return call_on_gpu


def _view(channel: MpiChannel, tensor: torch.Tensor, collective: Collective) -> Any:
    """Return a tensor's memory as mpi4py takes it, and each rank's part of it in elements.

    Without additions the elements are bytes.
    """
    mpi = channel.mpi
    return [
        mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes),
        _name_types(mpi)[tensor.dtype] if collective.reduces else mpi.BYTE,
    ]


@cache
def _name_types(mpi: Any) -> dict[torch.dtype, Any]:
    return {
        torch.float32: mpi.FLOAT,
        torch.float64: mpi.DOUBLE,
        torch.uint8: mpi.UINT8_T,
        torch.int8: mpi.INT8_T,
        torch.int16: mpi.INT16_T,
        torch.int32: mpi.INT32_T,
        torch.int64: mpi.INT64_T,
    }


@cache
def _name_operations(mpi: Any) -> dict[ReduceOp, Any]:
    return {
        dist.ReduceOp.SUM: mpi.SUM,
        dist.ReduceOp.AVG: mpi.SUM,
        dist.ReduceOp.PRODUCT: mpi.PROD,
        dist.ReduceOp.MAX: mpi.MAX,
        dist.ReduceOp.MIN: mpi.MIN,
    }
