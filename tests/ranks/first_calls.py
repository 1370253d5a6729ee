"""The first calls of the backend by default: stock ones, then trials, then what has won."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import Linear
from torch.nn.parallel import DistributedDataParallel as DDP

from ranks.topo_backend import end, start
from topoplan import InputError
from topoplan.runtime.backend.process_group import TopoGroup


def group() -> TopoGroup:
    """Return the default group."""
    world = dist.group.WORLD
    assert isinstance(world, TopoGroup)
    return world


def train_with_ddp() -> list[list[str]]:
    """Train for 21 steps; return what is settled for the gradients' size before each of them."""
    start(plans="auto", choose="race")
    torch.manual_seed(0)
    ddp = DDP(Linear(64, 64, bias=False))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    settled = []
    for step in range(21):
        communicator = group().communicators.get(("allreduce", None, "cpu"))
        choice = None if communicator is None else communicator.choice(4 * 64 * 64)
        settled.append("" if choice is None else choice.label)
        optimizer.zero_grad()
        ddp(torch.full((2, 64), float(dist.get_rank() + step))).sum().backward()
        optimizer.step()
    weights = ddp.module.weight.detach()
    everybody = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, weights)
    assert all(torch.equal(weights, other) for other in everybody)
    return [settled]


def leave_to_gloo() -> None:
    """Strided tensors, which gloo alone takes for contiguous ones, and tags that are the backend's
    own.
    """
    start(plans="off", choose="race")
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.int64):
        for asynchronous in (False, True):
            whole = torch.full((6, 4), rank + 1, dtype=dtype)
            part = whole[:, 1:3]
            work = dist.all_reduce(part, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert (part == world * (world + 1) // 2).all() and (whole[:, 0] == rank + 1).all()
            work = dist.broadcast(part, world - 1, async_op=asynchronous)
            if asynchronous:
                work.wait()
            root = torch.full((8, 3), rank + 1, dtype=dtype).t()
            dist.reduce(root, 0)
            assert rank or (root == world * (world + 1) // 2).all()
    message = torch.zeros(4)
    if rank == 0:
        dist.send(torch.ones(4), 1, tag=(1 << 30) - 1)
    elif rank == 1:
        dist.recv(message, 0, tag=(1 << 30) - 1)
        assert (message == 1).all()
    try:
        dist.isend(message, (rank + 1) % world, tag=1 << 30)
    except InputError as error:
        assert "use a smaller one" in str(error)
    else:
        raise AssertionError("a tag of the backend's was taken")
    end()
