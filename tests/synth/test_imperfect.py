"""Synthesis on machines that are not perfect: slow links, lost GPUs, switches of which only some
compute.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import synthesize
from random_graphs import graphs
from thorough import count_examples
from unhurried import make_effort

from topoplan.synth.bounds.certificate import Bound, check_bound
from topoplan.synth.bounds.multipath import bound
from topoplan.synth.cost.affine import bandwidth_s_per_GB
from topoplan.synth.forest.combs import comb_trees
from topoplan.synth.forest.level_trees import LevelTrees
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.machine.boxes import find_boxes
from topoplan.synth.machine.partitions import find_narrow_groups
from topoplan.synth.packing.level_paths import LevelPaths
from topoplan.synth.packing.paths import level_schedule
from topoplan.synth.packing.survey import mend
from topoplan.synth.plan import Plan
from topoplan.synth.planner.whole import Synthesis
from topoplan.synth.verify import verify
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.errors import VerificationError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset

SLOW = Change(scale_links=("gpu0:network0=0.9",))
LOST = Change(without_ranks=(3,))


def gap_of(plan: Plan) -> float:
    """The gap of the fastest of a plan's schedules at large sizes; its bound is checked."""
    check_bound(plan.bound, plan.collective, plan.topology)
    times = [
        bandwidth_s_per_GB(replace(e.schedule, segments=2), plan.topology) for e in plan.entries
    ]
    return float(1 - plan.bound.s_per_GB / min(times))


def least_gap_of(found: Synthesis) -> float:
    """The least gap of what a plan was chosen from.

    The plan may take trees with a larger one, whose messages hold each other up less.
    """
    piped = {replace(schedule.uncut, segments=2) for schedule, _ in found.candidates}
    times = [bandwidth_s_per_GB(schedule, found.plan.topology) for schedule in piped]
    return float(1 - found.plan.bound.s_per_GB / min(times))


def mixed_switches(GBps: Fraction, plain: int = 1, each: int = 4) -> Topology:
    """Switches with GPUs, of which the first adds and copies and is joined to the others."""
    devices = [Device(f"gpu{i}") for i in range(each * (plain + 1))]
    switches = [Device(f"switch{i}", "switch", can_reduce=i == 0) for i in range(plain + 1)]
    links = [
        x
        for i, d in enumerate(devices)
        for x in both_directions(Link(d.id, f"switch{i // each}", Fraction(1)))
    ]
    links += [
        x for i in range(plain) for x in both_directions(Link("switch0", f"switch{i + 1}", GBps))
    ]
    return Topology("mixed", (*devices, *switches), tuple(links))


@pytest.mark.parametrize(
    ("machine", "change", "GBps"),
    [
        pytest.param("dgx-a100:16", SLOW, Fraction(79, 3), marks=pytest.mark.long),
        pytest.param("dgx-h100:16", LOST, Fraction(635, 12), marks=pytest.mark.long),
        ("dgx-a100:3", SLOW, Fraction(395, 9)),
    ],
)
def test_alltoall_is_bound_by_the_slow_box(machine: str, change: Change, GBps: Fraction) -> None:
    topology = degrade(preset(machine), change)
    collective = collective_on("alltoall", topology)
    found = bound(collective, topology)
    check_bound(found, collective, topology)
    assert found.algbw_GBps <= GBps * Fraction(102, 100)
    assert (
        found.algbw_GBps
        <= bound(collective_on("alltoall", preset(machine)), preset(machine)).algbw_GBps
        or change == LOST
    )


@pytest.mark.long
def test_alltoall_on_many_gpus_without_symmetry_meets_the_bound() -> None:
    topology = degrade(preset("dgx-a100:13"), SLOW)
    plan = synthesize(collective_on("alltoall", topology), topology, "packing").plan
    assert gap_of(plan) <= 0.02


@pytest.mark.long
@pytest.mark.parametrize(
    ("machine", "change", "collective"),
    [("dgx-a100:4", SLOW, "allgather"), ("dgx-a100:3", LOST, "reduce-scatter")],
)
def test_trees_of_all_roots_make_way_for_a_slow_link(
    machine: str, change: Change, collective: str
) -> None:
    topology = degrade(preset(machine), change)
    found = synthesize(collective_on(collective, topology), topology, "packing")
    assert least_gap_of(found) <= 0.001
    assert gap_of(found.plan) <= 0.01


@pytest.mark.parametrize("each", [4, pytest.param(8, marks=pytest.mark.long)])
def test_allreduce_on_boxes_of_which_one_has_lost_a_gpu(each: int) -> None:
    """Of four boxes, all with all of their eight GPUs, or with half of them."""
    gone = (rank for rank in range(4 * 8) if rank % 8 >= each or rank == 3)
    topology = degrade(preset("dgx-h100:4"), Change(without_ranks=tuple(gone)))
    boxes = find_boxes(topology)
    assert boxes is not None and boxes.rails == each
    assert sorted(map(len, boxes.ranks)) == [each - 1, each, each, each]
    found = synthesize(collective_on("allreduce", topology), topology, "packing")
    assert least_gap_of(found) <= 0.001
    assert gap_of(found.plan) <= 0.02


