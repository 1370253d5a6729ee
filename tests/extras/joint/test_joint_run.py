"""topo-run with joint plans: real processes make the calls of several groups at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import run_module, run_ranks
from needs import has_extra
from ranks import meshes

from topoplan.synth.extras.joint.synthesize import synthesize_joint


def test_groups_make_their_calls_at_once_with_right_results(tmp_path: Path) -> None:
    """Members of two groups each, which also help the others; an allgather beside allreduces."""
    path = tmp_path / "joint.json"
    plan = synthesize_joint("tp:allgather:64K=0,1|2,3 dp:allreduce:64K=0,2|1,3", "full:4")
    plan.save(path)
    assert any(group.helpers for group in plan.groups)
    ended = run_module("topoplan.cli.run", str(path), "-n", "2", "--choose", "plan", "--json")
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    fields = "kind", "members", "collective", "wrong"
    assert [tuple(row[name] for name in fields) for row in answer["groups"]] == [
        ("tp", [0, 1], "allgather", 0),
        ("tp", [2, 3], "allgather", 0),
        ("dp", [0, 2], "allreduce", 0),
        ("dp", [1, 3], "allreduce", 0),
    ]
    assert answer["ranks"] == 4
    assert all(row["plan_us"] > 0 and row["stock_us"] > 0 for row in answer["groups"])
    assert answer["ratio"] == answer["stock_us"] / answer["plan_us"]


@pytest.mark.long
@pytest.mark.skipif(not has_extra("cache"), reason="no extra cache")
def test_all_groups_use_what_was_fastest_together(tmp_path: Path) -> None:
    """The race is of the whole plan: no group uses stock beside another that does not.

    Two groups of the same two ranks are enough for that.
    """
    path, cache = tmp_path / "joint.json", tmp_path / "cache"
    synthesize_joint("tp:allreduce:256K=0,1 dp:allreduce:256K=0,1", "full:2").save(path)
    arguments = ["topoplan.cli.run", str(path), "-n", "1"]
    ended = run_module(*arguments, "--json", env={"TOPOPLAN_CACHE": str(cache)})
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    raced = answer["raced_us"]
    assert {"plan", "x16", "x64", "stock"} <= set(raced)
    plans = min(us for label, us in raced.items() if label != "stock")
    assert {row["schedule"] == "stock" for row in answer["groups"]} == {
        plans > (0.85 if raced["stock"] < 1000 else 0.95) * raced["stock"]
    }
    (cached,) = (cache / "races").iterdir()
    race = json.loads(cached.read_text())
    assert race["raced_us"] == raced
    # A cached time that cannot be is raced again.
    cached.write_text(json.dumps(race | {"time_us": 1e9, "raced_us": {"plan": 1.0, "x16": 1.0}}))
    table = run_module(*arguments, env={"TOPOPLAN_CACHE": str(cache)})
    assert table.returncode == 0 and "# together: " in table.stdout
    (line,) = [x for x in table.stdout.splitlines() if x.startswith("# raced together, us: ")]
    assert all(f"{label} " in line for label in ("plan", "x16", "x64", "stock"))


def test_what_joint_plans_do_not_have_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "joint.json"
    synthesize_joint("dp:allreduce:64K=0,1|2,3", "full:4").save(path)
    for arguments, message in (
        (["--plot", "t.svg"], "--plot with a joint plan: it is for single plans"),
        ([str(path)], "2 plans, one of them joint; run it alone"),
        (["--nproc", "3"], "3 ranks: the plan is for 4 ranks; leave --nproc out"),
    ):
        ended = run_module("topoplan.cli.run", str(path), *arguments)
        assert ended.returncode == 2 and message in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_ranks_that_help_or_do_nothing_take_part_in_the_race(tmp_path: Path) -> None:
    path = tmp_path / "joint.json"
    synthesize_joint("tp:allreduce:64K=0,3", "hypercube:2").save(path)
    by_rank = run_ranks(meshes.race_with_others, 4, str(path))
    assert len({labels[0] for labels in by_rank}) == 1
    assert [len(labels) for labels in by_rank] == [2, 1, 1, 2]
