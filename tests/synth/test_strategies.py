"""Strategies: what they build is right on every topology they accept, and exactly as large as the
literature says.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import long_cases
from planned import synthesize
from thorough import count_examples

from topoplan.synth.bounds.multipath import bound
from topoplan.synth.cost.affine import bandwidth_s_per_GB, cost, rounds
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.machine.boxes import binary
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.planner.whole import lower_envelope
from topoplan.synth.request import Request
from topoplan.synth.strategies.built_in import STRATEGIES
from topoplan.synth.verify import verify
from topoplan.topo.errors import InfeasibleError, TimeLimitError
from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

CLASSIC = [
    "ring",
    "double-tree",
    "recursive-doubling",
    "halving-doubling",
    "direct",
    "one-shot",
    "parameter-server",
]


def build(
    name: str,
    topology: Topology,
    collective: str = "allreduce",
    seconds: float = 20,
    quick: bool = False,
) -> list[Schedule]:
    target = collective_on(collective, topology)
    schedules = STRATEGIES[name](Request(target, topology, Effort(seconds), quick=quick))
    for schedule in schedules:
        verify(schedule, topology)
        assert schedule.strategy == name
        assert schedule.collective == target
    return schedules


@pytest.mark.parametrize("n", [2, 3, 4, 6, 7])
@pytest.mark.parametrize("name", CLASSIC)
def test_classic_schedules_are_right_for_any_number_of_ranks(name: str, n: int) -> None:
    build(name, preset(f"switch:{n}"), quick=True)


@pytest.mark.parametrize("name", ["ring", "direct"])
@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter"])
def test_halves_are_right(name: str, collective: str) -> None:
    build(name, preset("switch:6"), collective)


@pytest.mark.parametrize("argument", ["mesh:3x3", "dgx1"])
@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_greedy_is_right_on_direct_links(collective: str, argument: str) -> None:
    build("greedy", preset(argument), collective)


@pytest.mark.parametrize(
    ("argument", "most"),
    [
        pytest.param("mesh:8x8", Fraction(35, 1000), marks=pytest.mark.long),
        pytest.param("torus:8x8", Fraction(8, 100), marks=pytest.mark.long),
    ],
)
def test_greedy_comes_near_the_bound_on_large_meshes(argument: str, most: Fraction) -> None:
    """Time of the steps over the cut bound, with one chunk per rank and with several.

    1.6 % on a mesh of 64 GPUs; 7.4 % on the torus (17 steps for 63 / 4), where 4 chunks take 63.
    """
    topology = preset(argument)
    needed = bound(collective_on("allgather", topology), topology).s_per_GB
    single, *parted = (
        1 - needed / bandwidth_s_per_GB(schedule, topology)
        for schedule in build("greedy", topology, "allgather")
    )
    assert single <= most
    assert min([single, *parted]) <= Fraction(1, 100)


def test_greedy_declines_switches_and_what_takes_too_long() -> None:
    with pytest.raises(InfeasibleError, match="switches"):
        build("greedy", preset("switch:4"))
    with pytest.raises(TimeLimitError, match="a trial for 1024 ranks takes about"):
        build("greedy", preset("torus:32x32"), "allgather", seconds=1)


def test_hierarchical_follows_links_of_one_direction() -> None:
    """Hosts that send over one device and receive over another, as processes on cables do."""
    devices, links = list[Device](), list[Link]()
    for host in range(3):
        hubs = [f"h{host}/{name}" for name in ("memory", "out", "in")]
        devices += [Device(hub, "switch") for hub in hubs]
        for gpu in (f"h{host}/a", f"h{host}/b"):
            devices.append(Device(gpu))
            ends = [(gpu, hubs[0]), (hubs[0], gpu), (gpu, hubs[1]), (hubs[2], gpu)]
            links += [Link(*end, Fraction(2)) for end in ends]
        links += [Link(hubs[1], f"h{other}/in", Fraction(1)) for other in {0, 1, 2} - {host}]
    topology = Topology("one-way", tuple(devices), tuple(links))
    target = collective_on("allreduce", topology)
    best = min(bandwidth_s_per_GB(s, topology) for s in build("hierarchical", topology))
    assert best <= Fraction(21, 20) / bound(target, topology).algbw_GBps


@pytest.mark.parametrize("boxes", [2, 3])
def test_hierarchical_joins_boxes_lane_by_lane(boxes: int) -> None:
    """Chains or stars from every box in turn fill every NIC alike: 100 n / (n - 1) GB/s, less where
    NVLink is narrower.
    """
    topology = preset(f"dgx-a100:{boxes}")
    rates = [
        1 / bandwidth_s_per_GB(s, topology)
        for s in build("hierarchical", topology)
        if s.segments > 1
    ]
    assert max(rates) == min(Fraction(100 * boxes, boxes - 1), Fraction(1200, 7))
    with pytest.raises(InfeasibleError, match="is one box"):
        build("hierarchical", preset("dgx1"))


def test_parameter_servers_share_by_what_their_links_carry() -> None:
    """One slow link: its rank serves less. One server alone: its link carries the buffer n - 1
    times.
    """
    topology = preset("switch:4")
    slow = replace(
        topology,
        links=tuple(
            replace(x, bandwidth_GBps=x.bandwidth_GBps / 2) if "gpu3" in (x.src, x.dst) else x
            for x in topology.links
        ),
    )
    for machine, share in ((topology, Fraction(1, 4)), (slow, Fraction(0))):
        shared = max(
            build("parameter-server", machine), key=lambda s: 1 / bandwidth_s_per_GB(s, machine)
        )
        by_server: dict[int, Fraction] = {}
        for t in shared.transfers:
            if t.op == "reduce" and t.src != 3:
                by_server[t.dst] = by_server.get(t.dst, Fraction(0)) + shared.chunks[t.chunk].share
        assert by_server.get(3, Fraction(0)) / 3 == share
    (alone,) = (s for s in build("parameter-server", topology) if len(s.chunks) == 1)
    assert bandwidth_s_per_GB(alone, topology) == 6


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter", "alltoall"])
def test_direct_has_every_collective(collective: str) -> None:
    build("direct", preset("mi300x"), collective)


def test_exact_counts_of_steps_and_transfers() -> None:
    """n ranks: ring 2(n-1) steps and 2n(n-1) transfers; recursive doubling n log n of whole
    vectors; direct 2n(n-1).
    """
    n = 8
    switch = preset("switch:8")
    (ring,) = build("ring", switch)
    cycles = len(ring.chunks) // n
    assert ring.steps == 2 * (n - 1)
    assert len(ring.transfers) == 2 * n * (n - 1) * cycles
    (doubling,) = build("recursive-doubling", switch, quick=True)
    assert (doubling.steps, len(doubling.transfers)) == (3, n * 3)
    (halving,) = build("halving-doubling", switch, quick=True)
    assert halving.steps == 6
    assert sum(halving.chunks[t.chunk].share for t in halving.transfers) == 2 * (n - 1)
    (direct,) = build("direct", switch)
    assert (direct.steps, len(direct.transfers)) == (2, 2 * n * (n - 1))
    (one,) = build("one-shot", switch)
    assert (one.steps, len(one.transfers)) == (1, n * (n - 1))
    assert all(
        sum(s.chunks[t.chunk].share for t in s.transfers) == 2 * (n - 1)
        for s in build("double-tree", switch, quick=True)
    )


@pytest.mark.parametrize(
    ("argument", "times"),
    [("dgx1", 6), ("torus:4x4", 4), ("ring:8", 2)],
)
def test_rings_use_every_link_where_hamiltonian_cycles_can(argument: str, times: int) -> None:
    """The graphs decompose into Hamiltonian cycles: `times` directed ones a unit link, so busbw is
    that many units.
    """
    topology = preset(argument)
    (ring,) = build("ring", topology)
    n = len(topology.ranks)
    unit = min(topology.capacity_GBps.values())
    best = times * unit * Fraction(n, 2 * (n - 1))
    assert best * (1 - Fraction(1, 10**6)) <= 1 / bandwidth_s_per_GB(ring, topology) <= best


@pytest.mark.parametrize("argument", ["path:4", "star:5", "mesh:3x3"])
def test_graphs_without_hamiltonian_cycle_have_no_ring(argument: str) -> None:
    with pytest.raises(InfeasibleError, match="no cycle visits every GPU once"):
        build("ring", preset(argument))


def test_dgx1_is_embedded_as_a_cube() -> None:
    """Recursive doubling needs three perfect matchings with links; the hybrid cube mesh has
    them.
    """
    (doubling,) = build("recursive-doubling", preset("dgx1"))
    assert doubling.steps == 3
    assert all(t.route == () for t in doubling.transfers)


@pytest.mark.parametrize("n", range(2, 20))
def test_leaves_of_one_tree_are_inner_nodes_of_the_other(n: int) -> None:
    parents = binary(n)
    inner = {p for p in parents if p >= 0}
    assert parents.count(-1) == 1
    assert all(i % 2 == 1 for i in inner)


@pytest.mark.parametrize(
    ("argument", "algbw"),
    [
        ("dgx1", Fraction(600, 7)),
        ("path:8", Fraction(1)),
        ("switch:8", Fraction(4, 7)),
    ],
)
def test_packed_trees_reach_the_bound(argument: str, algbw: Fraction) -> None:
    topology = preset(argument)
    schedules = build("packing", topology)
    pipelined = [s for s in schedules if s.segments > 1]
    assert max(1 / bandwidth_s_per_GB(s, topology) for s in pipelined) >= algbw * (
        1 - Fraction(1, 10**6)
    )
    assert all(s.trees == len(s.chunks) for s in schedules)


def test_a_pipeline_costs_what_its_ticks_cost() -> None:
    """A chain of 3 ranks, m segments: 4 steps; all 4 under way at once load each link by one reduce
    or one copy.
    """
    topology = preset("path:3")
    by_segments = {s.segments: s for s in build("packing", topology)}
    latency = topology.links[0].latency_us
    for m in (1, 2, 4, 64):
        got = cost(by_segments[m], topology)
        steps = by_segments[m].steps
        assert got.alpha_us == (steps + m - 1 if m > 1 else steps) * latency
        assert got.beta_s_per_GB == Fraction(steps + m - 1, m)


def test_rounds_are_sccls() -> None:
    topology = preset("ring:8")
    (ring,) = build("ring", topology)
    assert rounds(ring, Router(topology)) == 14


@settings(max_examples=count_examples(40))
@given(
    # With steep lines, several crossings round to the same byte.
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 50) | st.integers(10**4, 10**8)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 10) | st.integers(0, 10**6),
)
def test_the_lower_envelope_is_the_minimum_at_every_size(
    lines: list[tuple[int, int]], size: int
) -> None:
    from topoplan.synth.cost.affine import Cost

    costs = [Cost(Fraction(a), Fraction(b)) for a, b in lines]
    pieces = lower_envelope(costs)
    assert pieces[0][1] == 0
    assert [p[1] for p in pieces] == sorted({p[1] for p in pieces})
    number = max((first, i) for i, (_, first) in enumerate(pieces) if first <= size)[1]

    def at(c: Cost) -> Fraction:
        return c.alpha_us * 1000 + c.beta_s_per_GB * size

    assert at(costs[pieces[number][0]]) == min(at(c) for c in costs)


@pytest.mark.long
@pytest.mark.parametrize(
    "argument", long_cases(["mesh:2x3", "switch:4", "star:4"], "mesh:2x3", "star:4")
)
def test_auto_is_never_slower_than_any_one_strategy(argument: str) -> None:
    topology = preset(argument)
    collective = collective_on("allreduce", topology)
    auto = synthesize(collective, topology, time_limit_s=30).plan
    assert auto.gap_of(auto.entry_for(1 << 33)) <= Fraction(1, 10**6)
    for name in STRATEGIES:
        if name == "exact":
            continue
        try:
            single = synthesize(collective, topology, name, 30).plan
        except InfeasibleError:
            continue
        for size in (0, 4096, 1 << 20, 1 << 28):
            best = auto.cost_of(auto.entry_for(size)).time_s(size)
            assert best <= single.cost_of(single.entry_for(size)).time_s(size) * (1 + 1e-12)
