"""The harness of the benchmarks: result files, tables, lists of names."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from harness import Results, Table, list_of


def test_a_second_start_knows_what_the_first_one_did(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = Results(path, ("program", "mode"))
    first.add({"program": "seed 1", "mode": "gloo", "how": "ok"})
    second = Results(path, ("program", "mode"))
    assert second.has(program="seed 1", mode="gloo")
    assert not second.has(program="seed 1", mode="race")
    second.add({"program": "seed 1", "mode": "race", "how": "hung"})
    assert [row["how"] for row in Results(path, ("program", "mode")).rows] == ["ok", "hung"]


def test_results_without_a_file_are_in_memory() -> None:
    results = Results(None, ("program",))
    results.add({"program": "seed 2"})
    assert results.has(program="seed 2")
    assert not results.has(program="seed 3")


def test_a_table_prints_rows_as_they_come_or_all_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = (("name", "name", "<5"), ("ratio", "ratio", ">7.2f"), ("met", "met", ">3"))
    rows = ({"name": "dgx1", "ratio": 1.5, "met": True}, {"name": "ring", "met": False})
    for as_json in (False, True):
        table = Table(columns, as_json=as_json)
        for row in rows:
            table.add(row)
        table.end(hung=[])
    text, _, printed = capsys.readouterr().out.partition("{")
    assert text == "name    ratio met\ndgx1     1.50 yes\nring           NO\n"
    assert json.loads("{" + printed)["rows"] == list(rows)


def test_a_list_names_what_it_does_not_know() -> None:
    assert list_of(("gloo", "topo"))("topo,gloo") == ["topo", "gloo"]
    with pytest.raises(argparse.ArgumentTypeError, match="nccl: expected some of gloo, topo"):
        list_of(("gloo", "topo"))("gloo,nccl")
