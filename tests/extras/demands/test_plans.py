"""Plans for demands reach their bounds, which equal those of a plain program of flows."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import long_cases
from planned import synthesize
from played import play
from random_graphs import graphs
from scipy.optimize import linprog
from thorough import count_examples

from topoplan.runtime.program.lowering import lower
from topoplan.synth.bounds.certificate import Bound, bound_of, check_bound
from topoplan.synth.extras.demands.cuts import is_large
from topoplan.synth.extras.demands.reading import from_matrix
from topoplan.synth.ir.demands import Demand, Demands
from topoplan.synth.numeric.steiner import SteinerTrees, close
from topoplan.synth.plan import Plan
from topoplan.topo.errors import InfeasibleError, InputError, VerificationError
from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

# A pipeline of 2,048 segments is filled and drained: a single step that is nearly as fast wins.
NEAR = 1e-3


def find_flow_s_per_GB(demands: Demands, topology: Topology) -> float:
    """Return the time of a program of flows, one for each piece and receiver, over the links.

    Flows of one piece to several receivers share what they carry over a link, which is as good as
    trees or, since it allows coding, better.
    """
    links, nodes = list(topology.capacity_GBps), [d.id for d in topology.devices]
    blocks = [(k, p, r) for k, p in enumerate(demands.pieces) for r in p.missing]
    # Columns: the flow of each block on each link, each piece's use of each link, the time.
    flows, uses = len(blocks) * len(links), len(demands.pieces) * len(links)
    equal, right, at_most = [], [], []
    for b, (k, piece, receiver) in enumerate(blocks):
        for node in nodes:
            row = np.zeros(flows + uses + 1)
            for i, (start, end) in enumerate(links):
                row[b * len(links) + i] = (end == node) - (start == node)
            rank = topology.ranks.index(node) if node in topology.ranks else None
            if rank not in piece.holders:
                equal.append(row)
                right.append(piece.size / demands.size if rank == receiver else 0.0)
        for i in range(len(links)):
            row = np.zeros(flows + uses + 1)
            row[b * len(links) + i] = 1
            row[flows + k * len(links) + i] = -1
            at_most.append(row)
    for i, link in enumerate(links):
        row = np.zeros(flows + uses + 1)
        row[flows + i : flows + uses : len(links)] = 1
        row[-1] = -float(topology.capacity_GBps[link])
        at_most.append(row)
    objective = np.r_[np.zeros(flows + uses), 1.0]
    solved = linprog(objective, at_most, np.zeros(len(at_most)), equal, right, method="highs")
    return float(solved.fun)


@st.composite
def demands_on(draw: st.DrawFn, gpus: int, most: int = 3) -> Demands:
    """Random pieces of one to `most` holders and receivers."""
    ranks = st.sets(st.integers(0, gpus - 1), min_size=1, max_size=most)
    pieces = [
        Demand(draw(st.integers(1, 40)), tuple(draw(ranks)), tuple(draw(ranks)))
        for _ in range(draw(st.integers(1, 6)))
    ]
    # One that surely has to move.
    return Demands.of([*pieces, Demand(5, (0,), (1,))], gpus)


@settings(max_examples=count_examples(5))
@given(data=st.data())
def test_bounds_are_those_of_flows_and_plans_reach_them(data: st.DataObject) -> None:
    topology, router = load_for_planning(data.draw(graphs(5, two_way=False)))
    gpus = len(topology.ranks)
    most = data.draw(st.sampled_from([1, 3]))
    demands = data.draw(demands_on(gpus, most))
    others = [rank for rank in range(gpus) if rank not in demands.members]
    plan = synthesize(demands, topology, router=router, helpers=others).plan
    proved, flow = float(plan.bound_one_way.s_per_GB), find_flow_s_per_GB(demands, topology)
    assert plan.bound_one_way.s_per_GB == plan.bound.s_per_GB
    if most == 1:
        assert proved == pytest.approx(flow, rel=1e-6)
    assert proved >= flow * (1 - 1e-6)
    assert abs(plan.gap_of(plan.entries[-1])) < NEAR
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan and again.hash == plan.hash


@settings(max_examples=count_examples(3))
@given(data=st.data())
def test_plans_through_switches_deliver_what_they_say(data: st.DataObject) -> None:
    topology, router = load_for_planning(data.draw(graphs(6, switches=3)))
    gpus = len(topology.ranks)
    demands = data.draw(demands_on(gpus))
    others = [rank for rank in range(gpus) if rank not in demands.members]
    try:
        plan = synthesize(demands, topology, router=router, helpers=others).plan
    except InfeasibleError:  # a switch in the middle of nowhere
        return
    assert abs(plan.gap_of(plan.entries[-1])) < NEAR
    assert plan.bound.s_per_GB <= plan.bound_one_way.s_per_GB
    schedule = replace(plan.entries[0].schedule, segments=data.draw(st.integers(1, 3)))
    values = [np.arange(100.0 * i, 100 * i + p.size) for i, p in enumerate(demands.pieces)]
    inputs = [
        np.concatenate([[], *(values[i] for i in demands.list_held(rank))]) for rank in range(gpus)
    ]
    ranks = list(schedule.participants)
    numbered = {rank: i for i, rank in enumerate(ranks)}
    if ranks != list(range(gpus)):  # the player numbers ranks without gaps
        assert set(numbered) < set(range(gpus))
        return
    programs = [lower(schedule, rank, demands.size) for rank in ranks]
    outputs = play(programs, [inputs[rank] for rank in ranks], False, demands.size, 1)
    for rank, output in zip(ranks, outputs, strict=True):
        at = 0
        for number in demands.list_needed(rank):
            piece = demands.pieces[number]
            if rank not in piece.holders:
                np.testing.assert_array_equal(output[at : at + piece.size], values[number])
            at += piece.size


def build_hosts(count: int, gpus: int = 4) -> Topology:
    """Return hosts of GPUs on a fast switch, each with a NIC of 25 GB/s to the network."""
    devices, links = [Device("net", "switch", family="network")], list[Link]()
    for host in range(count):
        devices.append(Device(f"switch{host}", "switch"))
        for place in range(gpus):
            gpu, nic = f"gpu{host}.{place}", f"nic{host}.{place}"
            devices += [Device(gpu, "gpu"), Device(nic, "nic")]
            for a, b, rate in ((gpu, f"switch{host}", 300), (gpu, nic, 64), (nic, "net", 25)):
                links += [Link(a, b, Fraction(rate)), Link(b, a, Fraction(rate))]
    return Topology("hosts", tuple(devices), tuple(links))


def test_nics_of_idle_ranks_carry_their_part() -> None:
    """One rank of a host has the weights, the four of another need them: verl's issue 7167."""
    topology, router = load_for_planning(build_hosts(2))
    demands = Demands.of([Demand(1 << 30, (0,), (4, 5, 6, 7))], 8)
    plan = synthesize(demands, topology, router=router, helpers=(1, 2, 3)).plan
    assert plan.bound_alone is not None
    assert [plan.bound_alone.algbw_GBps, plan.bound_one_way.algbw_GBps] == [25, 100]
    assert plan.used_helpers == [1, 2, 3]
    assert plan.gap_of(plan.entry_for(1 << 33)) < Fraction(1, 10**6)
    without = synthesize(demands, topology, router=router).plan
    assert without.used_helpers == []
    assert without.bound_with_helpers is not None
    assert without.bound_with_helpers.algbw_GBps == 100 == 4 * without.bound_one_way.algbw_GBps


