"""topoplan.new_group: groups of the backend "topo" whose helpers serve in threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import run_ranks
from ranks import helped_groups
from sample_helped import build_helped, build_plan


@pytest.mark.long
def test_groups_help_each_other(tmp_path: Path) -> None:
    """Ranks 2 and 3 help the first group and are members of the second, which rank 0 helps."""
    paths: list[str] = []
    for name, members, helpers in (
        ("allreduce", [0, 1], [2, 3]),
        ("allreduce", [1, 2, 3], [0]),
        ("broadcast", [1, 2, 3], [0]),
    ):
        root = 2 if name == "broadcast" else None
        drawn = [build_helped(name, 4, members, helpers, root, seed) for seed in range(4)]
        plan = build_plan(*(x for x in drawn if x.helpers), gpus=4)
        paths.append(str(tmp_path / f"{len(paths)}.json"))
        plan.save(paths[-1])
    used = run_ranks(helped_groups.all_ways, 4, paths)
    assert [len(of_rank) for of_rank in used] == [1, 2, 1, 1]
    assert all("+" in label for of_rank in used for group in of_rank for label in group)


def test_a_trial_decides_whether_help_pays() -> None:
    first, _, last = run_ranks(helped_groups.race, 3, "full:3", 12)
    assert first == last
    assert "stock" in first
    assert any("+1" in label for label in first)


def test_wrong_ranks_are_refused() -> None:
    run_ranks(helped_groups.refuse_ranks, 3)
