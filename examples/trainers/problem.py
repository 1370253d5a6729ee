"""What the trainers in this folder share: a small network, data for it, and how a rank reports what
came out.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from topoplan import Communicator

BATCH, FEATURES, CLASSES = 16, 64, 10
# The variable that names the folder in which ranks leave what came out; without it they print it
# only.
RESULT = "TRAINERS_RESULT"


def make_network() -> nn.Sequential:
    """Return a network that is the same on all ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )


def make_data(samples: int = 1024) -> TensorDataset:
    """Return data that can be learnt: each sample's class is the largest of some sums over its
    features.
    """
    numbers = torch.Generator().manual_seed(1)
    features = torch.randn(samples, FEATURES, generator=numbers)
    return TensorDataset(
        features, (features @ torch.randn(FEATURES, CLASSES, generator=numbers)).argmax(1)
    )


def report(losses: Sequence[float], parameters: Mapping[str, torch.Tensor]) -> None:
    """Print this rank's losses and what it sent through plans; leave them, with the parameters, for
    the driver.
    """
    rank = dist.get_rank()
    planned = sorted(
        {_describe(x) for x in gc.get_objects() if type(x) is Communicator and x.wire_bytes}
    )
    if rank == 0:
        print(
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; through plans: "
            f"{'; '.join(planned) or 'nothing'}",
            flush=True,
        )
    if folder := os.environ.get(RESULT):
        values = {
            name: tensor.detach().double().flatten().tolist() for name, tensor in parameters.items()
        }
        result = {"losses": list(losses), "parameters": values, "planned": planned}
        Path(folder, f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")


def _describe(communicator: Communicator) -> str:
    plan = communicator.plan
    strategies = dict.fromkeys(entry.schedule.strategy for entry in plan.entries)
    return f"{plan.collective.name} over {communicator.size} ({', '.join(strategies)})"
