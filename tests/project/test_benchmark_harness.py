"""The harness of the benchmarks: result files."""

from __future__ import annotations

from pathlib import Path

from harness import Results


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
