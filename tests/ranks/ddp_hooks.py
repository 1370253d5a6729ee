"""Several hooks side by side, overlap with backward, and hooks used wrongly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import patience
import torch
import torch.distributed as dist
from torch.nn import Embedding, Linear, Sequential
from torch.nn.functional import mse_loss
from torch.nn.parallel.distributed import _MixedPrecision

import topoplan
from ranks.checks import same_everywhere
from ranks.ddp_options import MANY, Comparison, backward, data, fixed_order
from ranks.training import Hook, distance, flat, network, preparing, wrapped
from topoplan.runtime.ranks.race_timing import MAX_CALLS

# By use: the type and the first line of what was raised.
Errors = dict[str, tuple[str, str]]


def right_and_wrong(path: str, for_two: str) -> tuple[list[tuple[str, str]], Errors]:
    """Return the hashes of `fixed_order`, and the errors of wrong use."""
    hook: Any = topoplan.ddp_hook(path, choose="model")
    two_models(hook, topoplan.ddp_hook(path, choose="plan"))
    hashes = fixed_order(path)
    choice_of_a_race(topoplan.ddp_hook(path, choose="race"))
    backward_goes_on(hook)
    return hashes, wrong_uses(path, for_two)


def two_models(hook: Hook, other: Hook) -> None:
    """Two models whose backward passes alternate or are one, with one hook and with one each."""
    stock = train_two(None, None)
    for second in (hook, other):
        trained = train_two(hook, second)
        assert same_everywhere(trained)
        assert distance(trained, stock) <= 1e-6


def train_two(hook_a: Hook | None, hook_b: Hook | None) -> torch.Tensor:
    a, b = (
        wrapped(network, hook_a, **MANY),
        wrapped(lambda: Sequential(network(), Linear(3, 3)), hook_b, **MANY),
    )
    optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.05)
    for step in range(8):
        x, y = data(step)
        losses = mse_loss(a(x), y), mse_loss(b(x), y)
        if step % 2:
            (losses[0] + losses[1]).backward()
        else:
            losses[1].backward()
            losses[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([flat(a), flat(b)])


def choice_of_a_race(hook: Any) -> None:
    """It is made within the first backwards, at the same one on all ranks, and can be asked for."""
    ddp = wrapped(network, hook)
    size_bytes = 4 * flat(ddp).numel()
    settled: list[bool] = []
    for step in range(MAX_CALLS):
        settled.append(hook.communicator.choice(size_bytes) is not None)
        backward(ddp, step)
    settled_on_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(settled_on_all, settled)
    assert settled_on_all == [settled] * len(settled_on_all) and not settled[0]
    choice = hook.communicator.choice(size_bytes)
    labels: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(labels, (choice.label, choice.raced))
    assert labels == [labels[0]] * len(labels)
    assert choice.label in choice.raced


def backward_goes_on(hook: Any) -> None:
    """The average of the first bucket waits until the gradient is there that backward computes
    last.
    """
    last_gradient, prepare = threading.Event(), hook.communicator.calls.prepare

    def wait_for_gradient() -> None:
        assert last_gradient.wait(patience.seconds(60)), "backward waits for its first bucket"

    ddp = wrapped(network, hook, **MANY)
    backward(ddp, 0)
    hook.communicator.calls.prepare = preparing(prepare, wait_for_gradient)
    ddp.module[0].bias.register_hook(lambda gradient: last_gradient.set())
    backward(ddp, 1)
    assert last_gradient.is_set()
    hook.communicator.calls.prepare = prepare


def wrong_uses(path: str, for_two: str) -> Errors:
    errors: Errors = {}

    def note(use: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            errors[use] = type(error).__name__, str(error).splitlines()[0]

    note("other world", lambda: topoplan.ddp_hook(for_two))
    hook: Any = topoplan.ddp_hook(path, choose="model")
    note("twice", lambda: wrapped(network, hook).register_comm_hook(None, hook))
    mixed = wrapped(network, None, mixed_precision=_MixedPrecision(torch.bfloat16, torch.bfloat16))
    note("mixed_precision", lambda: mixed.register_comm_hook(None, hook))
    note("float8", lambda: hook.communicator.allreduce(torch.zeros(8).to(torch.float8_e4m3fn)))
    sparse = wrapped(lambda: Embedding(20, 8, sparse=True), hook)
    note("sparse", lambda: sparse(torch.tensor([dist.get_rank(), 5])).sum().backward())
    Comparison(hook).check("after errors that were not faults", network)

    falling: Any = topoplan.ddp_hook(path, choose="model", timeout=patience.deadline(6))
    ddp = wrapped(network, falling)
    backward(ddp, 0)
    if dist.get_rank() == dist.get_world_size() - 1:

        def fall() -> None:
            raise ZeroDivisionError("fell over")

        falling.communicator.calls.prepare = preparing(falling.communicator.calls.prepare, fall)
    note("fault", lambda: backward(ddp, 1))
    backward(wrapped(network, hook), 0)
    return errors
