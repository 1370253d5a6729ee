"""Collectives on tensors without elements and of one element, by plan, again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from ranks.checks import refused
from ranks.topo_backend import start
from topoplan import Communicator

# The first call prepares, the second remembers the address, the third takes the shortest route.
TURNS = 4
SIZES = (0, 1)


def on_a_communicator(paths: Mapping[str, str]) -> None:
    """All eight collectives, each several times on the same tensors."""
    rank, world = dist.get_rank(), dist.get_world_size()
    by_name = {name: Communicator(path, choose="plan") for name, path in paths.items()}
    for numel in SIZES:
        mine, root = torch.full((numel,), float(rank)), rank == 0
        whole, out = torch.arange(world).float().repeat_interleave(numel), torch.empty(numel)
        every, row, all_ranks = torch.empty(numel * world), whole + 10 * rank, sum(range(world))
        x = torch.empty(numel)
        for _ in range(TURNS):
            by_name["allreduce"].allreduce(x.copy_(mine))
            assert (x == all_ranks).all()
            by_name["reduce"].reduce(x.copy_(mine))
            assert not root or (x == all_ranks).all()
            by_name["broadcast"].broadcast(x.copy_(mine + 7))
            assert (x == 7).all()
            by_name["allgather"].allgather(every.fill_(-1), mine)
            assert torch.equal(every, whole)
            by_name["gather"].gather(every.fill_(-1) if root else None, mine)
            assert not root or torch.equal(every, whole)
            by_name["reduce-scatter"].reduce_scatter(out.fill_(-1), whole)
            assert (out == rank * world).all()
            by_name["scatter"].scatter(out.fill_(-1), whole if root else None)
            assert (out == rank).all()
            by_name["alltoall"].alltoall(every.fill_(-1), row)
            assert torch.equal(
                every, torch.cat([torch.full((numel,), 10.0 * of + rank) for of in range(world)])
            )


def on_the_backend(folder: str) -> None:
    """What goes through plans there, synchronous and not, and what torch's own PowerSGD hook
    calls.
    """
    start(plans=folder, least_bytes=0, even_alltoall=True)
    rank, world = dist.get_rank(), dist.get_world_size()
    for numel in SIZES:
        mine, whole = (
            torch.full((numel,), float(rank)),
            torch.arange(world).float().repeat_interleave(numel),
        )
        x, out, every = torch.empty(numel), torch.empty(numel), torch.empty(numel * world)
        parts = [torch.empty(numel) for _ in range(world)]
        calls: list[tuple[Callable[..., Any], tuple[Any, ...], torch.Tensor]] = [
            (dist.all_reduce, (x,), torch.full((numel,), float(sum(range(world))))),
            (dist.broadcast, (x, 1), torch.full((numel,), 1.0)),
            (dist.all_gather_into_tensor, (every, mine), whole),
            (dist.reduce_scatter_tensor, (out, whole), torch.full((numel,), float(rank * world))),
            (dist.all_to_all_single, (every, whole), torch.full((numel * world,), float(rank))),
        ]
        for asynchronous in (False, True) * TURNS:
            for call, (output, *more), wanted in calls:
                x.copy_(mine)
                work = call(output, *more, async_op=asynchronous)
                if work is not None:
                    work.wait()
                assert torch.equal(output, wanted), (call, numel, asynchronous)
            dist.all_gather(parts, mine)
            assert torch.equal(torch.cat(parts), whole)
    net = DDP(torch.nn.Linear(64, 64, bias=False))  # no vectors: one of the hook's tensors is empty
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(5):
        net(torch.ones(2, 64)).sum().backward()


class OneWeight(torch.nn.Module):
    """A model of `numel` weights."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight, self.other = (
            torch.nn.Parameter(torch.ones(numel)),
            torch.nn.Parameter(torch.ones(3)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).sum() + x * self.other.sum()


def on_the_hook(path: str) -> None:
    """Buckets of one parameter each."""
    rank, world = dist.get_rank(), dist.get_world_size()
    hook = topoplan.ddp_hook(path, choose="plan")
    for numel in SIZES:
        model = DDP(OneWeight(numel), bucket_cap_mb=1e-6)
        model.register_comm_hook(None, hook)
        for _ in range(TURNS):
            model.zero_grad(set_to_none=False)
            model(torch.tensor(float(rank))).backward()
            gradient = model.module.weight.grad
            assert gradient.numel() == numel and (gradient == sum(range(world)) / world).all()


def what_is_no_tensor(path: str) -> None:
    """One line, the first time and after a call that is cached."""
    communicator = Communicator(path, choose="plan")
    x = torch.ones(3)
    for _ in range(TURNS):
        with refused(
            "allreduce: got numpy.ndarray, expected a torch.Tensor; pass torch.from_numpy"
        ):
            communicator.allreduce(np.ones(3))  # type: ignore[arg-type]
        with refused("allreduce: got list, expected a torch.Tensor"):
            communicator.allreduce([x])  # type: ignore[arg-type]
        communicator.allreduce(x)
