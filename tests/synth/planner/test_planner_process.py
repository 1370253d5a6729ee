"""Planning in a process of its own: what it returns, how it is stopped, and where there is none."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PLANNING_S
from planned import synthesize
from reports import Reports

from topoplan.synth.ir.collective import collective_on
from topoplan.synth.planner import planner_process
from topoplan.synth.planner.planner_process import FoundPlan, synthesize_in_process
from topoplan.topo.errors import InfeasibleError, TimeLimitError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

RING = preset("ring:3")


def plan(
    topology: Topology = RING, stop: threading.Event | None = None, limit_s: float = PLANNING_S
) -> FoundPlan | None:
    return synthesize_in_process(
        collective_on("allreduce", topology),
        topology,
        limit_s,
        reproducible=False,
        is_stopped=(stop or threading.Event()).is_set,
    )


@pytest.mark.long
def test_the_plan_is_that_of_this_process() -> None:
    found = plan()
    assert found is not None
    assert found.plan.hash == synthesize(collective_on("allreduce", RING), RING).plan.hash
    assert found.cut_short == ()


class AnswersHere:
    """In place of a planning process: its module, run by this one, which has all imports."""

    returncode = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> AnswersHere:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def communicate(self, request: bytes, timeout: float) -> tuple[bytes, None]:
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setattr(sys, "stdin", io.StringIO(request.decode()))
            patch.delitem(sys.modules, planner_process.__name__)
            runpy.run_module(planner_process.__name__, run_name="__main__")
        return said.getvalue().encode(), None


def test_an_error_arrives_as_the_same_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", AnswersHere)
    links = tuple(x for x in RING.links if "gpu2" not in (x.src, x.dst))
    with pytest.raises(InfeasibleError, match="gpu2"):
        plan(Topology("apart", RING.devices, links))


def make_endless(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pipe: Path | str = "/dev/null"
) -> None:
    """Have a process that does not end in place of the planner; it tells its number to a pipe."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho $$ > {pipe}\nexec sleep 9999\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_a_stop_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    make_endless(tmp_path, monkeypatch, tmp_path / "started")
    with Reports(tmp_path / "started") as reports, ThreadPoolExecutor(1) as pool:

        def wait_and_stop() -> int:
            try:
                return int(*reports.read(1, "the start of the process"))
            finally:
                stop.set()

        pid = pool.submit(wait_and_stop)
        with pytest.raises(TimeLimitError, match="stopped"):
            plan(stop=stop)
        with pytest.raises(ProcessLookupError):
            os.kill(pid.result(), 0)


def test_the_clock_ends_a_process_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_endless(tmp_path, monkeypatch)
    monkeypatch.setattr(planner_process, "PATIENCE_S", 0.1)
    with pytest.raises(TimeLimitError, match="did not end within"):
        plan(limit_s=0.1)


@pytest.mark.network("quiet")
def test_the_start_of_the_process_is_part_of_the_time_limit() -> None:
    """The search has some time all the same: at once there are simple plans."""
    found = plan(limit_s=1e-3)
    assert found is not None and found.plan.schedules


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false", "", None])
def test_a_python_that_cannot_be_started_again_makes_no_plan(
    python: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", python)
    assert plan() is None
