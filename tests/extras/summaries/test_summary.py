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
from topoplan.runtime.candidates import STOCK
from topoplan.runtime.extras.summaries.steps import StepClock, StepTimes
from topoplan.runtime.extras.summaries.usage_log import usage_log
from topoplan.runtime.usage_log import CountedGroup

SAVED = (
    r"((steps take .* s by plans, .* s by stock \(medians of \d+ and \d+\); )?"
    r"(an estimated \d+ % of communication time saved against stock \(.* s for .* s, by races of "
    r".*B on [\d-]+\)|no estimate of what plans save: .*)"
    r"|steps take .* s \(median of \d+\); no estimate of what plans save: too few steps by stock.*"
    r"|nothing saved: stock was the fastest in races of .*B on [\d-]+); "
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
    whole = first["whole"]
    assert (whole["used_s"], whole["stock_s"]) == pytest.approx((used, stock))
    assert whole["saved"] is None or whole["saved"] == pytest.approx(1 - used / stock)
    # Whatever carried the calls out, once the races have ended each step is of one kind.
    assert 10 <= whole["steps"]["plan_steps"] + whole["steps"]["stock_steps"] <= summaries.CALLS


@pytest.mark.long
def test_a_run_of_several_models_ends_once_and_says_so_unasked(plans: Callable[..., str]) -> None:
    first, *others = run_ranks(summaries.train_one_model_after_another, 2, plans("ring:2"))
    *earlier, (line,) = first
    assert earlier == [[], []] and others == [[[], [], []]]
    assert line.startswith("topoplan: INFO: the whole run: ")
    assert "races of" in line or "no optimizer has stepped" in line


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


class Clock:
    """A clock that a test sets, and the steps of an optimizer by it."""

    def __init__(self) -> None:
        self.now_s, self.optimizer = 0.0, OneStep()
        self.steps = StepClock(lambda: self.now_s)

    def step(self, seconds: float, *labels: str, is_racing: bool = False, times: int = 1) -> None:
        for _ in range(times):
            for label in labels:
                self.steps.note(label, is_racing=is_racing)
            self.now_s += seconds
            self.steps.end_step(self.optimizer, (), {})


class OneStep:
    """Stands for an optimizer: all that the clock asks is which one it is."""


def test_steps_are_told_apart_by_what_their_calls_ran_by() -> None:
    clock = Clock()
    assert clock.steps.times is None
    clock.step(9.0, STOCK, times=2)  # a process's first steps are slow
    clock.step(0.5, STOCK, times=3)
    clock.step(7.0, "ring", is_racing=True, times=4)
    clock.step(7.0, times=2)  # without any call, as in accumulation
    clock.step(0.25, "ring", STOCK, times=5)
    other = OneStep()
    clock.steps.end_step(other, (), {})
    assert clock.steps.times == StepTimes(0.5, 0.25, 3, 5)


def test_of_too_few_steps_there_is_no_median() -> None:
    clock = Clock()
    clock.step(1.0, STOCK, times=4)
    clock.step(1.0, "ring", times=9)
    assert clock.steps.times == StepTimes(None, 1.0, 2, 9)


def test_another_optimizer_counts_once_the_first_one_is_gone() -> None:
    clock = Clock()
    clock.step(1.0, "ring", times=3)
    clock.optimizer = OneStep()
    clock.step(0.5, "ring", times=5)
    times = clock.steps.times
    assert times is not None
    assert times.plan_steps == 1 + 3


def saved_by(steps: StepTimes | None, schedule: str = "ring") -> Summary:
    # The race says that each of 100 calls saves 4 of 10 ms.
    size = SizeSummary("allreduce", 1 << 16, schedule, 100, 6_000.0, 10_000.0, "2026-11-30")
    return Summary((GroupSummary("group 0", (0, 1), (size,), {}),), steps)


@pytest.mark.parametrize(
    ("steps", "says", "saved"),
    [
        (StepTimes(0.584, 0.581, 8, 100), "0.581 s by plans, 0.584 s by stock", 0.4),
        (StepTimes(0.580, 0.579, 8, 100), "the races promise more than the clock", None),
        (StepTimes(0.580, 0.590, 8, 100), "the races promise more than the clock", None),
        (StepTimes(None, 0.580, 2, 100), "too few steps by stock", None),
        (StepTimes(0.580, None, 9, 2), "too few steps by plans", None),
        (None, "no optimizer has stepped", None),
    ],
)
def test_an_estimate_is_stated_only_if_the_clock_bears_it_out(
    steps: StepTimes | None, says: str, saved: float | None
) -> None:
    whole = saved_by(steps)
    assert whole.saved == (None if saved is None else pytest.approx(saved))
    assert ("an estimated 40 %" in whole.line) == (saved is not None)
    assert says in whole.line


def test_if_stock_wins_nothing_is_saved_whatever_the_clock_says() -> None:
    whole = saved_by(None, STOCK)
    assert whole.saved == 0.0
    assert whole.line.startswith("nothing saved: stock was the fastest in races of 64 KiB")
