"""torch.compile with the backend "topo": what it compiles around works as without it."""

from __future__ import annotations

import pytest
from launch import run_ranks
from ranks import compiled


@pytest.mark.parametrize("choose", ["race", "plan"])
def test_compiled_models_and_functions_train_alike_on_all_ranks(choose: str) -> None:
    run_ranks(compiled.every_order, 2, choose)
