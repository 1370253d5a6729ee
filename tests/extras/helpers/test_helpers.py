"""Plans over some GPUs, with helpers, in real processes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from launch import run_module, run_ranks
from needs import has_extra
from ranks import helped
from sample_helped import build_helped, build_plan, build_relay

from topoplan.cli.running.rows import Run, print_run
from topoplan.runtime.measuring.bench import BenchRow
from topoplan.runtime.measuring.bench_options import BenchOptions
from topoplan.synth.cost.host_costs import HostCosts, with_host
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.topo.presets import preset

ROOTED = ("broadcast", "reduce", "gather", "scatter")


def save_plan(folder: Path, name: str, gpus: int, members: list[int], seed: int = 0) -> str:
    """Save a plan of several schedules, all but the last with helpers; return its path."""
    helpers = [rank for rank in range(gpus) if rank not in members]
    root = members[-1] if name in ROOTED else None
    drawn = (build_helped(name, gpus, members, helpers, root, seed + n) for n in range(4))
    alone = build_helped(name, gpus, members, [], root)
    helped_ones = [x for x in drawn if x.helpers][:2]
    plan = build_plan(*helped_ones, alone, gpus=gpus)
    path = folder / f"{name}-{'-'.join(map(str, members))}.json"
    plan.save(path)
    return str(path)


def test_members_get_right_results_by_helpers(tmp_path: Path) -> None:
    """All collectives, one after the other, each with other members."""
    draws = random.Random(5)
    plans = [
        save_plan(tmp_path, name, 4, sorted(draws.sample(range(4), draws.choice((2, 3)))))
        for name in COLLECTIVES
    ]
    sent = run_ranks(helped.random_calls, 4, plans, 4)
    assert all(any(of_plan) for of_plan in zip(*sent, strict=True))


def test_helpers_race_wait_and_are_let_go(tmp_path: Path) -> None:
    path = save_plan(tmp_path, "allreduce", 3, [0, 2])
    first, helper, last = run_ranks(helped.race, 3, path)
    assert first == last
    waited, raced, counts = first
    assert waited
    assert "stock" in raced
    assert any(label.startswith("helped") for label in raced)
    assert any(label.startswith("alone") for label in raced)
    assert counts["1"] > 0
    assert helper[0] > 0
    assert helper[1]


def test_a_helper_that_misses_the_goodbye_ends_well(tmp_path: Path) -> None:
    path = save_plan(tmp_path, "allreduce", 3, [0, 2])
    assert run_ranks(helped.miss_the_goodbye, 3, path) == [1, 1, 1]


def test_a_late_helper_serves_members_that_the_first_one_has_left(tmp_path: Path) -> None:
    """The first member, which announces the calls, needs no helper, and closes at once."""
    path = tmp_path / "plan.json"
    build_plan(build_relay(4, [0, 2, 3], 1), gpus=4).save(path)
    assert run_ranks(helped.come_late, 4, str(path)) == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("ended", "rank 1 does not answer (process ended)"),
        pytest.param("stopped", "rank 1 does not answer (stopped or busy", marks=pytest.mark.long),
        ("left", "rank 1, which helped, has left"),
    ],
)
def test_a_lost_helper_is_named(tmp_path: Path, how: str, says: str) -> None:
    path = save_plan(tmp_path, "allreduce", 3, [0, 2])
    first, _, last = run_ranks(helped.lose_helper, 3, path, how)
    assert says in first and says in last


def test_a_helper_names_a_lost_member(tmp_path: Path) -> None:
    said = run_ranks(helped.lose_member, 3, save_plan(tmp_path, "allreduce", 3, [0, 2]))[1]
    assert "rank 0 does not answer (process ended)" in said


@pytest.mark.long
def test_topo_run_reports_what_helpers_relayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0, which prints, is a helper; rank 3 takes no part."""
    machine = with_host(preset("full:4"), HostCosts())  # known, so that topo-run measures none
    schedule = build_helped("allreduce", 4, [1, 2], [0], seed=1, topology=machine)
    plan, path = build_plan(schedule, topology=machine), "plan.json"
    plan.save(tmp_path / path)
    sizes = ("-b", "64K", "-e", "64K", "-n", "2")
    done = run_module("topoplan.cli.run", path, *sizes, "--choose", "plan", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["group"], result["helpers"]) == ([1, 2], [0])
    relayed = result["relayed_bytes"]
    assert relayed[0] > 0
    assert relayed[1:] == [0, 0, 0]
    assert result["rows"][0]["relayed_bytes"] == relayed
    assert result["rows"][0]["wrong"] == 0
    assert result["rows"][0]["wire_bytes"] > relayed[0]
    rows = [BenchRow(**row) for row in result["rows"]]
    options = BenchOptions(choose="plan")
    settings = options.settings_for(options.collective_over(plan, 4))
    print_run(Run(options, settings, "gloo", "gloo", plan, rows))
    table = capsys.readouterr().out
    assert "allreduce on full:4, ranks 1, 2, helper 0, gloo" in table
    assert f" {relayed[0]}\n" in table


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--nproc", "2"),
            "2 ranks: the plan is for ranks 0, 2 of 3 (one for each GPU: the others",
        ),
        *(
            (
                arguments,
                "of 3 (one for each GPU: the others help, or wait); expected a plan for all",
            )
            for name, arguments in (
                ("calibration", ("--calibrate",)),
                ("traces", ("--trace", "t.json")),
            )
            if has_extra(name)
        ),
    ],
)
def test_what_topo_run_refuses(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    path = save_plan(tmp_path, "allreduce", 3, [0, 2])
    done = run_module("topoplan.cli.run", path, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_group_of_another_size_is_refused(tmp_path: Path) -> None:
    path = save_plan(tmp_path, "allreduce", 4, [0, 2])
    said = set(run_ranks(helped.refuse_number, 3, path))
    assert said == {
        "the plan is for allreduce over ranks 0, 2 of 4 GPUs, with helpers 1, 3; the group has 3 "
        "ranks, expected 4 (one for each GPU), in their order"
    }


if has_extra("codecs"):

    def test_helpers_encode_what_they_send(tmp_path: Path) -> None:
        path = tmp_path / "plan.json"
        build_plan(build_helped("allreduce", 4, [0, 2], [1, 3], None, 1), gpus=4).save(path)
        run_ranks(helped.compress, 4, str(path), ["bf16", "int8"])
