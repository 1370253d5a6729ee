"""torch.compile with the backend "topo": what it compiles around works as without it."""

from __future__ import annotations

import pytest
from launch import run_ranks
from needs import long_cases
from ranks import compiled


@pytest.mark.parametrize("choose", long_cases(["race", "plan"], "race", "plan"))
def test_compiled_models_and_functions_train_alike_on_all_ranks(choose: str) -> None:
    run_ranks(compiled.every_order, 2, choose)


@pytest.mark.parametrize("at", [1, 100])
def test_a_work_that_was_waited_for_leaves_torchs_registry(at: int) -> None:
    """Its functions that are compiled wait for what is registered; as with gloo."""
    for counts in run_ranks(compiled.count_registered, 2, at):
        assert set(map(tuple, counts.values())) == {(0, 1, 0)}, counts
