"""What the library imports: solvers, graphs of networks and tables only where they are needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import patience
import pytest
from launch import run_command

RANK = Path(__file__).resolve().parents[1] / "lean_rank.py"
# Each takes from 50 ms to half a second of a core to import.
HEAVY = {"networkx", "ortools", "pandas", "rich", "scipy"}


def list_packages(modules: str) -> set[str]:
    """Return the packages of modules that are listed as JSON."""
    return {name.partition(".")[0] for name in json.loads(modules)}


@pytest.mark.long
def test_ranks_import_no_planner(tmp_path: Path) -> None:
    """Rank 0 plans in a process of its own, and the other one does not plan."""
    own = {"TOPOPLAN_CACHE": str(tmp_path / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(tmp_path), str(rank)],
            env={**os.environ, **own},
        )
        for rank in range(2)
    ]
    assert [rank.wait(patience.seconds(200)) for rank in ranks] == [0, 0]
    for rank in range(2):
        packages = list_packages((tmp_path / f"{rank}.json").read_text("utf-8"))
        assert "torch" in packages
        assert packages & HEAVY == set()


def test_the_package_itself_imports_next_to_nothing() -> None:
    """Everything else is imported when a name is first used."""
    code = "import json, sys, topoplan; print(json.dumps([*sys.modules]))"
    packages = list_packages(run_command(sys.executable, "-c", code).stdout)
    assert "topoplan" in packages
    assert packages & {*HEAVY, "msgspec", "numpy", "torch"} == set()
