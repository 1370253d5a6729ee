"""Cached plans: used again, replaced when damaged, not mixed up; folders that cannot be used."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PLANNING_S

import topoplan.synth.planner.synthesize as planner
from topoplan.runtime.backend.planning import load_or_synthesize
from topoplan.runtime.extras.cache import folder as cache_folder
from topoplan.synth.ir.collective import Collective
from topoplan.synth.ir.demands import Demand, Demands
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.plan import Plan
from topoplan.synth.request import Request
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

ALLGATHER = Collective("allgather", 4)  # plans for it are made sooner


def plan_for(wanted: Collective, topology: Topology, folder: Path | None) -> Plan:
    return load_or_synthesize(Request(wanted, topology, Effort(PLANNING_S)), folder)


@pytest.mark.long
def test_a_plan_is_cached_used_again_and_replaced_when_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    plan = plan_for(ALLGATHER, preset("switch:4"), folder)
    (file,) = folder.iterdir()
    text = file.read_text(encoding="utf-8")
    with monkeypatch.context() as changed:
        changed.setattr(planner, "synthesize", None)
        assert plan_for(ALLGATHER, preset("switch:4"), folder).hash == plan.hash
    for damaged in (text[: len(text) // 2], "", text.replace('"ranks": 4', '"ranks": 5', 1), "[]"):
        file.write_text(damaged, encoding="utf-8")
        with caplog.at_level(logging.WARNING):
            assert plan_for(ALLGATHER, preset("switch:4"), folder).collective == ALLGATHER
        assert str(file) in caplog.messages[-1]
        caplog.clear()
        assert Plan.load(file).collective == ALLGATHER
    assert [x.name for x in folder.iterdir()] == [file.name]


def test_plans_of_like_machines_are_not_mixed_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Alike but for the order of ranks: one fingerprint, two plans; nor is a file believed for its
    name.
    """
    ring = preset("ring:4")
    gpus = {d.id: d for d in ring.devices}
    crossed = replace(ring, devices=tuple(gpus[ring.ranks[i]] for i in (0, 2, 1, 3)))
    assert crossed.fingerprint == ring.fingerprint
    first = plan_for(ALLGATHER, ring, tmp_path)
    (first_file,) = tmp_path.iterdir()
    second = plan_for(ALLGATHER, crossed, tmp_path)
    assert first.topology.ranks == ring.ranks and second.topology.ranks == crossed.ranks
    (second_file,) = set(tmp_path.iterdir()) - {first_file}
    second_file.write_text(first_file.read_text(encoding="utf-8"), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert plan_for(ALLGATHER, crossed, tmp_path).hash == second.hash
    assert "another machine" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert plan_for(ALLGATHER, preset("switch:4"), tmp_path / "file").collective == ALLGATHER
    (message,) = caplog.messages
    assert f"cache folder {tmp_path / 'file'}: " in message and "set TOPOPLAN_CACHE" in message


def test_plans_that_are_never_cached_miss_no_folder(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "_warned", set())  # it warns once per process
    with caplog.at_level(logging.WARNING):
        for wanted in (ALLGATHER, Demands.of([Demand(8, (0,), (3,))], 4)):
            plan_for(wanted, preset("ring:4"), None)
    (message,) = caplog.messages  # of the allgather
    assert message.startswith("no cache folder: ")
