"""Plans depend on the request alone: not on the load of the machine, nor on hash seeds; a time
limit that strikes is said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from called import call_command
from launch import Ended, run_command, run_module
from planned import synthesize

from topoplan.synth.ir.collective import collective_on
from topoplan.synth.numeric.effort import Effort
from topoplan.topo.presets import preset

MODULE = "topoplan.cli.synth"


def arguments(topology: str, *more: str) -> list[str]:
    return ["--collective", "allreduce", "--topology", topology, *more]


def result(done: Ended) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
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


@pytest.mark.long
def test_the_same_request_gives_the_same_plan_whatever_the_load() -> None:
    """benchmarks/same_plan.py asks it of dgx1, seven times."""
    own_hashes = {"PYTHONHASHSEED": "1"}
    asked = arguments("ring:4", "--json")
    alone = result(run_command(sys.executable, "-m", MODULE, *asked, env=own_hashes))
    run_module(MODULE, "--help")  # what commands are forked from starts while the machine is quiet
    with busy_machine():
        beside = result(run_module(MODULE, *asked))
    if alone["search_complete"] and beside["search_complete"]:
        assert alone["plan_hash"] == beside["plan_hash"]
    else:
        pytest.skip("the machine was so busy that the time limit struck, which was said")


def test_a_second_request_in_one_process_gives_the_same_plan() -> None:
    topology = preset("ring:3")
    hashes = {
        synthesize(collective_on("allreduce", topology), topology).plan.hash for _ in range(2)
    }
    assert len(hashes) == 1


def test_a_time_limit_that_strikes_is_said() -> None:
    asked = arguments("mesh:6x6", "--time-limit", "0.01")
    out = result(call_command("synth", *asked, "--json"))
    assert out["search_complete"] is False
    assert out["verified"] is True
    assert (
        "search cut short by --time-limit; the gap may be loose"
        in call_command("synth", *asked).stdout
    )


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
