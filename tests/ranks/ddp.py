"""DDP with the hook: replicas, half precision, and errors from the background."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from ranks.checks import refused, same_everywhere
from ranks.training import distance, flat, network, preparing, wrapped

MANY_BUCKETS: dict[str, Any] = {"bucket_cap_mb": 0.005}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    MANY_BUCKETS,
    {**MANY_BUCKETS, "gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True},
)


def train(ddp: DDP, steps: int, accumulate: bool = False) -> torch.Tensor:
    """Return the parameters after `steps`, every other one accumulating only if asked to."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        x, y = torch.randn(16, 33, generator=g), torch.randn(16, 3, generator=g)
        if accumulate and step % 2 == 0:
            with ddp.no_sync():
                mse_loss(ddp(x), y).backward()
            continue
        mse_loss(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(ddp)


def replicas_and_errors(path: str) -> None:
    """Steps under every option, bfloat16, and an error in the background, with one hook for all
    models.
    """
    hook = topoplan.ddp_hook(path)
    for options in OPTIONS:
        for accumulate in (False, True) if options in OPTIONS[1:3] else (False,):
            # A race for the size of one bucket, and for those of many, is settled within 20 steps.
            steps = 20 if options in OPTIONS[:2] and not accumulate else 4
            stock = train(wrapped(network, None, **options), steps, accumulate)
            trained = train(wrapped(network, hook, **options), steps, accumulate)
            assert same_everywhere(trained), options
            assert distance(trained, stock) <= 1e-6, (options, distance(trained, stock))
            assert not torch.equal(trained, flat(wrapped(network, None)))

    ddp = wrapped(lambda: network().bfloat16(), hook)
    x = torch.randn(16, 33, generator=torch.Generator().manual_seed(dist.get_rank())).bfloat16()
    ddp(x).float().square().mean().backward()
    gradients = torch.cat([p.grad.reshape(-1) for p in ddp.parameters() if p.grad is not None])
    assert same_everywhere(gradients)
    assert gradients.abs().sum() > 0

    def fall() -> None:
        raise topoplan.ExecutionError("rank 3 fell over")

    hook = topoplan.ddp_hook(path, choose="plan")  # a race may go to stock
    hook.communicator.calls.prepare = preparing(hook.communicator.calls.prepare, fall)  # type: ignore[method-assign]
    with refused("rank 3 fell over", topoplan.ExecutionError):
        train(wrapped(network, hook), 1)


def wrong_collective(path: str) -> None:
    with refused("DDP needs a plan for allreduce"):
        topoplan.ddp_hook(path)
