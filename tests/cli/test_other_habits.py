"""Command lines of people who forget a step: answered in one line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from topoplan.cli.topoplan import main

ROOT = Path(__file__).resolve().parents[2]


def refuse(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on standard error with which a line of topoplan is refused."""
    try:
        code: object = main(shlex.split(line))
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert (code, said.out, len(said.err.splitlines())) == (2, "", 1), said
    return said.err.strip()


@pytest.mark.parametrize("name", ["dgx1", "topo.xml", "a b.json"])
def test_a_topology_in_place_of_a_plan_gets_the_commands_for_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a b.json").write_text((ROOT / "examples" / "two-hosts.json").read_text())
    monkeypatch.chdir(tmp_path if name == "a b.json" else ROOT / "examples")
    said = refuse(f"run {shlex.quote(name)}", capsys)
    right = f"topo-synth allreduce {shlex.quote(name)} -o plan.json && topo-run plan.json"
    assert said.endswith(f"{name}: a topology, not a plan; make a plan for it first: {right}")


def test_a_file_that_is_neither_plan_nor_topology_is_called_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for name in ("notes.txt", "missing.json"):
        assert "a topology, not a plan" not in refuse(f"run {tmp_path / name}", capsys)