def test_sends_are_early_where_others_would_be_as_fast() -> None:
    """Pipelines fill soon: four hosts send to four others, and a rank of each is idle."""
    devices, links = [Device("switch", "switch")], list[Link]()
    for rank in range(16):
        devices.append(Device(f"gpu{rank}"))
        near = [("switch", 1), *([(f"gpu{rank - 1}", 4)] if rank % 2 else [])]
        for other, rate in near:
            ends = f"gpu{rank}", other
            links += [Link(*ends, Fraction(rate)), Link(*ends[::-1], Fraction(rate))]
    topology, router = load_for_planning(Topology("pairs", tuple(devices), tuple(links)))
    serving = tuple(range(8, 16, 2))
    pieces = [Demand(1 << 22, (rank,), serving) for rank in range(0, 8, 2)]
    demands = Demands.of(pieces, 16, members=(0, 2, 4, 6, *serving))
    made = synthesize(demands, topology, router=router, helpers=tuple(range(1, 16, 2)))
    costs = {x.segments: (x.depth, cost) for x, cost in made.candidates if x.helpers}
    depth, cost = costs[32]
    assert depth == 3  # over the idle rank of either host
    assert cost.beta_s_per_GB <= made.plan.bound_one_way.s_per_GB * Fraction(104, 100)


@pytest.mark.long
def test_the_search_for_early_sends_may_end_before_its_optimum() -> None:
    """Each GPU has much for five others: the last turn finds columns that are not used any more."""
    topology, router = load_for_planning(preset("torus:3x3"))
    draw = np.random.default_rng(3)
    pieces = [
        Demand(
            int(draw.integers(1, 50)) << 10,
            (rank,),
            tuple(sorted({*draw.permutation(9)[:6].tolist()} - {rank})),
        )
        for rank in range(9)
    ]
    plan = synthesize(Demands.of(pieces, 9), topology, router=router).plan
    assert plan.gap_of(plan.entries[-1]) < NEAR


