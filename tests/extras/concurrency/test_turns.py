"""Plans with limits on concurrent transfers: what is planned, promised, refused, and replayed."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import cast

import pytest
from called import call_command

import topoplan
from topoplan.synth.extras.concurrency.bound import narrow
from topoplan.synth.extras.concurrency.limits import parse_limits
from topoplan.synth.extras.concurrency.one_ring import find_order
from topoplan.synth.extras.concurrency.section import Concurrent
from topoplan.synth.extras.concurrency.turns import cut, take_turns
from topoplan.synth.ir.collective import COLLECTIVES, Collective, CollectiveName
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer
from topoplan.synth.plan import Plan
from topoplan.topo.errors import InfeasibleError, InputError, VerificationError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset


def build_box(switches: int = 2, gpus: int = 2, rate: int = 37) -> Topology:
    """A host of so many switches under one root, with so many GPUs each."""
    devices = [Device(f"gpu{i}") for i in range(switches * gpus)]
    devices += [Device(f"plx{i}", "switch", "pcie") for i in range(switches)]
    ends = [(f"gpu{i}", f"plx{i // gpus}") for i in range(switches * gpus)]
    ends += [(f"plx{i}", "cpu0") for i in range(switches)]
    links = [x for a, b in ends for x in both_directions(Link(a, b, Fraction(rate), Fraction(1)))]
    return Topology("box", (*devices, Device("cpu0", "cpu")), tuple(links))


def count_most(schedule: Schedule, topology: Topology) -> dict[str, int]:
    """Return the most pairs that are at each device in a step, at a GPU in one direction."""
    pairs: dict[tuple[int, str], set[tuple[int, int]]] = defaultdict(set)
    for t in schedule.transfers:
        ends = f"{topology.ranks[t.src]} out", f"{topology.ranks[t.dst]} in"
        for device in (*t.route, *ends):
            pairs[t.step, device].add((t.src, t.dst))
    most: dict[str, int] = defaultdict(int)
    for (_, device), found in pairs.items():
        most[device] = max(most[device], len(found))
    return most


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *((name, "switch=1") for name in COLLECTIVES),
        ("allreduce", "root=1,gpu=2"),
        ("gather", "plx0=2"),
    ],
)
def test_every_schedule_of_a_plan_keeps_to_the_limits(name: str, limit: str) -> None:
    box = build_box()
    plan = topoplan.synthesize(cast(CollectiveName, name), box, constraints={"concurrent": limit})
    plan.verify()
    limits = dict(parse_limits(limit).most)
    for schedule in plan.schedules:
        assert schedule.segments == 1
        for device, most in count_most(schedule, box).items():
            kind = {"g": "gpu", "p": "switch", "c": "root"}[device[0]]
            allowed = limits.get(device, limits.get(kind))
            assert allowed is None or most <= allowed, (schedule, device)
    section = plan.find_extension("concurrent")
    assert isinstance(section, Concurrent)
    gap = section.find_gap(plan)
    assert gap is not None
    assert gap >= 0


def test_limits_cost_what_they_must() -> None:
    """One ring has all of a box's rate for one stream out and one in; a switch that carries one
    transfer at a time carries the sum of all.
    """
    box = build_box()
    free = topoplan.synthesize("allreduce", box)
    for limit, share in (("gpu=1", Fraction(1)), ("switch=1", Fraction(3, 8))):
        plan = topoplan.synthesize("allreduce", box, constraints={"concurrent": limit})
        assert plan.limit_GBps(plan.entries[-1]) == share * free.bound.algbw_GBps
        assert plan.find_extension("concurrent").find_gap(plan) == 0


def test_one_ring_takes_the_fastest_hops() -> None:
    """On a DGX-1 some pairs have two links, both of which one transfer uses."""
    machine = preset("dgx1")
    plan = topoplan.synthesize("allreduce", machine, constraints={"concurrent": "gpu=1"})
    assert plan.limit_GBps(plan.entries[-1]) == Fraction(200, 7)
    rows = [{b: Fraction(1 + (b == (a + 2) % 5)) for b in range(5) if b != a} for a in range(5)]
    assert find_order(rows) == (0, 2, 4, 1, 3)
    assert find_order([{1: Fraction(1)}, {2: Fraction(1)}, {}]) is None


def test_a_file_keeps_its_limits_and_is_checked(tmp_path: Path) -> None:
    box = build_box()
    plan = topoplan.synthesize("alltoall", box, constraints={"concurrent": {"switch": 1}})
    plan.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read == plan
    assert read.runner == "turns"
    section = read.find_extension("concurrent")
    assert section.limits == parse_limits("switch=1")
    for wrong, why in (
        (
            replace(section, limits=parse_limits("gpu=1,plx0=1")),
            "prices name a link",
        ),
        (replace(section, bound=replace(section.bound, s_per_GB=Fraction(1))), "claimed"),
        (replace(section, limits=parse_limits("nothing=1"), bound=None), "nothing"),
    ):
        with pytest.raises(VerificationError, match=why):
            replace(read, extensions=(wrong,)).verify()
    free = topoplan.synthesize("alltoall", box)
    with pytest.raises(VerificationError, match=r"at once .* in step .* promises switch=1"):
        replace(free, extensions=(replace(section, bound=None),)).verify()
    entry = replace(read.entries[0], schedule=replace(read.entries[0].schedule, segments=2))
    with pytest.raises(VerificationError, match="2 segments, whose steps overlap"):
        replace(read, entries=(entry, *read.entries[1:])).verify()


def test_times_count_the_words_between_steps() -> None:
    box = build_box()
    plan = topoplan.synthesize("alltoall", box, constraints={"concurrent": "switch=1"})
    schedule = plan.entries[0].schedule
    waits_us = plan.find_extension("concurrent").find_waits_us(schedule, box)
    without = replace(plan, extensions=())
    entry, same = plan.entries[0], without.entries[0]
    assert waits_us > 0
    assert plan.cost_of(entry).alpha_us == without.cost_of(same).alpha_us + waits_us


def test_a_narrowed_machine_has_a_link_for_each_limit() -> None:
    box = build_box()
    narrowed = narrow(box, parse_limits("gpu=1,switch=2").find_ports(box))
    assert narrowed.ranks == box.ranks
    assert narrowed.capacity_GBps["plx0 into", "plx0 out of"] == 74
    assert narrowed.capacity_GBps["gpu0", "gpu0 out of"] == 37
    assert narrowed.capacity_GBps["gpu0 out of", "plx0 into"] == 37
    assert ("gpu0", "plx0") not in narrowed.capacity_GBps


def test_ranks_that_exchange_values_stay_together() -> None:
    """Each adds the other's value from before the step, so both go at once or not at all."""
    pair = Topology(
        "pair",
        (Device("a"), Device("b"), Device("s", "switch")),
        tuple(x for g in "ab" for x in both_directions(Link(g, "s"))),
    )
    collective = Collective("allreduce", 2)
    rows = (Transfer(0, 0, 1, 0, "reduce", ("s",)), Transfer(0, 1, 0, 0, "reduce", ("s",)))
    schedule = Schedule(collective, "by hand", collective.even_chunks(1), rows, (Fraction(1),))  # type: ignore[arg-type]
    assert take_turns(schedule, pair, parse_limits("gpu=1").find_ports(pair)).steps == 1
    with pytest.raises(InfeasibleError, match="need more transfers at a time"):
        take_turns(schedule, pair, parse_limits("s=1").find_ports(pair))
    parts = cut(schedule, 3)
    topoplan.verify(parts, pair)
    assert (len(parts.chunks), len(parts.transfers)) == (3, 6)


