"""Calls on the backend that differ between ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from ranks.topo_backend import start
from topoplan import ExecutionError

SIZE = 1 << 12


def differ(kind: str, choose: str) -> str:
    """Let rank 1 make another call than the others; return the error that this rank gets."""
    start(plans="auto" if choose == "race" else "ring:3", choose=choose, least_bytes=0, quiet_s=20)
    dist.barrier()
    odd = dist.get_rank() == 1
    usual = torch.ones(SIZE)
    calls: dict[str, Callable[[], object]] = {
        "dtype": lambda: dist.all_reduce(torch.ones(SIZE, dtype=torch.float64) if odd else usual),
        "op": lambda: dist.all_reduce(usual, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM),
        "size": lambda: dist.all_reduce(torch.ones(SIZE // 2) if odd else usual),
        "order": lambda: dist.broadcast(usual, 0) if odd else dist.all_reduce(usual),
    }
    try:
        calls[kind]()
        # gloo may have gone on with wrong numbers: then the next calls say so.
        for _ in range(1000):
            dist.all_reduce(torch.ones(SIZE))
    except ExecutionError as error:
        return str(error)
    raise AssertionError("calls that differ went on")
