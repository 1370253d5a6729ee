"""What ranks do with a placement."""

from __future__ import annotations

import torch
import torch.distributed as dist

import topoplan


def make_device_mesh() -> tuple[list[int], list[int], str]:
    """Reduce over both dimensions of a mesh of two hosts whose ranks are dealt round-robin: who
    took part in each, and what is said of a placement for another number of ranks.
    """
    placement = topoplan.place(
        "dgx-a100:2",
        "dp=2,tp=2",
        "tp=allreduce:1G",
        without_ranks=[*range(2, 8), *range(10, 16)],
        order=[0, 8, 1, 9],
    )
    mesh = topoplan.device_mesh(placement, "cpu")
    took_part = []
    for name in ("dp", "tp"):
        mine = torch.zeros(4)
        mine[dist.get_rank()] = 1
        dist.all_reduce(mine, group=mesh.get_group(name))
        took_part.append(mine.nonzero().flatten().tolist())
    try:
        topoplan.device_mesh(topoplan.place("ring:3"))
    except topoplan.InputError as error:
        return took_part[0], took_part[1], str(error)
    raise AssertionError("a mesh of three among four ranks")
