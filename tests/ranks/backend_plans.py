"""Where the backend has its plans from, on ranks: what was named, the machine at hand, a cache; and
what is wrong.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from culprit import is_named
from rank_process import Events, init, leave

import topoplan
import topoplan.synth.planner.synthesize as planner
from ranks.checks import all_gather_single, refused
from ranks.topo_backend import end, start
from topoplan.extras import BY_NAME


class Listener(logging.Handler):
    """Keeps what the product logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def heard(self, words: str) -> bool:
        """Return whether a line has these words; only rank 0 looks for plans, so others need
        not.
        """
        return dist.get_rank() != 0 or any(words in line for line in self.lines)


def world() -> Any:
    return dist.group.WORLD


def used_communicator() -> Any:
    """Return what a first allreduce was carried out by; None where there is no plan."""
    tensor = torch.arange(3000.0) + dist.get_rank()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, 2 * torch.arange(3000.0) + 1)
    return world().communicators["allreduce", None, "cpu"]


def every_source(folder: str) -> None:
    listener = Listener()
    logging.getLogger("topoplan").addHandler(listener)
    logging.getLogger("topoplan").setLevel(logging.INFO)
    files = Path(folder)
    cache = files / f"cache{dist.get_rank()}"  # each rank has a disk of its own
    from_the_machine(cache, listener)
    from_an_emulated_machine(files, cache, listener)
    start(plans="ring:2", cache=cache)
    assert used_communicator().plan.topology.name == "ring:2"
    start(plans="off")
    dist.all_reduce(torch.ones(3000))
    assert not world().communicators
    assert world().planned.plans.off
    what_is_wrong(files)
    a_plan_for_more_ranks(files)
    a_rank_that_is_gone(cache)


def from_the_machine(cache: Path, listener: Listener) -> None:
    start(cache=cache)
    first = used_communicator().plan
    assert first.topology.extra["hosts"]
    assert len(first.topology.ranks) == 2
    if not BY_NAME["cache"].is_here:
        return
    assert not cache.exists() if dist.get_rank() else len(list(cache.iterdir())) == 1
    end()
    with patch.object(planner, "synthesize", None):
        start(cache=cache)
        assert used_communicator().plan.hash == first.hash
        end()
    if cache.exists():
        next(cache.iterdir()).write_text("{")
    listener.lines.clear()
    start(cache=cache)
    assert used_communicator().plan.hash == first.hash
    assert listener.heard("replaced"), listener.lines


def from_an_emulated_machine(files: Path, cache: Path, listener: Listener) -> None:
    os.environ["TOPOPLAN_EMULATED"] = str(files / "ring.json")
    start(cache=cache)
    assert used_communicator().plan.topology.name == "ring:2"
    os.environ["TOPOPLAN_EMULATED"] = str(files / "apart.json")
    listener.lines.clear()
    start(cache=cache)
    assert used_communicator() is None
    assert listener.heard("without a plan"), listener.lines
    del os.environ["TOPOPLAN_EMULATED"]


def what_is_wrong(files: Path) -> None:
    """The same line on every rank, and again for the next call."""
    cases: tuple[tuple[type[Exception], str, object], ...] = (
        (topoplan.PlanMismatchError, "is for 4 ranks, the group has 2", files / "four.json"),
        (topoplan.PlanMismatchError, "4 GPUs, the group has 2 ranks", "ring:4"),
        (topoplan.InputError, "no such file", str(files / "none.json")),
        (topoplan.InputError, "damaged.json", files / "damaged.json"),
        (topoplan.InfeasibleError, "", str(files / "apart.json")),
    )
    for kind, words, plans in cases:
        start(plans=plans)
        for _ in range(2):
            with refused(words, kind):
                dist.all_reduce(torch.ones(3000))


def a_plan_for_more_ranks(files: Path) -> None:
    """It is for allreduce: gathering goes on by gloo, whose own errors arrive as they are."""
    start(plans=files / "four.json")
    whole = torch.empty(6000)
    all_gather_single(whole, torch.full((3000,), float(dist.get_rank())))
    assert whole[3000:].eq(1).all()
    try:
        dist.all_reduce(torch.ones(3000).to(torch.float8_e5m2))
    except RuntimeError as error:
        assert "scalar type" in str(error), error
    else:
        raise AssertionError("gloo adds these?")
    # Not `end()`: a barrier of gloo waits for calls before it, and may raise the error of the one
    # that failed.
    failed = Events()
    failed.tell(f"refused-{dist.get_rank()}")
    for rank in range(dist.get_world_size()):
        failed.wait(f"refused-{rank}")
    dist.destroy_process_group()
    with refused("backend_options"):
        init("-wrong", backend="topo", options=object())


def a_rank_that_is_gone(cache: Path) -> None:
    start(plans="ring:2", cache=cache, quiet_s=4)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40))
    for _ in range(2):  # the second time DDP exchanges its buckets, by gloo
        model(torch.ones(2, 40)).sum().backward()
    if dist.get_rank() == 1:
        leave()
    try:
        model(torch.ones(2, 40)).sum().backward()
    except (
        topoplan.ExecutionError
    ) as error:  # itself, though DDP's C++ looks for tensors in its place
        assert is_named(1, error), error
    else:
        raise AssertionError("alone, and no error")
    work = dist.all_reduce(torch.ones(3000), async_op=True)
    try:
        work.wait()
    except topoplan.ExecutionError as error:
        assert "an earlier call failed" in str(error), error
        assert is_named(1, error), error
    else:
        raise AssertionError("went on after a failure")
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), topoplan.ExecutionError)
    leave()
