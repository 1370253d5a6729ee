"""Collectives for groups that have lost a link and no plan: the ranks exchange whole tensors.

Each function gets `exchange`, which returns all ranks' values of its argument, this rank's number,
and the arguments of the ProcessGroup method with its name.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

Exchange = Callable[[object], list[Any]]


def _barrier(exchange: Exchange, rank: int, *args: Any, **kwargs: Any) -> None:
    exchange(None)


def _gather(
    exchange: Exchange,
    rank: int,
    outputs: Sequence[Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    opts: Any,
) -> None:
    # A clone, since pickling a view would send all of its memory.
    parts = exchange(inputs[0].detach().clone())
    if rank == opts.rootRank:
        for output, part in zip(outputs[0], parts, strict=True):
            output.detach().copy_(part)


def _scatter(
    exchange: Exchange,
    rank: int,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[Sequence[torch.Tensor]],
    opts: Any,
) -> None:
    is_root = rank == opts.rootRank
    mine = [part.detach().clone() for part in inputs[0]] if is_root else None
    outputs[0].detach().copy_(exchange(mine)[opts.rootRank][rank])


# By the name of the method.
EXCHANGED: dict[str, Callable[..., None]] = {
    "barrier": _barrier,
    "monitored_barrier": _barrier,
    "gather": _gather,
    "scatter": _scatter,
}
