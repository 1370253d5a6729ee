"""Tables and lines on narrow terminals: columns are left out and lines broken between words, and
nothing is cut.
"""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import has_extra
from rich.console import Console
from thorough import count_examples

from topoplan.cli.running.rows import Run, print_run
from topoplan.runtime.measuring.bench_options import BenchOptions
from topoplan.synth.describe import print_plan
from topoplan.synth.ir.collective import Collective
from topoplan.synth.plan import Plan
from topoplan.synth.planner.synthesize import collective_on, synthesize
from topoplan.topo.pictures.fit import choose_columns, wrap_text
from topoplan.topo.pictures.table import write
from topoplan.topo.presets import preset

WORDS = st.text("abc-/", min_size=1, max_size=12)


@settings(max_examples=count_examples(25))
@given(st.lists(WORDS, min_size=1, max_size=8, unique=True), st.data())
def test_columns_go_in_their_order_until_the_table_fits(
    titles: list[str], data: st.DataObject
) -> None:
    rows = data.draw(
        st.lists(st.lists(WORDS, min_size=len(titles), max_size=len(titles)), max_size=3)
    )
    leave_out = data.draw(st.permutations(titles).map(lambda order: order[: len(titles) // 2]))
    width = data.draw(st.integers(1, 100))

    def measure(columns: list[int]) -> int:
        return sum(max(len(line[i]) for line in [titles, *rows]) for i in columns) + 2 * (
            len(columns) - 1
        )

    kept = choose_columns(titles, rows, leave_out, width)
    gone = [title for i, title in enumerate(titles) if i not in kept]
    assert set(gone) == set(leave_out[: len(gone)])
    assert measure(kept) <= width or len(gone) == len(leave_out)
    if gone:  # one column more would not have fitted
        last = titles.index(leave_out[len(gone) - 1])
        assert measure(sorted([*kept, last])) > width


@settings(max_examples=count_examples(25))
@given(st.lists(st.lists(WORDS, max_size=9).map(" ".join), max_size=4), st.integers(12, 60))
def test_lines_are_broken_between_words(lines: list[str], width: int) -> None:
    text = "\n".join(lines)
    wrapped = wrap_text(text, width)
    assert wrapped.split() == text.split()
    # a word that is as long as a line, with the indent of a line that goes on
    assert all(len(line) <= max(width, 16) for line in wrapped.splitlines())
    assert wrap_text(text, None) == text


@pytest.fixture(scope="module")
def plan() -> Plan:
    machine = preset("dgx1")
    return synthesize(collective_on("allreduce", machine), machine, "packing", 5).plan


@pytest.mark.parametrize("columns", [80, 200])
def test_a_plans_table_keeps_bound_and_gap(columns: int, plan: Plan) -> None:
    text = io.StringIO()
    print_plan(
        Console(file=text, width=columns, force_terminal=True, color_system=None), plan, 1 << 30
    )
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= columns and "\N{HORIZONTAL ELLIPSIS}" not in text.getvalue()
    (head,) = [line for line in lines if line.startswith("sizes from")]
    assert "GB/s at most" in head and "gap" in head
    assert ("latency us" in head) == (columns == 200)
    segmented = [entry.schedule.label for entry in plan.entries if entry.schedule.segments > 1]
    if columns == 80:  # rows that differ in their segments do not look alike
        assert "segments" not in head and all(f"{label} " in text.getvalue() for label in segmented)


@pytest.mark.parametrize("name", ["dgx-h100:4"])
def test_a_machines_tables_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = re.sub("\x1b[^m]*m", "", write(preset(name), colour=True, wraps=True))
    assert max(map(len, text.splitlines())) <= 80


def test_a_runs_table_fits_and_keeps_bound_and_wrong_elements(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SimpleNamespace(
        collective=Collective("allreduce", 8), iterations=5, dtype=SimpleNamespace(itemsize=4)
    )
    row = SimpleNamespace(
        size_bytes=4 << 20,
        place="in",
        schedule="recursive-doubling",
        plan_us=19056.1,
        stock_us=25763.2,
        ratio=1.35,
        predicted_us=19262.0,
        algbw_GBps=0.22,
        busbw_GBps=0.38,
        bound_fraction=1.26,
        wrong=0,
        wire_bytes=1 << 20,
        rms_error=0.01,
        relayed_bytes=None,
    )
    run = Run(
        BenchOptions(place="both", compress="int8" if has_extra("codecs") else None),
        cast(Any, settings),
        "gloo",
        "gloo",
        None,
        [cast(Any, row)],
    )
    print_run(run)
    wide = capsys.readouterr().out
    sent = ["on the wire"] if has_extra("codecs") else []
    assert all(word in wide for word in ("predicted", "place", "count", *sent))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_run(run)
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    assert all(
        word in narrow
        for word in ("size", "plan", "busbw", "bound", "#wrong", "average busbw: plan 0.3852")
    )
