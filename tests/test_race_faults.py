"""Faults while a schedule is chosen or the hosts are measured: no rank goes on alone, none waits for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from launch import run_ranks
from ranks import faults

from topoplan.runtime.ranks.blame import Stuck, explain_blame

Plans = Callable[..., str]


def test_who_waits_for_a_rank_that_is_in_a_stock_collective_blames_who_is_silent() -> None:
    """Rank 1 has reported: not it, but rank 2, of which nothing is heard, is at fault."""
    waits = Stuck("receive", 1, 0, 0, timed_out=True, reason="reason", calls=1)
    stock = Stuck("stock", -1, 0, 0, timed_out=True, reason="reason", calls=1)
    blamed = explain_blame(0, {0: waits, 1: stock}, 3, lambda a, b: None)
    assert blamed == "rank 2 does not answer (dead, stopped or cut off) (reports of rank 0, 1)"


def assert_rank_1_is_named(errors: list[str | None]) -> None:
    for rank in (0, 2):
        assert str(errors[rank]).startswith(f"rank {rank}: rank 1 does not answer"), errors


@pytest.mark.parametrize(
    ("name", "number"),
    [("broadcast_object_list", 1), ("all_reduce", 2), ("barrier", 3)],
    ids=["told what to try", "the trial of stock is agreed on", "a run"],
)
def test_a_rank_that_dies_during_a_race_is_an_error_on_all_others(plans: Plans, name: str, number: int) -> None:
    assert_rank_1_is_named(run_ranks(faults.dies_in_a_race, 3, plans("ring:3"), name, number))


def test_a_rank_that_dies_during_calibration_is_an_error_on_all_others(plans: Plans) -> None:
    assert_rank_1_is_named(run_ranks(faults.dies_in_calibration, 3, plans("ring:3")))


def test_a_stopped_rank_in_a_race_is_an_error_within_the_deadline(plans: Plans) -> None:
    """Nothing is closed: the others give up by themselves, the stock collective at its own deadline."""
    assert_rank_1_is_named(run_ranks(faults.stops_in_a_race, 3, plans("ring:3")))


def test_stock_that_fails_on_one_rank_alone_is_raced_on_none(plans: Plans) -> None:
    """The trial's answer is agreed on: every rank has the same choice, and sums are right."""
    by_rank = run_ranks(faults.stock_fails_on_one_rank, 3, plans("ring:3"))
    assert by_rank == [by_rank[0]] * 3
    assert "stock" not in by_rank[0][1]
