"""Timeouts that torch sets anew (`_set_pg_timeout`), as torchtitan does after its first step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import patience
import torch
import torch.distributed as dist
from rank_process import Events, leave

from ranks.checks import always_stock
from ranks.topo_backend import start

# Longer than the test may take.
LONG_S = 3600.0


def set_timeout(timeout: timedelta) -> None:
    """Set the default group's timeout as torch does."""
    dist.distributed_c10d._set_pg_timeout(timeout)


def start_group(plan: str, executor: str, on_fault: str, timeout_s: float) -> None:
    """Make the default group one of the backend, and some calls."""
    stock: dict[str, Any] = {"choose": always_stock} if executor == "stock" else {}
    if not stock:
        stock["executor"] = executor
    start(timeout_s, plans=plan, on_fault=on_fault, least_bytes=0, **stock)
    for _ in range(3):
        dist.all_reduce(torch.ones(5000))


def shorten(plan: str, executor: str, on_fault: str) -> str:
    """Shorten the timeout; return the error of the rank whose peer makes no call."""
    start_group(plan, executor, on_fault, LONG_S)
    set_timeout(patience.deadline(2))
    events, error = Events(), ""
    if dist.get_rank() == 1:
        events.wait("over")
        leave("")
    try:
        dist.all_reduce(torch.ones(5000))
    except RuntimeError as raised:
        error = str(raised)
    events.tell("over")
    leave(error)


def lengthen(plan: str, ways: Sequence[tuple[str, str]]) -> None:
    """Lengthen the timeout of a group of each way: executor, and what is done on a fault."""
    for number, (executor, on_fault) in enumerate(ways):
        lengthen_one(plan, executor, on_fault, f"called in group {number}")


def lengthen_one(plan: str, executor: str, on_fault: str, called: str) -> None:
    """A rank calls well after the other one's timeout before."""
    start_group(plan, executor, on_fault, 60)
    set_timeout(timedelta(milliseconds=1))
    set_timeout(timedelta(seconds=LONG_S))
    events, tensor = Events(), torch.ones(5000)
    if dist.get_rank() == 1:
        events.wait(called)
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 0:
        events.tell(called)
    assert work is not None
    work.wait()
    assert (tensor == 2).all()
