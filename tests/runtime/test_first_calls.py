"""The backend "topo" by default: nothing waits at first use, and plans are used soon."""

from __future__ import annotations

import pytest
from launch import run_ranks
from ranks import first_calls

import topoplan
from topoplan.runtime.ranks.race_timing import MAX_CALLS, ROUNDS, Trial
from topoplan.synth.ir.schedule import Schedule


def test_a_ddp_script_settles_its_sizes_within_20_steps_alike_on_all_ranks() -> None:
    by_rank = run_ranks(first_calls.train_with_ddp, 2)
    assert by_rank == [by_rank[0]] * 2
    (settled,) = by_rank[0]
    assert settled[0] == "" and settled[20] != ""


def test_what_gloo_does_with_strided_tensors_is_made_right() -> None:
    run_ranks(first_calls.leave_to_gloo, 2)


@pytest.fixture(scope="module")
def schedules() -> list[Schedule]:
    strategies = ("ring", "recursive-doubling", "direct")
    return [
        topoplan.synthesize("allreduce", "switch:4", strategy=name).schedules[0]
        for name in strategies
    ]


@pytest.mark.parametrize(("unit_s", "last"), [(0.01, ROUNDS), (1.0, 1)])
def test_a_trial_tries_the_near_best_again_and_drops_the_slow(
    schedules: list[Schedule], unit_s: float, last: int
) -> None:
    """Of long calls, which are seldom delayed much, only those very near."""
    first, second, third = schedules
    times_s = {None: unit_s, first: 1.1 * unit_s, second: 9 * unit_s, third: 1.5 * unit_s}
    trial = Trial([None, *schedules])
    called = []
    while not trial.is_over:
        called.append(trial.entrant)
        trial.record(times_s[trial.entrant])
    assert len(called) <= MAX_CALLS
    assert [called.count(x) for x in (None, *schedules)] == [ROUNDS, ROUNDS, 1, last]
    assert trial.best_s() == times_s
    assert trial.entrants[1] == schedules[0]


def test_a_trial_ends_early_where_one_is_far_ahead(schedules: list[Schedule]) -> None:
    trial = Trial([None, schedules[0]])
    trial.record(1.0)
    trial.record(5.0)
    assert trial.is_over and trial.best_s() == {None: 1.0, schedules[0]: 5.0}


def test_a_trial_ends_where_all_are_far_slower_than_those_before(schedules: list[Schedule]) -> None:
    first, second, third = schedules
    trial = Trial([second, third], {first: 1.0})
    for _ in range(2):
        assert not trial.is_over
        trial.record(5.0)
    assert trial.is_over and trial.best_s() == {first: 1.0, second: 5.0, third: 5.0}
