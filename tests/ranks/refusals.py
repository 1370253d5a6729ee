"""Collectives that gloo refuses, such as bitwise reductions of floats, and calls after them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from rank_process import init

import topoplan
from ranks.checks import always_stock, reduce_scatter_single
from ranks.stock import ENOUGH, topo_group
from topoplan.runtime.ranks import links

BAND, BXOR = dist.ReduceOp.BAND, dist.ReduceOp.BXOR
# What torch says before an error that a future's callback raised.
_OF_CALLBACK = "Got the following error when running the callback: RuntimeError: "
# What came of each call: the error's type and first line, or "done".
Outcomes = dict[str, str]


def of_groups(at: int, modes: Mapping[str, Mapping[str, str]]) -> dict[str, Outcomes]:
    """Return what became of refused calls from call number `at` on, in a group of gloo, and in one
    of the backend in each mode, whose variables are added to the environment.
    """
    outcomes = {"gloo": of_group("gloo", "gloo", at)}
    for mode, variables in modes.items():
        with patch.dict(os.environ, variables):
            outcomes[mode] = of_group(mode, "topo", at)
    return outcomes


def of_group(name: str, backend: str, at: int) -> Outcomes:
    """Return what became of refused calls in a new group. After each, a usual call must work."""
    # No barrier: gloo's waits for works that its threads have not put away yet, and raises what
    # one of them has failed of, as a refused call does that was caught long ago.
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    init(f"-{name}", backend=backend)
    for _ in range(at - 1):
        dist.all_reduce(torch.ones(1000))
    outcomes: Outcomes = {}
    for name, call in list_refused().items():
        outcomes[name] = try_call(call)
        usual = torch.full((5000,), float(dist.get_rank()))
        dist.all_reduce(usual)
        assert (usual == 1).all(), name
    return outcomes


def try_call(call: Callable[[], object]) -> str:
    """Return the type and the first line of the error that a call raises, else "done"."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0].replace(_OF_CALLBACK, "")
    return "done"


def list_refused() -> dict[str, Callable[[], object]]:
    """Return calls that gloo refuses, by name, in the forms in which users make them."""
    floats, halves = torch.ones(1000), torch.ones(1000, dtype=torch.float16)
    many, bytes_ = torch.ones(1 << 19), torch.ones(1000, dtype=torch.float8_e4m3fn)
    world = dist.distributed_c10d._get_default_group()

    def start(tensor: torch.Tensor, op: Any = BAND) -> Any:
        return dist.all_reduce(tensor, op, async_op=True)

    def ask() -> None:
        work = start(floats)
        try_call(work.wait)
        assert work.is_completed() and not work.is_success()
        raise work.exception()

    def wait_twice() -> None:
        work = start(floats)
        assert try_call(work.wait) == try_call(work.wait)
        work.wait()

    def several() -> None:
        works = [start(floats), dist.all_reduce(torch.ones(9), async_op=True), start(halves, BXOR)]
        works[1].wait()
        assert "BXOR" in try_call(works[2].wait)
        works[0].wait()

    return {
        "and of floats": lambda: dist.all_reduce(floats, BAND),
        "exclusive or of halves": lambda: dist.all_reduce(halves, BXOR),
        "sum of float8": lambda: dist.all_reduce(bytes_),
        "and of a megabyte": lambda: dist.all_reduce(many, BAND),
        "and of every other": lambda: dist.all_reduce(many[::2], BAND),
        "wait": lambda: start(floats).wait(),
        "a future": lambda: start(floats).get_future().wait(),
        "a callback": lambda: start(floats).get_future().then(lambda x: x.value()).wait(),
        "wait twice": wait_twice,
        "ask": ask,
        "several": several,
        "coalesced": lambda: dist.all_reduce_coalesced([floats, many], BAND),
        "reduce": lambda: dist.reduce(floats, 1, BAND),
        "reduce-scatter": lambda: reduce_scatter_single(torch.empty(500), floats, BAND),
        "functional": lambda: functional.all_reduce(floats, "band", world).sum(),
    }


def chosen_stock(path: str) -> Outcomes:
    """Return what became of refused stock calls of a communicator, and of the group of a plan.

    They add 16-bit integers, which plans can do and gloo cannot.
    """
    patched: Any = links
    patched.has_stock = lambda dtype: True
    outcomes: Outcomes = {}
    communicator = topoplan.Communicator(path, choose=always_stock)
    group = topo_group(path, always_stock)
    small, usual = (torch.ones(ENOUGH, dtype=dtype) for dtype in (torch.int16, torch.float32))
    for number in range(3):  # the later ones repeat a call
        outcomes[f"communicator {number}"] = try_call(lambda: communicator.allreduce(small))
        outcomes[f"group {number}"] = try_call(lambda: dist.all_reduce(small, group=group))
        work: Any = dist.all_reduce(small, group=group, async_op=True)
        outcomes[f"work {number}"] = try_call(work.wait)
        communicator.allreduce(usual.fill_(1))
        dist.all_reduce(usual, group=group)
        assert (usual == 4).all()
    return outcomes
