"""What scripts do that were written for another backend, and know nothing of plans."""

from __future__ import annotations

import pickle

import torch
import torch.distributed as dist
from rank_process import init
from torch.nn import Embedding, Linear, Sequential
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from ranks.checks import refused, same_everywhere
from ranks.topo_backend import count_planned, start
from ranks.training import network, seeded, wrapped


def tensors_of_other_layouts(folder: str) -> None:
    """Sparse tensors, alone and as gradients; inputs that are expanded, which are only read."""
    start(plans=folder, least_bytes=0)
    rank, world = dist.get_rank(), dist.get_world_size()
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank, 7]]), torch.ones(2), (9,))
    dist.all_reduce(sparse)
    wanted = torch.zeros(9)
    wanted[:world] = 1
    wanted[7] = world
    assert torch.equal(sparse.to_dense(), wanted)

    model = DDP(seeded(lambda: Sequential(Embedding(10, 4, sparse=True), Linear(4, 2))))
    model(torch.tensor([rank, 3])).sum().backward()
    gradient = model.module[0].weight.grad
    assert gradient.is_sparse and same_everywhere(gradient.to_dense())

    calls = count_planned()
    expanded = torch.full((1,), float(rank)).expand(6)
    whole = torch.empty(6 * world)
    dist.all_gather_into_tensor(whole, expanded)
    assert torch.equal(whole, torch.arange(world).float().repeat_interleave(6))
    parts = [torch.empty(6) for _ in range(world)]
    dist.all_gather(parts, expanded)
    assert torch.equal(torch.cat(parts), whole)
    mine = torch.empty(3)
    dist.reduce_scatter_tensor(mine, torch.ones(1).expand(3 * world))
    assert (mine == world).all()
    assert [name for name, _ in calls] == ["allgather", "allgather", "reduce-scatter"]


def other_ways_to_call(folder: str) -> None:
    """A process group's own methods, what a profile shows of them, and errors that scripts catch."""
    start(plans=folder, least_bytes=0)
    group, world = dist.distributed_c10d._get_default_group(), dist.get_world_size()
    x = torch.ones(1000)
    group.allreduce(x).wait()
    group.allreduce(x, dist.ReduceOp.MAX).wait()
    assert (x == world).all()
    with torch.profiler.profile() as profile:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(torch.empty(3000), x[:1000], async_op=True).wait()
    ranges = {event.key for event in profile.key_averages()}
    assert {"topo:all_reduce", "topo:all_gather"} <= ranges and any(key.startswith("topo: ") for key in ranges), ranges
    with refused("complex64", RuntimeError):
        topoplan.Communicator(f"{folder}/allreduce.json").allreduce(torch.ones(3, dtype=torch.complex64))


def a_saved_model(path: str) -> str:
    """A hook that was made before the process group; a model with it, pickled and trained on. Return its repr."""
    dist.destroy_process_group()
    hook = topoplan.ddp_hook(path, choose="model")
    init("-late")
    model = wrapped(network, hook)

    def train(ddp: DDP) -> torch.Tensor:
        ddp(torch.full((2, 33), float(dist.get_rank()))).sum().backward()
        gradients = torch.cat([p.grad.reshape(-1) for p in ddp.parameters() if p.grad is not None])
        ddp.zero_grad()
        return gradients

    first = train(model)
    assert same_everywhere(first)
    copy = pickle.loads(pickle.dumps(hook))
    sent = hook.communicator.wire_bytes
    assert torch.equal(train(wrapped(network, copy)), first)
    assert copy.communicator.wire_bytes > 0 and hook.communicator.wire_bytes == sent
    return repr(hook)
