"""Timing a call on all ranks: from a barrier to the slowest rank's end."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def time_call_s(call: Callable[[], object], meet: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that `call` takes on this rank, device work included, after all ranks have met by `meet`.

    Collective; whatever `call` or `meet` raises goes through.
    """
    meet()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def find_slowest_s(seconds: list[float], group: dist.ProcessGroup | None, device: torch.device) -> list[float]:
    """Return, for each of the times, the longest of any rank of `group` (None: of all). Collective, alike on all ranks."""
    times = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(times, dist.ReduceOp.MAX, group)
    return [float(x) for x in times.tolist()]
