"""Systems that average parameters with neighbours on a graph: contraction, bytes, loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Linear
from torch.nn.functional import mse_loss

import topoplan
from examples import classic
from ranks.checks import normal, same_everywhere
from ranks.classic_training import flat, model, plain_sgd, spread
from topoplan import Topology


def contract_and_train() -> None:
    contracts(topoplan.load("path:4"))
    contracts_in_8_bits(sent_a_step=contracts(None))
    losses_are_near_to_stock()


def contracts(topology: Topology | None) -> float:
    """Averaging alone keeps the mean and contracts by the second eigenvalue at least; return the
    bytes sent a step.
    """
    net = model()
    system = classic.make("neighbours", net, plain_sgd(0.0), topology=topology)
    report: Any = system.report()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(dist.get_rank())))
    before, mean = spread(flat(net))
    for _ in range(4):
        system.step()
        after, mean_after = spread(flat(net))
        assert after <= report["contraction"] * before * (1 + 1e-5), (topology, after, before)
        assert (mean_after - mean).abs().max() <= 1e-6 * mean.abs().max(), topology
        before = after
    sent = system.bytes_sent
    assert sent is not None
    assert sent == 4 * len(report["neighbours"]) * flat(net).nbytes
    last = flat(net)
    system.finish()
    assert same_everywhere(flat(net))
    report = system.report()
    assert abs(report["distance"] - (last - flat(net)).norm()) <= 1e-5
    return float(sent / 4)


def contracts_in_8_bits(sent_a_step: float) -> None:
    """Nearly as fast, in 0.27 of the bytes."""
    net = model()
    system = classic.make("neighbours-8bit", net, plain_sgd(1.0))
    report: Any = system.report()
    towards = normal(dist.get_rank(), flat(net).numel())
    (torch.cat([p.reshape(-1) for p in net.parameters()]) * towards).sum().backward()
    system.step()
    first, mean = spread(flat(net))
    before, mean_after = first, mean
    for _ in range(10):
        system.step()
        after, mean_after = spread(flat(net))
        assert after <= max((report["contraction"] + 0.05) * before, 1e-3 * first), (after, before)
        before = after
    moved = (mean_after - mean).norm()
    assert before <= 2e-2 * first, before / first
    assert moved <= 2e-2 * first, moved / first
    assert system.bytes_sent is not None
    assert system.bytes_sent / 11 <= 0.27 * sent_a_step
    system.finish()
    assert same_everywhere(flat(net))


def losses_are_near_to_stock() -> None:
    teacher = normal(99, 33).reshape(33, 1)

    def samples(worker: int) -> tuple[torch.Tensor, torch.Tensor]:
        g = torch.Generator().manual_seed(worker)
        x = torch.randn(256, 33, generator=g)
        return x, x @ teacher + 0.1 * torch.randn(256, 1, generator=g)

    all_x, all_y = (torch.cat(parts) for parts in zip(*map(samples, range(4)), strict=True))
    losses = {}
    for name in ("stock", "neighbours", "neighbours-8bit"):
        torch.manual_seed(7)
        net = Linear(33, 1)
        system = classic.make(name, net, plain_sgd(0.2), topology=topoplan.load("ring:4"))
        x, y = samples(dist.get_rank())
        for _ in range(30):
            mse_loss(net(x), y).backward()
            system.step()
        system.finish()
        losses[name] = mse_loss(net(all_x), all_y).item()
    assert losses["stock"] < 0.02, losses
    assert all(loss <= 1.05 * losses["stock"] for loss in losses.values()), losses
