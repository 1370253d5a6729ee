"""The hook without a plan: the backend finds one, and stock runs until there is one."""

from __future__ import annotations

import pickle

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

import topoplan
from ranks.checks import refused
from ranks.training import batch, distance, flat, network, wrapped
from topoplan.runtime.ddp import PlanlessHook


def train(cache: str) -> list[str]:
    """Train with and without the hook; return the schedules that ran, once plans have begun."""
    policy = topoplan.Policy(choose="plan", least_bytes=64, cache=cache)
    hook = topoplan.ddp_hook(policy=policy)
    assert isinstance(hook, PlanlessHook)
    models = [wrapped(network, hook), wrapped(network, None)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    for step in range(6):
        x, y = batch(dist.get_rank(), step)
        for model, optimizer in zip(models, optimizers, strict=True):
            mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert distance(flat(models[0]), flat(models[1])) < 1e-6
    again = pickle.loads(pickle.dumps(hook))
    assert repr(again) == repr(hook)
    assert "the backend finds plans, choose='plan'" in repr(hook)
    with refused("a hook without a plan has no communicator"):
        assert hook.communicator
    with refused("error_feedback without a plan"):
        topoplan.ddp_hook(compress="int8", error_feedback=True)
    used = [size.schedule for part in hook.summary().groups for size in part.sizes]
    # Before their groups; see docs/troubleshooting.md.
    del model, models, optimizer, optimizers
    dist.destroy_process_group(hook.group)
    return used
