"""Time a call on all ranks: from a barrier to the slowest rank's end."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions


def time_call_s(
    call: Callable[[], object], meet: Callable[[], object], device: torch.device
) -> float:
    """Return the seconds that `call` takes on this rank, including device work, after `meet`.

    `meet` is a barrier of all ranks. Collective; exceptions of `call` and `meet` are passed on.
    """
    meet()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def find_slowest_s(seconds: list[float], group: Any, device: torch.device) -> list[float]:
    """Return, for each item of `seconds`, the maximum over the ranks of `group` (None: all).

    Collective; all ranks pass equally many and get the same.
    """
    times = torch.tensor(seconds, dtype=torch.float64, device=device)
    options = AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
    everybody: Any = group or dist.group.WORLD
    everybody.allreduce([times], options).wait()
    return [float(x) for x in times.tolist()]
