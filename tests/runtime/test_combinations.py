"""Options together: helpers, codecs, joint plans, same bits, and calls that go on or follow.

Each two of them work, or all ranks refuse them with a reason; docs/training.md has the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launch import run_ranks
from needs import has_extra

if not all(
    has_extra(x) for x in ("helpers", "joint", "recovery", "slow-links", "shared-memory", "codecs")
):
    pytest.skip("one of the extras is not here", allow_module_level=True)

from planned import synthesize
from ranks import combined
from sample_helped import build_helped, build_plan

from topoplan.runtime.backend.options import backend_options
from topoplan.runtime.extras.native.library import load_library
from topoplan.runtime.ranks import cabled
from topoplan.synth.extras.joint.synthesize import synthesize_joint
from topoplan.synth.ir.collective import Collective, collective_on
from topoplan.topo.errors import InputError
from topoplan.topo.presets import preset


def plan_for_all(folder: Path, *, reproducible: bool = False) -> str:
    machine, path = preset("full:4"), folder / f"all-{reproducible}.json"
    collective = collective_on("allreduce", machine)
    synthesize(collective, machine, reproducible=reproducible).plan.save(path)
    return str(path)


def plan_for_some(folder: Path) -> str:
    """Save a plan for ranks 0, 1 and 3 of four, which rank 2 does not help."""
    collective, path = Collective("allreduce", 3, members=(0, 1, 3)), folder / "some.json"
    synthesize(collective, preset("full:4"), time_limit_s=10).plan.save(path)
    return str(path)


def plan_with_help(folder: Path, name: str = "allreduce") -> str:
    """Save a plan for ranks 0 and 2 of three, which rank 1 helps."""
    root = 2 if name == "broadcast" else None
    drawn = [build_helped(name, 3, [0, 2], [1], root, seed) for seed in range(4)]
    path = folder / f"helped-{name}.json"
    build_plan(next(x for x in drawn if x.helpers), gpus=3).save(path)
    return str(path)


def plan_jointly(folder: Path) -> str:
    joint = synthesize_joint("tp:allreduce:64K=0,1|2,3 dp:allreduce:64K=0,2|1,3", "full:4")
    joint.save(folder / "joint.json")
    return str(folder / "joint.json")


def test_plans_for_some_gpus_and_codecs_follow_slow_links(tmp_path: Path) -> None:
    """Rank 2 takes no part in the first plan, nor in measuring its links."""
    ways = [(plan_for_some(tmp_path), None), (plan_for_all(tmp_path), "int8")]
    of_ranks = run_ranks(combined.communicators_follow, 4, ways)
    assert [len(rows) for rows in of_ranks] == [2, 2, 1, 2]
    for of_rank in of_ranks:
        for (row,) in of_rank:
            assert (row["kind"], row["links"]) == ("slow", {"gpu0 - gpu1": 0.25})


def test_all_ways_of_choosing_and_sending_go_on(tmp_path: Path) -> None:
    """Rank 2 takes no part in the first plan. Shared memory gives way to messages."""
    every, bits = plan_for_all(tmp_path), plan_for_all(tmp_path, reproducible=True)
    ways: list[tuple[str, dict[str, Any]]] = [
        (plan_for_some(tmp_path), {"compress": "int8"}),
        (every, {"compress": "fp8", "reduction": "once"}),
        (every, {"on_slow": "replan", "compress": "fp16"}),
        (bits, {"choose": "same-bits"}),
        (every, {"choose": "take_last"}),
        *([] if isinstance(load_library(), str) else [(every, {"executor": "one-sided"})]),
    ]
    of_ranks = run_ranks(combined.communicators_go_on, 4, ways)
    assert [len(of_rank) for of_rank in of_ranks] == [len(ways) - (i == 2) for i in range(4)]
    for of_rank in of_ranks:
        assert [[row["kind"] for row in rows] for rows in of_rank] == [["lost"]] * len(of_rank)


@pytest.mark.parametrize("on_fault", ["raise", "replan"])
def test_calls_of_the_backend_follow_and_go_on(on_fault: str) -> None:
    """After a lost link the slow one is found again over the new connections."""
    of_ranks = run_ranks(combined.the_backend_follows, 3, on_fault)
    kinds = ["slow"] if on_fault == "raise" else ["slow", "lost", "slow"]
    for rows in of_ranks:
        assert [row["kind"] for row in rows] == kinds
        assert all(row["after_s"] for row in rows if row["kind"] == "slow")


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"compress": "int8"}, []),
        ({"on_fault": "replan"}, ["lost"]),
        ({"on_slow": "replan"}, ["slow"]),
        pytest.param({"on_slow": "replan", "choose": "race"}, ["slow"], marks=pytest.mark.long),
    ],
)
def test_groups_of_a_joint_plan_take_options(
    options: dict[str, str], kinds: list[str], tmp_path: Path
) -> None:
    of_ranks = run_ranks(combined.groups_of_a_joint_plan, 4, plan_jointly(tmp_path), options)
    assert of_ranks == [[kinds, kinds]] * 4


def test_helpers_encode_only_what_members_do(tmp_path: Path) -> None:
    """The members' broadcasts and integers are never encoded, whatever the group's codec is."""
    paths = {name: plan_with_help(tmp_path, name) for name in ("allreduce", "broadcast")}
    first, _, last = run_ranks(combined.helpers_know_what_is_encoded, 3, paths)
    assert first == last
    assert {label.split()[0] for label in first} == {*paths}
    assert all("+1" in label for label in first)


def test_a_hook_with_a_codec_is_helped(tmp_path: Path) -> None:
    path = plan_with_help(tmp_path)
    first, (served, _), last = run_ranks(combined.a_hook_is_helped, 3, path)
    assert served == 3
    for relayed_bytes, distance in (first, last):
        assert relayed_bytes > 0
        assert distance < 0.02


def test_what_does_not_work_together_is_refused(tmp_path: Path) -> None:
    helped = plan_with_help(tmp_path)
    machine, every = preset("full:3"), tmp_path / "three.json"
    synthesize(collective_on("allreduce", machine), machine).plan.save(every)
    run_ranks(combined.what_excludes_what, 3, helped, str(every))


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("on_fault", "what ranks agree on goes through relays along fixed routes"),
        ("on_slow", "gloo's connections go through relays there"),
    ],
)
def test_hosts_joined_by_cables_are_refused(
    option: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cabling: Any = object()
    monkeypatch.setattr(cabled, "_cabling", cabling)
    given: dict[str, Any] = {option: "replan"}
    with pytest.raises(InputError, match=f"{option}='replan' excludes cables between hosts: {why}"):
        backend_options(**given)