@pytest.mark.parametrize(
    ("grid", "some"),
    [("mesh:6x6", True), ("mesh:3x4x3", True), ("ring:5", False), ("hypercube:3", True)],
)
def test_combs_are_spanning_trees_of_grids(grid: str, some: bool) -> None:
    topology = preset(grid)
    combs = comb_trees(topology)
    assert bool(combs) == some and len(set(combs)) == len(combs)
    for comb in combs:
        joined = {topology.ranks[0]}
        for _ in comb.edges:
            joined |= {d for edge in comb.edges if joined & set(edge) for d in edge}
        assert len(comb.edges) == len(topology.ranks) - 1 and joined == set(topology.ranks)


@pytest.mark.long
def test_combs_reach_the_bound_of_a_large_mesh() -> None:
    topology = preset("mesh:12x12")
    assert (
        gap_of(synthesize(collective_on("allreduce", topology), topology, "packing").plan) <= 0.001
    )


def test_the_machine_that_a_damaged_one_would_be() -> None:
    whole = preset("dgx-a100:2")
    mended = mend(degrade(whole, SLOW))
    assert mended is not None and mended.capacity_GBps == whole.capacity_GBps
    assert mend(whole) is None and mend(preset("dgx1")) is None


@settings(max_examples=count_examples(4), deadline=None)
@given(graphs(most=6, switches=2), st.sampled_from(["alltoall", "allgather"]))
def test_evened_paths_and_trees_are_right_on_any_machine(topology: Topology, name: str) -> None:
    collective = collective_on(name, topology)
    if name == "alltoall":
        paths = LevelPaths(topology)
        before = paths.reached
        paths.even_out(0.0, make_effort().grant(0.1))
        schedule = level_schedule(paths, collective)
        verify(schedule, topology)
        reached = (
            float(bandwidth_s_per_GB(replace(schedule, segments=2), topology)) * collective.ranks
        )
        assert reached == pytest.approx(paths.reached) and paths.reached <= before * (1 + 1e-9)
        value, prices = paths.find_prices()
        assert value <= reached * (1 + 1e-9) and len(prices) == len(paths.links)
    else:
        trees = LevelTrees(topology, list(range(collective.ranks)) * 2)
        limit = float(bound(collective, topology).algbw_GBps)
        trees.grow(limit, make_effort())
        before = trees.reached
        trees.even_out(limit, 0.0, make_effort().grant(0.1))
        listed, shares = trees.list_forest()
        assert before * (1 - 1e-9) <= trees.reached <= limit * (1 + 1e-9)
        for root in range(collective.ranks):
            assert sum(s for t, s in zip(listed, shares, strict=True) if t.root == root) == 1
        for tree in listed:
            assert sum(route is None for route in tree.down) == 1 and tree.down[tree.root] is None


@settings(max_examples=count_examples(6), deadline=None)
@given(graphs(most=6, switches=2))
def test_cuts_around_groups_separate_gpus(topology: Topology) -> None:
    for inside in find_narrow_groups(topology):
        assert 0 < len(set(inside) & set(topology.ranks)) < len(topology.ranks)


@pytest.mark.parametrize(
    ("GBps", "plain", "algbw"),
    [("4", 1, "1"), ("3/2", 2, "11/16")],
)
def test_allreduce_is_solved_where_one_switch_of_several_computes(
    GBps: str, plain: int, algbw: str, tmp_path: Path
) -> None:
    topology = mixed_switches(Fraction(GBps), plain)
    plan = synthesize(collective_on("allreduce", topology), topology, "packing").plan
    assert plan.bound.algbw_GBps == Fraction(algbw) and gap_of(plan) <= 1e-6
    assert ("joined" in plan.bound.certificate) == (plan.bound.kind != "cut")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").bound == plan.bound


@settings(max_examples=count_examples(3), deadline=None)
@given(
    graphs(most=4, switches=2),
    st.sampled_from(["allreduce", "broadcast", "allgather", "alltoall"]),
    st.data(),
)
def test_no_schedule_beats_the_bound_where_some_switches_compute(
    topology: Topology, name: str, data: st.DataObject
) -> None:
    devices = tuple(
        replace(d, can_reduce=d.kind != "gpu" and data.draw(st.booleans()))
        for d in topology.devices
    )
    topology = replace(topology, devices=devices)
    collective = collective_on(name, topology)
    found = synthesize(collective, topology, "packing")
    check_bound(found.plan.bound, collective, topology)
    for schedule, _ in found.candidates:
        assert (
            bandwidth_s_per_GB(replace(schedule, segments=2), topology) >= found.plan.bound.s_per_GB
        )


@pytest.mark.parametrize(
    ("joined", "message"),
    [
        ([], "prove nothing"),
        ([["switch0", "gpu9"]], "joined with"),
        ([["gpu1", "gpu0"]], "is a member's GPU"),
        ([["x", "gpu0"]], "joined"),
    ],
)
def test_prices_of_computing_switches_are_refused_unless_all_are_joined(
    joined: list[list[str]], message: str
) -> None:
    topology = mixed_switches(Fraction(1))
    collective = collective_on("allreduce", topology)
    found = bound(collective, topology)
    forged = Bound(found.s_per_GB, found.kind, {**found.certificate, "joined": joined})
    with pytest.raises(VerificationError, match=message):
        check_bound(forged, collective, topology)


def test_the_loads_of_a_schedule_are_its_own() -> None:
    whole, slow = preset("ring:4"), degrade(preset("ring:4"), Change(scale_links=("0:1=0.5",)))
    schedule: Schedule = (
        synthesize(collective_on("allgather", whole), whole, "ring").plan.entries[0].schedule
    )
    assert bandwidth_s_per_GB(replace(schedule, segments=2), slow) > bandwidth_s_per_GB(
        replace(schedule, segments=2), whole
    )
