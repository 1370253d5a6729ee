"""What is built on torch.distributed, under the backend: DDP, FSDP2, HSDP, DTensor, functional
collectives, subgroups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import (
    all_gather_tensor,
    all_reduce,
    all_to_all_single,
    reduce_scatter_tensor,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import Module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

from ranks.checks import same_everywhere
from ranks.topo_backend import count_planned, start
from ranks.training import batch, network, seeded
from topoplan.runtime.backend.process_group import TopoGroup

N = 4 * 512


def train(module: Module, ranks: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parameters after four steps on these ranks' batches, and the last loss."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loss = torch.zeros(())
    for step in range(4):
        batches = [batch(rank, step) for rank in ranks]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        loss = mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
        return torch.cat([p.reshape(-1) for p in whole]), loss.detach()


def sharded(mesh: DeviceMesh) -> Module:
    from torch.distributed.fsdp import fully_shard  # slow, and imported before ranks are forked

    model: Any = seeded(network)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    shards: Module = model
    return shards


def everything(folder: str) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    planned = count_planned()
    start(plans=folder)
    rank, world = dist.get_rank(), dist.get_world_size()
    group: Any = dist.group.WORLD
    serial, _ = train(seeded(network), range(world))
    ramp = torch.arange(N, dtype=torch.float32)
    given, added = ramp + rank, torch.stack([ramp + r for r in range(world)]).sum(0)

    def assert_planned(*calls: tuple[str, int]) -> None:
        assert set(planned) >= set(calls), planned
        planned.clear()

    def assert_like_serial(trained: tuple[torch.Tensor, torch.Tensor]) -> None:
        parameters, loss = trained
        assert same_everywhere(parameters), "ranks differ"
        assert loss.isfinite()
        assert torch.allclose(parameters, serial, rtol=1e-4, atol=1e-6), (
            (parameters - serial).abs().max()
        )

    assert torch.equal(all_reduce(given, "sum", group) + 0, added)
    assert torch.equal(all_reduce(given, "avg", group) + 0, added / world)
    assert torch.equal(all_gather_tensor(given, 0, group)[N : 2 * N], ramp + 1)
    assert torch.equal(reduce_scatter_tensor(given, "sum", 0, group) + 0, added.chunk(world)[rank])
    swapped = all_to_all_single(given, None, None, group) + 0
    assert torch.equal(swapped[: N // 4], ramp.chunk(world)[rank])
    assert_planned(("allreduce", 4), ("allgather", 4), ("reduce-scatter", 4))

    mesh = init_device_mesh("cpu", (world,))
    partial = DTensor.from_local(given, mesh, [Partial()])
    assert torch.equal(partial.redistribute(mesh, [Replicate()]).to_local(), added)
    assert torch.equal(partial.redistribute(mesh, [Shard(0)]).full_tensor(), added)
    assert torch.equal(distribute_tensor(added, mesh, [Shard(0)]).full_tensor(), added)
    assert_planned(("allreduce", 4), ("reduce-scatter", 4), ("allgather", 4))

    assert_like_serial(train(DDP(seeded(network)), [rank]))
    assert_planned(("allreduce", 4))
    assert_like_serial(
        train(DDP(seeded(network), bucket_cap_mb=0.005, gradient_as_bucket_view=True), [rank])
    )
    assert_planned(("allreduce", 4))
    assert_like_serial(train(sharded(mesh), [rank]))
    assert_planned(("allgather", 4), ("reduce-scatter", 4))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    assert type(grid.get_group("shards")) is TopoGroup
    assert_like_serial(train(sharded(grid), [rank]))
    assert_planned(("allgather", 2), ("reduce-scatter", 2), ("allreduce", 2))

    pair = dist.new_group([1, 2])
    if rank in (1, 2):
        tensor = given.clone()
        dist.all_reduce(tensor, group=pair)
        assert torch.equal(tensor, 2 * ramp + 3)
        assert_planned(("allreduce", 2))
        tensor = torch.full((2 * N,), float(rank))
        dist.broadcast(tensor, 2, group=pair)
        assert (tensor == 2).all()
        assert not planned

        @torch.compile(backend="aot_eager", fullgraph=True)
        def compiled(x: torch.Tensor) -> torch.Tensor:
            increased: torch.Tensor = all_reduce(x * 2, "sum", pair) + 1
            return increased

        assert torch.equal(compiled(given), 2 * (2 * ramp + 3) + 1)
        assert_planned(("allreduce", 2))
        dist.destroy_process_group(pair)
    dist.all_reduce(given)
    assert torch.equal(given, added)
