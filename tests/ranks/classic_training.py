"""Models, batches and references for the classic systems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

import torch
from torch.nn import Module, Parameter
from torch.nn.functional import mse_loss

from ranks.checks import from_all
from ranks.training import batch, network, seeded
from topoplan import Device, Link, Topology


def model(seed: int = 7, dtype: torch.dtype = torch.float32) -> Module:
    return seeded(network, seed).to(dtype)


def sgd(parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain_sgd(rate: float) -> Callable[[Iterable[Parameter]], torch.optim.Optimizer]:
    """Return a maker of optimizers without momentum."""
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def backward(
    net: Module, worker: int, step: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return the loss of a worker's batch, its gradients added to the model's."""
    x, y = batch(worker, step, dtype)
    loss = mse_loss(net(x), y)
    loss.backward()
    return loss


def flat(net: Module) -> torch.Tensor:
    """Return all parameters, one after the other, in their dtype."""
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def averaged(workers: int, steps: int, seed: int = 7) -> torch.Tensor:
    """Return what one process ends with that averages the gradients of all workers' batches."""
    net = model(seed)
    optimizer = sgd(net.parameters())
    for step in range(steps):
        for worker in range(workers):
            backward(net, worker, step)
        for p in net.parameters():
            assert p.grad is not None
            p.grad /= workers
        optimizer.step()
        optimizer.zero_grad()
    return flat(net)


def spread(tensor: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the distance of all replicas from their mean, and the mean."""
    rows = torch.stack(from_all(tensor)).double()
    return float((rows - rows.mean(0)).norm()), rows.mean(0)


def two_boxes() -> Topology:
    """Return two boxes of two GPUs, joined by a network a tenth as fast."""
    devices = [Device(f"gpu{i}") for i in range(4)]
    devices += [
        Device("s0", "switch", "pcie"),
        Device("s1", "switch", "pcie"),
        Device("net", "switch", "network"),
    ]
    pairs = [(f"gpu{i}", f"s{i // 2}", Fraction(10)) for i in range(4)]
    pairs += [(f"s{i}", "net", Fraction(1)) for i in range(2)]
    links = [Link(*ends, rate) for a, b, rate in pairs for ends in ((a, b), (b, a))]
    return Topology("boxes", tuple(devices), tuple(links))
