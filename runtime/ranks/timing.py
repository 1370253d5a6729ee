"""How long a call takes: from a barrier on, to the slowest rank's end."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def timed_s(call: Callable[[], object], group: dist.ProcessGroup | None, device: torch.device) -> float:
    """Seconds that `call` takes on this rank, device work included, after a barrier of `group` (None: of all ranks).
    Collective; whatever `call` or the barrier raises goes through.
    """
    dist.barrier(group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def slowest_s(seconds: list[float], group: dist.ProcessGroup | None, device: torch.device) -> list[float]:
    """Of each of the times, the longest that any rank of `group` (None: of all) has. Collective, alike on all ranks."""
    box = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(box, dist.ReduceOp.MAX, group)
    return [float(x) for x in box.tolist()]
