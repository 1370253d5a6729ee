"""Where the stock allreduce is used: several under way, beside planned ones, and where a rank is
gone.
"""

from __future__ import annotations

from typing import Any

import patience
import torch
import torch.distributed as dist
from rank_process import leave

import topoplan
import topoplan.runtime.register
from ranks.checks import MEANS, SUMS, always_stock
from ranks.training import wrapped
from topoplan.runtime.policy import ChooseMode

# Length from which on 16-bit whole numbers go through plans: 1 MiB.
ENOUGH = 600_000


def topo_group(plan: str, choose: ChooseMode) -> Any:
    """Return a group of the backend that carries out a plan; its communicator is there after the
    first call.
    """
    timeout = patience.deadline(6)
    return dist.new_group(
        backend="topo", timeout=timeout, pg_options=topoplan.backend_options(plan, choose=choose)
    )


def sample(rank: int, numel: int, turn: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * turn + 10 * rank))


def beside_planned(path: str) -> None:
    """Floats of three sizes go by stock, which was chosen; 16-bit whole numbers by the plan, as
    gloo cannot add them.

    Sums and averages, with gaps between elements; other sizes are raced, new ones while other calls
    are under way.
    """
    by_stock = {4 * numel for numel in (6000, 9000, 4001)} | {2 * ENOUGH}
    group = topo_group(
        path, lambda size_bytes, schedules: None if size_bytes in by_stock else "race"
    )
    rank, world = dist.get_rank(), dist.get_world_size()
    for turn in range(4):
        calls: list[tuple[Any, torch.Tensor, torch.Tensor | None, dist.ReduceOp.RedOpType]] = []
        for number, numel in enumerate((6000, 500, 9000, 700 + 300 * turn, 4001, 8000)):
            op = MEANS if number % 2 else SUMS
            whole = torch.stack([sample(rank, numel, turn), torch.full((numel,), 7.0)], dim=1)
            x = whole[:, 0] if number % 3 == 0 else whole[:, 0].clone()
            calls.append((dist.all_reduce(x, op, group, async_op=True), x, whole, op))
            if number == 2:
                integers = torch.full((ENOUGH,), rank, dtype=torch.int16)
                calls.append(
                    (dist.all_reduce(integers, SUMS, group, async_op=True), integers, None, SUMS)
                )
        for work, x, pairs, op in calls:
            assert work.wait()
            assert torch.equal(work.get_future().wait()[0], x)
            if pairs is None:
                assert (x == sum(range(world))).all()
                continue
            added = torch.stack([sample(r, len(x), turn).double() for r in range(world)]).sum(0)
            wanted = added / world if op == MEANS else added
            assert (x.double() - wanted).abs().max() < 1e-5, (turn, len(x))
            assert (pairs[:, 1] == 7).all()
    communicator = group.communicators["allreduce", None, "cpu"]
    assert [communicator.choice(4 * numel).label for numel in (6000, 9000, 4001)] == ["stock"] * 3
    sent = communicator.wire_bytes
    dist.all_reduce(torch.ones(6000), group=group)
    assert communicator.wire_bytes == sent
    dist.all_reduce(torch.ones(ENOUGH, dtype=torch.int16), group=group)
    assert communicator.wire_bytes > sent


def gone_under_the_hook(path: str) -> str | None:
    hook = topoplan.ddp_hook(path, timeout=patience.deadline(6), choose=always_stock)
    model = wrapped(
        lambda: torch.nn.Sequential(*[torch.nn.Linear(100, 100) for _ in range(4)]),
        hook,
        bucket_cap_mb=0.05,
    )
    return until_rank_1_is_gone(lambda: model(torch.ones(2, 100)).sum().backward())


def gone_under_the_backend(path: str) -> str | None:
    group = topo_group(path, always_stock)

    def step() -> None:
        for work in [
            dist.all_reduce(torch.ones(5000), group=group, async_op=True) for _ in range(3)
        ]:
            work.wait()

    return until_rank_1_is_gone(step)


def until_rank_1_is_gone(step: Any) -> str | None:
    """Return the error after two steps, of all ranks but the one that ends."""
    step()
    step()
    if dist.get_rank() == 1:
        leave()
    try:
        for _ in range(50):
            step()
    except topoplan.ExecutionError as error:
        leave(str(error))
    raise AssertionError("went on with a rank that is gone")
