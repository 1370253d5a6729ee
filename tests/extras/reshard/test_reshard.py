"""Tensors arrive on other meshes as torch would gather and cut them."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import run_ranks
from ranks import programs, resharding

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/move_weights.py"


def test_tensors_arrive() -> None:
    """Only what is needed is sent, in each of two calls of one plan."""
    results = run_ranks(resharding.everything_arrives, 4, 0, 5)
    of_shard = 1024 * 1024 * 4 / 2
    assert [sent for sent, _ in results] == [2 * of_shard] * 2 + [0] * 2


@pytest.mark.long
def test_state_dicts_move(tmp_path: Path) -> None:
    assert run_ranks(resharding.state_dicts_move, 4, str(tmp_path)) == [[1]] * 4


@pytest.mark.long
def test_scratch_memory_is_bounded() -> None:
    """Beside source and destination, at most twice the largest shard; bad dicts are refused."""
    for added, largest in run_ranks(resharding.scratch_memory_is_bounded, 4):
        assert added <= 2 * largest


@pytest.mark.long
def test_the_program_that_moves_weights() -> None:
    printed = run_ranks(programs.run_program, 4, str(EXAMPLE))
    assert printed == ["", "", "two steps of 3 tensors moved from 2 ranks to 2\n", ""]
