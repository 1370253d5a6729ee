"""A small model and its data, for tests of DDP and of what is built like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Linear, Module, ReLU, Sequential
from torch.nn.parallel import DistributedDataParallel as DDP

Hook = Callable[..., torch.futures.Future[torch.Tensor]]


def network() -> Sequential:
    return Sequential(Linear(33, 64), ReLU(), Linear(64, 65), ReLU(), Linear(65, 3))


def seeded(make: Callable[[], Module] = network, seed: int = 7) -> Module:
    """Return a model that is the same on all ranks."""
    torch.default_generator.manual_seed(seed)  # of all devices, it takes long
    return make()


def wrapped(
    make: Callable[[], Module],
    hook: Hook | None,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> DDP:
    """Return a model under DDP, by `hook` or by DDP's own allreduce."""
    ddp = DDP(seeded(make), process_group=group, **options)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


def batch(
    rank: int, step: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of a rank's step."""
    g = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 33, generator=g).to(dtype), torch.randn(16, 3, generator=g).to(dtype)


def flat(model: Module) -> torch.Tensor:
    """Return all parameters, one after the other, in float32."""
    parameters = [p.detach() for p in model.parameters()]
    return torch.cat(
        [(torch.view_as_real(p) if p.is_complex() else p.float()).reshape(-1) for p in parameters]
    )


def distance(values: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest value wanted."""
    return float((values - wanted).abs().max() / wanted.abs().max())


def preparing(prepare: Callable[..., Any], first: Callable[[], None]) -> Callable[..., Any]:
    """Return a `prepare` whose calls do something `first` when they run."""

    def prepare_call(*args: object, **kwargs: object) -> Any:
        task = prepare(*args, **kwargs)
        run = task.run

        def run_then(number: int | None = None) -> None:
            task.run = run  # the call may be cached, and used again
            first()
            run(number)

        task.run = run_then
        return task

    return prepare_call
