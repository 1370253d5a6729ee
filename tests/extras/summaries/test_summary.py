"""What a run says of itself: once, and from its first rank."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import run_ranks
from needs import has_extra
from ranks import summaries

from topoplan import GroupSummary, SizeSummary, Summary
from topoplan.runtime.extras.summaries.usage_log import usage_log
from topoplan.runtime.usage_log import CountedGroup

SAVED = (
    r"(an estimated \d+ % of communication time saved against stock \(.* s for .* s, by races of "
    r".*B on [\d-]+\)|nothing saved: stock was the fastest in races of .*B on [\d-]+); "
    r"allreduce .* by .* \(\d+ calls\).*"
)


def test_two_lines_a_run_say_what_plans_save_and_a_summary_has_it_as_data(
    plans: Callable[..., str], tmp_path: Path
) -> None:
    shutil.copy(plans("ring:3"), tmp_path / "allreduce.json")
    first, *others = run_ranks(summaries.train, 3, str(tmp_path))
    early, late = (
        [line for line in first["log"] if f": {when}: " in line]
        for when in ("the first steps", "the whole run")
    )
    for (line,), when in ((early, "the first steps"), (late, "the whole run")):
        assert re.fullmatch(f"topoplan: INFO: {when}: {SAVED}", line), line
    assert first["log"].index(early[0]) < first["log"].index(late[0]) == len(first["log"]) - 1
    assert all(not other["log"] for other in others)

    assert re.match(SAVED, first["text"]) and "raced on" in first["text"].splitlines()[1]
    groups = first["whole"]["groups"]
    assert first["hook"]["groups"] + first["group"]["groups"] == groups[::-1]
    assert [group["name"] for group in groups] == ["group 0", "ddp_hook"]
    for group in groups:
        calls = sum(size["calls"] for size in group["sizes"])
        # DDP makes calls of its own on the group, and moves the gradients to other buckets once.
        assert calls + group["untimed"]["allreduce"] >= summaries.CALLS
        assert all(size["stock_us"] >= size["used_us"] > 0 for size in group["sizes"])
    used, stock = (
        sum(x["calls"] * x[k] for group in groups for x in group["sizes"]) / 1e6
        for k in ("used_us", "stock_us")
    )
    assert first["whole"]["saved"] == pytest.approx(1 - used / stock)


@pytest.mark.long
def test_a_run_of_several_models_ends_once_and_says_so_unasked(plans: Callable[..., str]) -> None:
    first, *others = run_ranks(summaries.train_one_model_after_another, 2, plans("ring:2"))
    *earlier, (line,) = first
    assert earlier == [[], []] and others == [[[], [], []]]
    assert line.startswith("topoplan: INFO: the whole run: ") and "races of" in line


def test_a_switch_turns_plans_off_whatever_a_script_says(tmp_path: Path) -> None:
    first, *others = run_ranks(summaries.turned_off, 2, str(tmp_path))
    assert first[-1] == (
        "topoplan: INFO: the whole run: plans are off, gloo or NCCL made all calls"
    ) and others == [[]]


@pytest.mark.long
@pytest.mark.skipif(not has_extra("cache"), reason="no extra cache")
def test_cached_races_that_do_not_hold_are_one_line_a_group(
    plans: Callable[..., str], tmp_path: Path
) -> None:
    first, *others = run_ranks(
        summaries.cached_races_that_do_not_hold, 3, plans("ring:3"), str(tmp_path)
    )
    assert len([line for line in first if "races again" in line]) == 1, first
    assert others == [[], []]


def test_calls_without_a_race_have_no_estimate() -> None:
    sizes = SizeSummary("allreduce", 4096, "ring", 7), SizeSummary("reduce to 0", 64, "ring", 1)
    whole = Summary((GroupSummary("group 0", (0, 1), sizes, {"broadcast": 2}),))
    assert whole.saved is None and whole.untimed_calls == 10
    assert whole.line == (
        "no estimate of what plans save: no size has raced against stock; allreduce 4 KiB by ring "
        "(7 calls), reduce to 0 64 B by ring (1 call); 10 calls without an estimate"
    )
    assert str(Summary(())) == ("no estimate of what plans save: no size has raced against stock")


def test_one_line_a_group_says_what_was_used_and_why(
    plans: Callable[..., str], tmp_path: Path
) -> None:
    for name in ("allreduce", "allgather", "reduce-scatter"):
        shutil.copy(plans("ring:3", name), tmp_path / f"{name}.json")
    folder = str(tmp_path)
    first, *others = run_ranks(summaries.lines_of_the_log, 3, folder, "Info")
    wanted = (
        "topoplan: INFO: ddp_hook, ranks 0-2: allreduce by plan [0-9a-f]{16} for ring:3: [a-z-]+ "
        "from 0 B.*",
        "topoplan: INFO: group 1, ranks 0 2: no collective that plans are for",
        "topoplan: INFO: group 0, ranks 0-2: allreduce by plan [0-9a-f]{16} for ring:3: "
        "[^;]*stock[^;]* us[)]; .*"
        "allreduce stock: float32 below 64 bytes [(]2 calls[)]; allreduce stock: int64 below "
        "1048576 bytes [(]1 call[)]; "
        "broadcast stock: no plan: none of the plans is for it [(][0-9] calls?[)].*",
        "topoplan: INFO: the whole run: .*",
    )
    assert len(first) == 4 and all(map(re.fullmatch, wanted, first)), first
    assert others == [[], []]
    assert not any(run_ranks(summaries.lines_of_the_log, 3, folder, "warning"))


@pytest.mark.parametrize(
    ("stock", "says"),
    [("nccl2", "group 0, ranks 0-3, stock by nccl2: "), ("gloo", "group 0, ranks 0-3: ")],
)
def test_the_backends_line_names_the_engine(
    stock: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "topoplan"):
        usage_log.open(CountedGroup("group 0", range(4), dict, "race", True, stock)).close()
    assert [record.getMessage() for record in caplog.records][:1] == [
        f"{says}no collective that plans are for"
    ]
