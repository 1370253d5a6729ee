"""Any order that keeps to the dependencies between instructions, and waves, give the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played import PARTED, play
from sample_schedules import ALLREDUCES, SCHEDULES
from thorough import count_examples

from topoplan.runtime.extras.mpi.dependencies import find_dependencies, find_waves
from topoplan.runtime.program.instructions import Post
from topoplan.runtime.program.lowering import lower
from topoplan.synth.ir.schedule import Schedule


@pytest.mark.long
@settings(max_examples=count_examples(15))
@given(
    name=st.sampled_from(list(SCHEDULES)),
    numel=st.integers(0, 400),
    cut=st.integers(1, 4),
    seed=st.integers(0, 10**6),
)
def test_any_order_that_keeps_to_the_dependencies_gives_the_same_bits(
    name: str, numel: int, cut: int, seed: int
) -> None:
    schedule = replace(SCHEDULES[name], segments=cut)
    n, is_parted = schedule.collective.ranks, schedule.collective.name in PARTED
    numel *= n if is_parted else 1
    brings = {"allgather": numel // n, "gather": numel // n}.get(schedule.collective.name, numel)
    gets = {"reduce-scatter": numel // n, "scatter": numel // n}.get(
        schedule.collective.name, numel
    )
    data = np.random.default_rng(seed)
    inputs = [data.standard_normal(brings).astype(np.float32) for _ in range(n)]
    programs = [lower(schedule, rank, numel) for rank in range(n)]
    wanted = play(programs, inputs, not is_parted, gets, seed)
    for how in ("run_in_any_order", "run_in_waves"):
        got = play(programs, inputs, not is_parted, gets, seed + 1, how)
        for rank in range(n):
            np.testing.assert_array_equal(got[rank], wanted[rank])


def test_most_small_programs_go_in_waves() -> None:
    in_waves = {
        name: [has_waves(SCHEDULES[name], rank, 400) for rank in range(2)] for name in ALLREDUCES
    }
    assert sum(map(all, in_waves.values())) > len(in_waves) / 2, in_waves
    assert not has_waves(SCHEDULES["ring"], 0, 1 << 20)


def test_messages_of_one_tick_that_wait_for_each_other_are_no_wave() -> None:
    program = lower(SCHEDULES["ring"], 0, 400)
    assert find_waves(program, find_dependencies(program)) is not None
    at_once = tuple(replace(x, tick=0) if isinstance(x, Post) else x for x in program.instructions)
    squeezed = replace(program, instructions=at_once)
    assert find_waves(squeezed, find_dependencies(squeezed)) is None


def has_waves(schedule: Schedule, rank: int, numel: int) -> bool:
    program = lower(schedule, rank, numel)
    return find_waves(program, find_dependencies(program)) is not None
