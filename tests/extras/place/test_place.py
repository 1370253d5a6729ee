"""Where ranks go: against brute force over all orders, against other counts of the loads, and what
is refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from place import build_boxes, check_against_all, known_machines, routes_of, write_job
from random_graphs import graphs
from thorough import count_examples

import topoplan
from topoplan.cli.extras.place import main
from topoplan.synth.extras.place import placing
from topoplan.synth.extras.place.job import read_job
from topoplan.synth.extras.place.placing import place
from topoplan.synth.extras.place.proof.check import check_place_bound
from topoplan.synth.extras.place.route_table import RouteTable
from topoplan.topo.errors import InputError, VerificationError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


@st.composite
def jobs(draw: st.DrawFn, ranks: int) -> tuple[tuple[int, ...], list[tuple[int, str, int, int]]]:
    """Sizes of dimensions, and for some of them a collective with its bytes."""
    sizes = draw(
        st.sampled_from([(ranks,), *((a, ranks // a) for a in range(2, ranks) if ranks % a == 0)])
    )
    kinds = st.sampled_from(["allreduce", "allgather", "alltoall", "sendrecv"])
    small = st.integers(1, 5)
    traffics = [(i, draw(kinds), draw(small), draw(small)) for i in range(len(sizes))]
    return sizes, traffics


@settings(max_examples=count_examples(7), deadline=None)
@given(st.data())
def test_the_order_is_the_best_of_all_orders(data: st.DataObject) -> None:
    """And the bound of tiers, which larger machines rest on, is not above it, and proved by its
    certificate.
    """
    topology = data.draw(graphs(most=5, two_way=False, switches=3))
    sizes, traffics = data.draw(jobs(len(topology.ranks)))
    objective = data.draw(st.sampled_from(["time", "bottleneck"]))
    placed = check_against_all(topology, sizes, traffics, objective)
    job = read_job(*write_job(sizes, traffics), len(placed.order))
    wrong = replace(placed.bound, seconds=placed.bound.seconds * 2 + 1)
    with pytest.raises(VerificationError):
        check_place_bound(
            wrong, topology, range(len(placed.order)), job, job.list_phases("ring"), objective
        )


@settings(max_examples=count_examples(4), deadline=None)
@given(st.data())
def test_search_bound_and_proof_agree_with_all_orders(data: st.DataObject) -> None:
    """What larger machines have: starts, moves, the bound of tiers, and CP-SAT's proof."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "MAX_LISTED", 0)
        patch.setattr(placing, "_SHAKE_FEW_S", 0.02)
        patch.setattr(placing, "_INSIDE_S", 0.02)
        topology = data.draw(graphs(most=5, two_way=False, switches=3))
        sizes, traffics = data.draw(jobs(len(topology.ranks)))
        check_against_all(
            topology, sizes, traffics, data.draw(st.sampled_from(["time", "bottleneck"]))
        )


@settings(max_examples=count_examples(12), deadline=None)
@given(graphs(most=6, two_way=False, switches=4))
def test_the_table_has_the_routers_routes(topology: Topology) -> None:
    table, routes = RouteTable(topology), routes_of(topology)
    for (u, v), links in routes.items():
        crossed = [table.links[i] for i in table.crossed[u, v][::-1] if i < len(table.links)]
        assert tuple(crossed) == links
        assert table.forwarded[u, v] == (Router(topology).route(u, v) is None)


@pytest.mark.parametrize(
    ("name", "least"), [("dgx1", 1.9), ("two-hosts", 3.5), ("leaf-spine", 2.0)]
)
def test_gains_on_known_machines(name: str, least: float) -> None:
    """A ring that leaves rank order: the DGX-1, two hosts with scattered ranks, a leaf-spine dealt
    round-robin.
    """
    machine, given_order = known_machines()[name]
    placed = place(machine, target="stock", order=given_order)
    assert placed.gain >= least
    assert placed.is_optimal


def test_a_ring_is_as_fast_as_the_judge_says() -> None:
    machine = preset("pcie-2socket")
    placed = place(machine, order=[0, 4, 1, 5, 2, 6, 3, 7])
    rates = pytest.importorskip("topoplan.synth.extras.judge.rates", reason="needs the extra judge")
    rate = rates.rate_rings("allreduce", [placed.given], Router(machine))
    (step,) = placed.steps
    seconds = placed.given_seconds - step.given_latency_seconds
    assert Fraction(1 << 30, 10**9) / rate.algbw_GBps == seconds


