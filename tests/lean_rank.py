"""A rank in a fresh process of its own, which writes down what it has imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import Linear
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from topoplan.runtime.backend.process_group import TopoGroup

# Steps after which the trials of a size are over; see test_first_calls.
_STEPS = 21


def main(folder: str, rank: str) -> None:
    """Train until it is settled what is used; write the names of all modules that are imported."""
    dist.init_process_group(
        "topo",
        init_method=f"file://{folder}/meeting",
        rank=int(rank),
        world_size=2,
        pg_options=topoplan.backend_options(),
    )
    ddp = DDP(Linear(64, 64, bias=False))
    for _ in range(_STEPS):
        ddp(torch.ones(2, 64)).sum().backward()
    group = dist.group.WORLD
    assert isinstance(group, TopoGroup)
    communicator = group.communicators["allreduce", None, "cpu"]
    assert communicator is not None
    assert communicator.choice(4 * 64 * 64) is not None
    Path(folder, f"{rank}.json").write_text(json.dumps(sorted(sys.modules)), "utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
