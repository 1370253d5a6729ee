"""Floors for health checks: topo-judge --thresholds, and tables of one host of several: --box."""

from __future__ import annotations

import csv
import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from launch import run_command

from topoplan.cli.extras import judge as command
from topoplan.synth.extras.judge.floors import TESTS, USUAL, Floor, find_floors
from topoplan.synth.extras.judge.machine import select_box
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GiB = 1 << 30


def find(
    machine: str, collective: str = "allreduce", size: int = GiB, at_least: float | None = None
) -> Floor:
    topology = load_for_planning(machine)[0]
    (floor,) = find_floors(topology, [collective], [size], at_least).floors
    return floor


def test_a_floor_is_the_judges_share_of_the_bound_and_says_so() -> None:
    floor = find("dgx-a100")
    assert floor.bound_GBps == pytest.approx(300 * 8 / 14)
    assert floor.algbw_GBps == pytest.approx(0.68 * 300 * 8 / 14)
    assert floor.busbw_GBps == pytest.approx(0.68 * 300)
    assert floor.basis.startswith("0.68 x the bound of 171.4 GB/s (8 x nvlink 300 GB/s")
    asked = find("dgx-a100", at_least=0.5)
    assert asked.busbw_GBps == pytest.approx(150) and asked.basis.startswith("0.5 x the bound")


def test_where_stock_is_below_on_paper_the_floor_is_of_stock_and_says_so() -> None:
    floor = find("pcie-2socket")
    assert floor.basis.startswith("0.72 x 10.97 GB/s, the rings that stock NCCL finds (modelled)")
    assert floor.algbw_GBps is not None and floor.bound_GBps is not None
    assert floor.algbw_GBps == pytest.approx(0.72 * 10.97, rel=1e-3)
    assert floor.algbw_GBps < 0.72 * floor.bound_GBps
    asked = find("pcie-2socket", at_least=0.72)
    assert asked.algbw_GBps == pytest.approx(0.72 * floor.bound_GBps)


def test_nvls_counts_on_one_host_and_not_between_hosts() -> None:
    assert " with NVLS (" in find("dgx-h100").basis
    assert "NVLS" not in find("dgx-h100:2").basis
    assert "that of NVLS is not modelled" in find("dgx-h100", size=1 << 20).why_not


def test_small_sizes_have_a_floor_only_where_latency_is_known_and_small() -> None:
    floor = find("dgx-a100", size=1 << 28)
    assert floor.basis.endswith(", x 0.98 for the latency that NCCL's tuner counts")
    whole = find("dgx-a100").algbw_GBps
    assert floor.algbw_GBps is not None and whole is not None
    assert 0.9 * whole < floor.algbw_GBps < whole
    for machine, name, size in (
        ("dgx-a100", "allreduce", 1 << 20),
        ("dgx-a100", "allgather", 1 << 28),
        ("mi300x", "allreduce", 1 << 28),
    ):
        none = find(machine, name, size)
        assert none.algbw_GBps is None and none.why_not.startswith("latency decides at this size")


def test_assumed_rates_make_no_floor_and_the_reason_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--topology", str(EXAMPLES / "matrix.txt"), "--thresholds", "--json"]
    assert command.main(asked) == 2
    captured = capsys.readouterr()
    floors = json.loads(captured.out)["floors"]
    assert all(x["busbw_GBps"] is None and "nothing states: PCIe" in x["why_not"] for x in floors)
    assert "topo-judge: error: matrix: no floor: the bound rests on rates" in captured.err
    assert command.main([*asked, "--rate", "pcie=24", "--at-least", "0.7"]) == 0
    floors = json.loads(capsys.readouterr().out)["floors"]
    assert {x["collective"] for x in floors if x["busbw_GBps"]} == {*USUAL}


def test_json_has_a_row_for_each_collective_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--topology", "dgx1", "--thresholds", "--json", "--sizes", "1G,2G"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["format"] == "topoplan-judge-thresholds" and body["at_least"] is None
    assert body["topology"]["ranks"] == 8 and body["topology"]["hosts"] == 1
    rows = [(x["collective"], x["test"], x["size_bytes"]) for x in body["floors"]]
    assert rows == [(name, TESTS[name], size) for name in USUAL for size in (GiB, 2 * GiB)]
    assert {*TESTS} == {*COLLECTIVES}


@pytest.fixture
def floors_file(tmp_path: Path) -> Path:
    file = tmp_path / "floors.sh"
    assert command.main(["--topology", "dgx-a100", "--thresholds", "-o", str(file)]) == 0
    return file