def test_meshes_behind_leaves_are_placed_near_the_bound() -> None:
    machine = build_boxes(8, 4, 4)
    placed = place(
        machine,
        "dp=4,tp=4,pp=2",
        "dp=allreduce:1G,tp=allreduce:256M,pp=sendrecv:16M",
        together=["tp"],
        target="ring",
    )
    assert prod(size for _, size in placed.job.dimensions) == len(placed.order) == 32
    for group in placed.job.list_groups("tp"):
        assert len({placed.gpus[rank][:2] for rank in group}) == 1
    assert placed.gap < 0.1
    again = place(
        machine,
        "dp=4,tp=4,pp=2",
        "dp=allreduce:1G,tp=allreduce:256M,pp=sendrecv:16M",
        together=["tp"],
        target="ring",
    )
    assert again.order == placed.order


DOCS_JOB = ["dgx-a100:4", "--job", "dp=4,tp=8", "--traffic"]


@pytest.mark.long
def test_tensor_parallelism_stays_inside_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    """What decides is the number of its calls, assumed or stated; one call alone would leave."""
    for traffic in ("dp=1G,tp=64M", "dp=allreduce:1G,tp=96xallreduce:64M"):
        assert main([*DOCS_JOB, traffic, "--json"]) == 0
        out, err = capsys.readouterr()
        found = json.loads(out)
        assert found["optimal"] and found["warnings"] == [] and err == ""
        assert [found["order"][i] // 8 for i in range(0, 32, 8)] == [0, 1, 2, 3]
        dp, tp = found["phases"]
        assert (tp["calls"], tp["call_bytes"], dp["size_bytes"]) == (96, 64 << 20, 1 << 30)
        assert 0 < tp["latency_s"] < tp["time_s"]
    assert main([*DOCS_JOB, "dp=1G,tp=64M"]) == 0
    said = capsys.readouterr().out
    assert "tp stays inside each host, where its 96 calls of a step take" in said
    assert "tp: 96 calls of allreduce a step assumed (4 per layer, 24 layers)" in said
    assert main([*DOCS_JOB, "dp=1G,tp=1x64M", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "tp leaves its hosts" in err
    (row,) = [row for row in json.loads(out)["domains"] if row["dimension"] == "tp"]
    alone = place("dgx-a100:4", "dp=4,tp=8", "dp=1G,tp=1x64M", together=["tp"])
    assert row["most_domains"] == 4
    assert row["together_time_s"] == float(alone.seconds)


def test_small_calls_are_placed_by_latency() -> None:
    """Two groups that may share a host: bytes are all the same, and calls are not."""
    machine = build_boxes(2, 4, 2, leaf_GBps=400, box_GBps=50)
    placed = place(machine, "a=2,b=4", "a=allreduce:64M,b=1000xallreduce:4K")
    assert [gpu[:2] for gpu in placed.gpus] == ["h0"] * 4 + ["h1"] * 4
    assert placed.steps[1].latency_seconds > placed.steps[1].seconds / 2


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_a_matrix_of_bytes_is_placed(suffix: str, tmp_path: Path) -> None:
    """Pairs that exchange most get a fast link; the file is read whatever its format."""
    matrix = np.zeros((4, 4), dtype=np.int64)
    for a, b in ((0, 2), (1, 3)):
        matrix[a, b] = matrix[b, a] = 64 << 20
    path = tmp_path / f"bytes.{suffix}"
    if suffix == "npy":
        np.save(path, matrix)
    else:
        rows = "\n".join(", ".join(f"{x >> 20}M" for x in row) for row in matrix.tolist())
        path.write_text(f"# MiB\n{rows}\n", encoding="utf-8")
    machine = build_boxes(2, 2, 2)
    placed = place(machine, traffic=path)
    assert {frozenset(placed.order[i] // 2 for i in pair) for pair in ((0, 2), (1, 3))} == {
        frozenset([0]),
        frozenset([1]),
    }
    assert placed.is_optimal and placed.gain > 1
    assert place(machine, traffic=matrix).order == placed.order
    # Without trying all orders, the bound holds too.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "MAX_LISTED", 0)
        again = place(machine, traffic=path)
    assert again.bound.seconds <= placed.seconds == again.seconds
    phases = again.job.list_phases("ring")
    check_place_bound(again.bound, machine, range(4), again.job, phases, "time")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n1,0\n", "2 x 2 numbers; expected 4 x 4"),
        ("0,1,2,3\n1,0\n", "line 2: 2 numbers, and the first row has 4"),
        ("0,1,2,-3\n" * 4, "line 1: '-3' is not a size"),
        ("0,1,2,1e30\n" * 4, "row 0, column 3"),
        ("0,1,2,1.5\n" * 4, "is not a whole number of bytes"),
        ("", "0 x 0 numbers"),
    ],
)
def test_a_bad_matrix_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bytes.csv"
    path.write_text(text, encoding="utf-8")
    assert main(["ring:4", "--traffic", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said and "bytes.csv" in said and said.count("\n") == 1
    broken = tmp_path / "bytes.npy"
    broken.write_bytes(text.encode() or b"\x93NUMPY")
    assert main(["ring:4", "--traffic", str(broken)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_plans_do_not_depend_on_the_order_inside_a_group() -> None:
    placed = place("dgx1", target="plan", order=[7, 6, 5, 4, 3, 2, 1, 0])
    assert placed.gain == 1
    assert placed.order == placed.given
    mesh = place(
        build_boxes(4, 2, 2),
        "dp=4,tp=2",
        "dp=allreduce:1G,tp=allreduce:4G",
        target="plan",
        order=[0, 2, 1, 3, 4, 6, 5, 7],
    )
    assert mesh.gain > 1
    assert mesh.is_optimal


def test_one_gpu_alone_has_its_only_order() -> None:
    assert place("full:1").order == (0,)


def test_failed_and_reserved_gpus_get_no_rank() -> None:
    placed = place("dgx-a100:2", without_ranks=[3], reserve=[8, 12])
    assert sorted(placed.order) == [x for x in range(16) if x not in (3, 8, 12)]
    assert placed.gpus == tuple(preset("dgx-a100:2").ranks[x] for x in placed.order)


def test_flows_are_spread_over_equal_spines_and_that_is_said() -> None:
    """Two spines carry what one of twice the rate does; a spine that differs stands alone, and its
    way is one of several.
    """
    traffic = "dp=4,tp=2", "dp=1xallreduce:1G,tp=1xallreduce:64M"
    two, one = build_boxes(4, 2, 2, 2, 30), build_boxes(4, 2, 2, 1, 60)
    given_order = [0, 4, 1, 5, 2, 6, 3, 7]
    spread, alone = (place(machine, *traffic, order=given_order) for machine in (two, one))
    assert (spread.seconds, spread.given_seconds) == (alone.seconds, alone.given_seconds)
    assert spread.notes == (
        "2 equal switches (spine0, spine1) planned as one: flows are assumed to spread evenly over "
        "them",
    )
    assert alone.notes == ()
    uneven = [
        replace(x, bandwidth_GBps=Fraction(20)) if "spine1" in (x.src, x.dst) else x
        for x in two.links
    ]
    single = place(Topology("uneven", two.devices, tuple(uneven)), *traffic, order=given_order)
    assert single.notes == () and single.given_seconds > spread.given_seconds


def test_each_hosts_ranks_follow_each_other_where_that_is_as_good() -> None:
    """As torchrun and hostfiles number them, even where the present order is as good."""
    for present in ([8, 0, 9, 1, 10], [9, 5, 10, 4, 14]):
        placed = place(
            "dgx-a100:2", reserve=[x for x in range(16) if x not in present], order=present
        )
        hosts = [gpu // 8 for gpu in placed.order]
        assert placed.gain >= 1
        assert sum(a != b for a, b in pairwise(hosts)) == 1


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dgx1", "--for", "stock", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gain"] == pytest.approx(2, rel=1e-3)
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
        (["dgx1", "--traffic", "all=1G"], 2, "no known kind of parallelism"),
        (["dgx1", "--traffic", "all=0xallreduce:1G"], 2, "0 calls"),
        (["dgx1", "--traffic", "missing.csv"], 2, "No such file"),
        (["dgx1", "--traffic", "missing"], 2, "neither a list such as"),
        (["dgx1", "--traffic", "all=allreduce:much"], 2, "is not a size"),
        (["dgx1", "--order", "0,1"], 2, "each of the 8 GPUs"),
        (["dgx1", "--order", "a"], 2, "not a list of GPUs"),
        (["dgx1", "--reserve", "9"], 2, "no such GPU"),
        (["dgx1", "--together", "tp"], 2, "no dimension 'tp'"),
        (["dgx-a100:2", "--together", "all"], 3, "no order was found"),
        (["nothing-like-it"], 2, "unknown topology"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = main(words)
    except SystemExit as exit_:
        ended = int(exit_.code or 0)
    said = capsys.readouterr().err
    assert ended == code
    assert message in said
    assert said.count("\n") == 1


def test_gpus_that_cannot_reach_each_other_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apart = Topology(
        "apart",
        tuple(Device(f"g{i}") for i in range(4)),
        both_directions(Link("g0", "g1")) + both_directions(Link("g2", "g3")),
    )
    path = tmp_path / "apart.json"
    path.write_text(apart.dumps(), encoding="utf-8")
    assert main([str(path)]) == 3
    assert "cannot reach" in capsys.readouterr().err
    with pytest.raises(InputError):
        place(apart, target="nccl")
