"""torchrun --max-restarts: a rank is killed, and the job comes up again, with a plan that was
changed meanwhile.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import run_module

from topoplan.synth.plan import Plan

SCRIPT = Path(__file__).parents[2] / "ranks" / "restarted.py"


@pytest.mark.long
def test_a_job_comes_up_again_and_takes_the_new_plan(
    plans: Callable[..., str], tmp_path: Path
) -> None:
    """The ranks meet in torchrun's own store, where all is left that those of the first attempt put
    there.
    """
    first, second = plans("ring:3"), plans("full:3", "allreduce", "direct")
    plan, next_plan = tmp_path / "plan.json", tmp_path / "next.json"
    shutil.copy(first, plan)
    shutil.copy(second, next_plan)
    run_by_torchrun(3, plan, next_plan, tmp_path)
    for attempt, path in enumerate((first, second)):
        wanted = [[6.0] * 4, [Plan.load(path).hash] * 2]
        found = [
            json.loads((tmp_path / f"{attempt}-{rank}.json").read_text(encoding="utf-8"))
            for rank in range(3)
        ]
        assert found == [wanted] * 3


@pytest.mark.long
def test_the_rest_starts_with_the_plan_without_a_rank(tmp_path: Path) -> None:
    """The recipe of docs/faults.md: a plan by topo-synth --without-rank, and a rank less."""
    plan = tmp_path / "without-1.json"
    wanted = ("allreduce", "ring:3", "--without-rank", "1", "-o", str(plan))
    assert run_module("topoplan.cli.synth", *wanted).returncode == 0
    run_by_torchrun(2, plan, plan, tmp_path)
    of_both = [[3.0] * 4, [Plan.load(plan).hash] * 2]
    for rank in range(2):
        assert json.loads((tmp_path / f"0-{rank}.json").read_text(encoding="utf-8")) == of_both


def run_by_torchrun(ranks: int, plan: Path, next_plan: Path, results: Path) -> None:
    """Run the script on `ranks` ranks, of which the third one dies once if there is one."""
    done = run_module(
        "forked_torchrun",
        f"--nproc-per-node={ranks}",
        "--max-restarts=1",
        "--standalone",
        str(SCRIPT),
        str(plan),
        str(next_plan),
        str(results),
        env={"GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"},
    )
    assert done.returncode == 0, done.stderr
