"""Training under the backend "topo": what people use on top of torch.distributed runs unmodified, and ranks agree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import topoplan
from topoplan.synth.ir.collective import Collective
from topoplan.synth.synthesize import synthesize
from topoplan.topo.presets import preset

RunRanks = Callable[..., list[str]]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans for rings of four and for two ranks."""
    folder: Path = tmp_path_factory.mktemp("plans")
    for ranks in (4, 2):
        topology = preset(f"ring:{ranks}")
        for name in ("allreduce", "allgather", "reduce-scatter"):
            found = synthesize(Collective(name, ranks), topology, time_limit_s=20)
            found.plan.save(folder / f"{name}-{ranks}.json")
    return folder


HEAD = """
dist.barrier()
dist.destroy_process_group()
import topoplan.runtime.register
from torch.distributed._functional_collectives import (
    all_gather_tensor, all_reduce, reduce_scatter_tensor, all_to_all_single)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.executor import Executor
from topoplan.runtime.backend.options import backend_options
played = []
plain_run = Executor.run
def counted(self, schedule, *rest):
    played.append((schedule.collective.name, schedule.collective.ranks))
    return plain_run(self, schedule, *rest)
Executor.run = counted
dist.init_process_group("topo", init_method=f"file://{FILE}-topo", rank=RANK, world_size=WORLD,
    timeout=timedelta(seconds=60), pg_options=backend_options(plans=ARGS[0], choose="plan"))
def model():
    torch.manual_seed(7)
    Linear, ReLU = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(Linear(33, 64), ReLU(), Linear(64, 65), ReLU(), Linear(65, 3))
def batch(rank, step):
    g = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 33, generator=g), torch.randn(16, 3, generator=g)
def train(module, mine, steps=4):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(steps):
        batches = [batch(rank, step) for rank in mine]
        x, y = (torch.cat(parts) for parts in zip(*batches))
        loss = torch.nn.functional.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in module.parameters()]
        return torch.cat([p.reshape(-1) for p in whole]), loss.detach()
serial, _ = train(model(), range(WORLD))
def agrees(parameters, loss):
    others = [torch.empty_like(parameters) for _ in range(WORLD)]
    dist.all_gather(others, parameters)
    assert all(torch.equal(parameters, other) for other in others), "ranks differ"
    assert loss.isfinite() and torch.allclose(parameters, serial, rtol=1e-4, atol=1e-6), (parameters - serial).abs().max()
def used(*names):
    there = set(played)
    played.clear()
    assert there >= set(names), there
"""


def test_what_is_built_on_torch_distributed_runs_through_plans(run_ranks: RunRanks, plans: Path) -> None:
    """DDP, FSDP2 and HSDP train as one process does; functional collectives, compile, DTensor and subgroups are right."""
    body = (
        HEAD
        + """
N = 4 * 512
ones = torch.arange(N, dtype=torch.float32) + RANK
total = sum(torch.arange(N, dtype=torch.float32) + rank for rank in range(WORLD))
assert torch.equal(all_reduce(ones, "sum", dist.group.WORLD) + 0, total)
assert torch.equal(all_reduce(ones, "avg", dist.group.WORLD) + 0, total / WORLD)
assert torch.equal(all_gather_tensor(ones, 0, dist.group.WORLD)[N : 2 * N], ones - RANK + 1)
assert torch.equal(reduce_scatter_tensor(ones, "sum", 0, dist.group.WORLD) + 0, total.chunk(WORLD)[RANK])
swapped = all_to_all_single(ones, None, None, dist.group.WORLD) + 0
assert torch.equal(swapped[: N // 4], torch.arange(N, dtype=torch.float32).chunk(WORLD)[RANK])
used(("allreduce", 4), ("allgather", 4), ("reduce-scatter", 4))

@torch.compile(backend="aot_eager", fullgraph=True)
def compiled(x):
    return all_reduce(x * 2, "sum", dist.group.WORLD) + 1
assert torch.equal(compiled(ones), 2 * total + 1)
used(("allreduce", 4))

mesh = init_device_mesh("cpu", (WORLD,))
partial = DTensor.from_local(ones, mesh, [Partial()])
assert torch.equal(partial.redistribute(mesh, [Replicate()]).to_local(), total)
assert torch.equal(partial.redistribute(mesh, [Shard(0)]).full_tensor(), total)
assert torch.equal(distribute_tensor(total, mesh, [Shard(0)]).full_tensor(), total)
used(("allreduce", 4), ("reduce-scatter", 4), ("allgather", 4))

agrees(*train(DDP(model()), [RANK]))
used(("allreduce", 4))
agrees(*train(DDP(model(), bucket_cap_mb=0.005, gradient_as_bucket_view=True), [RANK]))
used(("allreduce", 4))

sharded = model()
for layer in (sharded[0], sharded[2], sharded):
    fully_shard(layer, mesh=mesh)
agrees(*train(sharded, [RANK]))
used(("allgather", 4), ("reduce-scatter", 4))

grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
assert type(grid.get_group("shards")) is TopoGroup
hybrid = model()
for layer in (hybrid[0], hybrid[2], hybrid):
    fully_shard(layer, mesh=grid)
agrees(*train(hybrid, [RANK]))
used(("allgather", 2), ("reduce-scatter", 2), ("allreduce", 2))

pair = dist.new_group([1, 2])
if RANK in (1, 2):
    tensor = ones.clone()
    dist.all_reduce(tensor, group=pair)
    assert torch.equal(tensor, 2 * torch.arange(N) + 3.0)
    used(("allreduce", 2))
    tensor = torch.full((2 * N,), float(RANK))
    dist.broadcast(tensor, 2, group=pair)
    assert (tensor == 2).all() and not played
    dist.destroy_process_group(pair)
dist.all_reduce(ones)
assert torch.equal(ones, total)
"""
    )
    run_ranks(body, 4, str(plans))


SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def dataset():
    torch.manual_seed(1)
    x = torch.randn(256, 20)
    return TensorDataset(x, x @ torch.randn(20, 1))


def network():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def train(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


def main():
    dist.init_process_group(backend="gloo")
    data = dataset()
    model = DDP(network())
    train(model, DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False)), 3)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "snapshot.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def test_an_unmodified_script_needs_the_backends_name_alone(tmp_path: Path) -> None:
    """With torchrun; torch finds the backend through the entry point, as of an installed package."""
    info = tmp_path / "site" / "topoplan-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: topoplan\nVersion: 0\n", encoding="utf-8")
    points = "[torch.backends]\ntopo = topoplan.runtime.register:register\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    assert SCRIPT.count("gloo") == 1
    (tmp_path / "script.py").write_text(SCRIPT.replace("gloo", "topo"), encoding="utf-8")
    home = Path(topoplan.__file__).parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(info.parent), str(home)]),
        "OMP_NUM_THREADS": "1",
        "TOPOPLAN_CACHE": str(tmp_path / "cache"),
    }
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "script.py"]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert [file.name.split("-")[0] for file in (tmp_path / "cache").iterdir() if "allreduce" in file.name] == [
        "allreduce"
    ]

    alone: dict[str, Callable[..., object]] = {}
    exec(SCRIPT.replace("__main__", "nowhere"), alone)
    model, x, y = alone["network"](), *alone["dataset"]().tensors  # type: ignore[attr-defined]
    whole = [(x[i : i + 32], y[i : i + 32]) for i in range(0, 256, 32)]
    alone["train"](model, whole, 3)
    for name, value in torch.load(tmp_path / "snapshot.pt").items():
        assert torch.allclose(value, model.state_dict()[name], rtol=1e-4, atol=1e-6), name  # type: ignore[attr-defined]


@pytest.mark.gpu
def test_the_backend_on_a_gpu_agrees_with_nccl(on_one_gpu: Callable[..., None], tmp_path: Path) -> None:
    """DDP's gradients through the backend are those of NCCL itself."""
    body = """
    topo = dist.new_group(backend="topo", pg_options=topoplan.backend_options("ring:2", "model", cache=ARGS[0]))
    stock, mine = gradients(), gradients(group=topo)
    assert torch.allclose(stock, mine, rtol=1e-5, atol=1e-8) and mine.abs().sum() > 0
    assert topo.communicators["allreduce", None, "cuda"].wire_bytes > 0
    """
    on_one_gpu(body, str(tmp_path / "cache"))
