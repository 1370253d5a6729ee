"""A script that torchrun starts, and starts again when a rank dies: restarted.py BACKEND WAY PLAN NEXT_PLAN RESULTS.

It trains a step by the backend or by the hook. In the first attempt rank 0 then puts another plan in the place of the
first, and rank 2 kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import patience
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan


def main(backend: str, way: str, plan: str, next_plan: str, results: str) -> None:
    """Train one step; write down what its gradient was, and by which plan it came."""
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    options: Any = topoplan.backend_options(plan, choose="plan") if backend == "topo" else None
    dist.init_process_group(backend, timeout=patience.deadline(60), pg_options=options)
    model = DDP(torch.nn.Linear(64, 64))
    hook = topoplan.ddp_hook(plan, choose="plan") if way == "hook" else None
    if hook is not None:
        model.register_comm_hook(None, hook)
    model(torch.full((1, 64), float(rank + 1))).sum().backward()
    world: Any = dist.group.WORLD
    communicator = hook.communicator if hook is not None else world.communicators["allreduce", None, "cpu"]
    weight = model.module.weight.grad
    assert weight is not None
    found = [weight.min().item(), weight.max().item(), communicator.plan.hash]
    Path(results, f"{attempt}-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    if attempt == 0:
        if rank == 0:
            Path(next_plan).replace(plan)
        dist.barrier()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
