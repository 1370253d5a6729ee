"""The Pareto front as the library, topo-synth and its picture have it, and wrong options of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import patience
import pytest
from called import call_command
from launch import Ended
from needs import has_extra
from svg_titles import read_titles

import topoplan
from topoplan.cli import synth as command
from topoplan.synth.extras.exact.strategy import EXACT
from topoplan.synth.ir.collective import Collective
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.request import Request
from topoplan.topo.errors import InfeasibleError, TimeLimitError
from topoplan.topo.presets import preset


def synth(*args: str, code: int = 0) -> Ended:
    done = call_command("synth", *args)
    assert done.returncode == code, done.stderr
    return done


def test_a_front_is_that_of_the_command_with_schedules_and_plans() -> None:
    """SCCL's k = 0 on a ring of 6; each row's schedule is verified and can be planned with."""
    front = topoplan.pareto("allgather", "ring:6", slack=0, time_limit_s=120)
    asked = ["--collective", "allgather", "--topology", "ring:6", "--pareto", "-k", "0", "--json"]
    done = call_command("synth", *asked)
    out = json.loads(done.stdout)
    keys = [key for key in out["rows"][0] if key != "synthesis_s"]
    assert [{key: getattr(row, key) for key in keys} for row in front.rows] == [
        {key: row[key] for key in keys} for row in out["rows"]
    ]
    assert [(x.chunks, x.steps, x.rounds) for x in front.front] == [(1, 3, 3), (2, 5, 5)]
    assert [x.latency_optimal for x in front.front] == [True, False]
    assert [x.bandwidth_optimal for x in front.front] == [False, True]
    assert str(front.least_ratio) == out["least_ratio"] and front.complete == out["complete"]
    assert front.plan is not None and front.plan.hash == out["plan_hash"]
    for row in front.front:
        assert row.schedule is not None
        topoplan.verify(row.schedule, "ring:6")
        plan = front.plan_for(row)
        assert [entry.schedule.steps for entry in plan.entries] == [row.steps]
        plan.verify()
    assert "front, least R/C" in front.describe() and "1,3,3, 2,5,5" in repr(front)


def test_rows_are_decided_one_by_one() -> None:
    rows = [(1, 2, 2), (1, 3, 3)]
    front = topoplan.pareto("allgather", "ring:6", instances=rows, time_limit_s=120)
    assert [row.status for row in front.rows] == ["infeasible", "feasible"]
    with pytest.raises(
        topoplan.InputError, match="1 chunks, 2 steps, 2 rounds: infeasible: it has"
    ):
        front.plan_for(front.rows[0])
    none = topoplan.pareto("allgather", "ring:6", instances=rows[:1], time_limit_s=120)
    assert none.plan is None and none.front == ()


def test_a_front_ends_at_its_time_limit(caplog: pytest.LogCaptureFixture) -> None:
    """That of an alltoall on a 4 x 4 mesh takes minutes."""
    started = time.monotonic()
    front = topoplan.pareto("alltoall", "mesh:4x4", time_limit_s=0.2)
    assert time.monotonic() - started < patience.seconds(20)
    assert not front.complete and front.cut_short
    assert "the time limit of 0.2 s cut the search short" in caplog.text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"slack": -1}, "slack is -1; expected a whole number of at least 0"),
        ({"max_steps": 2.5}, "max_steps is 2.5; expected a whole number of at least 1"),
        ({"instances": [(1, 3, 2)]}, r"instances: \(1, 3, 2\); expected .* no fewer rounds"),
        ({"instances": ["1,3,3"]}, "instances: '1,3,3'; expected"),
        ({"time_limit_s": 0}, "time_limit_s is 0; expected seconds above 0"),
        ({"root": 1}, "allgather"),
    ],
)
def test_wrong_options_of_a_front_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(topoplan.InputError, match=expected):
        topoplan.pareto("allgather", "ring:6", **options)


def test_pareto_rows_have_the_contracts_fields() -> None:
    out = json.loads(
        synth("--collective", "allgather", "--topology", "dgx1", "--pareto", "--json").stdout
    )
    rows = {(r["chunks"], r["steps"], r["rounds"]): r for r in out["rows"]}
    keys = {
        "chunks",
        "steps",
        "rounds",
        "status",
        "latency_optimal",
        "bandwidth_optimal",
        "synthesis_s",
    }
    assert all(set(row) >= keys for row in out["rows"])
    assert {k for k, r in rows.items() if r["status"] == "feasible" and not r["dominated"]} == {
        (2, 2, 3),
        (6, 3, 7),
    }
    assert out["complete"] is True


def test_an_instance_without_a_schedule_is_infeasible() -> None:
    args = ("--collective", "allgather", "--topology", "ring:4")
    done = synth(*args, "--instance", "1,1,1", code=3)
    assert len(done.stderr.splitlines()) == 1
    assert "allgather on ring:4: no schedule has 1 chunks, 1 steps and 1 rounds" in done.stderr
    done = synth(
        *args, "--instance", "1,1,1", "--instance", "1,2,3", "--instance", "1,3,3", "--json"
    )
    rows = {(row["steps"], row["rounds"]): row for row in json.loads(done.stdout)["rows"]}
    assert rows[1, 1]["status"] == "infeasible"
    assert rows[2, 3]["latency_optimal"]  # no rank is more than two hops away
    assert rows[3, 3]["status"] == "feasible" and not rows[3, 3]["latency_optimal"]
    alone = json.loads(synth(*args, "--instance", "1,3,3", "--json").stdout)["rows"]
    assert not alone[0]["latency_optimal"]


def test_a_front_is_drawn_with_what_is_impossible_and_the_bound(tmp_path: Path) -> None:
    target = tmp_path / "front.svg"
    asked = [
        "--collective",
        "allgather",
        "--topology",
        "dgx1",
        "--pareto",
        "--plot",
        str(target),
        "--json",
    ]
    assert command.main(asked) == 0
    picture = target.read_text("utf-8")
    dots = [
        title
        for title in read_titles(picture, "circle")
        if "fewest steps" in title or "at the bound" in title
    ]
    assert any(
        "2 chunks, 2 steps, 3 rounds: feasible, fewest steps" in title for title in dots
    )  # SCCL, table 4
    assert any(
        "6 chunks, 3 steps, 7 rounds: feasible" in title and "at the bound" in title
        for title in dots
    )
    assert all("infeasible" in title for title in read_titles(picture, "path"))
    assert "the bound: 7/6" in picture
    assert command.main(asked) == 2, "it is there already"


def test_too_large_for_exact_is_said() -> None:
    with pytest.raises(InfeasibleError, match="exact is for small machines"):
        EXACT(Request(Collective("allreduce", 64), preset("switch:64"), Effort(20)))


def test_no_time_is_a_time_limit() -> None:
    with pytest.raises(TimeLimitError):
        EXACT(Request(Collective("alltoall", 16), preset("torus:4x4"), Effort(0)))


@pytest.mark.parametrize(
    "args",
    [
        ("--instance", "1,2"),
        ("--instance", "1,2,1"),
        ("--pareto", "--max-steps", "0"),
        ("--pareto", "-k", "-1"),
        ("-k", "1"),
        ("--max-steps", "3"),
        ("--instance", "1,2,2", "-k", "1"),
        ("--instance", "1,2,2", "--pareto"),
        ("--pareto", "--strategy", "ring"),
        ("--strategy", "exact", "--max-trees", "2"),
        ("--pareto", "--max-trees", "2"),
        ("--bound-only", "--pareto"),
        ("--bound-only", "--instance", "1,2,2"),
        *([("--explain", "--pareto")] if has_extra("explain") else []),
    ],
)
def test_bad_wishes_are_refused_in_one_line(args: tuple[str, ...]) -> None:
    done = synth("--collective", "allreduce", "--topology", "dgx1", *args, code=2)
    assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1


def test_groups_have_no_front() -> None:
    error = synth("allreduce", "dgx1", "--group", "0,1", "--pareto", code=2).stderr
    assert "exact synthesis is for whole machines" in error
