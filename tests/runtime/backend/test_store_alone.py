"""A group of the backend "topo" from a store, a rank and a size alone: what torchft and other
managers of groups have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launch import run_ranks
from ranks import alone


def test_a_group_needs_no_default_group(folder_of_plans: Callable[..., Path]) -> None:
    plans = [
        str(file)
        for file in folder_of_plans(("ring:2", "allreduce"), ("ring:2", "allgather")).iterdir()
    ]
    for said in run_ranks(alone.without_a_default_group, 2, plans):
        assert said == ["allreduce over 2"] * 2


def test_a_group_counts_its_own_ranks(folder_of_plans: Callable[..., Path]) -> None:
    plans = [
        str(file)
        for file in folder_of_plans(("ring:2", "allreduce"), ("ring:2", "allgather")).iterdir()
    ]
    assert run_ranks(alone.numbered_otherwise_than_the_default_group, 2, plans) == [[1], [1]]
