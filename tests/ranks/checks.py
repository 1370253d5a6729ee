"""What many ranks check: that an error is raised, that all ranks hold the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

import topoplan
from topoplan import Communicator
from topoplan.synth.ir.schedule import Schedule

SUMS = dist.ReduceOp.SUM
MEANS = dist.ReduceOp.AVG
CHECKED_NUMEL = 60_000
# As torch names them of late, and before.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def always_stock(size_bytes: int, schedules: Sequence[Schedule]) -> None:
    """Choose the stock collective at every size (for `choose`)."""


@contextmanager
def refused(text: str, kind: type[Exception] = topoplan.InputError) -> Iterator[None]:
    """Assert that the body raises an error of that kind whose one line contains `text`."""
    try:
        yield
    except kind as error:
        assert text in str(error), error
        assert "\n" not in str(error), error
    else:
        raise AssertionError(f"accepted; expected {kind.__name__}: {text}")


def from_all(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    """Return the tensors of all ranks."""
    tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(tensors, tensor, group)
    return tensors


def same_everywhere(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> bool:
    """Return whether all ranks hold the same bits."""
    return all(torch.equal(tensor, other) for other in from_all(tensor, group))


def normal(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normally distributed numbers, another sample for each rank."""
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank)).to(dtype)


def total(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum of tensors."""
    return torch.stack(tensors).sum(0)


def check_call(communicator: Communicator, name: str, rank: int, size: int, number: int) -> None:
    """Make a call on values of this rank's, other ones for each number, and check its result."""

    def part(of: int) -> torch.Tensor:
        return torch.arange(CHECKED_NUMEL, dtype=torch.float32) + 100 * of + number

    mine, root = part(rank), communicator.plan.collective.root
    every = torch.cat([part(other) for other in range(size)])
    total = every.view(size, -1).sum(0)
    out = torch.empty(CHECKED_NUMEL)
    if name == "allreduce":
        communicator.allreduce(mine, dist.ReduceOp.AVG)
        assert torch.equal(mine, total / size)
    elif name == "broadcast":
        communicator.broadcast(mine)
        assert root is not None
        assert torch.equal(mine, part(root))
    elif name == "reduce":
        communicator.reduce(mine)
        assert rank != root or torch.equal(mine, total)
    elif name == "allgather":
        gathered = torch.empty(size * CHECKED_NUMEL)
        communicator.allgather(gathered, mine)
        assert torch.equal(gathered, every)
        assert torch.equal(mine, part(rank))
    elif name == "reduce-scatter":
        given = torch.cat([part(rank)] * size)
        communicator.reduce_scatter(out, given)
        assert torch.equal(out, total)
        assert torch.equal(given, torch.cat([part(rank)] * size))
    else:
        received = torch.empty(size * CHECKED_NUMEL)
        communicator.alltoall(received, torch.cat([part(rank)] * size))
        assert torch.equal(received, every)
