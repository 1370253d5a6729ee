"""Plans depend on the request alone: not on the load of the machine, nor on hash seeds; a time limit that strikes is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from topoplan.synth.effort import Effort
from topoplan.synth.synthesize import collective_on, synthesize
from topoplan.topo.presets import preset


def topo_synth(topology: str, hash_seed: int, *more: str) -> dict[str, object]:
    command = [
        sys.executable,
        "-m",
        "topoplan.cli.synth",
        "--collective",
        "allreduce",
        "--topology",
        topology,
        "--json",
    ]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=True, env=environment, timeout=300)
    out: dict[str, object] = json.loads(done.stdout)
    return out


@contextmanager
def busy_machine() -> Iterator[None]:
    """Run beside as many busy processes as there are cores."""
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_the_same_request_gives_the_same_plan_whatever_the_load() -> None:
    """benchmarks/same_plan.py asks it of dgx1, seven times."""
    alone = topo_synth("ring:4", 1)
    with busy_machine():
        beside = topo_synth("ring:4", 2)
    if alone["search_complete"] and beside["search_complete"]:
        assert alone["plan_hash"] == beside["plan_hash"]
    else:
        pytest.skip("the machine was so busy that the time limit struck, which was said")


def test_a_second_request_in_one_process_gives_the_same_plan() -> None:
    topology = preset("ring:4")
    hashes = {synthesize(collective_on("allreduce", topology), topology).plan.hash for _ in range(2)}
    assert len(hashes) == 1


def test_a_time_limit_that_strikes_is_said() -> None:
    out = topo_synth("mesh:6x6", 1, "--time-limit", "0.01")
    assert out["search_complete"] is False
    assert out["verified"] is True
    command = [sys.executable, "-m", "topoplan.cli.synth", "--collective", "allreduce", "--topology", "mesh:6x6"]
    shown = subprocess.run([*command, "--time-limit", "0.01"], capture_output=True, text=True, check=True).stdout
    assert "search cut short by --time-limit; the gap may be loose" in shown


def test_work_that_is_done_is_no_cut() -> None:
    effort = Effort(600.0)
    part = effort.grant(1.0)
    assert part.left_s == 10.0  # a limit ten times the usual one raises all allowances
    part.spend(10.0)
    assert part.is_over("a search")
    assert not effort.is_over("another")
    assert effort.cut_short == []


def test_the_clock_is_recorded() -> None:
    effort = Effort(0.0)
    assert effort.left_s == 60.0
    assert effort.grant(1.0).is_over("a search")
    assert effort.cut_short == ["a search"]
