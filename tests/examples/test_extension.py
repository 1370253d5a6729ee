"""The package of examples/extension, installed: each of its parts by the public interface."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from launch import Ended, run_command, run_module, run_ranks
from needs import has_extra
from ranks import extension

import topoplan
from topoplan.extras import OPEN

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "extension"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH in which the package is installed."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("extension")
    copy = shutil.copytree(SOURCE, folder / "source")  # builds leave files there
    pip = ["pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    done = run_command(
        sys.executable, "-m", *pip, "--target", str(folder / "site"), str(copy), cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


def call(installed: Path, command: str, *arguments: str) -> Ended:
    """Run topoplan with the package, in a process of its own."""
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"PYTHONPATH": os.pathsep.join(paths)}
    return run_module("topoplan.cli.topoplan", command, *arguments, env=env, cwd=installed)


def test_it_is_short() -> None:
    files = [SOURCE / "pyproject.toml", *(SOURCE / "topoplan_extension").glob("*.py")]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) < 150


@pytest.mark.skipif(not has_extra("list-extras"), reason="no extra list-extras")
def test_its_parts_are_listed_and_all_are_used(installed: Path) -> None:
    listed = json.loads(call(installed, "extras", "--json").stdout)["packages"]
    mine = [row for row in listed if row["package"]["name"] == "topoplan-extension"]
    assert {row["group"]: row["name"] for row in mine} == {
        "commands": "hops",
        "exports": "dot",
        "formats": "edges",
        "layers": "counted",
        "runners": "gathered",
        "strategies": "widest-ring",
    }
    assert all(row["is_used"] for row in mine) and {row["group"] for row in mine} <= {*OPEN}


def test_its_strategy_plans_its_command_reads_and_its_format_is_written(
    installed: Path, tmp_path: Path
) -> None:
    plan, graph = tmp_path / "plan.json", tmp_path / "graph.dot"
    asked = ["allreduce", "dgx1", "--strategy", "widest-ring"]
    assert call(installed, "synth", *asked, "-o", str(plan)).returncode == 0
    schedule = topoplan.Plan.load(plan).entries[0].schedule
    assert schedule.strategy == "widest-ring" and schedule.steps == 14
    widths = topoplan.load("dgx1").capacity_GBps
    gpus = topoplan.load("dgx1").ranks
    assert len({widths[gpus[x.src], gpus[x.dst]] for x in schedule.transfers if not x.route}) >= 1
    done = call(installed, "hops", str(plan))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("from 0 bytes: widest-ring: 1 links, at most 1\n")
    done = call(installed, "synth", *asked, "--format", "dot", "-o", str(graph), "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["dot"]["edges"] == 8
    text = graph.read_text()
    assert text.startswith("digraph {\n  0 -> ") and text.count('[label="1.75"]') == 8
    refused = call(installed, "synth", "allgather", "dgx1", "--strategy", "widest-ring")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "strategy 'widest-ring': it has only allreduce" in refused.stderr


def test_its_files_are_read_where_nothing_else_reads_them(installed: Path, tmp_path: Path) -> None:
    machine = tmp_path / "machine.txt"
    machine.write_text("# edges\na b 10\nb c 2.5\na c 1\n")
    done = call(installed, "probe", str(machine), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    topology = topoplan.Topology.loads(done.stdout, "machine.txt")
    assert topology.ranks == ("a", "b", "c")
    assert topology.capacity_GBps["b", "c"] == topology.capacity_GBps["c", "b"] == Fraction(5, 2)
    assert call(installed, "synth", "allgather", str(machine), "--bound-only").returncode == 0
    with pytest.raises(topoplan.InputError, match="the format is not recognized"):
        topoplan.load(machine)  # without the package
    for text in ("# edges\na b\n", "# edges\na b fast\n", "# edges of another kind\n"):
        machine.write_text(text)
        done = call(installed, "probe", str(machine))
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_its_command_has_help_and_errors_as_all_commands(installed: Path) -> None:
    done = call(installed, "help", "hops")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: topoplan hops PLAN\n\nexamples:\n  topoplan hops plan.")
    done = call(installed, "hops", "no-such.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("topoplan hops: error: no-such.json: ")
    assert len(done.stderr.splitlines()) == 1


def test_its_runner_and_its_layer_carry_out_calls_of_two_ranks(
    installed: Path, plans: Callable[..., str]
) -> None:
    pytest.importorskip("torch")
    paths = plans("ring:2"), plans("ring:2", "broadcast")
    first, second = run_ranks(extension.add_up, 2, str(installed), *paths)
    assert first == second
    elements = 15 + 100_000
    counted = elements * (4 + 8 + 2) + 7 * 4
    assert first["bytes"] == {"allreduce": counted, "broadcast": 12}
    assert str(first["label"]).endswith(", gathered") and first["small"] and not first["large"]


def test_its_runner_and_its_layer_are_used_by_groups_and_hooks(
    installed: Path, plans: Callable[..., str]
) -> None:
    pytest.importorskip("torch")
    if not has_extra("layered-groups"):
        pytest.skip("layers around groups' calls are the extra layered-groups")
    paths = plans("ring:2"), plans("ring:2", "broadcast")
    first, second = run_ranks(extension.train, 2, str(installed), *paths)
    assert first == second
    # A small linear layer's gradients, which are averaged: the runner has sums alone.
    assert first == {"group": {"allreduce": 132, "broadcast": 36}, "sent": 132, "hook": 288}
