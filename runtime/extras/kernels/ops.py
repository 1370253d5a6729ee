"""Offer collectives by one-sided kernels as torch operators, which torch.compile keeps in a graph.

In one-sided kernels the ranks read or write each other's memory themselves, without messages.
Operators take the name under which `KernelGroup` registers a group of ranks. Sizes may be mixed in
any order, as long as all ranks call in the same one.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from ....synth.ir.collective import CollectiveName
from ....synth.ir.schedule import Schedule
from ....topo.errors import InputError
from ..native.library import BY_WIDTH, suits
from ..one_sided.instructions import Mode
from .player import KernelPlayer

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_groups: WeakValueDictionary[str, "KernelGroup"] = WeakValueDictionary()


class KernelGroup:
    """Runs a group's collectives by kernels, under a name by which torch's operators find it.

    `choose` takes a collective and the size of its buffer in bytes, and returns (schedule, mode),
    the same on all ranks; the mode is "pull" or "push". The name is free again when the object is
    deleted. `player` runs the kernels.
    """

    def __init__(
        self,
        name: str,
        player: KernelPlayer,
        choose: Callable[[CollectiveName, int], tuple[Schedule, Mode]],
    ) -> None:
        self.name, self.player, self.ranks = name, player, player.memory.region.ranks
        self._choose = choose
        _groups[name] = self

    def run_collective(
        self,
        collective: CollectiveName,
        source: torch.Tensor,
        target: torch.Tensor,
        numel: int,
        op: str = "sum",
    ) -> None:
        """Run a collective whose buffer has `numel` elements from `source` to `target`.

        Both are contiguous tensors on the GPU; `op` is the reduction, such as "sum". Raise
        InputError if the kernels have no such reduction or cannot move such elements.
        """
        if op not in _OPS:
            raise InputError(f"op {op!r}; expected one of {', '.join(_OPS)}")
        schedule, mode = self._choose(collective, numel * source.element_size())
        dtype = source.dtype
        if not schedule.collective.reduces:
            if not suits(dtype, None):
                raise InputError(f"{collective}: {dtype} is too wide; pass torch.view_as_real(it)")
            dtype = BY_WIDTH[dtype.itemsize]
        loaded = self.player.load(
            schedule, numel, dtype, _OPS[op], mode=mode, in_place=source is target
        )
        self.player.launch(loaded, source.view(dtype), target.view(dtype))


def find_group(name: str) -> KernelGroup:
    """Return the group registered under a name; raise InputError if there is none."""
    if name not in _groups:
        raise InputError(f"no group of kernels is named {name!r}; known: {sorted(_groups)}")
    return _groups[name]


def _find_group_of(ranks: int, name: str) -> KernelGroup:
    group = find_group(name)
    if ranks != group.ranks:
        raise InputError(f"ranks={ranks}: the group {name!r} has {group.ranks}; pass as many")
    return group


def _play_in_place(collective: CollectiveName, tensor: torch.Tensor, op: str, group: str) -> None:
    flat = tensor if tensor.is_contiguous() else tensor.contiguous()
    find_group(group).run_collective(collective, flat, flat, tensor.numel(), op)
    if flat is not tensor:
        tensor.copy_(flat)


@torch.library.custom_op("topoplan::one_sided_allreduce_", mutates_args=("tensor",))
def allreduce_(tensor: torch.Tensor, op: str, group: str) -> None:
    """Reduce `tensor` over all ranks of the group named `group`, in place; `op` as in "sum"."""
    _play_in_place("allreduce", tensor, op, group)


@torch.library.custom_op("topoplan::one_sided_broadcast_", mutates_args=("tensor",))
def broadcast_(tensor: torch.Tensor, group: str) -> None:
    """Overwrite `tensor` with the schedule root's, on all ranks of the group named `group`."""
    _play_in_place("broadcast", tensor, "sum", group)


@torch.library.custom_op("topoplan::one_sided_allreduce", mutates_args=())
def allreduce(tensor: torch.Tensor, op: str, group: str) -> torch.Tensor:
    """Return the reduction (`op` as in "sum") of `tensor` over the ranks of group `group`."""
    source, result = tensor.contiguous(), _make_like(tensor, tensor.shape)
    find_group(group).run_collective("allreduce", source, result, tensor.numel(), op)
    return result


@torch.library.custom_op("topoplan::one_sided_allgather", mutates_args=())
def allgather(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Return all ranks' tensors, concatenated along the first dimension.

    `ranks` is the number of ranks in the group named `group`; raise InputError if it is not.
    """
    source, result = tensor.contiguous(), _make_like(tensor, _grow(tensor, ranks))
    _find_group_of(ranks, group).run_collective("allgather", source, result, result.numel())
    return result


@torch.library.custom_op("topoplan::one_sided_reduce_scatter", mutates_args=())
def reduce_scatter(tensor: torch.Tensor, ranks: int, op: str, group: str) -> torch.Tensor:
    """Return this rank's equal part, along the first dimension, of the reduction over all ranks.

    `ranks` is the number of ranks in the group named `group`; raise InputError if it is not. `op`
    is as in "sum".
    """
    source, result = tensor.contiguous(), _make_like(tensor, _shrink(tensor, ranks))
    _find_group_of(ranks, group).run_collective(
        "reduce-scatter", source, result, tensor.numel(), op
    )
    return result


@torch.library.custom_op("topoplan::one_sided_alltoall", mutates_args=())
def alltoall(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Exchange parts: return part number `rank` of every rank's tensor, concatenated.

    Tensors are divided into `ranks` equal parts along the first dimension; `rank` is this one in
    the group named `group`. Raise InputError if the group has another number of ranks.
    """
    _shrink(tensor, ranks)
    source, result = tensor.contiguous(), _make_like(tensor, tensor.shape)
    _find_group_of(ranks, group).run_collective("alltoall", source, result, tensor.numel())
    return result


@allreduce_.register_fake
def _fake_allreduce_(tensor: torch.Tensor, op: str, group: str) -> None:
    return None


@broadcast_.register_fake
def _fake_broadcast_(tensor: torch.Tensor, group: str) -> None:
    return None


@allreduce.register_fake
def _fake_allreduce(tensor: torch.Tensor, op: str, group: str) -> torch.Tensor:
    return _make_like(tensor, tensor.shape)


@allgather.register_fake
def _fake_allgather(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    return _make_like(tensor, _grow(tensor, ranks))


@reduce_scatter.register_fake
def _fake_reduce_scatter(tensor: torch.Tensor, ranks: int, op: str, group: str) -> torch.Tensor:
    return _make_like(tensor, _shrink(tensor, ranks))


@alltoall.register_fake
def _fake_alltoall(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    return _make_like(tensor, tensor.shape)


def _make_like(tensor: torch.Tensor, shape: Any) -> torch.Tensor:
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


def _grow(tensor: torch.Tensor, ranks: int) -> list[int]:
    return [tensor.shape[0] * ranks, *tensor.shape[1:]]


def _shrink(tensor: torch.Tensor, ranks: int) -> list[int]:
    if tensor.shape[0] % ranks:
        raise InputError(
            f"a tensor of shape {tuple(tensor.shape)}; expected a first dimension that {ranks} "
            "ranks divide"
        )
    return [tensor.shape[0] // ranks, *tensor.shape[1:]]
