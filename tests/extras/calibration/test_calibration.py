"""Host costs that topo-run fits: the same on all ranks, and no rank that is lost goes unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from called import call_command
from culprit import is_named
from launch import run_joined, run_ranks
from ranks import calibrated

from topoplan.synth.cost.host_costs import host_of
from topoplan.topo.graph import Topology

Plans = Callable[..., str]


@pytest.mark.network("quiet")
def test_host_costs_are_fitted_and_used(plans: Plans) -> None:
    assert len(set(run_ranks(calibrated.fitted, 4, plans("full:4")))) == 1


def test_a_rank_that_dies_during_calibration_is_an_error_on_all_others(plans: Plans) -> None:
    errors = run_ranks(calibrated.dies_meanwhile, 3, plans("ring:3"))
    for rank in (0, 2):
        assert str(errors[rank]).startswith(f"rank {rank}: "), errors
        assert is_named(1, errors[rank]), errors


def test_topo_run_writes_the_plans_topology_with_the_costs(plans: Plans, tmp_path: Path) -> None:
    target = tmp_path / "machine.json"
    asked = (plans("ring:2"), "--calibrate", "-o", str(target))
    for done in run_joined("topoplan.cli.run", *asked, ranks=2):
        assert done.returncode == 0 and not done.stdout, done.stderr
    written = Topology.load(target)
    host = host_of(written)
    assert len(written.ranks) == 2 and host is not None
    assert host.source == "topo-run --calibrate"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--stock --nproc 2 --calibrate", "--calibrate without a plan"),
        ("PLAN --calibrate --csv rows.csv", "--csv with --calibrate, which measures nothing by"),
        ("PLAN PLAN --calibrate", "--calibrate with 2 plans: expected a single plan"),
        ("PLAN --calibrate --on-fault replan", "--calibrate with --on-fault replan"),
    ],
)
def test_calibration_of_something_else_is_refused(options: str, said: str, plans: Plans) -> None:
    done = call_command("run", *options.replace("PLAN", plans("ring:2")).split())
    assert done.returncode == 2 and said in done.stderr
