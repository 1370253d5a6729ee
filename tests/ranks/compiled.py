"""torch.compile around models and calls of the backend: each case trains, and ranks agree."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import (
    allow_inflight_collective_as_graph_input_ctx,
)
from torch.nn import Linear
from torch.nn.parallel import DistributedDataParallel as DDP

from ranks.checks import same_everywhere
from ranks.topo_backend import start

STEPS = 3


def train(step: Callable[[torch.Tensor], torch.Tensor], model: torch.nn.Module) -> None:
    """Take some steps, and compare the gradients of all ranks."""
    for number in range(STEPS):
        model.zero_grad()
        step(torch.full((2, 64), float(dist.get_rank() + number))).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None and same_everywhere(parameter.grad)


def every_order(choose: str) -> None:
    """Compile a DDP model, DDP a compiled model, and compile functions with collectives in them."""
    start(plans="auto" if choose == "race" else "ring:2", choose=choose, least_bytes=0)
    torch.manual_seed(0)
    ddp = DDP(Linear(64, 64))
    train(torch.compile(ddp, backend="aot_eager"), ddp)
    own = DDP(Linear(64, 64))
    own.compile(backend="aot_eager")
    train(own, own)
    inner = DDP(torch.compile(Linear(64, 64), backend="aot_eager"))
    train(inner, inner)

    @torch.compile(backend="aot_eager")
    def with_broadcast(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.broadcast(y, 0)
        return y + 1

    @torch.compile(backend="aot_eager")
    def with_asynchronous_call(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        return y + 1

    world = dist.get_world_size()
    for number in range(STEPS):
        x = torch.full((64,), float(dist.get_rank() + number))
        assert torch.equal(with_broadcast(x), torch.full((64,), 2.0 * number + 1))
        wanted = 2.0 * sum(rank + number for rank in range(world)) + 1
        assert torch.equal(with_asynchronous_call(x), torch.full((64,), wanted))


def count_registered(at: int) -> dict[str, list[int]]:
    """Return the works in torch's registry before, during and after calls, from number `at` on."""
    start(plans="auto", choose="race")
    for _ in range(at - 1):
        dist.all_reduce(torch.ones(1))
    one, strided, parts = torch.ones(1), torch.ones(8)[::2], list(torch.ones(2).chunk(2))
    calls: dict[str, Callable[[], dist.Work | None]] = {
        "allreduce": lambda: dist.all_reduce(one, async_op=True),
        "average": lambda: dist.all_reduce(one, dist.ReduceOp.AVG, async_op=True),
        "strided": lambda: dist.all_reduce(strided, async_op=True),
        "broadcast": lambda: dist.broadcast(one, 0, async_op=True),
        "strided broadcast": lambda: dist.broadcast(strided, 0, async_op=True),
        "allgather": lambda: dist.all_gather(parts, torch.ones(1), async_op=True),
    }
    count = torch._C._distributed_c10d._get_work_registry_size
    counts = {}
    with allow_inflight_collective_as_graph_input_ctx():
        for name, call in calls.items():
            before, work = count(), call()
            assert work is not None
            during = count()
            work.wait()
            counts[name] = [before, during, count()]
    return counts
