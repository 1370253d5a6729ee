"""Uneven alltoall by plans for sizes that were announced, and right for all others."""

from __future__ import annotations

import pytest
from launch import run_ranks
from needs import has_extra
from ranks import uneven


@pytest.mark.long
def test_announced_sizes_go_by_a_plan() -> None:
    for rank, sent in enumerate(run_ranks(uneven.announced_sizes_go_by_a_plan, 4)):
        rows = sum(size for to, size in enumerate(uneven.EXPECTED[rank]) if to != rank)
        of_floats = rows * uneven.WIDTH * 4
        assert sent == [of_floats, of_floats, of_floats * 3 // 2, of_floats * 3 // 2]


@pytest.mark.skipif(not has_extra("membership"), reason="groups keep their ranks")
def test_plans_serve_other_members() -> None:
    assert run_ranks(uneven.others_are_members, 4) == [[True, True]] * 4
