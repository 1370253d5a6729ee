"""topo-judge's verdicts through the command: healthy machines are left alone, and each case that
people post gets the verdict it deserves.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_options import judge_by_bounds_alone, judge_equal_machines_once
from nccl_samples import DEVICES, GRAPH, HEADER, row, sign, write_log, write_table
from needs import long_cases

from topoplan.cli.extras import judge as command
from topoplan.synth.extras.judge import machine, options
from topoplan.synth.extras.judge.file_contents import Measurement
from topoplan.synth.extras.judge.options import find_limits
from topoplan.synth.extras.judge.verdict import MeasuredRow, MeasuredVerdict
from topoplan.synth.ir.collective import Collective
from topoplan.synth.plan import Plan
from topoplan.topo.errors import InputError
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset

# nvidia-smi topo -m of two GPUs below one CPU, which gives no rates.
PAIR = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t{0}\t0-31\t0\nGPU1\t{0}\t X \t0-31\t0\n"
)


class Desk:
    """Judges texts with the command, in a folder of their own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def run(self, text: str, *arguments: str) -> tuple[int, str, str]:
        file = self.folder / "file.txt"
        file.write_text(text, encoding="utf-8")
        code = command.main([str(file), *arguments])
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    def judge(self, text: str, *arguments: str) -> dict[str, Any]:
        """Return the JSON of one file."""
        code, out, err = self.run(text, *arguments, "--json")
        assert code == 0, err
        (file,) = json.loads(out)["files"]
        if file["findings"]:
            assert file["verdict"] == file["findings"][0]
        else:
            assert file["verdict"]["name"] == "not-judged" and file["share"] is None
        return dict(file)

    def matrix(self, label: str) -> str:
        file = self.folder / f"{label}.matrix.txt"
        file.write_text(PAIR.format(label), encoding="utf-8")
        return str(file)


@pytest.fixture
def desk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Desk:
    judge_equal_machines_once(monkeypatch)
    return Desk(tmp_path, capsys)


