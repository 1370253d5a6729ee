"""The report on a plan for a group: both bounds, and which is which."""

from __future__ import annotations

import re

import pytest

import topoplan
from topoplan.synth.extras.report.gather import report_plan
from topoplan.synth.extras.report.page import write_page


def read_words(page: str) -> str:
    bare = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bare))


@pytest.mark.parametrize("helpers", ["rest", "none"])
def test_a_report_has_the_bounds_with_and_without_help(helpers: str) -> None:
    plan = topoplan.synthesize(
        "allreduce",
        "mi300x",
        "packing",
        group=[0, 1],
        helpers="none" if helpers == "none" else "rest",
    )
    report = report_plan(plan, "plan.json")
    assert report.sections[0].stock is not None
    page = read_words(write_page(report))
    assert "Ranks 0, 1 of 8 take part." in page
    if helpers == "none":
        assert "64 GB/s bound of allreduce without help, algbw" in page
        assert "At most 64 GB/s algbw without help" in page
        assert "With the help of all other GPUs: at most 448 GB/s algbw;" in page
        assert "{gpu0} to {gpu1}" in page  # the others' links do not count
    else:
        assert "448 GB/s bound of allreduce with help, algbw 64 GB/s without help" in page
        assert "At most 448 GB/s algbw with the help of ranks 2, 3, 4, 5, 6, 7, whatever" in page
        assert "Without help: at most 64 GB/s algbw;" in page
    shown = read_words(str(plan._repr_html_()))
    assert "at most 64 GB/s algbw" in shown
    assert "at most 448 GB/s algbw" in shown
