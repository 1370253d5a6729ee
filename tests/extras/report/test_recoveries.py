"""The section of a report on the faults after which a run went on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import topoplan
from topoplan.cli.extras.report import main

ROW = {"kind": "lost", "recovery": 1, "call": 7, "bound_GBps": 1.25, "resent_bytes": 6 << 20}
ROWS = [
    {**ROW, "at": 4.39, "lost_links": ["gpu0 - gpu1"], "seconds": 1.66},
    {**ROW, "at": 21.5, "lost_links": ["gpu0 - gpu1", "gpu2 - gpu3"], "seconds": 0.25},
    {**ROW, "at": 30.0, "lost_links": [], "seconds": 0.5, "bound_GBps": None},
]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A plan's file, and its hash."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    made = topoplan.synthesize("allreduce", "ring:4", "ring")
    made.save(path)
    return str(path), made.hash


def write_run(folder: Path, plan_hash: str, **fields: object) -> str:
    path = folder / "run.json"
    run = {"format": "topoplan-run", "version": 1, "plan_hash": plan_hash, **fields}
    path.write_text(json.dumps(run))
    return str(path)


def test_recoveries_are_drawn_and_listed(plan: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run = write_run(tmp_path, plan[1], recoveries=ROWS)
    assert main([plan[0], "--run", run, "-o", str(page), "--time-limit", "1", "-q"]) == 0
    section = page.read_text().partition('<section id="recoveries">')[2].partition("</section>")[0]
    picture, _, table = section.partition("<table>")
    assert picture.count("<title>1.66 s</title>") == picture.count("<title>0.25 s</title>") == 1
    assert "link gpu0 - gpu1 was lost: noticed at 4.39 s, on again at 6.05 s" in picture
    # A mark each for noticing and going on, and those of the legend.
    assert picture.count('<polygon class="add"') == picture.count('<polygon class="fp"') == 4
    for text in (
        "4.39",
        "link gpu0 - gpu1 and gpu2 - gpu3 was lost",
        "a connection was lost",
        "6 MiB",
        "1.25",
        "-",
    ):
        assert f">{text}<" in table
    assert 'href="#recoveries"' in page.read_text()


def test_the_events_of_a_training_are_read_too(plan: tuple[str, str], tmp_path: Path) -> None:
    """The last line about a fault counts; of the last one there is no end, nor of its line."""
    event = {"format": "topoplan-event", "version": 1, "group": "0", "plan_hash": plan[1]}
    lost = {**event, "kind": "lost", "call": 7}
    lines = [
        {**lost, "event": "fault", "at": 4.39},
        {**event, **ROWS[0], "event": "resumed"},
        {**event, **ROWS[1], "event": "resumed", "plan_hash": "0" * 64},
        {**lost, "event": "fault", "at": 33.5},
    ]
    run = tmp_path / "events.jsonl"
    run.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"format": "topopl')
    page = tmp_path / "page.html"
    assert main([plan[0], "--run", str(run), "-o", str(page), "--time-limit", "1", "-q"]) == 0
    section = page.read_text().partition('<section id="recoveries">')[2].partition("</section>")[0]
    picture, _, table = section.partition("<table>")
    assert picture.count("<title>1.66 s</title>") == 1
    assert "21.5" not in table
    assert table.count("4.39") == 1
    assert ">33.50<" in table and ">never<" in table


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "expected the JSON of a run of topo-run that goes on after faults"),
        ({"recoveries": [], "plan_hash": "0" * 64}, "is the run of another plan"),
        ({"recoveries": [{**ROW, "at": "soon"}]}, "a damaged list of recoveries"),
        ({"recoveries": 7}, "a damaged list of recoveries"),
        ({"format": "topoplan-event", "plan_hash": "0" * 64}, "has the faults of other plans"),
        ({"format": "topoplan-event", "kind": "lost"}, "a damaged event"),
    ],
)
def test_what_is_no_run_is_refused(
    fields: dict[str, object],
    says: str,
    plan: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = write_run(tmp_path, str(fields.pop("plan_hash", plan[1])), **fields)
    assert main([plan[0], "--run", run, "-o", str(tmp_path / "page.html")]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert len(printed.splitlines()) == 1


def test_a_run_belongs_to_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(tmp_path / "page.html")
    assert main(["ring:4", "--run", "run.json", "-o", page]) == 2
    assert "expected a plan, whose run it is" in capsys.readouterr().err
