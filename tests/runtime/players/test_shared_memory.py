"""One-sided programs in real processes, by the C++ library, in memory that they share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launch import run_ranks
from ranks import one_sided

from topoplan.runtime.players.shared_memory import load_library
from topoplan.synth.ir.collective import COLLECTIVES

Plans = Callable[..., str]
LIBRARY = load_library()

pytestmark = pytest.mark.skipif(isinstance(LIBRARY, str), reason=str(LIBRARY))


def list_memory() -> set[Path]:
    """Return what is in the folder of named shared memory."""
    folder = Path("/dev/shm")
    return set(folder.glob("*topoplan*"))


def test_every_dtype_and_reduction_has_the_bits_of_messages(plans: Plans) -> None:
    run_ranks(one_sided.the_bits_are_those_of_messages, 3, plans("ring:3"))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_collectives_in_random_sizes_one_after_the_other(plans: Plans, world: int) -> None:
    paths = {name: plans(f"switch:{world}", name) for name in COLLECTIVES}
    run_ranks(one_sided.all_collectives, world, paths)


def test_a_killed_rank_is_named_and_no_memory_is_left(plans: Plans) -> None:
    before = list_memory()
    errors = run_ranks(one_sided.a_rank_is_killed, 3, plans("switch:3"))
    assert all("rank 1" in errors[rank] for rank in (0, 2)), errors
    assert list_memory() <= before


def test_a_rank_that_does_not_come_is_named_in_time(plans: Plans) -> None:
    errors = run_ranks(one_sided.a_rank_does_not_come, 3, plans("switch:3"))
    assert all("rank 2" in errors[rank] for rank in (0, 1)), errors


def test_ranks_that_make_other_calls_are_named(plans: Plans) -> None:
    errors = run_ranks(one_sided.ranks_make_other_calls, 3, plans("switch:3"))
    assert all("1000 elements" in error and "2000 elements" in error for error in errors), errors


def test_what_cannot_be_shared_is_refused(plans: Plans) -> None:
    run_ranks(one_sided.what_cannot_share, 2, plans("switch:2"))
