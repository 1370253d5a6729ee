"""Joint plans on the backend: each group of a mesh finds its own plan in the file."""

from __future__ import annotations

from pathlib import Path

import patience
import pytest
from launch import run_ranks
from needs import has_extra
from ranks import meshes

from topoplan.synth.extras.joint.synthesize import synthesize_joint

# Both dimensions of a 2 x 2 mesh, whose groups of tp make a second call.
GROUPS = "tp:allreduce:64K=0,1|2,3 dp:allreduce:64K=0,2|1,3 experts:allgather:64K=0,1|2,3"


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[str]]]:
    """What each rank lists of its mesh, and what makes its calls by a plan without helpers and by
    one with them; found once.
    """
    folder, paths = tmp_path_factory.mktemp("plans"), []
    for helpers in ("none", "rest"):
        paths.append(str(folder / f"{helpers}.json"))
        synthesize_joint(GROUPS, "full:4", helpers=helpers).save(paths[-1])
    return run_ranks(meshes.groups_and_calls, 4, paths)


@pytest.mark.long
def test_the_groups_of_a_device_mesh_are_calls_of_a_joint_plan(
    of_ranks: list[list[list[str]]],
) -> None:
    for groups, *_ in of_ranks:
        assert "tp: allgather over ranks 2, 3 of 4 KiB" in groups and len(groups) == 4


@pytest.mark.long
def test_each_group_of_a_mesh_uses_its_own_plan(of_ranks: list[list[list[str]]]) -> None:
    for rank, (_, of_rank, _) in enumerate(of_ranks):
        tp, dp = [[0, 1], [2, 3]][rank // 2], [[0, 2], [1, 3]][rank % 2]
        assert of_rank == [f"allgather {tp} of 4", f"allreduce {tp} of 4", f"allreduce {dp} of 4"]


def test_plans_with_helpers_are_left_out_in_groups_without(
    of_ranks: list[list[list[str]]],
) -> None:
    """Sums are right all the same; a warning names topoplan.new_group."""
    assert all(len(of_rank) < 3 for _, _, of_rank in of_ranks)


@pytest.mark.long
@pytest.mark.skipif(not has_extra("cache"), reason="no extra cache")
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
