"""What many ranks check: that an error is raised, that all ranks hold the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

import topoplan
from topoplan.synth.ir.schedule import Schedule

SUMS = dist.ReduceOp.SUM
MEANS = dist.ReduceOp.AVG
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
