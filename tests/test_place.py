"""Where ranks go: against brute force over all orders, against other counts of the loads, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs
from thorough import count_examples

import topoplan
from topoplan.cli.place import main
from topoplan.synth.judge.rates import rate_rings
from topoplan.synth.place.bound import find_bound
from topoplan.synth.place.check import check_place_bound
from topoplan.synth.place.job import read_job
from topoplan.synth.place.placing import place
from topoplan.synth.place.tiers import find_tiers
from topoplan.topo.errors import InputError, VerificationError
from topoplan.topo.forwarding import Forwarding
from topoplan.topo.graph import Device, Link, Topology, both_ways
from topoplan.topo.presets import preset
from topoplan.topo.route_table import RouteTable
from topoplan.topo.routes import Router, route_links

Sends = list[tuple[int, int, Fraction]]
Routes = dict[tuple[int, int], tuple[tuple[str, str], ...]]


def routes_of(topology: Topology) -> Routes:
    """The links between all GPUs, one by one: own routes, or over other GPUs where there is none."""
    router, forwarding = Router(topology), Forwarding(topology)
    out = {}
    for u, gpu in enumerate(topology.ranks):
        other_ways = forwarding.routes_from(gpu)
        for v, other in enumerate(topology.ranks):
            if u != v:
                out[u, v] = route_links(router.route(u, v) or other_ways[other])
    return out


def sends_of(sizes: Sequence[int], dimension: int, collective: str, size_bytes: int) -> Sends:
    """Who sends how much to whom for rings in the order of ranks, by coordinates."""
    n = sizes[dimension]
    coordinates = [tuple(int(x) for x in c) for c in np.ndindex(*sizes)]
    out = []
    for rank, c in enumerate(coordinates):
        for j in range(n):
            other = coordinates.index((*c[:dimension], j, *c[dimension + 1 :]))
            distance = j - c[dimension]
            if collective == "alltoall" and distance:
                out.append((rank, other, Fraction(size_bytes, n)))
            if collective == "sendrecv" and abs(distance) == 1:
                out.append((rank, other, Fraction(size_bytes)))
            if collective == "allreduce" and distance % n == 1 % n and n > 1:
                out.append((rank, other, Fraction(2 * (n - 1) * size_bytes, n)))
            if collective == "allgather" and distance % n == 1 % n and n > 1:
                out.append((rank, other, Fraction((n - 1) * size_bytes, n)))
    return out


def seconds_of(
    order: Sequence[int], phases: list[Sends], topology: Topology, routes: Routes, objective: str
) -> Fraction:
    """The objective of an order, counted message by message."""
    total: dict[tuple[str, str], Fraction] = {}
    one_by_one = Fraction(0)
    for sends in phases:
        busy: dict[tuple[str, str], Fraction] = {}
        for src, dst, size in sends:
            for link in routes[order[src], order[dst]]:
                busy[link] = busy.get(link, Fraction(0)) + size / (topology.capacity_GBps[link] * 10**9)
        one_by_one += max(busy.values(), default=Fraction(0))
        for link, seconds in busy.items():
            total[link] = total.get(link, Fraction(0)) + seconds
    return one_by_one if objective == "time" else max(total.values(), default=Fraction(0))


@st.composite
def jobs(draw: st.DrawFn, ranks: int) -> tuple[tuple[int, ...], list[tuple[int, str, int]]]:
    """Sizes of dimensions, and for some of them a collective with its bytes."""
    sizes = draw(st.sampled_from([(ranks,), *((a, ranks // a) for a in range(2, ranks) if ranks % a == 0)]))
    kinds = st.sampled_from(["allreduce", "allgather", "alltoall", "sendrecv"])
    traffics = [(i, draw(kinds), draw(st.integers(1, 5))) for i in range(len(sizes))]
    return sizes, traffics


def write_job(sizes: Sequence[int], traffics: Sequence[tuple[int, str, int]]) -> tuple[str, str]:
    names = "abc"
    return (
        ",".join(f"{names[i]}={size}" for i, size in enumerate(sizes)),
        ",".join(f"{names[i]}={collective}:{size}" for i, collective, size in traffics),
    )


@settings(max_examples=count_examples(12), deadline=None)
@given(st.data())
def test_the_order_is_the_best_of_all_orders(data: st.DataObject) -> None:
    topology = data.draw(graphs(most=5, two_way=False, switches=3))
    ranks = len(topology.ranks)
    sizes, traffics = data.draw(jobs(ranks))
    objective = data.draw(st.sampled_from(["time", "bottleneck"]))
    job, traffic = write_job(sizes, traffics)
    placed = place(topology, job, traffic, objective=objective)
    phases = [sends_of(sizes, *traffic) for traffic in traffics]
    routes = routes_of(topology)
    seconds = [seconds_of(order, phases, topology, routes, objective) for order in permutations(range(ranks))]
    assert placed.seconds == min(seconds) == seconds_of(placed.order, phases, topology, routes, objective)
    assert placed.given_seconds == seconds[0]
    assert placed.is_optimal
    # what is proved by tiers is below that, and its certificate holds
    read = read_job(job, traffic, ranks)
    table, messages = RouteTable(topology), read.list_phases("ring")
    tiers = find_tiers(topology, range(ranks), [range(ranks)])
    bound = find_bound(table, range(ranks), tiers, read, messages, objective, placed.seconds)
    assert bound.seconds <= placed.seconds
    check_place_bound(bound, topology, range(ranks), read, messages, objective)
    with pytest.raises(VerificationError):
        check_place_bound(
            replace(bound, seconds=bound.seconds * 2 + 1), topology, range(ranks), read, messages, objective
        )


@settings(max_examples=count_examples(25), deadline=None)
@given(graphs(most=6, two_way=False, switches=4))
def test_the_table_has_the_routers_routes(topology: Topology) -> None:
    table, routes = RouteTable(topology), routes_of(topology)
    for (u, v), links in routes.items():
        crossed = [table.links[i] for i in table.crossed[u, v][::-1] if i < len(table.links)]
        assert tuple(crossed) == links
        assert table.forwarded[u, v] == (Router(topology).route(u, v) is None)


def boxes(count: int, per_box: int, per_leaf: int, spines: int = 1) -> Topology:
    """Boxes of GPUs on a switch, a network port a GPU, behind leaves and spines."""
    gpus = [Device(f"h{b}g{i}", extra={"host": f"h{b}"}) for b in range(count) for i in range(per_box)]
    switches = [Device(f"h{b}nv", "switch", "nvswitch") for b in range(count)]
    switches += [Device(f"leaf{i}", "switch", "network") for i in range(count // per_leaf)]
    switches += [Device(f"spine{i}", "switch", "network") for i in range(spines)]
    links = [
        x
        for b in range(count)
        for i in range(per_box)
        for x in (
            *both_ways(Link(f"h{b}g{i}", f"h{b}nv", Fraction(450), Fraction(7, 10), "nvlink")),
            *both_ways(Link(f"h{b}g{i}", f"leaf{b // per_leaf}", Fraction(50), Fraction(5), "network")),
        )
    ]
    links += [
        x
        for leaf in range(count // per_leaf)
        for s in range(spines)
        for x in both_ways(Link(f"leaf{leaf}", f"spine{s}", Fraction(400), Fraction(5), "network"))
    ]
    return Topology("boxes", (*gpus, *switches), tuple(links))


def test_gains_on_known_machines() -> None:
    """A ring that leaves rank order: the DGX-1, two hosts with scattered ranks, a leaf-spine dealt round-robin."""
    assert place("dgx1", target="stock").gain >= Fraction(19, 10)
    hosts = [Device(f"gpu{i}") for i in range(8)] + [Device(f"host{i}", "switch", "network") for i in range(2)]
    links = [x for i in range(8) for x in both_ways(Link(f"gpu{i}", f"host{i // 4}", Fraction(1, 20)))]
    two = Topology("two", tuple(hosts), (*links, *both_ways(Link("host0", "host1", Fraction(1, 80)))))
    scattered = place(two, target="stock", order=[0, 4, 1, 5, 2, 6, 3, 7])
    assert scattered.gain == 4
    assert scattered.is_optimal
    spine = boxes(16, 1, 4)
    dealt = [leaf * 4 + i for i in range(4) for leaf in range(4)]
    narrow = replace(
        spine,
        links=tuple(replace(x, bandwidth_GBps=Fraction(50)) if "spine" in x.src + x.dst else x for x in spine.links),
    )
    placed = place(narrow, target="stock", order=dealt)
    assert placed.gain >= 2
    assert placed.is_optimal


def test_a_ring_is_as_fast_as_the_judge_says() -> None:
    machine = preset("dgx2")
    placed = place(machine, order=[*range(0, 16, 2), *range(1, 16, 2)])
    rate = rate_rings("allreduce", [placed.given], machine, Router(machine))
    assert Fraction(1 << 30, 10**9) / rate.algbw_GBps == placed.given_seconds


def test_meshes_behind_leaves_are_placed_near_the_bound() -> None:
    machine = boxes(8, 4, 4)
    placed = place(
        machine, "dp=4,tp=4,pp=2", "dp=allreduce:1G,tp=allreduce:256M,pp=sendrecv:16M", together=["tp"], target="ring"
    )
    assert prod(size for _, size in placed.job.dimensions) == len(placed.order) == 32
    for group in placed.job.list_groups("tp"):
        assert len({placed.gpus[rank][:2] for rank in group}) == 1
    assert placed.gain > 1
    again = place(
        machine, "dp=4,tp=4,pp=2", "dp=allreduce:1G,tp=allreduce:256M,pp=sendrecv:16M", together=["tp"], target="ring"
    )
    assert again.order == placed.order


def test_plans_do_not_depend_on_the_order_inside_a_group() -> None:
    placed = place("dgx1", target="plan", order=[7, 6, 5, 4, 3, 2, 1, 0])
    assert placed.gain == 1
    assert placed.order == placed.given
    mesh = place(
        boxes(4, 2, 2), "dp=4,tp=2", "dp=allreduce:1G,tp=allreduce:4G", target="plan", order=[0, 2, 1, 3, 4, 6, 5, 7]
    )
    assert mesh.gain > 1
    assert mesh.is_optimal


def test_failed_and_reserved_gpus_get_no_rank() -> None:
    placed = place("dgx-a100:2", without_ranks=[3], reserve=[8, 12])
    assert sorted(placed.order) == [x for x in range(16) if x not in (3, 8, 12)]
    assert placed.gpus == tuple(preset("dgx-a100:2").ranks[x] for x in placed.order)


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dgx1", "--for", "stock", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gain"] == 2
    assert sorted(found["order"]) == list(range(8))
    assert found["bound"]["seconds"] <= found["time_s"]
    path = tmp_path / "placed.txt"
    assert main(["ring:6", "--order", "0,3,1,4,2,5", "-o", str(path)]) == 0
    assert "gain 2.00" in path.read_text(encoding="utf-8")
    assert topoplan.place("ring:4").order == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["dgx1", "--job", "dp=3,tp=2"], 2, "3 x 2 = 6 ranks, and 8 GPUs"),
        (["dgx1", "--job", "dp=4,tp=2"], 2, "say what each dimension sends"),
        (["dgx1", "--job", "dp=4,dp=2"], 2, "dp is named twice"),
        (["dgx1", "--job", "dp=x"], 2, "expected a whole number"),
        (["dgx1", "--job", "dp"], 2, "is not NAME=VALUE"),
        (["dgx1", "--job", "dp=8", "--traffic", "tp=allreduce:1G"], 2, "no dimension 'tp'"),
        (["dgx1", "--traffic", "all=allsum:1G"], 2, "is not COLLECTIVE:BYTES"),
        (["dgx1", "--traffic", "all=allreduce:much"], 2, "is not a size"),
        (["dgx1", "--order", "0,1"], 2, "each of the 8 GPUs"),
        (["dgx1", "--order", "a"], 2, "not a list of GPUs"),
        (["dgx1", "--reserve", "9"], 2, "no such GPU"),
        (["dgx1", "--together", "tp"], 2, "no dimension 'tp'"),
        (["dgx-a100:2", "--together", "all"], 3, "no order was found"),
        (["nothing-like-it"], 2, "unknown topology"),
    ],
)
def test_bad_input_is_one_line(words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        ended = main(words)
    except SystemExit as exit_:
        ended = int(exit_.code or 0)
    said = capsys.readouterr().err
    assert ended == code
    assert message in said
    assert said.count("\n") == 1


def test_gpus_that_cannot_reach_each_other_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apart = Topology(
        "apart", tuple(Device(f"g{i}") for i in range(4)), both_ways(Link("g0", "g1")) + both_ways(Link("g2", "g3"))
    )
    path = tmp_path / "apart.json"
    path.write_text(apart.dumps(), encoding="utf-8")
    assert main([str(path)]) == 3
    assert "cannot reach" in capsys.readouterr().err
    with pytest.raises(InputError):
        place(apart, target="nccl")