SHELLS = [shell for shell in ("sh", "bash", "dash") if shutil.which(shell)]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("table", "code", "says"),
    [
        ((EXAMPLES / "all_reduce_perf.txt").read_text(), 0, ""),
        ("1073741824 268435456 float sum -1 9 8 203.5 0 9 8 203.4 0\n", 1, "203.5 GB/s busbw at"),
        ("1073741824 268435456 float sum -1 9 8 203.5 0 9 8 204.4 0\n", 0, ""),
        ("1024 256 float sum -1 9 8 3 0 9 8 3 0\n", 2, "the table has no size with a floor"),
        ("", 2, "the table has no size with a floor"),
    ],
)
def test_the_shell_compares_tables_with_the_floors(
    floors_file: Path, shell: str, table: str, code: int, says: str
) -> None:
    (floors_file.parent / "table").write_text(table)
    line = f". {floors_file}; topo_check_floors all_reduce_perf < table"
    done = run_command(shell, "-c", line, cwd=floors_file.parent)
    assert (done.returncode, says in done.stdout) == (code, True), done.stdout
    assert run_command(shell, "-n", str(floors_file)).returncode == 0


def test_the_check_of_nhc_ends_with_nhcs_own_failure(floors_file: Path) -> None:
    folder = floors_file.parent
    (folder / "table").write_text("1073741824 268435456 float sum -1 9 8 99 0 9 8 98 0\n")
    die = 'die() { echo "ERROR: nhc: $2"; exit "$1"; }'
    check = "check_topo_floors all_reduce_perf table"
    done = run_command("bash", "-c", f"{die}; . {floors_file}; {check}", cwd=folder)
    assert done.returncode == 1
    assert done.stdout.startswith(
        "ERROR: nhc: check_topo_floors: all_reduce_perf: 99 GB/s busbw at 1073741824 bytes, and the"
    )
    plain = run_command("bash", "-c", f". {floors_file}; {check}", cwd=folder)
    assert plain.returncode == 1 and plain.stderr.startswith("check_topo_floors: all_reduce_perf")


def test_what_does_not_go_with_thresholds_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, says in (
        (["--thresholds", "some.log"], "--thresholds judges nothing"),
        (["--thresholds", "--csv", str(tmp_path / "x.csv")], "--thresholds judges nothing"),
        (["--sizes", "1G", "x.log"], "--sizes is for --thresholds"),
        ([], "no FILE is given"),
        (["--thresholds", "--topology", "ring:1"], "ring:1"),
    ):
        assert command.main(arguments) == 2
        said = capsys.readouterr().err
        assert says in said and len(said.splitlines()) == 1


@pytest.mark.long
def test_published_results_of_healthy_machines_reach_their_floors() -> None:
    """All but those of NVSwitches that could add and did not (NVLS off)."""
    published = import_module("published")
    tried = 0
    with published.DATA.open(encoding="utf-8") as text:
        lines = list(csv.DictReader(text, delimiter="\t"))
    for line in lines:
        topology = load_for_planning(published.build(line["machine"]))[0]
        if len(topology.ranks) > 64 or line["why"] or line["nvls"] == "off":
            continue
        (floor,) = find_floors(topology, [line["collective"]], [8 * GiB]).floors
        if floor.algbw_GBps is not None:
            assert float(line["algbw_GBps"]) >= floor.algbw_GBps, line["id"]
            tried += 1
    assert tried >= 25


# -- one host of several


@pytest.mark.parametrize(
    ("machine", "alone"),
    [("dgx-a100:2", "dgx-a100"), ("dgx-h100:4", "dgx-h100"), ("dgx-h100-rails:2", "dgx-h100")],
)
def test_a_table_of_one_host_is_judged_by_that_hosts_bound(machine: str, alone: str) -> None:
    box = load_for_planning(select_box(preset(machine)))[0]
    (of_box,) = find_floors(box, ["allreduce"], [GiB]).floors
    assert of_box.bound_GBps == find(alone).bound_GBps
    assert len(box.ranks) == 8 and not any(d.family == "network" for d in box.devices)


def test_the_switch_says_that_a_table_is_of_one_host(capsys: pytest.CaptureFixture[str]) -> None:
    table = str(EXAMPLES / "all_reduce_perf.txt")
    shares = {}
    for options in (["dgx-a100"], ["dgx-a100:2", "--box"]):
        assert command.main([table, "--topology", *options, "--json"]) == 0
        body = json.loads(capsys.readouterr().out)
        shares[len(options)] = body["share"]
    assert shares[1] == shares[2]
    assert body["files"][0]["topology"]["name"] == "dgx-a100:2, one of 2 hosts"


def test_hosts_that_differ_have_no_box_that_stands_for_all() -> None:
    devices = [Device(f"host{h}/gpu{g}", extra={"host": h}) for h, g in ((0, 0), (0, 1), (1, 0))]
    links = [
        link
        for end in devices[1:]
        for link in both_directions(Link(devices[0].id, end.id, 10, 0, "pcie"))  # type: ignore[arg-type]
    ]
    with pytest.raises(InputError, match="its hosts have 1 or 2 GPUs"):
        select_box(Topology("both", tuple(devices), tuple(links)))
    alone = preset("dgx1")
    assert select_box(alone) is alone
