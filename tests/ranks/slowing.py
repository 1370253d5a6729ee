"""Ranks whose plan follows the rates of links."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import patience
import torch
import torch.distributed as dist
from reports import tell

from ranks.checks import check_call, refused
from topoplan import Communicator
from topoplan.runtime.backend.options import backend_options
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.ranks.transport import Transport
from topoplan.runtime.register import register

_NUMEL, _USUAL_CALLS = 250_000, 24


def watched_calls_are_right(paths: dict[str, str]) -> None:
    """Make enough calls of each collective for the ranks to agree on their durations twice."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for name, path in paths.items():
        communicator = Communicator(
            path, timeout=patience.deadline(20), choose="plan", on_slow="replan"
        )
        for number in range(9):
            check_call(communicator, name, rank, size, number)
        assert all(row["kind"] != "lost" for row in communicator.recoveries)
        communicator.close()


def what_cannot_be_followed_is_refused(path: str) -> None:
    with refused("on_slow='later': expected one of warn, replan"):
        Communicator(path, on_slow="later")
    with refused("on_slow='replan' excludes a Transport that others share: calls need conn"):
        Communicator(path, Transport(None, patience.deadline(20)), on_slow="replan")
    with refused("on_slow='replan' excludes choose='same-bits': a plan for slow links adds in an"):
        Communicator(path, choose="same-bits", on_slow="replan")


def main(arguments: list[str]) -> int:
    """Make calls until the plan has followed a slow link; tell a pipe when its pace is known, and
    in the end what was done.

    The calls are a communicator's, or torch.distributed's by the backend.
    """
    plan, pipe, way = arguments
    torch.set_num_threads(1)
    timeout = patience.deadline(60)
    if way == "backend":
        register()
        options = backend_options(plan, choose="plan", on_slow="replan")
        dist.init_process_group("topo", timeout=timeout, pg_options=options)
        group = dist.group.WORLD
        assert isinstance(group, TopoGroup)
        follow(dist.all_reduce, partial(getattr, group.planned.around, "recoveries"), pipe)
        dist.barrier()
        dist.destroy_process_group()
    else:
        dist.init_process_group("gloo", timeout=timeout)
        communicator = Communicator(plan, choose="plan", on_slow="replan")
        follow(communicator.allreduce, partial(getattr, communicator, "recoveries"), pipe)
        communicator.close()
    return 0


def follow(
    all_reduce: Callable[[torch.Tensor], object],
    list_rows: Callable[[], list[dict[str, Any]]],
    pipe: str,
) -> None:
    """Make calls and check them until a change has shown its worth; see main."""
    rank, size, number = dist.get_rank(), dist.get_world_size(), 0
    while not any(row["after_s"] for row in list_rows()):
        x = torch.arange(_NUMEL, dtype=torch.float32) + rank * number
        all_reduce(x)
        assert torch.equal(x, torch.arange(_NUMEL) * size + number * size * (size - 1) / 2)
        number += 1
        if number == _USUAL_CALLS:
            tell(pipe)
    tell(pipe, json.dumps(list_rows()))
