"""Plans of damaged machines: near the bound at scale, and no strategy that ends a run."""

from fractions import Fraction

import pytest

from topoplan import Topology
from topoplan.synth.planner.synthesize import collective_on, synthesize
from topoplan.synth.verify import verify
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.devices import Device, Link
from topoplan.topo.loader.resolve import load_for_planning


@pytest.mark.parametrize("name", ["allreduce", "broadcast"])
def test_a_cluster_with_a_dead_nic_is_planned_near_the_bound(name: str) -> None:
    whole, _ = load_for_planning("dgx-a100:18")
    nic = next((a, b) for a, b in whole.capacity_GBps if a == "gpu43" and "network" in b)
    links = tuple(x for x in whole.links if {x.src, x.dst} != set(nic))
    damaged = Topology(whole.name, whole.devices, links)
    plan = synthesize(collective_on(name, damaged), damaged, "packing").plan
    for entry in plan.entries:
        verify(entry.schedule, damaged)
    assert min(map(plan.gap_of, plan.entries)) <= Fraction(1, 50)


def test_a_switch_that_only_copies_does_neither_in_reverse() -> None:
    gpus = tuple(Device(f"g{i}", "gpu") for i in range(3))
    switch = Device("s", "switch", can_copy=True)
    links = tuple(
        link for g in gpus for link in (Link(g.id, "s", Fraction(1)), Link("s", g.id, Fraction(1)))
    )
    topology = Topology("copies only", (*gpus, switch), links)
    assert not any(d.can_copy for d in topology.reversed().devices if d.kind != "gpu")
    plan = synthesize(collective_on("reduce", topology), topology, "packing").plan
    assert min(map(plan.gap_of, plan.entries)) == 0


def test_rings_on_a_torus_with_a_slow_link_end_no_run() -> None:
    whole, _ = load_for_planning("torus:6x6")
    damaged = degrade(whole, Change(scale_links=("gpu0:gpu1=0.5",)))
    plan = synthesize(collective_on("allreduce", damaged), damaged, "ring").plan
    assert plan.entries
