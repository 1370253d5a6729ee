"""The DDP hook: replicas agree bitwise, stay close to stock, and errors arrive as themselves."""

from __future__ import annotations

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
def test_the_hook_on_a_gpu_agrees_with_stock(on_one_gpu: Callable[..., None], plans: Callable[..., str]) -> None:
    """The side stream's averages are DDP's own; compressed ones are near them."""
    body = """
    stock, mine = gradients(), gradients(topoplan.ddp_hook(ARGS[0]))
    assert torch.allclose(stock, mine, rtol=1e-5, atol=1e-8) and mine.abs().sum() > 0
    short = gradients(topoplan.ddp_hook(ARGS[0], compress="int8", error_feedback=True))
    assert (stock - short).abs().max() <= 0.05 * stock.abs().max()
    """
    on_one_gpu(body, plans("ring:2"))
