"""Plans: files that are whole, verified when written and when read, and never used for what they
are not for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import synthesize
from thorough import count_examples

from topoplan.synth.ir.collective import collective_on
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer, Transfers
from topoplan.synth.plan import Plan
from topoplan.synth.plan_text import hash_of
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
    with pytest.raises(InputError, match=r"already exists.*, or give overwrite=True"):
        PLAN.save(path)
    assert path.read_text() == "mine"
    PLAN.save(path, overwrite=True)
    assert Plan.load(path) == PLAN


def test_a_wrong_schedule_is_not_saved(tmp_path: Path) -> None:
    entry = PLAN.entries[-1]
    broken = replace(
        entry, schedule=replace(entry.schedule, transfers=entry.schedule.transfers[:-1])
    )
    with pytest.raises(VerificationError):
        replace(PLAN, entries=(*PLAN.entries[:-1], broken)).save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def forge(change: Any) -> str:
    """The plan's JSON changed and its hash made to fit, as somebody would who knows how hashes
    work.
    """
    data = json.loads(json.dumps(PLAN.to_json()))
    data.pop("hash")
    change(data)
    return json.dumps({**data, "hash": hash_of(data)})


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["schedules"][0]["transfers"].pop(),
        lambda d: d["schedules"][0].update(
            step_s_per_GB=[0] * len(d["schedules"][0]["step_s_per_GB"])
        ),
        lambda d: d["bound"].update(s_per_GB=99),
        lambda d: d.update(fingerprint="0" * 32),
        lambda d: d["topology"]["links"].pop(),
        lambda d: d["entries"].pop(),
        lambda d: d["entries"][0].update(schedule=7),
        lambda d: d["entries"][0].update(segments=0),
        lambda d: d.update(ranks=5),
        lambda d: d.pop("topology"),
        lambda d: d["schedules"][0].update(chunks=[["1/2", None, None]]),
        lambda d: d["bound"].update(certificate={}),
        lambda d: d["schedules"][0].update(routes=[]),
    ],
)
def test_forged_plans_fail_the_replay_even_with_a_fitting_hash(change: Any) -> None:
    with pytest.raises(VerificationError):
        Plan.loads(forge(change))


def put(value: object, *place: str | int) -> Any:
    """A change of a plan's JSON: `value` at `place`."""

    def change(data: Any) -> None:
        for part in place[:-1]:
            data = data[part]
        data[place[-1]] = value

    return change


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (
            ("entries", 0, "schedule"),
            -1,
            "entries[0].schedule: expected a whole number from 0 to 1000000000, got -1",
        ),
        (("entries", 0, "schedule"), 0.5, "entries[0].schedule: expected a whole number, got 0.5"),
        (
            ("entries", 0, "schedule"),
            False,
            "entries[0].schedule: expected a whole number, got false",
        ),
        (
            ("entries", 0, "min_bytes"),
            False,
            "entries[0].min_bytes: expected a whole number, got false",
        ),
        (
            ("entries", 0, "max_bytes"),
            4.5,
            "entries[0].max_bytes: expected a whole number, got 4.5",
        ),
        (
            ("entries", 0, "max_bytes"),
            -4,
            "entries[0].max_bytes: expected a whole number of at least 1, got -4",
        ),
        (
            ("entries", 0, "segments"),
            4096,
            "entries[0].segments: expected a whole number from 1 to 2048, got 4096",
        ),
        (
            ("schedules", 0, "segments"),
            4,
            "schedules[0]: it is cut into segments; only entries say how",
        ),
        (("bound", "s_per_GB"), "1/1000000", "bound: the certificate proves "),
        (
            ("reduction_order",),
            "a\nb",
            "reduction_order: expected a string without control characters",
        ),
        (("fingerprint",), "\x1b[2J", "fingerprint: expected a string without control characters"),
        (
            ("topology", "devices", 0, "host"),
            "a\x1b",
            "topology: devices[0]: 'host': expected a string without control characters",
        ),
        (("entries", 0, "stepwise"), 1, "entries[0].stepwise: expected true or false, got 1"),
        (("alternatives",), [True], "alternatives[0]: expected a whole number, got true"),
        (("alternatives",), [99], "an entry names schedule 99; "),
        (
            ("schedules", 0, "transfers", 3, 1),
            -1,
            "schedules[0].transfers[3][1]: expected a whole number from 0",
        ),
        (
            ("schedules", 0, "transfers", 3, 4),
            "add",
            "schedules[0].transfers[3][4]: expected one of copy, reduce, got 'add'",
        ),
        (
            ("schedules", 0, "transfers", 3),
            [0, 1],
            "schedules[0].transfers[3]: expected a list of 6 values, got a list of 2",
        ),
        (
            ("schedules", 0, "strategy"),
            "a\nb",
            "schedules[0].strategy: expected a string without control characters",
        ),
        (
            ("bound", "kind"),
            "guess",
            "bound.kind: expected one of cut, prices, tree-prices, got 'guess'",
        ),
        (
            ("topology", "devices", 0, "id"),
            "",
            "topology: devices[0].id: expected a string that is not empty, got ''",
        ),
    ],
)
def test_what_no_plan_holds_is_named_with_its_place(
    place: tuple[str | int, ...], value: object, says: str
) -> None:
    with pytest.raises(VerificationError) as caught:
        Plan.loads(forge(put(value, *place)), "plan.json")
    assert str(caught.value).startswith(f"plan.json: {says}")
    assert "\n" not in str(caught.value)


def test_a_plan_that_was_read_can_be_written_again(tmp_path: Path) -> None:
    again = Plan.loads(json.dumps(make("dgx1").to_json()))
    again.save(tmp_path / "again.json")
    assert Plan.load(tmp_path / "again.json").hash == again.hash


def test_numbers_that_no_plan_holds_are_refused() -> None:
    text = json.dumps(PLAN.to_json()).replace('"ranks": 4', '"ranks": 4E9999', 1)
    with pytest.raises(VerificationError, match="damaged"):
        Plan.loads(text)


@settings(max_examples=count_examples(50))
@given(st.data())
def test_any_flipped_character_is_noticed(data: st.DataObject) -> None:
    text = json.dumps(PLAN.to_json())
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(
        st.characters(min_codepoint=33, max_codepoint=126).filter(lambda c: c != text[at])
    )
    changed = text[:at] + other + text[at + 1 :]
    try:
        same = json.loads(changed) == json.loads(text)
    except json.JSONDecodeError:
        same = False
    if not same:
        with pytest.raises((InputError, VerificationError)):
            Plan.loads(changed)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": "other"}', '{"format": "topoplan-plan", "version": 9}'],
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


def test_a_plan_that_adds_in_different_orders_is_refused_where_replicas_must_agree() -> None:
    """Three ranks: rank 0 adds (0+1)+2, rank 2 adds 0+(1+2)."""
    plan = make("ring:3", "ring")
    plan.check_same_bits()
    rows = Transfers.of(
        (
            Transfer(0, 1, 0, 0, "reduce"),
            Transfer(0, 1, 2, 0, "reduce"),
            Transfer(1, 2, 1, 0, "copy"),
            Transfer(2, 0, 2, 0, "copy"),
        )
    )
    one = Fraction(1)
    by_hand = Schedule(
        plan.collective, "by hand", plan.collective.even_chunks(1), rows, (one, one, one)
    )
    with pytest.raises(
        InputError, match="the plan's by hand schedule adds in different orders on different ranks"
    ):
        replace(plan, alternatives=(by_hand,)).check_same_bits()
