"""The trainers of examples/trainers that need torch alone, as ranks of a test."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ranks.topo_backend import count_planned, end, start

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "trainers"


def fsdp_with_tensor_parallelism(plans: str) -> None:
    """Train on the stock group of the launch, and then under the backend: the same bits."""
    sys.path.insert(0, str(FOLDER))
    example = importlib.import_module("train_fsdp_tp")
    stock_losses, stock = example.train(_make_mesh(), layers=1, steps=2)
    planned = count_planned()
    start(plans=plans, least_bytes=1)
    losses, parameters = example.train(_make_mesh(), layers=1, steps=2)
    # Each sum is over two ranks, which leaves no choice of order.
    assert losses == stock_losses
    assert all(torch.equal(parameters[name], tensor) for name, tensor in stock.items())
    assert {("allgather", 2), ("reduce-scatter", 2), ("allreduce", 2)} <= set(planned), planned
    end()


def _make_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
