"""What scripts do that were written for another backend, and know nothing of plans."""

from __future__ import annotations

import pickle

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from rank_process import init
from torch.nn import Embedding, Linear, Sequential
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from ranks.checks import refused, same_everywhere
from ranks.topo_backend import count_planned, start
from ranks.training import flat, network, seeded, wrapped
from topoplan.runtime.executor import Executor


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


def works_that_are_handed_on(folder: str) -> None:
    """Works of which only C++ keeps hold: DDP's, of the number of ranks that still have inputs, and a tensor's own."""
    start(plans=folder, least_bytes=0)
    rank, world = dist.get_rank(), dist.get_world_size()
    calls = count_planned()
    model = DDP(seeded(network))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = [torch.full((2, 33), float(step)) for step in range(2 + rank)]
    with model.join(divide_by_initial_world_size=False):
        for x in inputs:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    assert same_everywhere(flat(model))
    # What stands in the gradients' place: those of the ranks that still have inputs, divided by their number.
    alone = seeded(network)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    for step in range(1 + world):
        optimizer.zero_grad()
        alone(torch.full((2, 33), float(step))).sum().backward()
        optimizer.step()
    assert torch.allclose(flat(model), flat(alone), atol=1e-6)

    x = torch.full((1000,), float(rank))
    torch._C._distributed_c10d._register_work(x, dist.all_reduce(x, async_op=True))
    assert (torch.ops._c10d_functional.wait_tensor(x) == sum(range(world))).all()
    assert len(calls) > 10

    def fail(*_: object) -> None:
        raise topoplan.ExecutionError("as asked for")

    Executor.run = fail  # type: ignore[method-assign]
    handed_on = dist.all_reduce(x, async_op=True)
    torch._C._distributed_c10d._register_work(x, handed_on)
    del handed_on
    with refused("as asked for", topoplan.ExecutionError):
        torch.ops._c10d_functional.wait_tensor(x)
    with refused("as asked for", topoplan.ExecutionError):
        funcol.all_reduce(x, "sum", dist.group.WORLD).wait()
    with refused("as asked for", topoplan.ExecutionError):
        model(inputs[0]).sum().backward()


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
