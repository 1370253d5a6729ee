"""Switches side by side count as one for planning: what is merged, and that nothing else
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from topoplan.synth.bounds.multipath import bound
from topoplan.synth.ir.collective import Collective
from topoplan.topo.derived.stripes import merge_nvswitches, merge_switches
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset


def boards(switches: int = 6, gpus: int = 4, uneven: bool = False) -> Topology:
    """Two boards of GPUs, each with a link to each switch of its board; switch k of one board is
    joined to k of the other.
    """
    devices = [Device(f"gpu{i}") for i in range(2 * gpus)]
    devices += [Device(f"nvswitch{k}", "switch", "nvswitch") for k in range(2 * switches)]
    links = [
        x
        for i in range(2 * gpus)
        for k in range(switches)
        for x in both_directions(
            Link(f"gpu{i}", f"nvswitch{k + switches * (i // gpus)}", Fraction(25), kind="nvlink")
        )
    ]
    for k in range(switches):
        rate = Fraction(199 if uneven and k == 0 else 200)
        links += both_directions(
            Link(f"nvswitch{k}", f"nvswitch{k + switches}", rate, kind="nvlink", count=8)
        )
    return Topology("boards", tuple(devices), tuple(links))


def test_six_switches_a_board_become_one_with_all_their_links() -> None:
    merged = merge_nvswitches(boards())
    assert [d.id for d in merged.devices if d.family == "nvswitch"] == ["nvswitch0", "nvswitch6"]
    assert merged.by_id["nvswitch6"].extra["members"] == [f"nvswitch{k}" for k in range(6, 12)]
    assert merged.capacity_GBps["gpu0", "nvswitch0"] == 150
    assert merged.capacity_GBps["nvswitch6", "nvswitch0"] == 1200
    assert {(x.count, x.kind) for x in merged.links if x.src == "gpu5"} == {(6, "nvlink")}
    assert merged.is_symmetric


def test_a_switch_that_differs_stays_apart_with_its_partner() -> None:
    merged = merge_nvswitches(boards(uneven=True))
    assert sorted(
        len(d.extra.get("members", [d.id])) for d in merged.devices if d.family == "nvswitch"
    ) == [1, 1, 5, 5]
    assert merged.capacity_GBps["nvswitch0", "nvswitch6"] == 199


def test_the_bound_of_the_merged_machine_is_that_of_its_switches() -> None:
    whole = boards(switches=3, gpus=2)
    collective = Collective("allreduce", 4)
    assert (
        bound(collective, merge_nvswitches(whole)).algbw_GBps == bound(collective, whole).algbw_GBps
    )


def test_other_machines_are_left_as_they_are() -> None:
    for name in ("dgx2", "dgx-a100:2", "pcie-2socket", "dgx1", "switch:4"):
        assert merge_nvswitches(preset(name)) is preset(name) or merge_nvswitches(
            preset(name)
        ) == preset(name)
    network = replace(
        boards(),
        devices=tuple(replace(d, family="network" if d.family else None) for d in boards().devices),
    )
    assert merge_nvswitches(network) == network


def test_the_recorded_dgx2_plans_as_the_preset(recorded: Callable[[str], Path]) -> None:
    told = resolve(str(recorded("hwloc/nvidiaDGX2.xml")))
    assert sum(d.family == "nvswitch" for d in told.devices) == 12
    merged = merge_nvswitches(told)
    assert sum(d.family == "nvswitch" for d in merged.devices) == 2
    wanted = preset("dgx2").capacity_GBps
    assert {c for (a, b), c in merged.capacity_GBps.items() if "nvswitch" in b and "gpu" in a} == {
        Fraction(150)
    }
    assert merged.capacity_GBps["nvswitch0", "nvswitch6"] == wanted["nvswitch0", "nvswitch1"]


def test_the_upper_levels_of_a_fat_tree_become_one_switch_each() -> None:
    """Of each pod one, and of all cores one, with as much capacity between levels; leaves stay."""
    pods, half = 4, 2
    hosts = [
        (f"h{p}{e}{i}", f"edge{p}{e}")
        for p in range(pods)
        for e in range(half)
        for i in range(half)
    ]
    wires = [
        *hosts,
        *(
            (f"edge{p}{e}", f"agg{p}{a}")
            for p in range(pods)
            for e in range(half)
            for a in range(half)
        ),
    ]
    wires += [
        (f"agg{p}{a}", f"core{a}{c}") for p in range(pods) for a in range(half) for c in range(half)
    ]
    names = dict.fromkeys(name for wire in wires for name in wire)
    devices = [Device(x) if x[0] == "h" else Device(x, "switch", "network") for x in names]
    tree = Topology(
        "fat-tree",
        tuple(devices),
        tuple(x for a, b in wires for x in both_directions(Link(a, b, Fraction(10)))),
    )
    merged = merge_switches(tree)
    assert sorted(d.id for d in merged.devices if d.id.startswith(("agg", "core"))) == [
        "agg00", "agg10", "agg20", "agg30", "core00",
    ]  # fmt: skip
    assert (
        merged.ranks == tree.ranks
        and {d.id for d in tree.devices if d.id.startswith("edge")} <= merged.by_id.keys()
    )
    assert (
        merged.capacity_GBps["edge00", "agg00"] == 20
        and merged.capacity_GBps["agg00", "core00"] == 40
    )
    assert merge_nvswitches(tree) == tree and merge_switches(merged) == merged
