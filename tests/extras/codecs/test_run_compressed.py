"""Compression as topo-run shows it, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from called import call_command
from launch import run_joined

from topoplan.synth.planner.synthesize import collective_on, synthesize
from topoplan.topo.presets import preset


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, machine = tmp_path_factory.mktemp("plans") / "plan.json", preset("ring:3")
    synthesize(collective_on("allreduce", machine), machine, "packing").plan.save(path)
    return str(path)


def run_on(ranks: int, *arguments: str) -> str:
    """Return what rank 0 printed."""
    ended = run_joined("topoplan.cli.run", *arguments, ranks=ranks)
    assert [rank.returncode for rank in ended] == [0] * ranks, ended
    return ended[0].stdout


@pytest.mark.long
def test_compression_is_shown_with_its_bytes_and_error(plan: str) -> None:
    def measure(*arguments: str) -> dict[str, Any]:
        out = run_on(3, plan, "-b", "64K", "-e", "64K", "-n", "1", "--json", *arguments)
        (row,) = json.loads(out)["rows"]
        return dict(row)

    row, whole = measure("--compress", "int8"), measure("--choose", "plan")
    assert row["wrong"] == whole["wrong"] == 0
    # Another schedule may send up to twice as much.
    assert 0 < row["wire_bytes"] <= 0.27 * whole["wire_bytes"] * 2
    assert 1e-4 < row["rms_error"] < 0.05 and whole["rms_error"] < 1e-6
    table = run_on(3, plan, "-b", "1K", "-e", "1K", "-n", "1", "--compress", "fp16")
    assert "fp16 on the wire" in table and "(rms)" in table


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--stock", "--nproc", "2", "--compress", "int8"], "the stock collective does not"),
        (["--compress", "zip"], "compress zip: is unknown; expected one of fp16"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], says: str, plan: str) -> None:
    done = call_command("run", *([] if "--stock" in arguments else [plan]), *arguments)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1


def test_other_names_are_understood(plan: str) -> None:
    out = run_on(3, plan, "-b", "1K", "-e", "1K", "-n", "1", "--compress", "half", "--json")
    assert json.loads(out)["compress"] == "fp16"
