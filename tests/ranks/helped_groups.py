"""Groups of the backend with helpers, made by topoplan.new_group."""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import topoplan
from ranks.checks import refused
from topoplan import Schedule


def choose_helped(_: int, candidates: Any) -> Schedule | str:
    """Choose a schedule with helpers if there is one."""
    return next((x for x in candidates if x.helpers), "plan")


def all_ways(paths: list[str]) -> list[Any]:
    """Call collectives in groups that help each other, and return what ran them."""
    rank = dist.get_rank()
    options = topoplan.backend_options(choose=choose_helped, least_bytes=0)
    first = topoplan.new_group([0, 1], plans=paths[0], options=options)
    second = topoplan.new_group([1, 2, 3], [0], plans=paths[1:], options=options)
    alone = topoplan.new_group([2, 3], "none", options=topoplan.backend_options(plans="off"))
    x = torch.arange(1000.0) + rank
    if rank < 2:
        for turn in range(3):
            y = x.clone()
            dist.all_reduce(y, group=first)
            assert torch.equal(y, 2 * torch.arange(1000.0) + 1), turn
    if rank > 0:
        for numel in (3, 3000, 300, 3000):
            y = torch.full((numel,), float(rank))
            work = dist.all_reduce(y, group=second, async_op=True)
            assert work is not None
            z = torch.full((numel,), float(rank))
            dist.broadcast(z, 2, group=second)
            work.wait()
            assert (y == 6).all()
            assert (z == 2).all()
    if rank > 1:
        y = torch.full((10,), float(rank))
        dist.all_reduce(y, group=alone)
        assert (y == 5).all()
    used = [
        [choice.label for choice in of_group(group)]
        for group, members in ((first, (0, 1)), (second, (1, 2, 3)))
        if rank in members
    ]
    dist.barrier()
    if rank == 1:  # members may end a group in any order
        dist.destroy_process_group(second)
        dist.destroy_process_group(first)
    return used


def of_group(group: Any) -> list[Any]:
    """Return the choices that a group has made."""
    return [
        one.choice(numel * 4)
        for one in group.communicators.values()
        if one is not None
        for numel in (1000, 3000)
        if one.choice(numel * 4) is not None
    ]


def refuse_ranks() -> None:
    """Every rank refuses bad input in one line."""
    for ranks, helpers, says in (
        ([0], "rest", "expected at least two ranks"),
        ([0, 9], "rest", "ranks: no rank 9; ranks are 0 to 2"),
        ([0, 1, 1], "rest", "ranks: rank 1 is listed 2 times"),
        ([0, 1], [1], "helpers: rank 1 is a member of the group"),
        ([0, 1], "all", "helpers='all': expected rest, none, or ranks"),
    ):
        with refused(says):
            topoplan.new_group(ranks, helpers)  # type: ignore[arg-type]
    with refused("options is int"):
        topoplan.new_group([0, 1], options=3)
    with refused("helpers='most': expected"):
        topoplan.backend_options(helpers="most")  # type: ignore[arg-type]


def race(topology: str, calls: int) -> list[Any]:
    """Settle a size by a trial in which help takes part; the helper ends its script early."""
    rank = dist.get_rank()
    group = topoplan.new_group(
        [0, 2], plans=topology, timeout=timedelta(seconds=60),
        options=topoplan.backend_options(least_bytes=0),
    )  # fmt: skip
    if rank == 1:
        dist.destroy_process_group()
        atexit._run_exitfuncs()  # as a script that is done: serves as long as members need it
        return []
    for _ in range(calls):
        x = torch.full((2000,), float(rank))
        dist.all_reduce(x, group=group)
        assert (x == 2).all()
    communicator = group.communicators["allreduce", None, "cpu"]
    choice = communicator.choice(8000)
    return sorted(choice.raced)
