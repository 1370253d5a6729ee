"""Joint plans on the backend: each group of a mesh finds its own plan in the file."""

from __future__ import annotations

from pathlib import Path

import patience
from launch import run_ranks
from ranks import meshes

from topoplan.synth.extras.joint.synthesize import synthesize_joint

# Both dimensions of a 2 x 2 mesh, whose groups of tp make a second call.
GROUPS = "tp:allreduce:64K=0,1|2,3 dp:allreduce:64K=0,2|1,3 experts:allgather:64K=0,1|2,3"


def save(path: Path, helpers: str) -> str:
    synthesize_joint(GROUPS, "full:4", helpers=helpers).save(path)
    return str(path)


def test_the_groups_of_a_device_mesh_are_calls_of_a_joint_plan() -> None:
    for groups in run_ranks(meshes.list_groups, 4):
        assert "tp: allgather over ranks 2, 3 of 4 KiB" in groups and len(groups) == 4


def test_each_group_of_a_mesh_uses_its_own_plan(tmp_path: Path) -> None:
    used = run_ranks(meshes.calls_by_a_joint_plan, 4, save(tmp_path / "joint.json", "none"))
    for rank, of_rank in enumerate(used):
        tp, dp = [[0, 1], [2, 3]][rank // 2], [[0, 2], [1, 3]][rank % 2]
        assert of_rank == [f"allgather {tp} of 4", f"allreduce {tp} of 4", f"allreduce {dp} of 4"]


def test_plans_with_helpers_are_left_out_in_groups_without(tmp_path: Path) -> None:
    """Sums are right all the same; a warning names topoplan.new_group."""
    used = run_ranks(meshes.calls_by_a_joint_plan, 4, save(tmp_path / "joint.json", "rest"))
    assert all(len(of_rank) < 3 for of_rank in used)


def test_all_groups_use_what_the_race_of_the_whole_plan_chose(tmp_path: Path) -> None:
    path = tmp_path / "joint.json"
    mesh = "tp:allreduce:64K=0,1|2,3 dp:allreduce:64K=0,2|1,3"
    synthesize_joint(mesh, "full:4", helpers="none").save(path)
    program, cache = meshes.labels_after_a_joint_race, str(tmp_path / "cache")
    used = run_ranks(program, 4, str(path), cache, patience.seconds(60), -1)
    labels = {label for of_rank in used for label in of_rank}
    assert labels == {"stock"} or not labels & {"stock", "none yet"}
    assert len(list((tmp_path / "cache" / "races").iterdir())) == 1
    # Without all ranks there is no race, and calls go on: each group times its own.
    late = run_ranks(program, 4, str(path), cache, 0.3, 3)
    assert all(label == "none yet" for of_rank in late for label in of_rank)
