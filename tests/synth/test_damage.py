"""Plans of damaged machines; benchmarks/damage.py has the large ones."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_graphs import graphs
from thorough import count_examples

from topoplan import Topology
from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.cost.affine import bandwidth_s_per_GB
from topoplan.synth.forest.level_trees import LevelTrees
from topoplan.synth.machine.routes import OwnRoutes
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.planner.synthesize import collective_on, synthesize
from topoplan.synth.request import Request
from topoplan.synth.strategies.built_in import STRATEGIES
from topoplan.synth.verify import verify
from topoplan.topo.devices import Device, Link, both_directions
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.routes import Router


@pytest.mark.parametrize(
    ("boxes", "gpu"), [(3, "gpu19"), pytest.param(7, "gpu43", marks=pytest.mark.long)]
)
def test_a_broadcast_over_boxes_with_a_dead_nic_is_near_the_bound(boxes: int, gpu: str) -> None:
    whole, _ = load_for_planning(f"dgx-a100:{boxes}")
    nic = next((a, b) for a, b in whole.capacity_GBps if a == gpu and "network" in b)
    links = tuple(x for x in whole.links if {x.src, x.dst} != set(nic))
    damaged = Topology(whole.name, whole.devices, links)
    collective = collective_on("broadcast", damaged)
    limit = find_bounds(collective, Router(damaged)).single_path
    schedules = STRATEGIES["packing"](Request(collective, damaged, Effort(), bound=limit))
    for schedule in schedules:
        verify(schedule, damaged)
    piped = [replace(schedule, segments=2) for schedule in schedules]
    least_s = min(bandwidth_s_per_GB(schedule, damaged) for schedule in piped)
    assert 1 - limit.s_per_GB / least_s <= Fraction(1, 50)


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


@pytest.mark.parametrize("name", ["reduce", "scatter", "alltoall"])
def test_copies_in_switches_do_not_help_data_that_goes_to_one_rank(name: str) -> None:
    # Two switches: the hardware's routes are over the near one, and the far one is as wide.
    gpus = tuple(Device(f"g{i}", "gpu") for i in range(3))
    links = tuple(
        link
        for switch, latency in (("near", 1), ("far", 5))
        for g in gpus
        for link in both_directions(Link(g.id, switch, Fraction(1), Fraction(latency)))
    )
    limits = set()
    for can_copy in (False, True):
        switches = tuple(Device(s, "switch", can_copy=can_copy) for s in ("near", "far"))
        topology = Topology("two switches", (*gpus, *switches), links)
        plan = synthesize(collective_on(name, topology), topology, "packing").plan
        assert min(map(plan.gap_of, plan.entries)) == 0
        limits.add(plan.bound_one_way.algbw_GBps)
    assert len(limits) == 1


def test_a_narrow_link_that_every_tree_needs_is_not_left_for_a_pair_without_a_route() -> None:
    gpus = tuple(Device(f"g{i}", "gpu") for i in range(3))
    links = (
        *both_directions(Link("g0", "g2", Fraction(1, 3))),
        *both_directions(Link("g2", "g1", Fraction(30))),
        Link("g1", "s", Fraction(1)),
        Link("s", "g1", Fraction(2)),
    )
    topology = Topology("narrow", (*gpus, Device("s", "switch")), links)
    for name in ("broadcast", "reduce"):
        plan = synthesize(collective_on(name, topology), topology, "packing").plan
        assert plan.limit_GBps(plan.entries[-1]) == plan.bound.algbw_GBps == Fraction(1, 3)


@pytest.mark.parametrize("name", ["allreduce", "allgather", "broadcast", "gather", "alltoall"])
@settings(max_examples=count_examples(2))
@given(topology=graphs(most=5, two_way=False, switches=2), data=st.data())
def test_taking_a_link_away_never_improves_a_plan(
    name: str, topology: Topology, data: st.DataObject
) -> None:
    """A link is gone, or has half its rate: no plan and no bound is better than before.

    That holds if the hardware takes no new route; a pair that must leave a slow shortcut can gain.
    """
    one = data.draw(st.sampled_from(topology.links))
    share = data.draw(st.sampled_from((Fraction(0), Fraction(1, 2))))
    slower = (replace(one, bandwidth_GBps=one.bandwidth_GBps * share),) if share else ()
    less = replace(topology, links=(*(x for x in topology.links if x is not one), *slower))
    before, after = Router(topology), Router(less)
    for u, v in permutations(range(len(topology.ranks)), 2):
        assume(after.route(u, v) in (None, before.route(u, v)))
    try:
        fewer = synthesize(collective_on(name, less), less, "packing").plan
    except InfeasibleError:
        return
    plan = synthesize(collective_on(name, topology), topology, "packing").plan
    assert fewer.bound_one_way.algbw_GBps <= plan.bound_one_way.algbw_GBps
    rates = [max(p.limit_GBps(entry) or 0 for entry in p.entries) for p in (fewer, plan)]
    assert rates[0] <= rates[1] * (1 + Fraction(1, 10**6))  # shares are rounded


def test_a_root_that_can_only_receive_gathers() -> None:
    gpus = (Device("g0", "gpu"), Device("g1", "gpu"))
    topology = Topology("one way", gpus, (Link("g1", "g0", Fraction(6)),))
    plan = synthesize(collective_on("gather", topology), topology).plan
    assert plan.gap_of(plan.entries[-1]) == 0


def test_trees_may_avoid_a_link_that_alone_has_a_price() -> None:
    gpus = tuple(Device(f"g{i}", "gpu") for i in range(3))
    links = (
        *both_directions(Link("g0", "s", Fraction(1))),
        *both_directions(Link("g0", "g1", Fraction(1, 3 * 10**6))),
        *both_directions(Link("g2", "s", Fraction(3))),
        *both_directions(Link("g2", "g1", Fraction(4))),
        Link("s", "nic", Fraction(1, 3)),
        Link("nic", "g0", Fraction(25, 2)),
    )
    devices = (*gpus, Device("s", "switch"), Device("nic", "nic"))
    topology = Topology("hardly a link", devices, links)
    plan = synthesize(collective_on("allreduce", topology), topology, "packing").plan
    assert min(map(plan.gap_of, plan.entries)) <= Fraction(1, 10**6)


def test_links_of_one_direction_join_gpus_over_switches_that_copy() -> None:
    devices = (Device("g0", "gpu"), Device("s", "switch", can_copy=True), Device("g1", "gpu"))
    links = (
        *both_directions(Link("g1", "s", Fraction(6))),
        Link("s", "g0", Fraction(24)),
        Link("g0", "g1", Fraction(2)),
    )
    topology = Topology("one way back", devices, links)
    plan = synthesize(collective_on("allreduce", topology), topology, "packing").plan
    assert min(map(plan.gap_of, plan.entries)) == 0


@pytest.mark.timeout(20)
def test_switches_are_not_reached_over_each_other() -> None:
    # Three hosts under two leaves and two spines: a leaf is hung elsewhere while trees grow.
    pairs = [(f"leaf{i}", f"spine{j}", Fraction(7, 3)) for i in range(2) for j in range(2)]
    pairs += [(f"g{h}{i}", f"hub{h}", Fraction(25, 2)) for h in range(3) for i in range(4)]
    pairs += [(f"hub{h}", f"leaf{h % 2}", Fraction(rate)) for h, rate in enumerate((24, 6, 12))]
    names = dict.fromkeys(name for pair in pairs for name in pair[:2])
    devices = tuple(Device(name, "gpu" if name[0] == "g" else "switch") for name in names)
    links = tuple(link for a, b, rate in pairs for link in both_directions(Link(a, b, rate)))
    trees = LevelTrees(Topology("three hosts", devices, links), list(range(12)))
    trees.grow(4.0, Effort())
    assert len(trees.list_forest()[0]) == 12


def test_trees_of_both_directions_need_links_of_both_directions() -> None:
    gpus = tuple(Device(f"g{i}", "gpu") for i in range(3))
    ring = tuple(Link(f"g{i}", f"g{(i + 1) % 3}", Fraction(1)) for i in range(3))
    topology = Topology("one way round", gpus, ring)
    LevelTrees(topology, [0, 1]).grow(1.0, Effort())
    with pytest.raises(InfeasibleError, match="do not join all GPUs to g0"):
        LevelTrees(topology, [0, 1], both=True).grow(1.0, Effort())


def test_trees_of_both_directions_avoid_routes_that_have_no_way_back() -> None:
    # The route from g0 to g1 is the fast one over t, which leads one way only.
    gpus = [Device(f"g{i}", "gpu") for i in range(4)]
    slow = [link for gpu in gpus for link in both_directions(Link(gpu.id, "s", Fraction(1)))]
    fast = [Link("g0", "t", Fraction(9)), Link("t", "g1", Fraction(9))]
    switches = Device("s", "switch"), Device("t", "switch")
    topology = Topology("a one-way road", (*gpus, *switches), (*slow, *fast))
    routes = OwnRoutes(Router(topology))
    assert routes.route(0, 1) == ("g0", "t", "g1")
    trees = LevelTrees(topology, [0, 1, 2], both=True, routes=routes)
    assert trees.grow(1.0, Effort())
    trees.even_out(1.0, 0.01, Effort())
    used = [
        hop for tree, _ in trees.count_trees() for way in tree.down for hop in pairwise(way or ())
    ]
    assert len(used) == 3 * 3 * 2
    assert not {"t"} & {end for hop in used for end in hop}
    assert trees.load.sum() == 2 * len(used)


def test_growing_ends_with_the_time_limit() -> None:
    topology, _ = load_for_planning("dgx-a100:2")
    effort = Effort(time_limit_s=1e-9)
    trees = LevelTrees(topology, list(range(16)))
    assert not trees.grow(1.0, effort)
    assert effort.cut_short == ["growing trees"]
    assert [count for _, count in trees.count_trees()] == [1]
    assert trees.list_forest()[1] == [1]
