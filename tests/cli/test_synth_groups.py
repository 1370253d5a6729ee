"""topo-synth --group and --helpers, and the help of ranks that --without-rank leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from called import call_synth as synth

from topoplan.synth.plan import Plan


@pytest.mark.long
def test_a_group_has_a_plan_with_and_bounds_with_and_without_help(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    out = json.loads(synth("broadcast", "mi300x", "--group", "1,6", "--json", "-o", str(path)))
    assert out["topology"]["ranks"] == 8
    assert (out["group"], out["helpers"], out["root"]) == ([1, 6], [0, 2, 3, 4, 5, 7], 1)
    assert out["bound_with_helpers"] == out["bound_one_way"]
    assert out["bound_with_helpers"]["algbw_GBps"] == 7 * out["bound_alone"]["algbw_GBps"] == 448
    assert (out["gap"], out["verified"]) == (0.0, True)
    assert out["entries"][0]["helpers"] == []
    plan = Plan.load(path)
    assert list(plan.collective.members) == [1, 6]
    text = synth("broadcast", "mi300x", "--group", "1,6", "--strategy", "packing")
    assert "ranks 1, 6 of 8" in text
    assert "at most 448 GB/s algbw with the help of ranks 0, 2, 3, 4, 5, 7;" in text
    assert "\nwithout help: at most 64 GB/s algbw; bound by the cut" in text
    assert "7 times as much with help" in text


def test_a_group_without_helpers_says_what_help_would_give() -> None:
    args = ("alltoall", "mi300x", "--group", "0-1", "--helpers", "none")
    out = json.loads(synth(*args, "--bound-only", "--json"))
    assert (out["group"], out["helpers"]) == ([0, 1], [])
    assert out["bound_one_way"] == out["bound_alone"]
    assert out["bound_with_helpers"]["algbw_GBps"] == 7 * out["bound_alone"]["algbw_GBps"]
    text = synth(*args, "--bound-only")
    assert "at most 128 GB/s algbw without help;" in text
    assert "\nwith the help of all other GPUs: at most 896 GB/s algbw;" in text


def test_a_rank_that_is_left_out_takes_its_links_along() -> None:
    gone = [x for rank in "234567" for x in ("--without-rank", rank)]
    text = synth("allreduce", "mi300x", *gone, "--bound-only")
    assert "2 ranks: at most 64 GB/s algbw;" in text
    assert "the links of ranks 2, 3, 4, 5, 6, 7 are gone." in text
    assert "at most 448 GB/s algbw with their help (--group 0,1)" in text
    out = json.loads(synth("allreduce", "mi300x", *gone, "--bound-only", "--json"))
    assert out["bound_alone"]["algbw_GBps"] == 64
    assert out["bound_with_helpers"]["algbw_GBps"] == 448
    error = synth("allreduce", "ring:4", "--without-rank", "1", "--without-rank", "3", code=3)
    assert "no path leads to gpu2" in error
    assert "the links of the ranks left out are gone" in error and "(--group)" in error
    whole = json.loads(synth("allreduce", "mi300x", "--bound-only", "--json"))
    assert "bound_alone" not in whole


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--group", "0,0"], 2, "group: rank 0 is listed 2 times; list each rank once (--group)"),
        (["--group", "0,9"], 2, "group: no rank 9; dgx1 has ranks 0 to 7 (--group)"),
        (["--group", "5"], 2, "group: rank 5 alone; expected at least two ranks (--group)"),
        (["--group", ""], 2, "group: no ranks; expected at least two ranks (--group)"),
        (["--group", "0,x"], 2, "'x' is no rank; expected ranks with commas between them"),
        (["--group", "3-1"], 2, "'3-1' is no rank"),
        (["--group", "0,1", "--helpers", "1"], 2, "helpers: rank 1 is a member of ranks 0, 1"),
        (["--group", "0,1", "--helpers", ""], 2, "helpers: no ranks; expected rest, none, or"),
        (["--group", "0,1", "--helpers", "al"], 2, "'al' is no rank; expected rest, none, or"),
        (["--helpers", "rest"], 2, "--helpers without --group: it has no effect then"),
        (["--group", "0,1", "--without-rank", "3"], 2, "use no links; leave it out"),
        (["--group", "0,1", "--helpers", "2", "--reproducible"], 2, "adds at members only"),
        (["--group", "0,5", "--helpers", "none"], 3, "through other GPUs; let more of ranks 1, 2"),
    ],
)
def test_wrong_groups_get_one_clear_line(args: list[str], code: int, says: str) -> None:
    assert says in synth("allreduce", "dgx1", *args, code=code)


def test_a_root_outside_the_group_is_refused() -> None:
    error = synth("broadcast", "dgx1", "--group", "2,5", "--root", "1", code=2)
    assert "broadcast needs a root among 2, 5, got 1" in error
