"""Where the stock allreduce is used, several are under way at once: right beside planned ones, and failing as themselves."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

RunRanks = Callable[..., list[str]]

HEAD = """
import topoplan.runtime.register
from topoplan.runtime.choose import Choice
from torch.nn.parallel import DistributedDataParallel as DDP
def stock_from(c, least):
    # the stock collective from so many bytes on, whatever a race would say
    own, known = c.plan.entries[0].schedule, c._chooser.known
    c._chooser.known = lambda size: Choice(None, own, lambda size: None, {}) if size >= least else known(size)
group = dist.new_group(backend="topo", timeout=timedelta(seconds=6), pg_options=topoplan.backend_options(ARGS[0]))
dist.all_reduce(torch.ones(5000), group=group)
communicator = group.communicators["allreduce", None, "cpu"]
"""


def test_stock_and_planned_calls_may_be_under_way_together(run_ranks: RunRanks, plans: Callable[..., str]) -> None:
    """Sums and averages, with gaps between elements, sizes that are raced while others are under way; on every rank."""
    body = """
    stock_from(communicator, 16_000)
    begun = []
    start = communicator.start_stock
    communicator.start_stock = lambda *a: begun.append(a) or start(*a)
    def data(rank, numel, turn):
        return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * turn + 10 * rank))
    for turn in range(4):
        calls = []
        for number, numel in enumerate((6000, 500, 9000, 700 + 300 * turn, 4001, 8000)):
            op = dist.ReduceOp.AVG if number % 2 else dist.ReduceOp.SUM
            whole = torch.stack([data(RANK, numel, turn), torch.full((numel,), 7.0)], dim=1)
            x = whole[:, 0] if number % 3 == 0 else whole[:, 0].clone()
            calls.append((dist.all_reduce(x, op, group, async_op=True), x, whole, numel, op))
        for work, x, whole, numel, op in calls:
            assert work.wait()
            want = sum(data(r, numel, turn).double() for r in range(WORLD)) / (WORLD if op == dist.ReduceOp.AVG else 1)
            assert (x.double() - want).abs().max() < 1e-5, (turn, numel)
            assert (whole[:, 1] == 7).all()
            assert torch.equal(work.get_future().wait()[0], x)
    assert len(begun) == 4 * 4
    del communicator.start_stock
    """
    run_ranks(HEAD + dedent(body), 3, plans("switch:3"))


@pytest.mark.parametrize("way", ["hook", "backend"])
def test_a_rank_that_is_gone_is_named_where_stock_is_used(
    way: str, run_ranks: RunRanks, plans: Callable[..., str]
) -> None:
    body = """
    if ARGS[1] == "hook":
        hook = topoplan.ddp_hook(ARGS[0], timeout=timedelta(seconds=6))
        stock_from(hook.communicator, 0)
        model = DDP(torch.nn.Sequential(*[torch.nn.Linear(100, 100) for _ in range(4)]), bucket_cap_mb=0.05)
        model.register_comm_hook(None, hook)
        step = lambda: model(torch.ones(2, 100)).sum().backward()
    else:
        stock_from(communicator, 0)
        def step():
            for work in [dist.all_reduce(torch.ones(5000), group=group, async_op=True) for _ in range(3)]:
                work.wait()
    step()
    step()
    if RANK == 1:
        os._exit(0)
    try:
        for _ in range(50):
            step()
    except topoplan.ExecutionError as error:
        print(error, flush=True)
    os._exit(0)
    """
    said = run_ranks(HEAD + dedent(body), 3, plans("switch:3"), way)
    assert all("rank 1 does not answer" in said[rank] and "by the stock allreduce" in said[rank] for rank in (0, 2))
