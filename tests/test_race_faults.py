"""Faults while a schedule is chosen or the hosts are measured: no rank goes on alone, none waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from topoplan.runtime.ranks.faults import Stuck, explain_blame
from topoplan.synth.synthesize import collective_on, synthesize
from topoplan.topo.presets import preset

RunRanks = Callable[..., list[str]]

DIES = """
def dies(module, name, number):
    # Rank 1 ends at its number-th call of a function.
    real, left = getattr(module, name), [number]
    def last(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            os._exit(0)
        return real(*args, **kwargs)
    setattr(module, name, last)
def survives(call):
    try:
        call()
    except topoplan.ExecutionError as error:
        print(error, flush=True)
        os._exit(0)
    raise AssertionError("went on with a rank that is gone")
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    topology = preset("ring:3")
    synthesize(collective_on("allreduce", topology), topology, "auto", 20).plan.save(path)
    return str(path)


def test_who_waits_for_a_rank_that_is_in_a_stock_collective_blames_who_is_silent() -> None:
    """Rank 1 has reported: not it, but rank 2, of which nothing is heard, is at fault."""
    waits = Stuck("receive", 1, 0, 0, timed_out=True, reason="reason", calls=1)
    stock = Stuck("stock", -1, 0, 0, timed_out=True, reason="reason", calls=1)
    said = explain_blame(0, {0: waits, 1: stock}, 3, lambda a, b: f"{a}=>{b}")
    assert said == "rank 2 does not answer (dead, stopped or cut off)"


@pytest.mark.parametrize(
    ("name", "number"),
    [("broadcast_object_list", 1), ("all_reduce", 2), ("barrier", 3)],
    ids=["told what to try", "the trial of stock is agreed on", "a run"],
)
def test_a_rank_that_dies_during_a_race_is_an_error_on_all_others(
    run_ranks: RunRanks, plan: str, name: str, number: int
) -> None:
    body = """
    c = Communicator(ARGS[0], timeout=timedelta(seconds=4))
    if RANK == 1:
        dies(dist, ARGS[1], int(ARGS[2]))
    survives(lambda: c.allreduce(torch.ones(1000)))
    """
    said = run_ranks(DIES + dedent(body), 3, plan, name, str(number), timeout=60)
    for rank in (0, 2):
        assert said[rank].startswith(f"rank {rank}: rank 1 does not answer"), said


def test_a_rank_that_dies_during_calibration_is_an_error_on_all_others(run_ranks: RunRanks, plan: str) -> None:
    body = """
    from topoplan.runtime.measuring.calibrate import calibrate
    c = Communicator(ARGS[0], timeout=timedelta(seconds=4))
    if RANK == 1:
        dies(dist, "barrier", 5)
    survives(lambda: calibrate(c))
    """
    said = run_ranks(DIES + dedent(body), 3, plan, timeout=60)
    for rank in (0, 2):
        assert said[rank].startswith(f"rank {rank}: rank 1 does not answer"), said


def test_a_stopped_rank_in_a_race_is_an_error_within_the_deadline(run_ranks: RunRanks, plan: str) -> None:
    """Nothing is closed: the others give up by themselves, the stock collective at its own deadline."""
    body = """
    import time
    c = Communicator(ARGS[0], timeout=timedelta(seconds=4))
    if RANK == 1:
        time.sleep(8)
        os._exit(0)
    survives(lambda: c.allreduce(torch.ones(1000)))
    """
    said = run_ranks(DIES + dedent(body), 3, plan, timeout=60)
    for rank in (0, 2):
        assert said[rank].startswith(f"rank {rank}: rank 1 does not answer"), said


def test_stock_that_fails_on_one_rank_alone_is_raced_on_none(run_ranks: RunRanks, plan: str) -> None:
    """The trial's answer is agreed on: every rank has the same choice, and sums are right."""
    body = """
    from topoplan.runtime import communicator
    real = communicator.stock
    def flaky(*args):
        call = real(*args)
        def run():
            call()
            raise RuntimeError("not here")
        return run
    if RANK == 1:
        communicator.stock = flaky
    c = Communicator(ARGS[0], timeout=timedelta(seconds=20))
    x = torch.full((1000,), float(RANK))
    c.allreduce(x)
    assert (x == 3).all()
    choice = c.choice(4000)
    print(choice.label, "stock" in choice.raced)
    """
    said = run_ranks(body, 3, plan, timeout=60)
    assert len(set(said)) == 1
    assert said[0].split()[-1] == "False"


def test_a_dtype_that_stock_lacks_takes_the_plan_where_stock_had_won(run_ranks: RunRanks, plan: str) -> None:
    """gloo has no 16-bit whole numbers: a race won by stock with another dtype says nothing of them."""
    body = """
    import time
    c = Communicator(ARGS[0])
    played = c._executor.run
    def slow(*args):
        time.sleep(0.05)
        played(*args)
    c._executor.run = slow
    c.allreduce(torch.ones(1000))
    assert c.choice(4000).label == "stock"
    x = torch.full((2000,), RANK, dtype=torch.int16)
    c.allreduce(x)
    assert (x == 3).all()
    """
    run_ranks(body, 3, plan, timeout=60)