@pytest.mark.parametrize("name", ["dgx1", "dgx-a100", "ring:5"])
def test_a_hot_expert_is_at_the_bound(name: str) -> None:
    topology, router = load_for_planning(preset(name))
    gpus = len(topology.ranks)
    matrix = np.full((gpus, gpus), 1 << 20)
    matrix[:, gpus // 2] *= 10
    plan = synthesize(from_matrix(matrix, gpus), topology, router=router).plan
    assert abs(plan.gap_of(plan.entries[-1])) < 1e-6
    assert plan.bound_alone is None


def test_many_receivers_are_bounded_by_dual_ascent() -> None:
    """Exact for few receivers; for more, at most the price of a tree, and for all ranks exact."""
    draws = np.random.default_rng(3)
    for _ in range(20):
        price = draws.integers(1, 30, (16, 16))
        length, before = close(price)
        few = SteinerTrees.from_any(length, before, [0, 3], [5, 7, 9])
        tree = few.find(16)
        paid = sum(int(length[p, v]) for v, p in enumerate(tree) if 0 <= p < 16)
        assert few.is_exact and few.bound_price(16) == few.price(16) == paid
        many = SteinerTrees.from_any(length, before, [0], list(range(1, 16)))
        assert not many.is_exact
        tree = many.find(16)
        assert many.bound_price(16) <= sum(
            int(length[p, v]) for v, p in enumerate(tree) if 0 <= p < 16
        )


def test_certificates_prove_what_they_claim_and_no_more() -> None:
    topology, router = load_for_planning(build_hosts(2))
    demands = Demands.of([Demand(9, (0,), (4, 5, 6, 7)), Demand(3, (1, 5), (6,))], 8)
    plan = synthesize(demands, topology, router=router, helpers=(2, 3)).plan
    check_bound(plan.bound, demands, topology)
    bound = plan.bound_one_way
    with pytest.raises(VerificationError, match="not the claimed"):
        check_bound(Bound(bound.s_per_GB * 2, bound.kind, bound.certificate), demands, topology)
    inside = [d.id for d in topology.devices if d.id.endswith(("0.0", "0.1", "0.2", "0.3"))]
    cut = bound_of("cut", {"inside": [*inside, "switch0"]}, demands, topology)
    assert cut.s_per_GB == Fraction(9, 12) / 100
    with pytest.raises(VerificationError, match="does not have"):
        check_bound(Bound(Fraction(1), "cut", {"inside": ["gpu9"]}), demands, topology)


def test_what_cannot_be_is_said() -> None:
    topology = Topology("apart", tuple(Device(f"g{i}", "gpu") for i in range(3)),
                        (Link("g0", "g1", Fraction(1)),))  # fmt: skip
    demands = Demands.of([Demand(1, (1,), (2,))], 3)
    # GPUs 1 and 2 alone are ranks 0 and 1 of their part of the machine.
    for helpers in ((), (0,)):
        with pytest.raises(InfeasibleError, match=r"no route leads to g2 from g1$"):
            synthesize(demands, topology, helpers=helpers)
    with pytest.raises(InputError, match="strategy ring has no reshard"):
        synthesize(demands, topology, "ring", helpers=(0,))


@cache
def load_large() -> tuple[Topology, Router]:
    return load_for_planning(preset("dgx-a100:17"))


@pytest.mark.parametrize(
    "case", long_cases(["sharded", "replicated", "one", "uneven"], "sharded", "uneven")
)
def test_many_gpus_are_planned_without_a_linear_program(case: str) -> None:
    """Weights of 72 GPUs to 64 others, and random pieces; benchmarks/reshard.py has more."""
    topology, router = load_large()
    draws, size = np.random.default_rng(5), 1 << 24
    serving = range(72, 136)
    pieces = {
        "sharded": [Demand(size, (i,), tuple(serving[i % 8 :: 8])) for i in range(72)],
        "replicated": [
            Demand(size, tuple(range(i, 72, 8)), tuple(serving[i % 4 :: 4])) for i in range(8)
        ],
        "one": [Demand(size, (0,), tuple(serving[::16]))],
        "uneven": [
            Demand(int(draws.integers(1, size)), (i,), (int(j),))
            for i in range(0, 136, 3)
            for j in draws.choice(136, 1)
            if i != j
        ],
    }[case]
    demands = Demands.of(pieces, 136)
    assert is_large(demands, topology)
    others = [rank for rank in range(136) if rank not in demands.members]
    plan = synthesize(demands, topology, router=router, helpers=others).plan
    assert plan.bound_one_way.kind == "cut"
    assert 0 <= plan.gap_of(plan.entries[-1]) < 0.05
    if case == "one":
        assert plan.bound_alone is not None and set(plan.used_helpers) >= {1, 2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("hot", [True, False])
def test_rounds_crowd_no_receiver_and_lose_no_time(hot: bool) -> None:
    """Where all links lead to one switch, rounds are another schedule of the plan."""
    topology, router = load_for_planning(preset("switch:6"))
    matrix = np.random.default_rng(2).integers(1, 9, (6, 6))
    if hot:
        matrix = np.full((6, 6), 3)
        matrix[:, 2] *= 10
    demands = from_matrix(matrix, 6)
    plan = synthesize(demands, topology, router=router).plan
    plan.verify()
    (rounds,) = [s for s in plan.alternatives if s.strategy == "rounds"]
    for sends in rounds.by_step:
        pairs = {(t.src, t.dst) for t in sends}
        assert len(pairs) == len({src for src, _ in pairs}) == len({dst for _, dst in pairs})
        carried = {pair: Fraction(0) for pair in pairs}
        for t in sends:
            carried[t.src, t.dst] += rounds.chunks[t.chunk].share
        assert len(set(carried.values())) == 1
    assert sum(rounds.step_s_per_GB) == plan.bound_one_way.s_per_GB
