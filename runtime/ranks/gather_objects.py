"""Gather small objects over a group that torch.distributed may not know."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions


def gather_objects(group: Any, size: int, device: torch.device, value: object) -> list[Any]:
    """Return the values of all ranks, by rank; raise RuntimeError if a rank does not answer.

    Collective.
    """
    data = pickle.dumps(value)
    lengths = _gather(group, torch.tensor([len(data)], device=device), size).tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = _gather(group, padded.to(device), size).cpu().view(size, -1)
    return [
        pickle.loads(row[:length].numpy().tobytes())
        for row, length in zip(rows, lengths, strict=True)
    ]


def _gather(group: Any, tensor: torch.Tensor, size: int) -> torch.Tensor:
    result = tensor.new_empty(size * tensor.numel())
    gather = (
        getattr(group, "all_gather_single", None) or group._allgather_base
    )  # the new name is torch 2.13's
    gather(result, tensor, AllgatherOptions()).wait()
    return result
