"""Equal switches side by side, such as the spines of a network, are planned as one switch."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import run_ranks
from planned import synthesize
from random_graphs import on
from ranks import collectives
from thorough import count_examples

import topoplan
from topoplan.cli.synth import main
from topoplan.synth.bounds.multipath import bound
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.synth.plan import Plan
from topoplan.topo.derived.stripes import merge_switches
from topoplan.topo.errors import PlanMismatchError
from topoplan.topo.graph import Device, Link, Topology, both_directions


def build_fabric(gpus: list[int], spines: int, uplinks: list[Fraction], nic: int = 25) -> Topology:
    """A leaf for each number of GPUs; each leaf's uplinks have a total rate, divided evenly."""
    leaf_of = [leaf for leaf, count in enumerate(gpus) for _ in range(count)]
    devices = [Device(f"gpu{i}") for i in range(len(leaf_of))]
    devices += [Device(f"leaf{i}", "switch", "network") for i in range(len(gpus))]
    devices += [Device(f"spine{i}", "switch", "network") for i in range(spines)]
    wires = [(f"gpu{i}", f"leaf{leaf}", Fraction(nic)) for i, leaf in enumerate(leaf_of)]
    wires += [
        (f"leaf{leaf}", f"spine{i}", total / spines)
        for leaf, total in enumerate(uplinks)
        for i in range(spines)
    ]
    links = (x for a, b, rate in wires for x in both_directions(Link(a, b, rate, kind="network")))
    return Topology("fabric", tuple(devices), tuple(links))


def full(leaves: int, per_leaf: int, spines: int) -> Topology:
    """Full bisection: a leaf's uplinks carry what its GPUs send."""
    return build_fabric([per_leaf] * leaves, spines, [Fraction(25 * per_leaf)] * leaves)


@st.composite
def fabrics(draw: st.DrawFn) -> tuple[Topology, Topology]:
    """A random fabric, uneven between leaves, with its spines apart and as one."""
    gpus = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    uplinks = [Fraction(draw(st.integers(3, 60))) for _ in gpus]
    spines = draw(st.integers(2, 4))
    return build_fabric(gpus, spines, uplinks), build_fabric(gpus, 1, uplinks)


@pytest.mark.long
@settings(max_examples=count_examples(25))
@given(fabrics())
def test_bounds_are_those_of_one_spine(pair: tuple[Topology, Topology]) -> None:
    apart, one = pair
    assert merge_switches(apart).capacity_GBps == one.capacity_GBps
    for name in ("allreduce", "allgather", "alltoall", "broadcast"):
        # any use of the links, on the machine as drawn
        assert bound(on(name, apart), apart).algbw_GBps == bound(on(name, one), one).algbw_GBps


@settings(max_examples=count_examples(2))
@given(fabrics(), st.sampled_from(COLLECTIVES))
def test_plans_fit_the_machine_as_drawn(pair: tuple[Topology, Topology], name: str) -> None:
    apart, one = pair
    plan = topoplan.synthesize(on(name, apart), apart, "packing", time_limit_s=5)
    plan.verify()
    plan.check_topology(apart)
    same = topoplan.synthesize(on(name, one), one, "packing", time_limit_s=5)
    assert plan.bound_one_way.algbw_GBps == same.bound_one_way.algbw_GBps
    topoplan.verify(plan.schedules[0], apart)


@pytest.mark.parametrize(("leaves", "spines"), [(2, 4), (4, 2)])
def test_alltoall_under_full_bisection_reaches_the_bound(leaves: int, spines: int) -> None:
    plan = topoplan.synthesize("alltoall", full(leaves, 16 // leaves, spines))
    assert plan.bound_one_way.algbw_GBps == plan.bound.algbw_GBps == Fraction(80, 3)
    assert min(map(plan.gap_of, plan.entries)) == 0


def test_every_collective_reaches_the_bound_of_one_spine() -> None:
    for name in COLLECTIVES:
        plan = topoplan.synthesize(
            on(name, full(2, 2, 2)), full(2, 2, 2), "packing", time_limit_s=10
        )
        assert min(map(plan.gap_of, plan.entries)) == 0, name


@pytest.mark.long
def test_a_spine_with_a_slow_link_stays_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Options name devices as drawn; the other spines are still one."""
    path, out = tmp_path / "fabric.json", tmp_path / "plan.json"
    path.write_text(full(2, 2, 4).dumps())
    request = ["--collective", "alltoall", "--topology", str(path), "-o", str(out)]
    assert main([*request, "--scale-link", "leaf0:spine1=0.5"]) == 0
    assert "3 equal switches (spine0, spine2, spine3) planned as one\n" in capfd.readouterr().out
    plan = Plan.load(out)
    assert [d.id for d in plan.topology.devices if d.id[:2] == "sp"] == ["spine0", "spine1"]
    assert plan.topology.capacity_GBps["leaf0", "spine0"] == Fraction(75, 2)
    assert plan.gap_of(plan.entry_for(1 << 30)) == 0
    assert main([*request, "--force", "--without-link", "spine1:leaf0", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["verified"]


def test_switches_that_differ_or_have_one_neighbour_stay_as_they_are() -> None:
    machine = full(2, 2, 2)
    for change in ({"can_reduce": True}, {"can_copy": True}, {"family": None}, {"family": "pcie"}):
        devices = tuple(replace(d, **change) if d.id == "spine1" else d for d in machine.devices)
        assert merge_switches(replace(machine, devices=devices)).devices == devices
    trees = [
        x for x in machine.links if {"leaf0", "spine0"} != {x.src, x.dst} != {"leaf0", "spine1"}
    ]
    dangling = replace(machine, links=tuple(trees))
    assert merge_switches(dangling) == dangling


def test_plans_from_before_still_fit_and_others_do_not() -> None:
    machine = full(2, 2, 2)
    before = synthesize(on("alltoall", machine), machine, "direct", 5).plan
    assert "spine1" in before.topology.by_id
    before.check_topology(machine)
    topoplan.verify(before.schedules[0], machine)
    with pytest.raises(PlanMismatchError, match="fingerprint"):
        before.check_topology(full(2, 2, 4))


def test_plans_from_the_drawn_file_run_with_the_drawn_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from topoplan.cli.running.options import load_plans

    path, out = tmp_path / "fabric.json", str(tmp_path / "plan.json")
    path.write_text(full(2, 1, 2).dumps())
    topoplan.synthesize("allreduce", path, "packing").save(out)
    # what topo-run does with --topology
    asked = Namespace(plans=[out], topology=str(path), calibrate=False, trace=None)
    assert load_plans(asked)
    run_ranks(collectives.same_bits, 2, [out])
