"""topo-judge's verdicts: rates of rings and trees, shares of bounds, what limits, findings, exit
codes, formats.
"""

from __future__ import annotations

import json
import re
import sys
from fractions import Fraction
from pathlib import Path

import conftest
import pytest
import random_graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_options import judge_by_bounds_alone, judge_equal_machines_once
from launch import run_command
from nccl_samples import DEVICES, GRAPH, HEADER, row, sign, write_log
from place import build_boxes
from thorough import count_examples

from topoplan.cli.extras import judge as command
from topoplan.synth.channels.channels import CHAIN, RING, Channels, algbw_GBps, schedule_channels
from topoplan.synth.extras.judge.file_contents import Location
from topoplan.synth.extras.judge.judging import Judge
from topoplan.synth.extras.judge.machine import Machines, map_ranks
from topoplan.synth.extras.judge.rates import RINGS, TREES, rate_rings, rate_trees
from topoplan.synth.extras.judge.readers.detect import read_text
from topoplan.synth.extras.judge.report import write_json, write_prometheus, write_text
from topoplan.synth.extras.judge.verdict import FileVerdict
from topoplan.synth.extras.place import placing
from topoplan.synth.ir.collective import Chunk, Collective
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.request import Request, Send, build_schedule
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

JUDGE = "topoplan.cli.extras.judge"


@pytest.fixture(autouse=True)
def equal_machines_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_equal_machines_once(monkeypatch)


