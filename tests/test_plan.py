"""Plans: files that are whole, verified when written and when read, and never used for what they are not for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.synth.plan import Plan, _hash
from topoplan.synth.synthesize import collective_on, synthesize
from topoplan.topo.errors import InputError, PlanMismatchError, VerificationError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset


def make(argument: str = "ring:4", name: str = "packing") -> Plan:
    topology = preset(argument)
    return synthesize(collective_on("allreduce", topology), topology, name, 20).plan


PLAN = make()


def test_a_plan_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    again = Plan.load(path)
    assert again == PLAN
    assert again.hash == PLAN.hash
    assert again.bound.certificate == PLAN.bound.certificate
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_an_existing_file_is_left_alone_without_force(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        PLAN.save(path)
    assert path.read_text() == "mine"
    PLAN.save(path, overwrite=True)
    assert Plan.load(path) == PLAN


def test_a_wrong_schedule_is_not_saved(tmp_path: Path) -> None:
    entry = PLAN.entries[-1]
    broken = replace(entry, schedule=replace(entry.schedule, transfers=entry.schedule.transfers[:-1]))
    with pytest.raises(VerificationError):
        replace(PLAN, entries=(*PLAN.entries[:-1], broken)).save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def forge(change: Any) -> str:
    """The plan's JSON changed and its hash made to fit, as somebody would who knows how hashes work."""
    data = json.loads(json.dumps(PLAN.to_json()))
    data.pop("hash")
    change(data)
    return json.dumps({**data, "hash": _hash(data)})


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["schedules"][0]["transfers"].pop(),
        lambda d: d["schedules"][0].update(step_s_per_GB=[0] * len(d["schedules"][0]["step_s_per_GB"])),
        lambda d: d["bound"].update(s_per_GB=99),
        lambda d: d.update(fingerprint="0" * 32),
        lambda d: d["topology"]["links"].pop(),
        lambda d: d["entries"].pop(),
        lambda d: d["entries"][0].update(schedule=7),
        lambda d: d["entries"][0].update(segments=0),
        lambda d: d.update(ranks=5),
        lambda d: d.pop("topology"),
        lambda d: d["schedules"][0].update(chunks=[["1/2", None, None]]),
    ],
)
def test_forged_plans_fail_the_replay_even_with_a_fitting_hash(change: Any) -> None:
    with pytest.raises(VerificationError):
        Plan.loads(forge(change))


def test_numbers_that_no_plan_holds_are_refused() -> None:
    text = json.dumps(PLAN.to_json()).replace('"ranks": 4', '"ranks": 4E9999', 1)
    with pytest.raises(VerificationError, match="damaged"):
        Plan.loads(text)


@settings(max_examples=150)
@given(st.data())
def test_any_flipped_character_is_noticed(data: st.DataObject) -> None:
    text = json.dumps(PLAN.to_json())
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda c: c != text[at]))
    changed = text[:at] + other + text[at + 1 :]
    try:
        same = json.loads(changed) == json.loads(text)
    except json.JSONDecodeError:
        same = False
    if not same:
        with pytest.raises((InputError, VerificationError)):
            Plan.loads(changed)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": "other"}', '{"format": "topoplan-plan", "version": 9}']
)
def test_what_is_no_plan_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        Plan.loads(text)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="there is no folder"):
        PLAN.save(tmp_path / "nowhere" / "plan.json")


def test_a_plan_is_for_one_topology_and_one_order_of_ranks() -> None:
    plan = make("path:4")
    plan.check_topology(preset("path:4"))
    with pytest.raises(PlanMismatchError, match="fingerprint"):
        plan.check_topology(preset("ring:4"))
    line = preset("path:4")
    devices = tuple(line.devices[i] for i in (1, 0, 2, 3))
    shuffled = Topology("another order", devices, line.links)
    assert shuffled.fingerprint == line.fingerprint
    with pytest.raises(PlanMismatchError, match="another order"):
        plan.check_topology(shuffled)


def test_the_ranges_of_sizes_must_be_whole() -> None:
    with pytest.raises(InputError, match="no schedule for buffers"):
        replace(PLAN, entries=PLAN.entries[:-1] or ())
    with pytest.raises(InputError, match="gap or overlap"):
        replace(PLAN, entries=PLAN.entries[1:])


def test_a_plan_keeps_no_facts_of_the_machine_it_is_for() -> None:
    evidence = {
        "facts": [{"subject": "gpu/0", "key": "mig", "source": "NVML", "value": "off"}],
        "measured": [],
        "notes": ["n"],
    }
    machine = replace(preset("ring:3"), extra=evidence)
    plan = synthesize(collective_on("allgather", machine), machine, "ring").plan
    assert plan.topology.extra == {"notes": ["n"]}
    assert plan.topology.fingerprint == machine.fingerprint
