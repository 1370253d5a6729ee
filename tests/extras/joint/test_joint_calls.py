"""The groups of a joint plan, as texts, files and meshes name them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from topoplan.synth.extras.joint.joint_calls import (
    JointCall,
    choose_any_helpers,
    list_mesh_calls,
    read_calls,
)
from topoplan.topo.errors import InputError
from topoplan.topo.presets import preset

TWO_BY_TWO = "tp:allgather:64K:2=1,0|2,3 dp=0,2|1,3"


RING = preset("ring:4")


def read(text: str, collective: str | None = "allreduce") -> list[JointCall]:
    return list(read_calls(text, RING, collective, "1M"))


def test_a_kind_states_its_collective_bytes_and_weight_or_takes_the_defaults() -> None:
    calls = read(TWO_BY_TWO)
    assert [call.name for call in calls] == ["tp 0,1", "tp 2,3", "dp 0,2", "dp 1,3"]
    assert [call.collective.name for call in calls] == ["allgather"] * 2 + ["allreduce"] * 2
    assert [call.size_bytes for call in calls] == [1 << 16, 1 << 16, 1 << 20, 1 << 20]
    assert [call.weight for call in calls] == [2, 2, 1, 1]


def test_a_file_has_the_same_with_comments(tmp_path: Path) -> None:
    file = tmp_path / "groups.txt"
    file.write_text("# a step\ntp:allgather:64K:2=1,0|2,3  # tensors\n\ndp=0,2|1,3\n")
    assert read(str(file)) == read(TWO_BY_TWO)


def test_the_first_rank_listed_is_the_root_and_a_group_of_all_is_the_whole_machine() -> None:
    one, whole = read("pp:broadcast=3,1 all=0-3")
    assert (one.collective.root, one.collective.members) == (3, (1, 3))
    assert whole.collective.has_all_gpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp=0,1,1", "rank 1 is there twice"),
        ("tp=0,1|1,2", "rank 1 is in two groups of kind tp"),
        ("tp=0,4", "rank 4; ring:4 has ranks 0 to 3"),
        ("tp=0", "at least two ranks"),
        ("tp:allreduce:1M:0=0,1", "weight '0'"),
        ("tp:allreduce:1M:-1=0,1", "weight '-1'"),
        ("tp:allreduce:0=0,1", "0 bytes"),
        ("tp:allreduce:much=0,1", "'much' is not a size"),
        ("tp:allredcue=0,1", "did you mean 'allreduce'"),
        ("tp=0,x", "'x' is no rank"),
        ("t p=0,1", "expected KIND=RANKS"),
        ("tp=", "expected KIND=RANKS"),
        ("=", "expected KIND=RANKS"),
        ("tp:a:b:c:d=0,1", "expected KIND=RANKS"),
        ("0p=0,1", "no name of a kind"),
        ("groups.txt", "neither groups nor a file"),
    ],
)
def test_wrong_groups_are_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_kind_without_any_collective_is_an_error() -> None:
    with pytest.raises(InputError, match="no collective is given for tp"):
        read("tp=0,1", collective=None)


def test_helpers_are_all_none_or_ranks() -> None:
    calls = read("tp=0,1|2,3")
    assert choose_any_helpers("rest", calls, RING) == (0, 1, 2, 3)
    assert choose_any_helpers("none", calls, RING) == ()
    assert (
        choose_any_helpers("3,2", calls, RING) == choose_any_helpers([2, 3], calls, RING) == (2, 3)
    )
    for helpers, said in (
        ("4", "no rank 4"),
        ("2,2", "listed 2 times"),
        ("some", "'some' is no rank"),
    ):
        with pytest.raises(InputError, match=said):
            choose_any_helpers(helpers, calls, RING)
    with pytest.raises(InputError, match="rank 0 is in every group"):
        choose_any_helpers("0", read("tp=0,1 dp=0,2"), RING)


def test_a_mesh_has_a_group_for_each_row_and_column() -> None:
    calls = list_mesh_calls(
        [[0, 1], [2, 3]], ("dp", "tp"), [("tp", "allgather", 1 << 16), ("dp", "allreduce", 1)]
    )
    assert [call.name for call in calls] == ["tp 0,1", "tp 2,3", "dp 0,2", "dp 1,3"]
    assert calls[0].demand_GB == Fraction(1 << 16, 10**9)
    with pytest.raises(InputError, match="no dimension 'cp'"):
        list_mesh_calls([[0, 1], [2, 3]], ("dp", "tp"), [("cp", "allreduce", 1)])
