"""The DDP hook: replicas agree bitwise, stay close to stock, and errors arrive as themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topoplan.synth.synthesize import collective_on, synthesize
from topoplan.topo.presets import preset

RunRanks = Callable[..., list[str]]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("plans") / "plan.json"
    topology = preset("ring:4")
    synthesize(collective_on("allreduce", topology), topology, "auto", 20).plan.save(path)
    return str(path)


HEAD = """
from torch.nn.parallel import DistributedDataParallel as DDP
def model():
    torch.manual_seed(7)
    Linear, ReLU = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(Linear(33, 64), ReLU(), Linear(64, 65), ReLU(), Linear(65, 3))
def train(ddp, steps, accumulate=False):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(RANK)
    for step in range(steps):
        x, y = torch.randn(16, 33, generator=g), torch.randn(16, 3, generator=g)
        if accumulate and step % 2 == 0:
            with ddp.no_sync():
                torch.nn.functional.mse_loss(ddp(x), y).backward()
            continue
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])
def same_everywhere(flat):
    other = [torch.empty_like(flat) for _ in range(WORLD)]
    dist.all_gather(other, flat)
    return all(torch.equal(flat, o) for o in other)
hook = topoplan.ddp_hook(ARGS[0])
"""


def test_replicas_agree_bitwise_and_with_stock(run_ranks: RunRanks, plan: str) -> None:
    """20 steps, one bucket and many, views, unused parameters' flag, no_sync, one hook for all models."""
    body = (
        HEAD
        + """
many = dict(bucket_cap_mb=0.005)
for options in ({}, many, dict(many, gradient_as_bucket_view=True), dict(static_graph=True),
                dict(find_unused_parameters=True)):
    for accumulate in (False, True):
        if accumulate and options.get("static_graph"):
            continue
        stock = train(DDP(model(), **options), 20, accumulate)
        ddp = DDP(model(), **options)
        ddp.register_comm_hook(None, hook)
        mine = train(ddp, 20, accumulate)
        assert same_everywhere(mine), options
        assert (mine - stock).abs().max() <= 1e-6 * stock.abs().max(), (options, (mine - stock).abs().max())
assert not torch.equal(mine, torch.cat([p.detach().reshape(-1) for p in model().parameters()]))
"""
    )
    run_ranks(body, 4, plan)


def test_half_precision_buckets(run_ranks: RunRanks, plan: str) -> None:
    body = (
        HEAD
        + """
ddp = DDP(model().bfloat16())
ddp.register_comm_hook(None, hook)
x = torch.randn(16, 33, generator=torch.Generator().manual_seed(RANK)).bfloat16()
ddp(x).float().square().mean().backward()
grads = torch.cat([p.grad.reshape(-1) for p in ddp.parameters()])
assert same_everywhere(grads) and grads.abs().sum() > 0
"""
    )
    run_ranks(body, 4, plan)


def test_errors_surface_as_themselves(run_ranks: RunRanks, plan: str) -> None:
    """What fails in the background reaches the training loop with its own message, on the rank where it failed."""
    body = (
        HEAD
        + """
import topoplan.runtime.ddp as module
def broken(communicator, tensor, residual):
    raise topoplan.ExecutionError("rank 3 fell over")
module._average = broken
ddp = DDP(model())
ddp.register_comm_hook(None, hook)
try:
    train(ddp, 1)
except Exception as error:
    assert "rank 3 fell over" in str(error), error
    print("said")
"""
    )
    assert all("said" in out for out in run_ranks(body, 4, plan))


def test_wrong_plans_are_refused_on_every_rank(run_ranks: RunRanks, plan: str, tmp_path: Path) -> None:
    topology = preset("ring:4")
    path = tmp_path / "gather.json"
    synthesize(collective_on("allgather", topology), topology, "ring", 20).plan.save(path)
    body = """
    try:
        topoplan.ddp_hook(ARGS[0])
    except topoplan.InputError as error:
        print(error)
    """
    said = run_ranks(body, 4, str(path))
    assert all("DDP needs a plan for allreduce" in out for out in said)


@pytest.mark.gpu
def test_the_hook_on_a_gpu_agrees_with_stock(tmp_path: Path) -> None:
    """Two NCCL ranks on one GPU (distinct NCCL_HOSTID): the side stream's averages are DDP's own."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    topology = preset("ring:2")
    plan = tmp_path / "plan.json"
    synthesize(collective_on("allreduce", topology), topology, "auto", 20).plan.save(plan)
    script = tmp_path / "rank.py"
    script.write_text(
        f"""
import os, torch, torch.distributed as dist, topoplan
rank = int(os.environ["RANK"])
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="file://{tmp_path}/rendezvous", rank=rank, world_size=2)
def gradients(hook):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.02)
    if hook:
        model.register_comm_hook(None, hook)
    for step in range(3):
        model.zero_grad()
        model(torch.randn(16, 64, generator=torch.Generator().manual_seed(rank)).cuda()).square().mean().backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])
stock, mine = gradients(None), gradients(topoplan.ddp_hook({str(plan)!r}))
assert torch.allclose(stock, mine, rtol=1e-5, atol=1e-8) and mine.abs().sum() > 0
short = gradients(topoplan.ddp_hook({str(plan)!r}, compress="int8", error_feedback=True))
assert (stock - short).abs().max() <= 0.05 * stock.abs().max()
os._exit(0)
"""
    )
    nccl = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)], env={**os.environ, **nccl, "RANK": str(r), "NCCL_HOSTID": f"r{r}"}
        )
        for r in range(2)
    ]
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
