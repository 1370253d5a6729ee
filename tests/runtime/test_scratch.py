"""The scratch memory of programs, one arena for all of a transport, within the budget of the
process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launch import run_ranks
from needs import has_extra
from ranks import scratch

import topoplan

Plans = Callable[..., str]
MIB = 1 << 20


@pytest.mark.long
def test_programs_of_a_transport_share_an_arena(plans: Plans) -> None:
    """The largest of 905,000 floats takes two thirds of its 3.5 MiB: by buffers of each program it
    was 14 MiB.
    """
    for held in run_ranks(scratch.programs_share_it, 3, plans("full:3", "allreduce", "direct")):
        assert 2 * MIB < held < 3 * MIB


@pytest.mark.long
def test_idle_arenas_over_the_budget_are_freed(plans: Plans) -> None:
    run_ranks(scratch.it_is_given_back, 3, plans("full:3", "allreduce", "direct"))


def test_races_share_an_arena_and_free_it(plans: Plans, tmp_path: Path) -> None:
    names = ["allreduce", "allgather", "reduce-scatter", "broadcast"]
    by_rank = run_ranks(
        scratch.races_share_it, 3, {name: plans("full:3", name) for name in names}, str(tmp_path)
    )
    # The budget of 1 MiB may be used up.
    assert max(by_rank) <= MIB


if has_extra("codecs"):

    def test_encoding_works_in_the_shared_arena(plans: Plans) -> None:
        run_ranks(scratch.codecs_share_it, 3, plans("full:3", "allreduce", "direct"))


def test_the_budget_has_a_name(folder_of_plans: Callable[..., Path]) -> None:
    run_ranks(scratch.options_name_it, 2, str(folder_of_plans(("ring:2", "allreduce"))))


@pytest.mark.parametrize("wrong", ["much", "-1", "3 apples", -1, True])
def test_a_budget_that_is_no_size_is_refused(wrong: str | int) -> None:
    with pytest.raises(
        topoplan.InputError, match=f"scratch={wrong!r}: expected the bytes of scratch memory"
    ):
        topoplan.backend_options(scratch=wrong)
    assert topoplan.backend_options(scratch=0).policy.scratch_bytes == 0
    assert topoplan.backend_options(scratch="512M").policy.scratch_bytes == 512 * MIB