@pytest.fixture
def bounds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no alternatives searched, for what was measured and its bounds."""
    judge_by_bounds_alone(monkeypatch)


def judge(
    text: str, machine: str, collective: str | None = "allreduce", name: str = "file"
) -> FileVerdict:
    judge = Judge(Machines(machine, []), collective, spell=command.spell_command)
    return judge.judge(read_text(text, name, collective))


def names(verdict: FileVerdict) -> list[str]:
    return [finding.name for finding in verdict.findings]


def log(rings: list[list[int]], trees: list[list[int]]) -> str:
    return "".join(write_log(rings, trees))


def table(*rows: str, ranks: int = 8) -> str:
    return "".join(DEVICES.format(i, 16 + i) for i in range(ranks)) + HEADER + "".join(rows)


def request_for(name: str, topology: Topology) -> Request:
    return Request(Collective(name, len(topology.ranks)), topology, Effort())


@settings(max_examples=count_examples(15))
@given(st.data(), st.sampled_from(["ring:5", "mesh:2x3", "switch:6", "pcie-2socket", "star:5"]))
def test_rates_are_those_of_the_schedules_that_the_channels_are(
    data: st.DataObject, machine: str
) -> None:
    topology = preset(machine)
    n, router = len(topology.ranks), Router(topology)
    direct = all(router.route(a, b) for a in range(n) for b in range(n) if a != b)
    orders = tuple(
        tuple(data.draw(st.permutations(range(n)))) if direct else tuple(range(n))
        for _ in range(data.draw(st.integers(1, 3)))
    )
    if not direct and machine != "ring:5":
        return
    for name in ("allreduce", "allgather", "reduce-scatter"):
        schedule = schedule_channels(request_for(name, topology), Channels(RING, orders), "ring")
        assert rate_rings(name, orders, router).algbw_GBps == algbw_GBps(schedule, topology)
    chains = [
        tuple(-1 if rank == order[0] else order[order.index(rank) - 1] for rank in range(n))
        for order in orders
    ]
    schedule = schedule_channels(
        request_for("allreduce", topology), Channels(CHAIN, orders), "chains"
    )
    assert rate_trees(chains, router).algbw_GBps == algbw_GBps(schedule, topology)


@settings(max_examples=count_examples(12))
@given(st.data())
def test_trees_that_branch_are_costed_as_the_schedule_that_they_are(data: st.DataObject) -> None:
    topology = preset(data.draw(st.sampled_from(["switch:6", "pcie-2socket"])))
    n = len(topology.ranks)
    trees = []
    for _ in range(data.draw(st.integers(1, 3))):
        order = data.draw(st.permutations(range(n)))
        parents = [-1] * n
        for at in range(1, n):
            parents[order[at]] = data.draw(st.sampled_from(order[:at]))
        trees.append(tuple(parents))
    sends: list[Send] = []
    for number, tree in enumerate(trees):
        depth = [len(walk(tree, rank)) - 1 for rank in range(n)]
        for rank, parent in enumerate(tree):
            if parent != -1:
                sends.append((n - depth[rank], rank, parent, number, "reduce"))
                sends.append((n + depth[rank], parent, rank, number, "copy"))
    chunks = tuple(Chunk(Fraction(1, len(trees))) for _ in trees)
    schedule = build_schedule(request_for("allreduce", topology), "trees", chunks, sends)
    assert rate_trees(trees, Router(topology)).algbw_GBps == algbw_GBps(schedule, topology)


def walk(parents: tuple[int, ...], rank: int) -> list[int]:
    path = [rank]
    while parents[path[-1]] != -1:
        path.append(parents[path[-1]])
    return path


def test_the_limiting_link_and_how_often_each_channel_crosses_it() -> None:
    topology = preset("pcie-2socket")
    orders = (tuple(range(8)), (0, 4, 1, 5, 2, 6, 3, 7))
    rate = rate_rings("allreduce", orders, Router(topology))
    assert set(rate.link) == {"cpu0", "cpu1"} and rate.crossings == (1, 4) and rate.alike == 2
    assert rate.algbw_GBps == Fraction(96, 5) / (Fraction(7, 4) * Fraction(5, 2))


@settings(max_examples=count_examples(15))
@given(random_graphs.graphs(), st.data())
def test_ranks_without_a_word_on_their_places_are_the_gpus_in_order(
    topology: Topology, data: st.DataObject
) -> None:
    n = len(topology.ranks)
    ranks = data.draw(st.integers(1, n))
    placed = map_ranks(topology, ranks, {}, "file")
    assert placed.gpu_of == tuple(range(ranks)) and placed.topology.ranks == topology.ranks[:ranks]


def test_ranks_are_put_on_gpus_by_address_by_number_and_by_host() -> None:
    machine = Topology.from_json(
        {"devices": [{"id": f"gpu{i}", "bus_id": f"0000:{i + 1:02x}:00.0"} for i in range(4)],
         "links": [{"src": "gpu0", "dst": f"gpu{i}", "bidirectional": True} for i in (1, 2, 3)]}
    )  # fmt: skip
    by_bus = map_ranks(machine, 2, {0: Location(bus="0000:04:00.0"), 1: Location(bus="02")}, "file")
    assert (
        by_bus.topology.ranks == ("gpu1", "gpu3")
        and by_bus.gpu_of == (1, 0)
        and by_bus.how == "by PCI address"
    )
    by_number = map_ranks(
        machine, 2, {0: Location(dev=2, physical=True), 1: Location(dev=0, physical=True)}, "file"
    )
    assert by_number.topology.ranks == ("gpu0", "gpu2") and by_number.gpu_of == (1, 0)
    boxes = preset("dgx-a100:2")
    places = {r: Location("b" if r < 8 else "a", r % 8) for r in range(16)}
    assert map_ranks(boxes, 16, places, "file").gpu_of == tuple(range(16))
    for ranks, place in (
        (5, {}),
        (2, {0: Location(dev=9, physical=True), 1: Location(dev=1, physical=True)}),
    ):
        with pytest.raises(InputError, match="another machine"):
            map_ranks(machine, ranks, place, "file")


def test_a_log_is_held_against_the_bound_and_what_gives_more_is_said() -> None:
    verdict = judge(log([[0, 1, 2, 3, 4, 5, 6, 7]], [[-1, 0, 1, 2, 3, 4, 5, 6]]), "pcie-2socket")
    (c,) = verdict.communicators
    rings, trees = c.rate("allreduce", RINGS), c.rate("allreduce", TREES)
    assert rings is not None and trees is not None
    assert (rings.algbw_GBps, trees.algbw_GBps) == (Fraction(384, 35), Fraction(12))
    assert c.limits["allreduce"].one_way_GBps == Fraction(96, 7)
    assert c.share("allreduce") == pytest.approx(12 * 7 / 96)
    file, plan = (c.options["allreduce"].best(name) for name in ("graph-file", "plan"))
    assert (
        file is not None
        and plan is not None
        and file.algbw_GBps == plan.algbw_GBps == Fraction(96, 7)
    )
    assert "offer-allreduce" in names(verdict)
    assert (
        "topo-synth --collective allreduce --topology pcie-2socket --format nccl-graph"
        in write_text([verdict], None)
    )


@pytest.mark.long
def test_between_hosts_topo_place_is_named_with_what_it_needs(tmp_path: Path) -> None:
    """A ring that crosses the spine at every hop, of ranks that were dealt to two leaves in turn;
    one GPU has no rank.
    """
    machine = tmp_path / "leaves.json"
    machine.write_text(build_boxes(9, 1, 3, leaf_GBps=50).dumps(), encoding="utf-8")
    order = [0, 3, 1, 4, 2, 5, 6, 7]
    verdict = judge(log([order], []), str(machine))
    (finding,) = [f for f in verdict.findings if f.name == "order-allreduce"]
    assert "one ring in the order h" in finding.message
    assert finding.advice == f"start ranks in that order: topo-place {machine} --reserve 8"
    placed = placing.place(build_boxes(9, 1, 3, leaf_GBps=50), reserve=[8])
    (option,) = [
        o for o in verdict.communicators[0].options["allreduce"].options if o.name == "rank-order"
    ]
    # The judge's rates are of bandwidths alone.
    seconds = placed.seconds - placed.steps[0].latency_seconds
    assert option.algbw_GBps == Fraction(1 << 30, 10**9) / seconds


def test_what_the_tuner_takes_is_judged() -> None:
    text = log([[0, 1, 2, 3, 4, 5, 6, 7]], [[-1, 0, 1, 2, 3, 4, 5, 6]])
    text += sign(0, "AllReduce: 268435456 Bytes -> Algo 1 proto 2 time 8000.0")
    verdict = judge(text, "pcie-2socket")
    assert verdict.communicators[0].share("allreduce") == pytest.approx(0.8)
    assert "tuner-allreduce" in names(verdict)


def test_measurements_are_judged_by_their_peak_and_beside_their_channels() -> None:
    text = log([[0, 1, 2, 3, 4, 5, 6, 7]], []) + table(
        row(1 << 20, 1.5, 2.6), row(1 << 28, 6.0, 10.5)
    )
    verdict = judge(text, "pcie-2socket")
    (m,) = verdict.measured
    assert m.peak.measured.size_bytes == 1 << 28 and m.peak.share == pytest.approx(6 * 7 / 96)
    assert "below-channels-allreduce" in names(verdict) and [
        share for _, share in verdict.shares
    ] == [m.peak.share]
    assert all(r.plan_GBps is not None for r in m.rows)


@pytest.mark.usefixtures("bounds_alone")
@pytest.mark.parametrize(
    ("machine", "algbw", "said"),
    [
        ("dgx-h100", 600.0, "a rate of the topology"),
        ("dgx1", 100.0, "a rate of the"),
    ],
)
def test_a_measurement_above_the_bound_is_said_with_the_assumption(
    machine: str, algbw: float, said: str
) -> None:
    verdict = judge(table(row(1 << 33, algbw, algbw * 1.75)), machine)
    (finding,) = [f for f in verdict.findings if f.name == "above-bound-allreduce"]
    assert verdict.measured[0].is_above and said in finding.advice


@pytest.mark.usefixtures("bounds_alone")
def test_more_than_nvswitches_alone_could_add_may_be_sums_in_the_network() -> None:
    verdict = judge(table(row(1 << 33, 300.0, 300.0 * 62 / 32), ranks=32), "dgx-h100:4")
    (finding,) = [f for f in verdict.findings if f.name == "above-bound-allreduce"]
    assert "no switch adds: NVLS and SHARP" in finding.advice
    assert verdict.measured[0].is_above and verdict.measured[0].nvls == "on"


def test_one_near_the_bound_is_left_alone() -> None:
    verdict = judge(table(row(1 << 30, 49.0, 73.5), ranks=4), "switch:4@75")
    assert names(verdict) == ["near-bound-allreduce"]


def test_graphs_of_another_machine_are_refused() -> None:
    gpus = "".join(f'<gpu dev="{i:#x}"/>' for i in range(3))
    for machine, said in (("ring:2", "another machine"), ("dgx1", "PHB")):
        with pytest.raises(InputError, match=said):
            judge(GRAPH.format(gpus), machine)
    far = GRAPH.format('<gpu dev="0"/><gpu dev="0x9"/>')
    with pytest.raises(InputError, match="0x9"):
        judge(far, "pcie-2socket")


def test_without_a_machine_what_was_read_is_still_shown() -> None:
    verdict = Judge(Machines(None, [])).judge(read_text(table(row(1 << 30, 84.0, 147.0)), "file"))
    if verdict.machine.topology is not None:
        pytest.skip("this machine has GPUs")
    text = write_text([verdict], None)
    assert "name the topology" in text and "84" in text and verdict.shares == []


def test_the_command_gives_json_exit_codes_and_one_line_of_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table.txt"
    file.write_text(table(row(1 << 20, 30.0, 45.0), row(1 << 30, 35.0, 52.5), ranks=4))
    assert command.main(["--topology", "switch:4@75", str(file), "--json", "--least", "0.8"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is False and data["share"] == pytest.approx(0.7)
    (of_file,) = data["files"]
    assert of_file["measured"][0]["bound"]["one_way_GBps"] == pytest.approx(50)
    out = tmp_path / "out.prom"
    assert (
        command.main(
            [
                "--topology",
                "switch:4@75",
                str(file),
                "--least",
                "0.6",
                "--prometheus",
                "-o",
                str(out),
            ]
        )
        == 0
    )
    assert "topo_judge_passed" in out.read_text() and capsys.readouterr().out == ""
    for arguments in (
        [str(tmp_path / "none")],
        [str(file), "--collective", "alltoall"],
        ["--topology", "nonesuch", str(file)],
    ):
        assert command.main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) == 1


def test_bad_files_are_refused_and_the_others_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(table(row(1 << 30, 35.0, 52.5), ranks=4))
    bad.write_text("a poem\n")
    assert command.main(["--topology", "switch:4@75", str(good), str(bad), "--json"]) == 2
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert [x["file"] for x in data["files"]] == [str(good)] and [
        x["file"] for x in data["refused"]
    ] == [str(bad)]
    assert len(captured.err.splitlines()) == 1


def test_a_share_is_above_0_and_at_most_1(capsys: pytest.CaptureFixture[str]) -> None:
    for share in ("0", "2", "nan", "much"):
        with pytest.raises(SystemExit) as caught:
            command.main(["file", "--least", share])
        assert caught.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_help_loads_nothing_heavy() -> None:
    code = (
        f"import sys; from {JUDGE} import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted(sys.modules))"
    )
    done = run_command(sys.executable, "-c", code)
    assert done.returncode == 0
    assert not re.search(r"'(?:numpy|ortools|scipy|msgspec|networkx|torch)'", done.stdout)


SERIES = re.compile(r'[a-z_]+\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+\} [0-9.e+\-]+')


def test_prometheus_has_help_and_type_once_and_escapes_labels() -> None:
    verdict = judge(table(row(1 << 20, 30.0, 45.0), ranks=4), "switch:4@75", name='a"b\\c\nd')
    lines = write_prometheus([verdict, verdict], 0.5).splitlines()
    series = [line for line in lines if not line.startswith("#")]
    assert all(SERIES.fullmatch(line) for line in series) and len(
        {x.rsplit(" ", 1)[0] for x in series}
    ) == len(series)
    metrics = {line.partition("{")[0] for line in series}
    for word in ("HELP", "TYPE"):
        assert sorted(line.split()[2] for line in lines if line.startswith(f"# {word}")) == sorted(
            metrics
        )
    assert '{file="a\\"b\\\\c\\nd",' in series[0]


def test_json_of_a_verdict_is_plain(tmp_path: Path) -> None:
    verdict = judge(log([[0, 1, 2, 3]] * 2, [[-1, 0, 1, 2]] * 2), "ring:4", None)
    data = json.loads(json.dumps(write_json([verdict], None), allow_nan=False))
    (c,) = data["files"][0]["communicators"]
    assert [x["collective"] for x in c["collectives"]] == [
        "allreduce",
        "allgather",
        "reduce-scatter",
    ] or c["not_judged"]


KNOWN = {
    "ncv4-bridged": (8.0, 12.0),
    "a100-one-bridge-missing": (8.0, 6.0),
    "pcie-3gpu": (12.0, 12.0),
}


@pytest.mark.usefixtures("bounds_alone")
@pytest.mark.parametrize("machine", KNOWN)
def test_graphs_that_nccl_found_reach_what_is_known_of_them(machine: str) -> None:
    file = conftest.INPUTS / "nccl_graphs" / f"{machine}.graph.xml"
    if not file.is_file():
        pytest.skip(f"input {file} is not here")
    verdict = Judge(Machines(None, []), "allreduce").judge(read_text(file.read_text(), str(file)))
    (c,) = verdict.communicators
    assert verdict.machine.source == "beside the file"
    assert tuple(float(r.algbw_GBps) for r in c.rates["allreduce"]) == KNOWN[machine]
