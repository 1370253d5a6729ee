"""What calls through plans allocate, and what they keep of the caller's memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from topoplan import Communicator


class CountAllocations(TorchDispatchMode):
    """Notes the operations whose results are in memory that none of their arguments has."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[str] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        fresh = [
            x
            for x in tree_leaves(result)
            if isinstance(x, torch.Tensor) and storage_of(x) not in given
        ]
        self.allocated += [str(func)] * len(fresh)
        return result


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# Lengths by mode: a race takes long, and its winner is a schedule as the others are.
LENGTHS = {"plan": (300, 100_000, 400_000), "model": (300, 400_000), "race": (100_000,)}
# What Python's own objects take in three calls.
SMALL_BYTES = 100_000


def nothing_is_allocated(path: str) -> None:
    with CountAllocations() as count:
        torch.empty(3)
    assert count.allocated  # it does count
    communicators = {choose: Communicator(path, choose=choose) for choose in LENGTHS}
    tensors = {
        choose: [torch.ones(numel) for numel in lengths] for choose, lengths in LENGTHS.items()
    }
    for choose, communicator in communicators.items():
        for x in tensors[choose]:
            for _ in range(3):
                communicator.allreduce(x)
    # Never stopped: before CPython 3.12.9 that crashes where one of torch's threads takes memory at
    # the same time (python/cpython#128679).
    tracemalloc.start()
    for choose, communicator in communicators.items():
        for x in tensors[choose]:
            communicator.allreduce(x)  # another tensor was the last
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            with CountAllocations() as count:
                for _ in range(3):
                    communicator.allreduce(x)
            most = tracemalloc.get_traced_memory()[1] - before
            assert not count.allocated, (choose, x.numel(), count.allocated)
            assert most < SMALL_BYTES, (choose, x.numel(), most)


def new_addresses(path: str) -> None:
    communicator = Communicator(path, choose="plan")
    rank, world = dist.get_rank(), dist.get_world_size()
    held = []
    for turn in range(40):
        x = torch.full((20_000 + turn % 3,), float(rank + turn))
        communicator.allreduce(x)
        assert (x == sum(r + turn for r in range(world))).all()
        if turn % 4 == 0:
            held.append(x)
