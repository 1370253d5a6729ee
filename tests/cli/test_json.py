"""What every command prints with --json: one object, with its format and version."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from launch import run_module
from needs import has_extra, list_runnable, long_cases
from shown_commands import build_parser

from topoplan.cli.commands import list_commands
from topoplan.cli.topoplan import main

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "output.schema.json").read_text())
# A short line of each command with --json, and the format of its output.
_LINES = {
    "probe dgx1 --json": "topoplan-topology",
    "probe dgx1 --format json": "topoplan-topology",
    "synth allreduce ring:4 --json": "topoplan-synth",
    "synth allreduce ring:4 --json --bound-only": "topoplan-synth",
    "judge --topology dgx-a100 all_reduce_perf.txt --json": "topoplan-judge",
    "judge --topology dgx-a100 all_reduce_perf.txt --at-least 0.1": "topoplan-judge-gate",
    "place dgx1 --json": "topoplan-place",
    "place dgx1 --format json": "topoplan-place",
    "extras --json": "topoplan-extras",
    "worth ring:4 --json": "topoplan-worth",
    "run PLAN --json -e 1K -n 1 -w 0": "topoplan-run",
    "run --stock --nproc 2 --collective allreduce,reduce --json -e 1K -n 1": "topoplan-run",
}
_OF_FILES = {
    "synth allreduce full:4 --json --format nccl-graph --no-guard -o graph.xml": "nccl-graph",
    "synth allreduce ring:4 --json --format rccl-env -o rccl.env": "rccl-env",
}
LINES = {line: _LINES[line] for line in list_runnable(_LINES)}
_EXPLAINS = {"synth allreduce ring:4 --json --explain": "topoplan-synth"}
_FRONTS = {
    "synth allgather ring:3 --json --pareto": "topoplan-synth",
    "synth allgather ring:3 --json --instance 1,1,2": "topoplan-synth",
}
LINES |= _FRONTS if has_extra("exact") else {}
LINES |= _EXPLAINS if has_extra("explain") else {}
LINES |= _OF_FILES if has_extra("nccl-files") else {}


@pytest.mark.parametrize("line", long_cases(LINES, "synth allreduce ring:4 --json --explain"))
def test_the_object_of_every_command_has_a_format_and_a_version(
    line: str,
    plans: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "all_reduce_perf.txt").write_bytes(
        (ROOT / "examples" / "all_reduce_perf.txt").read_bytes()
    )
    monkeypatch.chdir(tmp_path)
    if has_extra("judge"):
        from judge_options import find_options_once

        from topoplan.synth.extras.judge import judging

        monkeypatch.setattr(judging, "find_options", find_options_once)
    name, *rest = shlex.split(line.replace("PLAN", plans("ring:2")))
    if name == "run":
        pytest.importorskip("torch")
        done = run_module("topoplan.cli.run", *rest)
        code, text = done.returncode, done.stdout
    else:
        code, text = main([name, *rest]), capsys.readouterr().out
    body = json.loads(text)
    assert (code, body["format"], body["version"]) == (0, LINES[line], 1)
    if LINES[line] != "topoplan-topology":  # which has a schema of its own
        Draft202012Validator(SCHEMA).validate(body)


def test_every_command_with_json_is_tested() -> None:
    with_json = {n for n in list_commands() if "--json" in build_parser(n)._option_string_actions}
    assert with_json == {line.split()[0] for line in LINES}
