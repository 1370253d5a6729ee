"""topo-synth --groups: groups that run at once share the links; wrong ones are one line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from called import call_command
from launch import Ended

from topoplan.synth.extras.joint.plan import JointPlan


def synth(*args: str, code: int = 0) -> Ended:
    done = call_command("synth", *args)
    assert done.returncode == code, done.stderr
    return done


def synth_json(*args: str) -> dict[str, Any]:
    return dict(json.loads(synth(*args, "--json").stdout))


def test_groups_that_run_at_once_share_the_links(tmp_path: Path) -> None:
    groups = "tp:allreduce:64M=0,1|2,3 dp=0,2|1,3"
    out = synth_json("allreduce", "mesh:2x2", "--groups", groups, "-o", str(tmp_path / "p.json"))
    assert {"format", "version", "topology", "bound", "bound_one_way", "gap"} <= set(out)
    assert out["verified"] and out["gap"] < 1e-6
    assert out["predicted"]["time_s"] > out["bound_one_way"]["time_s"]
    assert out["separate"]["in_turn_s"] >= out["separate"]["together_s"] >= out["limit_s"] * 0.999
    assert [group["members"] for group in out["groups"]] == [[0, 1], [2, 3], [0, 2], [1, 3]]
    assert "dp 1,3" in JointPlan.load(tmp_path / "p.json").describe()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--groups", "tp=0,1|1,2"], "--groups"),
        (["--groups", "tp=0,1", "--helpers", "7"], "--helpers"),
        (["--groups", "tp=0,1", "--pareto"], "--pareto with --groups"),
        (["--groups", "tp=0,1", "--without-rank", "2"], "--without-rank with --groups"),
        (["--helpers", "none"], "--helpers without --group"),
    ],
)
def test_wrong_groups_are_one_line_each(options: list[str], said: str) -> None:
    done = synth("allreduce", "mesh:2x2", *options, code=2)
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
