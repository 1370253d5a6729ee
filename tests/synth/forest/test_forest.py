"""Trees packed into links: at the bound on every random machine, and as practical as promised on
known ones.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import synthesize
from random_graphs import graphs, on
from scipy.optimize import linprog
from thorough import count_examples
from unhurried import make_effort

from topoplan.synth.bounds.certificate import check_bound
from topoplan.synth.bounds.multipath import bound
from topoplan.synth.cost.affine import bandwidth_s_per_GB
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.machine.boxes import SHAPES, find_boxes
from topoplan.synth.machine.pairs import PairGraph, Tree
from topoplan.synth.machine.symmetry import colours, group, mirrors, shifts
from topoplan.synth.numeric.arborescence import cheapest_out_tree
from topoplan.synth.numeric.spanning_trees import make_shallower, spanning_trees
from topoplan.synth.packing.division import find_best_shares
from topoplan.synth.packing.survey import Survey
from topoplan.synth.packing.trees import levels, root_tree
from topoplan.synth.packing.weigh import find_max_load, round_shares
from topoplan.synth.planner.whole import Synthesis
from topoplan.synth.request import TreeLimits
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset

AT_BOUND = Fraction(1, 10**6)


def pack(
    topology: Topology, collective: str = "allreduce", limits: TreeLimits | None = None
) -> Synthesis:
    return synthesize(
        on(collective, topology), topology, "packing", 60, limits=limits or TreeLimits()
    )


@cache
def pack_preset(argument: str) -> Synthesis:
    return pack(preset(argument))


def gap(result: Synthesis) -> Fraction:
    """The least gap of all ranges of sizes."""
    return min(result.plan.gap_of(entry) for entry in result.plan.entries)


def assert_at_bound(result: Synthesis, algbw_GBps: Fraction | int) -> None:
    assert result.plan.bound.algbw_GBps == algbw_GBps
    assert gap(result) == 0


def best(result: Synthesis) -> Schedule:
    """The schedule of the range with the least gap."""
    return min(result.plan.entries, key=result.plan.gap_of).schedule


@pytest.mark.parametrize("name", COLLECTIVES)
@settings(max_examples=count_examples(2))
@given(topology=graphs(most=5, two_way=False, switches=2))
def test_packing_is_at_the_bound_on_uneven_machines_with_switches(
    name: str, topology: Topology
) -> None:
    result = pack(topology, name)
    check_bound(result.plan.bound, on(name, topology), topology)
    assert -AT_BOUND < gap(result) <= AT_BOUND


@pytest.mark.parametrize("name", COLLECTIVES)
@settings(max_examples=count_examples(2))
@given(
    st.dictionaries(
        st.sampled_from([(a, b) for a in "gGhHs" for b in "gGhHs" if a != b]),
        st.integers(1, 4),
        min_size=5,
    )
)
def test_links_that_lead_one_way_are_packed_to_the_bound_or_found_impossible(
    name: str, widths: dict[tuple[str, str], int]
) -> None:
    devices = (*(Device(d) for d in "gGhH"), Device("s", "switch"))
    topology = Topology(
        "one way", devices, tuple(Link(a, b, Fraction(c)) for (a, b), c in sorted(widths.items()))
    )
    try:
        result = pack(topology, name)
    except InfeasibleError as error:
        assert "no link leads out of the cut" in str(error)
        return
    assert -AT_BOUND < gap(result) <= AT_BOUND


def free_roots_optimum(topology: Topology) -> float:
    """The best allreduce rate as a flow program, written down independently: max sum x_v with r + b
    <= c, flows of b from sources x_v to every GPU, flows of r from every GPU to sinks x_v, r and b
    balanced at switches.
    """
    links = list(topology.capacity_GBps)
    gpus = list(topology.ranks)
    switches = [d.id for d in topology.devices if d.kind != "gpu"]
    count = 0

    def fresh(size: int) -> range:
        nonlocal count
        count += size
        return range(count - size, count)

    x, total = dict(zip(gpus, fresh(len(gpus)), strict=True)), fresh(1)[0]
    use = {way: dict(zip(links, fresh(len(links)), strict=True)) for way in "rb"}
    most: list[tuple[dict[int, float], float]] = []
    equal: list[tuple[dict[int, float], float]] = []
    for link in links:
        most.append(({use["r"][link]: 1, use["b"][link]: 1}, float(topology.capacity_GBps[link])))
    for way in "rb":
        for s in switches:
            row: Counter[int] = Counter()
            for a, b in links:
                row[use[way][a, b]] += (b == s) - (a == s)
            equal.append((dict(row), 0.0))
        for target in gpus:
            flow = dict(zip(links, fresh(len(links)), strict=True))
            feed = dict(zip(gpus, fresh(len(gpus)), strict=True))
            most += [({flow[link]: 1, use[way][link]: -1}, 0.0) for link in links]
            most += [({feed[g]: 1, x[g]: -1}, 0.0) for g in gpus]
            for d in topology.by_id:
                row = Counter()
                for a, b in links:
                    row[flow[a, b]] += (b == d) - (a == d) if way == "b" else (a == d) - (b == d)
                if d in feed:
                    row[feed[d]] += 1
                if d == target:
                    row[total] -= 1
                equal.append((dict(row), 0.0))
    equal.append(({**dict.fromkeys(x.values(), 1.0), total: -1.0}, 0.0))

    def dense(rows: list[tuple[dict[int, float], float]]) -> tuple[np.ndarray, np.ndarray]:
        matrix = np.zeros((len(rows), count))
        for i, (row, _) in enumerate(rows):
            for j, value in row.items():
                matrix[i, j] = value
        return matrix, np.array([right for _, right in rows])

    objective = np.zeros(count)
    objective[total] = -1
    found = linprog(objective, *dense(most), *dense(equal), bounds=(0, None), method="highs")
    assert found.status == 0
    return -float(found.fun)


@settings(max_examples=count_examples(4))
@given(graphs(most=4, two_way=False, switches=1))
def test_allreduce_on_uneven_links_is_the_flow_optimum(topology: Topology) -> None:
    assert float(bound(on("allreduce", topology), topology).algbw_GBps) == pytest.approx(
        free_roots_optimum(topology), rel=1e-6
    )


def cheapest_gossip(price: list[list[int]]) -> int:
    """Least total price of one-way messages after which everybody has heard of everybody (search
    over all states).
    """
    n = len(price)
    goal, start = ((1 << n) - 1,) * n, tuple(1 << i for i in range(n))
    known, layers = {start: 0}, {0: [start]}
    while layers:
        cost = min(layers)
        for state in layers.pop(cost):
            if known[state] < cost:
                continue
            if state == goal:
                return cost
            for u in range(n):
                for v in range(n):
                    heard = state[u] | state[v]
                    if heard != state[v]:
                        after = (*state[:v], heard, *state[v + 1 :])
                        then = cost + price[u][v]
                        if then < known.get(after, 1 << 60):
                            known[after] = then
                            layers.setdefault(then, []).append(after)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("n", [2, 3, 4])
def test_no_gossip_is_cheaper_than_an_in_tree_and_an_out_tree(n: int) -> None:
    """What the certificate of kind tree-prices says of allreduce, by brute force: in trees and out
    trees of one root.
    """
    rng = random.Random(n)
    for _ in range({2: 20, 3: 80, 4: 5}[n]):
        price = np.array([[rng.randint(0, 9) for _ in range(n)] for _ in range(n)])

        def out_tree(matrix: np.ndarray, root: int) -> int:
            return sum(
                int(matrix[p, v]) for v, p in enumerate(cheapest_out_tree(matrix, root)) if p >= 0
            )

        trees = min(out_tree(price, v) + out_tree(price.T, v) for v in range(n))
        assert cheapest_gossip(price.tolist()) >= trees


@pytest.mark.parametrize(
    ("argument", "rate"),
    [
        pytest.param("dgx1", Fraction(600, 7), marks=pytest.mark.long),
        ("mesh:5x5", Fraction(5, 3)),
        ("path:8", Fraction(1)),
        ("star:5", Fraction(1)),
        ("pcie-2socket", Fraction(96, 7)),
        pytest.param("dgx-a100:2", Fraction(520, 3), marks=pytest.mark.long),
        pytest.param("dgx-a100:4", Fraction(400, 3), marks=pytest.mark.long),
        pytest.param("dgx-a100:16", Fraction(320, 3), marks=pytest.mark.long),
        ("mi250", Fraction(1200, 7)),
    ],
)
def test_allreduce_rates_of_known_machines_are_bound_and_plan(
    argument: str, rate: Fraction
) -> None:
    result = pack_preset(argument)
    assert result.plan.bound.algbw_GBps == rate
    assert gap(result) <= AT_BOUND
    assert (
        result.plan.gap_of(result.plan.entry_for(1 << 30)) <= AT_BOUND
    )  # and at 1 GiB that is what is taken


def test_a_slow_link_to_the_switch_holds_nobody_else_up() -> None:
    """Seven GPUs at 2 and one at 1: 1, where reduce-scatter and allgather of equal shards reach
    4/7.
    """
    links = [
        x
        for i in range(8)
        for x in both_directions(Link(f"g{i}", "s", Fraction(1 if i == 7 else 2)))
    ]
    topology = Topology(
        "uneven", (*(Device(f"g{i}") for i in range(8)), Device("s", "switch")), tuple(links)
    )
    result = pack(topology)
    assert_at_bound(result, Fraction(1))
    shards = (
        bound(on("allgather", topology), topology).s_per_GB
        + bound(on("reduce-scatter", topology), topology).s_per_GB
    )
    assert 1 / shards == Fraction(4, 7)


def test_switches_that_add_and_copy_are_used() -> None:
    """Every link carries the buffer once each way: 19.2 GB/s over the sockets, 300 on NVSwitches
    with SHARP.
    """
    for argument, rate in (("pcie-2socket", Fraction(96, 5)), ("dgx-a100", Fraction(300))):
        plain = preset(argument)
        able = replace(
            plain,
            devices=tuple(
                d if d.kind == "gpu" else replace(d, can_reduce=True, can_copy=True)
                for d in plain.devices
            ),
        )
        result = pack(able)
        assert_at_bound(result, rate)
        assert best(result).trees == 1


def shuffled(topology: Topology) -> Topology:
    devices = list(topology.devices)
    random.Random(1).shuffle(devices)
    return replace(topology, devices=tuple(devices))


@pytest.mark.long
def test_boxes_are_joined_whatever_the_order_of_the_ranks() -> None:
    result = pack(shuffled(preset("dgx-a100:4")))
    assert_at_bound(result, Fraction(400, 3))


@pytest.mark.long
def test_out_trees_of_many_roots_reach_the_bound_whatever_the_order_of_the_ranks() -> None:
    assert gap(pack(shuffled(preset("dgx-a100:17")), "allgather")) <= Fraction(1, 100)


@pytest.mark.long
def test_a_recorded_mi250_beats_equal_shards(recorded: Callable[[str], Path]) -> None:
    whole = resolve(str(recorded("nccl_xml/rccl/topo_16p1h.xml")))
    half = degrade(whole, Change(without_ranks=tuple(range(8, 16))))
    for machine, rate, shards in (
        (whole, Fraction(960, 7), Fraction(960, 7)),
        (half, Fraction(124), Fraction(88)),
    ):
        assert bound(on("allreduce", machine), machine).algbw_GBps == rate
        halves = (
            bound(on(name, machine), machine).s_per_GB for name in ("allgather", "reduce-scatter")
        )
        assert 1 / sum(halves) == shards
    assert gap(pack(half)) <= AT_BOUND


def test_one_word_in_a_file_says_that_a_switch_computes() -> None:
    """What can add can copy, too: "can_reduce" alone is enough."""
    data = preset("pcie-2socket").to_json()
    for device in data["devices"]:
        if device["kind"] != "gpu":
            device.pop("can_copy", None)
            device["can_reduce"] = True
    topology = Topology.from_json(json.loads(json.dumps(data)))
    result = pack(topology)
    assert_at_bound(result, Fraction(96, 5))
    assert Topology.from_json(topology.to_json()) == topology


@pytest.mark.parametrize(
    ("argument", "rate"),
    [
        ("dgx1", 75),
        ("torus:4x4", 2),
        ("mesh:5x5", Fraction(5, 6)),
        ("dgx-a100:4", Fraction(100, 3)),
    ],
)
def test_alltoall_paths_are_at_the_multicommodity_flow(argument: str, rate: Fraction) -> None:
    result = pack(preset(argument), "alltoall")
    assert result.plan.bound.algbw_GBps == rate
    assert gap(result) <= AT_BOUND


@pytest.mark.parametrize(
    ("argument", "most_gap", "trees", "depth"),
    [
        pytest.param("dgx-a100:4", Fraction(0), 32, 4, marks=pytest.mark.long),
        pytest.param("dgx-a100:16", Fraction(7, 100), 16, 10, marks=pytest.mark.long),
        ("mesh:5x5", Fraction(0), 10, None),
        ("dgx1", Fraction(3, 100), 9, 4),
    ],
)
def test_few_and_low_trees(
    argument: str, most_gap: Fraction, trees: int, depth: int | None
) -> None:
    topology = preset(argument)
    by_limit = pack(topology, limits=TreeLimits(max_trees=trees, max_depth=depth))
    assert gap(by_limit) <= most_gap + AT_BOUND
    for entry in by_limit.plan.entries:
        assert (entry.schedule.trees or 0) <= trees
        assert depth is None or (entry.schedule.depth or 0) <= depth
    by_gap = pack(topology, limits=TreeLimits(epsilon=most_gap))
    assert all(
        by_gap.plan.gap_of(e) <= most_gap + AT_BOUND
        for e in by_gap.plan.entries
        if e.schedule.segments > 1
    )
    assert (best(by_gap).trees or 0) <= trees


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather"])
def test_depth_is_what_the_transfers_say_and_is_limited(collective: str) -> None:
    topology = preset("mesh:3x3")
    result = pack(topology, collective, TreeLimits(max_depth=4))
    for schedule in {replace(e.schedule, segments=1) for e in result.plan.entries}:
        assert schedule.depth is not None and schedule.depth <= 4
        ways = 2 if collective == "allreduce" else 1
        assert schedule.depth <= schedule.steps <= ways * schedule.depth


def test_limits_that_nothing_meets_are_infeasible_with_what_there_is() -> None:
    with pytest.raises(InfeasibleError, match=r"a depth of at most 1.* 4 deep"):
        pack(preset("path:8"), limits=TreeLimits(max_depth=1))


@pytest.mark.long
def test_shares_are_small_fractions() -> None:
    for argument, denominator in (
        ("mesh:5x5", 10),
        ("dgx1", 24),
        ("dgx-a100:4", 32),
        ("dgx-a100:2", 1456),
    ):
        assert max(c.share.denominator for c in best(pack_preset(argument)).chunks) <= denominator


@settings(max_examples=count_examples(12))
@given(st.data())
def test_rounded_shares_sum_up_to_one_in_every_group_and_lose_nothing(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    uses = [
        {
            r: data.draw(st.integers(1, 3))
            for r in data.draw(st.sets(st.integers(0, rows - 1), min_size=1))
        }
        for _ in range(columns)
    ]
    capacity = [Fraction(data.draw(st.integers(1, 9))) for _ in range(rows)]
    group_of = [data.draw(st.integers(0, 1)) for _ in range(columns)]
    floats = find_best_shares(uses, capacity, group_of)
    shares = round_shares(floats, uses, capacity, group_of)
    for g in set(group_of):
        assert sum(s for s, x in zip(shares, group_of, strict=True) if x == g) == 1
    load = max(
        (
            sum(s * u.get(r, 0) for s, u in zip(shares, uses, strict=True)) / c
            for r, c in enumerate(capacity)
        ),
        default=Fraction(0),
    )
    reached = max(
        sum(x * u.get(r, 0) for x, u in zip(floats, uses, strict=True)) / float(c)
        for r, c in enumerate(capacity)
    )
    assert float(load) <= reached * (1 + 1e-6)
    scale = np.lcm.reduce([s.denominator for s in shares])
    assert find_max_load(uses, [int(s * int(scale)) for s in shares], capacity) / int(scale) == load


def radius(tree: set[int], ends: list[tuple[int, int]]) -> int:
    return int(nx.radius(nx.Graph([ends[e] for e in tree])))


@settings(max_examples=count_examples(4))
@given(graphs(most=8), st.integers(1, 5))
def test_matroid_union_finds_all_trees_there_are(topology: Topology, copies: int) -> None:
    """floor(u X) trees exist where links may be used u times their bandwidth (Nash-Williams), and
    one more does not.
    """
    graph = PairGraph(topology)
    rate = bound(on("allreduce", topology), topology).algbw_GBps
    ends = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    most = [int(c) * copies for c in graph.exact]
    count = int(rate * copies)
    found = spanning_trees(len(graph.names), ends, most, count, make_effort())
    assert found is not None and len(found) == count
    lowered = make_shallower(len(graph.names), ends, most, found, make_effort())
    for trees in (found, lowered):
        used: Counter[int] = Counter()
        for tree in trees:
            used.update(tree)
            joined: nx.Graph[int] = nx.Graph([ends[e] for e in tree])
            assert nx.is_tree(joined) and len(joined) == len(graph.names)
        assert all(used[e] <= m for e, m in enumerate(most))
    if count:
        assert max(radius(tree, ends) for tree in lowered) <= max(
            radius(tree, ends) for tree in found
        )
    assert spanning_trees(len(graph.names), ends, most, count + 1, make_effort()) is None


@settings(max_examples=count_examples(15))
@given(st.integers(2, 7), st.data())
def test_cheapest_out_trees_are_those_of_networkx(n: int, data: st.DataObject) -> None:
    price = np.array([[data.draw(st.integers(0, 20)) for _ in range(n)] for _ in range(n)])
    for matrix in (price.astype(float), price.astype(object)):
        parents = cheapest_out_tree(matrix, 0)
        tree: nx.DiGraph[int] = nx.DiGraph([(p, v) for v, p in enumerate(parents) if p >= 0])
        assert parents[0] == -1 and (n == 1 or nx.is_arborescence(tree))
        other: nx.DiGraph[int] = nx.DiGraph()
        other.add_weighted_edges_from(
            (u, v, int(price[u, v])) for u in range(n) for v in range(1, n) if u != v
        )
        best_tree = nx.minimum_spanning_arborescence(other)
        assert sum(price[p, v] for v, p in enumerate(parents) if p >= 0) == best_tree.size(
            weight="weight"
        )


@settings(max_examples=count_examples(10))
@given(graphs(most=6, switches=3))
def test_cheapest_trees_are_minimum_spanning_trees_of_the_metric(topology: Topology) -> None:
    graph = PairGraph(topology)
    prices = np.array([float(1 + (7 * i) % 5) for i in range(len(graph.links))])
    price, tree = graph.cheapest_tree(prices)
    plain: nx.Graph[str] = nx.Graph()
    for (a, b), p in zip(graph.links, prices, strict=True):
        plain.add_edge(a, b, weight=p)
    metric: nx.Graph[str] = nx.Graph()
    for u in topology.ranks:
        for v, length in nx.single_source_dijkstra_path_length(plain, u).items():
            if v in topology.ranks and u != v:
                metric.add_edge(u, v, weight=length)
    assert price == pytest.approx(nx.minimum_spanning_tree(metric).size(weight="weight"), abs=1e-9)
    for route in tree.edges:
        assert all(link in graph.number for link in pairwise(route))
        assert all(topology.by_id[d].kind == "switch" for d in route[1:-1])


@pytest.mark.parametrize(
    ("argument", "sizes"),
    [
        ("ring:8", [8]),
        ("torus:4x6", [6, 4]),
        ("hypercube:3", [2, 2, 2]),
        ("dgx-a100:4", [8, 4]),
        ("mesh:3x3", []),
    ],
)
def test_shifts_are_symmetries_and_images_move_a_rank_everywhere(
    argument: str, sizes: list[int]
) -> None:
    topology = preset(argument)
    turns = shifts(topology)
    assert [len(t) for t in turns] == sizes
    names = [d.id for d in topology.devices]
    images = group(turns, 4096)
    for image in [*(images if images is not None else []), *mirrors(topology)]:
        to = {name: names[image[i]] for i, name in enumerate(names)}
        assert {
            (to[a], to[b]): c for (a, b), c in topology.capacity_GBps.items()
        } == topology.capacity_GBps
    if images is not None:
        assert len(images) == np.prod(sizes) == len({tuple(i) for i in images.tolist()})
        first = names.index(topology.ranks[0])
        assert {names[i] for i in images[:, first]} == set(topology.ranks)


def test_groups_are_thinned_out_to_what_is_allowed() -> None:
    turns = shifts(preset("dgx-a100:4"))
    for most in (1, 2, 8, 16, 31, 32):
        images = group(turns, most)
        assert (1 if images is None else len(images)) <= most
    images = group(turns, 8)
    assert images is not None and len(images) == 8


def test_colours_tell_apart_what_differs() -> None:
    topology = preset("mesh:3x3")
    assert len(set(colours(topology).tolist())) == 3  # corners, sides, the middle
    assert len(set(colours(topology, "gpu0").tolist())) == 6
    assert Survey(preset("mesh:8x8")).classes_are_orbits
    assert not Survey(preset("dgx1")).classes_are_orbits


@pytest.mark.parametrize("count", range(2, 12))
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_trees(name: str, count: int) -> None:
    for parents in SHAPES[name](count):
        assert parents.count(-1) == 1
        depth, height = levels(parents)
        assert max(depth) == height[parents.index(-1)]
        for start in range(count):
            node, hops = start, 0
            while parents[node] >= 0:
                node, hops = parents[node], hops + 1
            assert hops == depth[start]
    if name == "binary":
        assert max(max(levels(p)[0]) for p in SHAPES[name](count)) <= count.bit_length()


def test_boxes_are_found_by_their_links() -> None:
    boxes = find_boxes(preset("dgx-a100:3"))
    assert boxes is not None and boxes.ranks == tuple(
        tuple(range(8 * b, 8 * b + 8)) for b in range(3)
    )
    assert find_boxes(preset("dgx1")) is None
    assert find_boxes(preset("mesh:4x4")) is None
    two = find_boxes(preset("mi250:2"))
    assert two is not None and (two.count, two.rails) == (2, 16)


def test_trees_hang_at_their_centre() -> None:
    edges = tuple((f"gpu{i}", f"gpu{i + 1}") for i in range(6))
    tree = root_tree(Tree(edges), {f"gpu{i}": i for i in range(7)})
    assert tree.root == 3
    assert tree.down[0] == ("gpu1", "gpu0") and tree.up[0] == ("gpu0", "gpu1")


@pytest.mark.long
def test_256_gpus_are_planned_for() -> None:
    """512 and 1,024 are in benchmarks/imperfect.py."""
    topology = preset("dgx-a100:32")
    result = pack(topology)
    assert result.plan.bound.algbw_GBps == Fraction(3200, 31)
    assert gap(result) <= Fraction(2, 100)


@pytest.mark.parametrize("side", [8, pytest.param(16, marks=pytest.mark.long)])
def test_a_torus_gathers_with_a_tree_a_gpu_near_the_bound(side: int) -> None:
    topology, gpus = preset(f"torus:{side}x{side}"), side * side
    result = pack(topology, "allgather")
    assert gap(result) <= Fraction(1, gpus)
    schedule = best(result)
    assert (schedule.trees, len(schedule.transfers)) == (gpus, gpus * (gpus - 1))
    assert 1 / bandwidth_s_per_GB(schedule, topology) <= result.plan.bound.algbw_GBps
