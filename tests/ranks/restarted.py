"""A script that torchrun starts, and starts again when a rank dies: restarted.py PLAN NEXT_PLAN
RESULTS.

It reduces by the backend and by the hook's communicator (DDP itself would take seconds to import).
In the first attempt rank 0 then puts another plan in the place of the first, and rank 2 kills
itself.
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

import topoplan


def main(plan: str, next_plan: str, results: str) -> None:
    """Reduce, and write down what came of it, and by which plans."""
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    options: Any = topoplan.backend_options(plan, choose="plan")
    dist.init_process_group("topo", timeout=patience.deadline(60), pg_options=options)
    of_backend, of_hook = torch.full((4096,), rank + 1.0), torch.full((4096,), rank + 1.0)
    dist.all_reduce(of_backend)
    world: Any = dist.group.WORLD
    hook = topoplan.ddp_hook(plan, choose="plan").communicator
    hook.allreduce(of_hook)
    sums = [edge.item() for tensor in (of_backend, of_hook) for edge in tensor.aminmax()]
    hashes = [world.communicators["allreduce", None, "cpu"].plan.hash, hook.plan.hash]
    Path(results, f"{attempt}-{rank}.json").write_text(json.dumps([sums, hashes]), encoding="utf-8")
    dist.barrier()
    if attempt == 0 and dist.get_world_size() > 2:
        if rank == 0:
            Path(next_plan).replace(plan)
        dist.barrier()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