@pytest.fixture
def desk_of_bounds(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk that searches no alternatives, for what was measured and its bounds."""
    judge_by_bounds_alone(monkeypatch)
    return desk


def names(file: dict[str, Any]) -> list[str]:
    return [finding["name"] for finding in file["findings"]]


def is_offer(name: str) -> bool:
    return name.startswith(("offer", "order", "tuner"))


A100, H100, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB"
# Machine, ranks, collective, GPU, busbw as such machines measure it at 1 GiB.
HEALTHY = [
    ("dgx-h100", 8, "allreduce", H100, 480),  # NVLS
    ("pcie-2socket", 4, "allgather", "NVIDIA A40", 21.5),
    ("NV4", 2, "allreduce", "NVIDIA A40", 86),
    ("PHB", 2, "allreduce", "Tesla T4", 12.4),  # more than NCCL counts for Gen3
    ("PHB", 2, "allgather", "NVIDIA GeForce RTX 5090", 43),
]
MORE_HEALTHY = [
    ("dgx-a100", 8, "allreduce", A100, 234),
    ("PIX", 2, "allreduce", "NVIDIA GeForce RTX 4090", 21.5),
    ("switch:8@48", 8, "allreduce", "NVIDIA H100 PCIe", 43),
    ("dgx-a100", 2, "allreduce", A100, 231),
    ("dgx-a100", 8, "allgather", A100, 228),
    ("dgx-a100", 8, "reduce-scatter", A100, 229),
    ("dgx-a100", 4, "allreduce", A100, 232),
    ("dgx-h100", 8, "allgather", H100, 362),
    ("dgx-h100", 4, "allreduce", H100, 340),
    ("dgx1", 8, "allreduce", V100, 130),
    ("dgx2", 16, "allreduce", "Tesla V100-SXM3-32GB", 122),
    ("pcie-2socket", 4, "allreduce", "NVIDIA A40", 21),
    ("pcie-2socket", 2, "allreduce", "NVIDIA A40", 20.5),
    ("NV12", 2, "allreduce", "NVIDIA A100 80GB PCIe", 240),
]


@pytest.mark.parametrize(
    ("machine", "ranks", "collective", "gpu", "busbw"),
    [*HEALTHY, *(pytest.param(*case, marks=pytest.mark.long) for case in MORE_HEALTHY)],
)
def test_a_healthy_machine_is_left_alone(
    desk: Desk, machine: str, ranks: int, collective: str, gpu: str, busbw: float
) -> None:
    topology = desk.matrix(machine) if machine.isupper() or machine[:2] == "NV" else machine
    file = desk.judge(write_table(busbw, ranks, collective, gpu), "--topology", topology)
    assert not any(map(is_offer, names(file)))
    assert names(file)[0].startswith(("near-bound", "above-bound"))
    assert len(names(file)) == 1


def test_an_offer_compares_both_sides_on_paper_and_says_what_it_assumes(desk: Desk) -> None:
    file = desk.judge(write_table(17, 8), "--topology", "pcie-2socket")
    (offer,) = [f for f in file["findings"] if f["name"] == "offer-allreduce"]
    assert "13.71 GB/s, 1.25 times the 10.97 GB/s of the rings that stock NCCL" in offer["message"]
    assert "NCCL_P2P_LEVEL=SYS" in offer["advice"]
    assert "if every link carries" in offer["message"] and "P2P" in offer["message"]
    assert "leave it alone" not in json.dumps(file["findings"])


@pytest.mark.parametrize("known", long_cases(["GeForce", "slower"], "slower"))
def test_nothing_is_offered_that_needs_p2p_where_there_is_none(desk: Desk, known: str) -> None:
    topology = preset("pcie-2socket")
    if known == "GeForce":
        boards = {"name": "NVIDIA GeForce RTX 4090"}
        devices = (
            replace(x, extra={**x.extra, **boards}) if x.kind == "gpu" else x
            for x in topology.devices
        )
        topology = replace(topology, devices=tuple(devices))
    else:
        pair = {"src": "gpu0", "dst": "gpu7", "GBps": 9, "through_memory_GBps": 20}
        topology = replace(topology, extra={**topology.extra, "measured": {"pairs": [pair]}})
    machine = desk.folder / "machine.json"
    machine.write_text(topology.dumps(), encoding="utf-8")
    file = desk.judge(write_table(17, 8), "--topology", str(machine))
    assert not any(map(is_offer, names(file)))
    assert "NCCL_P2P_LEVEL" not in json.dumps(file)


# Ranks and busbw of H200s with NVLS, and without it where that is not healthy, as published.
WITH_NVLS = long_cases([(5, 414.2), (6, 435.6), (8, 480.0)], 5, 6)
WITHOUT_NVLS = [(6, 365.1), (8, 364.0)]


@pytest.mark.parametrize(("ranks", "busbw"), WITH_NVLS)
def test_sums_in_nvswitches_are_held_against_their_own_bound(
    desk_of_bounds: Desk, ranks: int, busbw: float
) -> None:
    file = desk_of_bounds.judge(write_table(busbw, ranks, gpu=H100), "--topology", "dgx-h100")
    assert names(file) == ["near-bound-allreduce"]
    (measured,) = file["measured"]
    assert measured["held_against"] == "nvls" and not measured["above_bound"]
    assert measured["share"] == pytest.approx(busbw * ranks / (2 * (ranks - 1)) / 450, rel=0.01)
    assert "NVLS was on" in file["verdict"]["message"] or measured["nvls"] == "unknown"


@pytest.mark.parametrize(("ranks", "busbw"), WITHOUT_NVLS)
def test_nvswitches_that_do_not_add_are_no_healthy_ones(
    desk_of_bounds: Desk, ranks: int, busbw: float
) -> None:
    table = write_table(busbw, ranks, gpu=H100)
    file = desk_of_bounds.judge(table, "--topology", "dgx-h100")
    assert names(file) == ["below-nvls-allreduce"]
    assert "whether NVLS was on is not known" in file["verdict"]["message"]
    assert file["measured"][0]["nvls"] == "unknown"
    code, out, _ = desk_of_bounds.run(table, "--topology", "dgx-h100", "--at-least", "0.7")
    assert code == 1 and not json.loads(out)["passed"]


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("NCCL_NVLS_ENABLE set by environment to 0.", "off"),
        ("NCCL_ALGO set by environment to Ring", "off"),
        ("NVLS comm 0x7f headRank 0 nHeads 8 buffSize 1048576", "on"),
    ],
)
def test_what_a_log_says_of_nvls_is_said(desk: Desk, line: str, known: str) -> None:
    log = write_log([range(8)], [[rank - 1 for rank in range(8)]])
    text = "".join([*log, *(sign(rank, line) for rank in range(8)), write_table(364, 8, gpu=H100)])
    file = desk.judge(text, "--topology", "dgx-h100", "--collective", "allreduce")
    assert file["measured"][0]["nvls"] == known
    finding = next(f for f in file["findings"] if f["name"] == "below-nvls-allreduce")
    assert f"NVLS was {known}" in finding["message"]


@pytest.mark.long
def test_four_gpus_are_as_fast_without_nvls(desk_of_bounds: Desk) -> None:
    file = desk_of_bounds.judge(write_table(340, 4, gpu=H100), "--topology", "dgx-h100")
    assert file["measured"][0]["held_against"] == "one-way"


@pytest.mark.long
def test_four_hosts_below_what_two_reach_are_not_left_alone(desk: Desk) -> None:
    pair = desk.judge(write_table(470, 16, gpu=H100), "--topology", "dgx-h100:2")
    assert names(pair) == ["near-bound-allreduce"]
    four = desk.judge(write_table(365.8, 32, gpu=H100), "--topology", "dgx-h100:4")
    assert names(four)[0] == "offer-allreduce" and "below-nvls-allreduce" in names(four)
    assert four["measured"][0]["bound"]["nvls_GBps"] == pytest.approx(400 * 4 / 6)


@pytest.mark.parametrize(("hosts", "busbw"), [(3, 391)])
def test_several_hosts_are_compared_with_what_a_flat_ring_carries(
    desk: Desk, hosts: int, busbw: float
) -> None:
    """For the rates that such hosts measure, not of NVLS, which their XML shows no switch for."""
    machine = desk.folder / "hosts.json"
    machine.write_text(json.dumps(describe_hosts(hosts)), encoding="utf-8")
    ranks = 8 * hosts
    file = desk.judge(write_table(busbw, ranks), "--topology", str(machine))
    offer = file["verdict"]
    assert offer["name"] == "offer-allreduce"
    ring, plan = 400 * ranks / (2 * (ranks - 1)), 400 * hosts / (2 * (hosts - 1))
    assert f"a flat ring reaches at most {ring:.4g} GB/s" in offer["message"]
    assert f"a hierarchical plan {plan:.4g} GB/s: {plan / ring:.2f} times" in offer["message"]
    assert "times what was measured" in offer["message"]


def test_two_hosts_with_the_rate_of_a_tree_are_left_alone(desk: Desk) -> None:
    machine = desk.folder / "hosts.json"
    machine.write_text(json.dumps(describe_hosts(2)), encoding="utf-8")
    file = desk.judge(write_table(690, 16), "--topology", str(machine))
    assert names(file) == ["near-bound-allreduce"]


def describe_hosts(count: int) -> dict[str, Any]:
    """Return hosts of eight GPUs on a switch, each GPU with a NIC of 50 GB/s, as a topology."""
    devices: list[dict[str, Any]] = [{"id": "net", "kind": "switch", "family": "network"}]
    links: list[dict[str, Any]] = []

    def join(src: str, dst: str, rate: int, kind: str) -> None:
        both = {"src": src, "dst": dst, "bandwidth_GBps": rate, "kind": kind}
        links.append({**both, "bidirectional": True})

    for host in range(count):
        devices.append({"id": f"h{host}s", "kind": "switch", "family": "nvswitch"})
        for gpu in range(8):
            name, nic = f"h{host}g{gpu}", f"h{host}n{gpu}"
            devices += [{"id": name, "kind": "gpu", "host": f"h{host}"}, {"id": nic, "kind": "nic"}]
            join(name, f"h{host}s", 900, "nvlink")
            join(name, nic, 50, "pcie")
            join(nic, "net", 50, "network")
    return {
        "format": "topoplan-topology", "version": 1, "name": "hosts", "devices": devices,
        "links": links,
    }  # fmt: skip


def test_the_model_of_stock_has_rates_of_its_own(desk: Desk) -> None:
    """With NCCL's constants, beside shares at the machine's own rates."""
    _, out, _ = desk.run(write_table(234, 8), "--topology", "dgx-a100", "--json")
    model = json.loads(out)["stock_model"]
    assert model["picked"] == "rings" and model["algbw_GBps"]["rings"] == pytest.approx(240 * 4 / 7)
    _, out, _ = desk.run(write_table(43, 8), "--topology", "switch:8@48", "--json")
    assert json.loads(out)["stock_model"] is None


def test_no_ratio_to_nearly_nothing_is_printed(desk: Desk) -> None:
    slow = HEADER + row(1 << 20, 0.00001, 0.00002) * 2
    file = desk.judge(slow, "--topology", "pcie-2socket")
    assert "000.00 times" not in json.dumps(file["findings"])


@pytest.mark.long
def test_between_hosts_a_plan_is_offered_above_all_that_stock_could_carry_alone(
    desk: Desk,
) -> None:
    """A tree of stock's over two hosts: A100's NVSwitches add nothing, those of H100 may."""
    table = write_table(190, 16, gpu="NVIDIA A100-SXM4-80GB")
    file = desk.judge(table, "--topology", "dgx-a100:2")
    assert names(file) == ["below-channels-allreduce", "offer-allreduce"]
    assert "at most 162.5 GB/s" in file["findings"][1]["message"]
    table = write_table(300, 16, gpu="NVIDIA H100 80GB HBM3")
    file = desk.judge(table, "--topology", "dgx-h100:2")
    assert not any(map(is_offer, names(file)))


def test_what_stops_p2p_comes_first_and_nothing_is_offered(desk: Desk) -> None:
    refused = sign(0, "Could not enable P2P between dev 1(=1b000) and dev 0(=1a000)")
    file = desk.judge(refused + write_table(9, 8), "--topology", "pcie-2socket")
    assert names(file)[0] == "p2p-refused" and not any(map(is_offer, names(file)))


def system(*gpus_below: tuple[int, str], indent: str = "              ") -> str:
    """The lines of one rank: two CPUs, 24 GB/s PCIe, 10 GB/s between the CPUs."""
    lines = ["=== System : maxBw 24.0 totalBw 24.0 ==="]
    for cpu in (0, 1):
        lines += [f"CPU/0-{cpu} (1/1/2)", f"+ PCI[24.0] - PCI/0-{cpu + 1}b000 (1000c010)"]
        for rank, bus in gpus_below:
            if rank // 2 == cpu:
                lines.append(f"{indent}+ PCI[24.0] - GPU/0-{bus} ({rank})")
                if rank < 2:
                    peer = gpus_below[1 - rank][1]
                    lines.append(f"{indent}{indent}+ NVL[48.0] - GPU/0-{peer}")
        lines.append(f"+ SYS[10.0] - CPU/0-{1 - cpu}")
    return "".join(sign(0, line) for line in (*lines, "=" * 42))


GPUS = ((0, "10000"), (1, "11000"), (2, "12000"), (3, "13000"))


def test_the_graph_in_a_log_is_the_machine(desk_of_bounds: Desk) -> None:
    file = desk_of_bounds.judge(system(*GPUS) + write_table(12, 4))
    assert file["topology_source"] == "NCCL's graph, in the log" and file["topology"]["ranks"] == 4
    (measured,) = file["measured"]
    # 10 GB/s between the sockets, each way: every byte crosses twice (chains).
    assert measured["bound"]["one_way_GBps"] == pytest.approx(10)
    assert measured["placed"] == "by PCI address"
    both = system(*GPUS).replace("node07", "node08") + system(*GPUS)
    assert desk_of_bounds.judge(both + write_table(12, 4))["topology"]["ranks"] == 8
    code, _, err = desk_of_bounds.run(system(*GPUS))
    assert code == 2 and "name it as the topology" in err
    cut = system(*GPUS).splitlines(True)[:3]
    assert desk_of_bounds.judge("".join(cut) + write_table(12, 4))["topology"] is None


def test_a_log_of_one_rank_says_why_nothing_is_judged(desk_of_bounds: Desk) -> None:
    graph = ["=== System : maxBw 24.0 totalBw 0.0 ===", "CPU/0 (1/1/2)"]
    graph += ["+ PCI[24.0] - GPU/10000 (0)", "=" * 42]
    graph += ["Pattern 4, crossNic 0, nChannels 2, bw 40.0/40.0, type LOC/PIX, sameChannels 1"]
    text = "".join(sign(0, line) for line in (*graph, " 0 : GPU/10000", " 1 : GPU/10000"))
    file = desk_of_bounds.judge(text)
    assert file["topology"]["ranks"] == 1 and file["verdict"]["name"] == "not-judged"
    assert file["verdict"]["message"].startswith("it has no results, and the rings and trees of no")
    alone = desk_of_bounds.judge(sign(0, graph[-1]))
    assert alone["topology"] is None
    assert alone["verdict"]["message"].startswith("it has no results"), "a topology is not enough"


@pytest.mark.parametrize("busbw", [70, 300])
def test_above_the_bound_a_file_for_nccl_is_the_first_suspect(
    desk_of_bounds: Desk, busbw: float
) -> None:
    graph, table = system(*GPUS[:2]), write_table(busbw, 2)
    given = sign(0, "NCCL_TOPO_FILE set by environment to /tmp/mine.xml")
    uneven = graph.replace("NVL[48.0] - GPU/0-11000", "NVL[84.0] - GPU/0-11000")
    advice = {
        name: desk_of_bounds.judge(text)["verdict"]["advice"]
        for name, text in {
            "plain": graph + table,
            "given": given + graph + table,
            "uneven": uneven + table,
            "both": given + uneven + table,
        }.items()
    }
    first = "probably the topology file that NCCL was given (NCCL_TOPO_FILE is set to /tmp/mine.xml"
    back = "the rates of gpu1 -> gpu0: 48 GB/s, but 84 GB/s back"
    assert [text.startswith(first) for text in advice.values()] == [False, True, False, True]
    assert [back in text for text in advice.values()] == [False, False, True, True]
    # The rates of a topology that is named are not those of the file.
    elsewhere = desk_of_bounds.judge(given + graph + table, "--topology", "ring:2@48")
    assert "/tmp/mine.xml" not in elsewhere["verdict"]["advice"]


def test_a_name_of_a_gpu_gives_rates_and_a_given_rate_wins(desk_of_bounds: Desk) -> None:
    table, matrix = write_table(20, 2, gpu="NVIDIA GeForce RTX 4090"), desk_of_bounds.matrix("PHB")
    by_name = desk_of_bounds.judge(table, "--topology", matrix)
    assert by_name["share"] == pytest.approx(20 / 24, rel=0.01)
    assert "RTX 4090" in by_name["measured"][0]["bound"]["rests_on"]
    wired = desk_of_bounds.judge(
        write_table(800, 2, gpu="NVIDIA B200"), "--topology", desk_of_bounds.matrix("NV18")
    )
    assert wired["share"] == pytest.approx(800 / 900, rel=0.06)
    given = desk_of_bounds.judge(table, "--topology", matrix, "--rate", "pcie=48")
    assert given["share"] == pytest.approx(20 / 48, rel=0.01)
    for wrong in ("pcie", "cable=3", "pcie=0"):
        code, out, err = desk_of_bounds.run(table, "--topology", matrix, "--rate", wrong)
        assert code == 2 and out == "" and len(err.splitlines()) == 1
    code, _, err = desk_of_bounds.run(table, "--topology", "dgx-a100", "--rate", "pcie=48")
    assert code == 2 and "only assumed" in err


def test_an_assumed_rate_that_a_measurement_exceeds_is_withdrawn(desk_of_bounds: Desk) -> None:
    matrix, unknown = desk_of_bounds.matrix("PHB"), "NVIDIA Graphics Device"
    file = desk_of_bounds.judge(write_table(22, 2, gpu=unknown), "--topology", matrix)
    assert "rate-withdrawn" in names(file)
    # What replaces a guess is a guess: no verdict, share or gate rests on it.
    assert file["verdict"]["name"] == "conditional-allreduce" and file["share"] is None
    assert "Gen4 x16" in file["measured"][0]["bound"]["rests_on"]
    beyond = desk_of_bounds.judge(write_table(500, 2, gpu=unknown), "--topology", matrix)
    assert beyond["share"] is None and names(beyond) == ["above-bound-allreduce"]
    assert beyond["measured"][0]["above_bound"] and "withdrawn" in beyond["verdict"]["message"]


@pytest.mark.parametrize(
    ("gpu", "machine", "is_other"),
    [
        ("GeForce GTX 1080", "dgx-a100", True),
        ("AMD Instinct MI300X VF", "dgx-a100", True),
        ("NVIDIA A100-SXM4-80GB", "dgx-a100", False),
        ("NVIDIA H200", "dgx-h100", False),  # of the same architecture
        ("NVIDIA Graphics Device", "dgx-a100", False),
        ("GeForce GTX 1080", "ring:8@48", False),
    ],
)
def test_gpus_of_another_architecture_than_the_topology_s_are_the_verdict(
    desk: Desk, gpu: str, machine: str, is_other: bool
) -> None:
    file = desk.judge(write_table(0.9, 8, gpu=gpu), "--topology", machine)
    assert (names(file)[0] == "other-gpus") == is_other == ("other-gpus" in names(file))
    if is_other:
        assert gpu in file["verdict"]["message"] and "capability 8.0" in file["verdict"]["message"]


def test_sizes_at_which_latency_decides_tell_nothing_of_links(desk: Desk) -> None:
    """A plan's model reaches half of its rate at a few MiB."""
    gpus = "".join(DEVICES.format(i, 16 + i) for i in range(8)).replace("A40", "A100-SXM4-40GB")
    for size, rate, is_small in ((1 << 11, 0.1, True), (1 << 30, 12.0, False)):
        table = gpus + HEADER + row(size, rate, rate * 1.75)
        found = names(desk.judge(table, "--topology", "dgx-a100"))
        assert ("small-sizes-allreduce" in found) == is_small
        assert ("below-channels-allreduce" in found) == (not is_small)


def test_runs_in_a_file_are_compared_where_all_measured(desk: Desk) -> None:
    small, large = row(1 << 20, 9, 9), row(1 << 30, 12, 12)
    runs = [HEADER + small + large, HEADER + row(1 << 20, 8, 8) + row(1 << 30, 48, 48)]
    file = desk.judge("".join(runs), "--topology", "ring:2@48")
    compared = "runs of allreduce at 1 GiB: 12, 48 GB/s; run 2 is 4.00 times as fast"
    assert any(note.startswith(compared) for note in file["notes"])
    alike = desk.judge(runs[0] + HEADER + small + row(1 << 29, 9, 9), "--topology", "ring:2@48")
    assert not any("1 GiB: " in note for note in alike["notes"])


def test_ranks_that_ran_alone_are_named(desk: Desk) -> None:
    one = DEVICES.format(0, 16)
    rows = row(1 << 27, 2500.0, 0.0) + row(1 << 28, 2600.0, 0.0)
    file = desk.judge(one * 4 + HEADER + rows, "--topology", "dgx-a100")
    assert file["verdict"]["name"] == "single-rank" and file["share"] is None
    assert "4 jobs of one rank" in file["verdict"]["message"]
    unlisted = desk.judge(HEADER + rows, "--topology", "dgx-a100")
    assert unlisted["verdict"]["name"] == "single-rank" and unlisted["share"] is None
    twice = "".join(DEVICES.format(i, 16 + i) * 2 for i in range(8))
    file = desk.judge(twice + HEADER + row(1 << 30, 133, 232.75), "--topology", "dgx-a100")
    assert file["verdict"]["name"] == "separate-jobs" and "8 ranks" in file["verdict"]["message"]


def rates(ranks: int, *algbw: float) -> str:
    sizes = (1 << 33 >> i for i in range(len(algbw)))
    return "".join(
        row(size, rate, rate * 2 * (ranks - 1) / ranks)
        for size, rate in zip(sizes, algbw, strict=True)
    )


def test_the_number_of_ranks_is_that_of_the_last_one_listed_or_of_the_rates(desk: Desk) -> None:
    last = "#  Rank {} Group  0 Pid  14840 on slurm device  3 [0x01] NVIDIA GB200\n"
    several = "".join(
        last.format(n - 1) + HEADER + rates(n, *figures)
        for n, figures in ((72, (423.16, 428.2)), (1440, (203.01, 190.87)))
    )
    assert [m["ranks"] for m in desk.judge(several)["measured"]] == [72, 1440]
    each = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n" + HEADER
    for ranks, figures in ((40, (11.92, 9.27, 5.13)), (32, (11.92, 9.27))):
        (measured,) = desk.judge(each + rates(ranks, *figures))["measured"]
        assert measured["ranks"] == ranks
    launched = "$ mpirun -np 5 -H a,b,c,d,e ./build/all_reduce_perf -b 8 -g 8 -n 20\n"
    assert desk.judge(launched + each + rates(40, 2.2))["measured"][0]["ranks"] == 40
    # The figures fit too many numbers, and not that of the machine.
    vague = desk.judge(HEADER + rates(40, 2.2), "--topology", "dgx-a100")
    assert vague["measured"][0]["ranks"] == 0 and vague["share"] is None


OLD_HEADER = """\
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def test_an_allgather_of_before_june_2020_is_rated_by_its_time(desk_of_bounds: Desk) -> None:
    """Its algbw is busbw: (n - 1) / n of what newer versions print."""
    half = f"{(1 << 27) / 20 * 1e-3:9.1f} {15:7.2f} {15:7.2f} 0e+00"
    old = f"{1 << 27:12d} {1 << 25:12d}   float {half} {half}\n"
    file = desk_of_bounds.judge(OLD_HEADER + old, "--topology", "switch:4@20")
    (measured,) = file["measured"]
    assert (measured["collective"], measured["ranks"]) == ("allgather", 4)
    assert measured["peak"]["algbw_GBps"] == pytest.approx(20, rel=1e-3)
    assert file["share"] == pytest.approx(20 / (20 * 4 / 3), rel=1e-3)
    half = f"{(1 << 27) / 20 * 1e-3:9.1f} {20:7.2f} {20:7.2f} 0e+00"
    two = f"{1 << 27:12d} {1 << 25:12d}   float    sum {half} {half}\n"
    (measured,) = desk_of_bounds.judge(OLD_HEADER + two, "--topology", "switch:2@20")["measured"]
    assert (measured["collective"], measured["peak"]["algbw_GBps"]) == ("allreduce", 20)


def test_what_mpirun_puts_into_rows_is_not_a_cut(desk: Desk) -> None:
    message = "[0] h1:1:1 [0] NCCL INFO 8192 Bytes -> Algo 0 proto 0 time 26.5\n"
    half = "[0]   1000.3   134.18   251.58      0"
    broken = (
        f"[0]   134217728      33554432     float     sum      -1{message}{half}{message}{half}\n"
    )
    text = "".join(f"[0] {line}\n" for line in HEADER.splitlines()) + broken
    file = desk.judge(text)
    assert [r["busbw_GBps"] for r in file["measured"][0]["rows"]] == [251.58, 251.58]
    assert not any("cut" in note for note in file["notes"])


def test_a_fall_between_sizes_is_the_verdict(desk: Desk) -> None:
    table = HEADER + row(1 << 25, 15.4, 15.4) + row(1 << 26, 2.75, 2.75)
    file = desk.judge(table, "--topology", "switch:2@16")
    assert names(file) == ["fall-allreduce"]
    assert "15.4 GB/s at 32 MiB to 2.75 GB/s at 64 MiB" in file["verdict"]["message"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_gpudirect_rdma_matters_between_hosts_only(desk: Desk, nodes: int) -> None:
    lines = write_log([[0, 1]] * 2, [[-1, 0]] * 2)
    lines.insert(3, sign(0, f"comm 0x550 rank 0 nRanks 2 nNodes {nodes} localRanks 2 localRank 0"))
    lines.insert(3, sign(0, "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"))
    assert ("no-gdr" in names(desk.judge("".join(lines)))) == (nodes == 2)


def test_a_gate_is_one_line_of_json_and_an_exit_code(desk_of_bounds: Desk) -> None:
    topology = ("--topology", "switch:4@75")
    table = "".join(DEVICES.format(i, 16 + i) for i in range(4)) + HEADER + row(1 << 30, 46, 69)
    for least, expected in (("0.9", 0), ("0.95", 1)):
        code, out, err = desk_of_bounds.run(table, *topology, "--at-least", least)
        (line,) = out.splitlines()
        data = json.loads(line)
        assert code == expected and err == "" and data["passed"] == (expected == 0)
        assert data["at_least"] == float(least) and data["share"] == pytest.approx(0.92)
        assert data["files"][0]["verdict"]["name"] == "near-bound-allreduce"
    code, out, err = desk_of_bounds.run(
        GRAPH.format('<gpu dev="0"/><gpu dev="1"/>'), "--at-least", "0.9"
    )
    assert code == 2 and json.loads(out)["passed"] is False and len(err.splitlines()) == 1


def write_run(plan_us: float, stock_us: float, **more: object) -> str:
    rows = [{"size_bytes": 1 << 30, "plan_us": plan_us, "stock_us": stock_us, "wrong": 0}]
    return json.dumps({"collective": "allreduce", "ranks": 2, "rows": rows, **more})


def test_a_part_of_a_machine_has_the_bounds_with_and_without_help(desk_of_bounds: Desk) -> None:
    (measured,) = desk_of_bounds.judge(write_run(18000, 18000), "--topology", "mi300x")["measured"]
    bound = measured["bound"]
    assert (bound["one_way_GBps"], bound["alone_GBps"], bound["with_help_GBps"]) == (64, 64, 448)
    assert measured["share"] == pytest.approx((1 << 30) / 18000e3 / 64)
    _, text, _ = desk_of_bounds.run(write_run(18000, 18000), "--topology", "mi300x")
    assert "at most 64 GB/s algbw without help (" in text
    assert "; 448 with the help of the GPUs that are idle" in text
    (whole,) = desk_of_bounds.judge(write_table(234, 8), "--topology", "dgx-a100")["measured"]
    assert "with_help_GBps" not in whole["bound"]


def test_a_plan_with_helpers_is_judged_by_the_bound_with_their_help(desk: Desk) -> None:
    run = write_run(2900, 18000, group=[1, 4], helpers=[0, 2, 3, 5, 6, 7])
    file = desk.judge(run, "--topology", "mi300x")
    (measured,) = file["measured"]
    assert measured["bound"]["one_way_GBps"] == measured["bound"]["with_help_GBps"] == 448
    assert measured["bound"]["alone_GBps"] == 64
    shares = {row["how"]: row["share"] for row in measured["rows"]}
    assert shares["plan"] == pytest.approx((1 << 30) / 2900e3 / 448)
    assert shares["stock"] == pytest.approx((1 << 30) / 18000e3 / 64)
    assert names(file)[0].startswith("near-bound")
    _, text, _ = desk.run(run, "--topology", "mi300x")
    assert "at most 448 GB/s algbw with the help of ranks 0, 2, 3, 5, 6, 7 (" in text
    assert "; 64 without help" in text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"group": [0, 9]}, "names GPU 9, and mi300x has 0 to 7"),
        ({"group": [0, 0]}, "group: expected different ranks, ascending"),
        ({"group": [0, 1, 2]}, "a group of 3 GPUs and 2 ranks"),
        ({"group": [0, 1], "helpers": ["x"]}, "helpers: expected different ranks"),
    ],
)
def test_damaged_groups_are_refused(desk: Desk, more: dict[str, object], says: str) -> None:
    _, out, err = desk.run(write_run(2900, 18000, **more), "--topology", "mi300x")
    assert says in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize(("how", "held"), [("plan", False), ("out-of-place", True)])
def test_plans_are_not_held_against_sums_in_switches(how: str, held: bool) -> None:
    topology, router = load_for_planning("dgx-h100")
    limits = find_limits(Collective("allreduce", len(topology.ranks)), router)
    row = MeasuredRow(Measurement("allreduce", 8, 1 << 30, 200.0, 350.0, 1.0, how), None)
    assert MeasuredVerdict("allreduce", 8, [row], limits).is_held_against_nvls is held


def test_where_latency_decides_nothing_falls(desk: Desk) -> None:
    # One slow measurement, far below the best rate.
    small = row(1 << 18, 1.2, 1.2) + row(1 << 19, 0.6, 0.6)
    file = desk.judge(HEADER + small + row(1 << 28, 15.4, 15.4), "--topology", "switch:2@16")
    assert "fall-allreduce" not in names(file)


def test_stock_of_amd_gpus_is_that_of_rccl(desk: Desk) -> None:
    _, text, _ = desk.run(write_table(119, 8), "--topology", "mi300x")
    assert "the 256 GB/s that the rings that stock RCCL finds (modelled) carry on paper" in text


@pytest.mark.parametrize(
    ("gpu", "ranks", "proposed"),
    [
        ("NVIDIA H100 80GB HBM3", 8, "dgx-h100 (boxes of 8 H100 on NVSwitches)"),
        ("Tesla V100-SXM2-32GB", 16, "dgx2 (16 V100 on two groups of NVSwitches)"),
        ("NVIDIA H100 80GB HBM3", 4, ""),
        ("NVIDIA A100 80GB PCIe", 8, ""),
        ("NVIDIA GeForce RTX 4090", 8, ""),
    ],
)
def test_a_preset_of_the_same_gpus_is_proposed_where_no_machine_is_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, gpu: str, ranks: int, proposed: str
) -> None:
    def refuse(name: str) -> None:
        raise InputError(f"{name}: no GPU")

    monkeypatch.setattr(machine, "load", refuse)
    text = write_table(100, ranks, gpu=gpu)
    file = desk.judge(text)
    by_gpus = f"; by its GPUs it may be {proposed}" if proposed else ""
    source = f"local: no GPU; name the topology of the machine that the file is from{by_gpus}"
    assert file["topology_source"] == source == file["verdict"]["message"]
    shown = desk.run(text)[1]
    assert shown.count(source) == 1 and "not compared with a bound: no topology\n" in shown


def test_a_plan_without_a_limit_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no entry of it has a rate: `max` of nothing would be a traceback."""
    _, router = load_for_planning(preset("full:4"))
    monkeypatch.setattr(Plan, "limit_GBps", lambda plan, entry: None)
    found = options.find_helped_options(Collective("allreduce", 2), router, [0, 1], [2])
    assert found.options == () and found.plan is not None
