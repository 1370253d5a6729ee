"""When a call cannot go on: every rank has an error in time, and can go on without the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from culprit import is_named
from launch import run_ranks
from planned import synthesize
from ranks import faults

from topoplan.synth.ir.collective import collective_on
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.presets import preset

Plans = Callable[..., str]


@pytest.mark.long
def test_a_degraded_plan_runs_after_a_failure(plans: Plans, tmp_path: Path) -> None:
    """Rank 2 dies; the others name it, tear their group down, and go on as two with a plan
    without it.
    """
    less = degrade(preset("full:3"), Change(without_ranks=(2,)))
    synthesize(collective_on("allreduce", less), less, "auto", 20).plan.save(tmp_path / "two.json")
    errors = run_ranks(faults.two_go_on, 3, plans("full:3"), str(tmp_path / "two.json"))
    for error in errors[:2]:
        assert is_named(2, error)
        assert "link gpu" in str(error)
        assert "step" in str(error)


def test_a_rank_that_ends_in_a_set_up_is_noticed_before_the_timeout(plans: Plans) -> None:
    for error in run_ranks(faults.dies_in_a_set_up, 3, plans("full:3"))[:2]:
        assert is_named(2, error)
        assert "did not end within" not in str(error)