@pytest.mark.parametrize("text", ["", "gpu", "gpu=0", "gpu=1,gpu=2", "=1", "gpu=1.5", {}])
def test_wrong_limits_are_refused(text: object) -> None:
    with pytest.raises(InputError, match="concurrent"):
        topoplan.synthesize("allreduce", "ring:2", constraints={"concurrent": text})


def test_what_does_not_go_with_limits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no switch"):
        topoplan.synthesize("allreduce", "ring:2", constraints={"concurrent": "switch=1"})
    with pytest.raises(InputError, match="one promise"):
        topoplan.synthesize(
            "allreduce", "ring:4", reproducible=True, constraints={"concurrent": "gpu=1"}
        )
    with pytest.raises(InputError, match="spares"):
        topoplan.synthesize(
            "allreduce", "ring:4", spare="links", constraints={"concurrent": "gpu=1"}
        )
    for option in (["--bound-only"], ["--spare", "links"], ["--pareto"], ["--reproducible"]):
        done = call_command("synth", "allreduce", "ring:4", "--concurrent", "gpu=1", *option)
        assert done.returncode == 2
        assert "--concurrent" in done.stderr


def test_topo_synth_says_under_what_limits_its_figures_are() -> None:
    asked = ("synth", "allreduce", "dgx1", "--concurrent", "gpu=1", "--size", "64M")
    told = json.loads(call_command(*asked, "--json").stdout)["concurrent"]
    assert told["limits"] == {"gpu": 1}
    assert told["assumes"] == "with at most one transfer at a time out of and into each GPU"
    assert told["bound"]["algbw_GBps_exact"] == "200/7"
    assert told["gap"] == 0
    shown = call_command(*asked).stdout
    assert told["assumes"] in shown
    assert "at most 28.57 (exactly 200/7) GB/s algbw" in shown


def test_a_group_keeps_to_limits_without_helpers() -> None:
    plan = topoplan.synthesize(
        "allreduce", build_box(), group=[0, 2, 3], constraints={"concurrent": "root=1"}
    )
    plan.verify()
    assert not plan.used_helpers
    assert all(count_most(x, plan.topology)["cpu0"] == 1 for x in plan.schedules)
