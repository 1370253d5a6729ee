"""Boards decide rates: by the names around a matrix, by a name that is given, else by its links."""

from __future__ import annotations

import os
import time
from fractions import Fraction

import pytest
from verdicts import judge_pairs, list_findings

from topoplan.topo.boards import BOARDS, count_nvlinks, find_board, find_by_id, find_mentioned
from topoplan.topo.derived.hosts import join_hosts
from topoplan.topo.derived.stated import state_board, state_rates
from topoplan.topo.errors import InputError
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import load

NV18 = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\t{cpus}\t0\t\t{memory}
GPU1\tNV18\t X \tSYS\t{cpus2}\t1\t\t{memory}
NIC0\tPIX\tSYS\t X
"""
NIC = "0x020000"
NODE = "\tGPU0\tGPU1\nGPU0\t X \tNODE\nGPU1\tNODE\t X \n"


def matrix(cpus: str = "0-31", cpus2: str = "32-63", memory: str = "N/A") -> str:
    return NV18.format(cpus=cpus, cpus2=cpus2, memory=memory)


def read(text: str) -> Topology:
    return read_topology_text(text, "matrix.txt")


def rates(machine: Topology, kind: str) -> set[float]:
    """GB/s of one link of a kind."""
    return {float(x.bandwidth_GBps / x.count) for x in machine.links if x.kind == kind}


def test_every_board_is_found_by_its_own_name_and_by_its_ids_alone() -> None:
    for board in BOARDS:
        assert find_board(board.name) is board and board.source
        assert all(find_by_id(f"0x{number}") is board for number in board.ids)
    ids = [number for board in BOARDS for number in board.ids]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("Tesla V100S-PCIE-32GB", "V100 PCIe"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", "Quadro RTX 8000"),
        ("NVIDIA GeForce RTX 5060 Ti", "RTX 5060"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "MI250"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("4090", "RTX 4090"),
        ("RTX 6000 Pro Max-Q", "RTX PRO 6000"),
        ("NVIDIA PRO 6000 Blackwell", "RTX PRO 6000"),
        ("RTX Ada 6000", "RTX 6000 Ada"),
        ("A100 80G PCI-E", "A100 PCIe"),
        ("8x H100s", "H100"),
        ("L40s", "L40S"),
        ("V100s", "V100"),
        ("GeForce RTX 2070 SUPER", "RTX 2070 SUPER"),
        ("AMD Instinct MI250X/MI250", "MI250X"),
        ("NVIDIA GeForce GTX TITAN X", "GTX TITAN X"),
        ("NVIDIA TITAN X (Pascal)", "TITAN Xp"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA Graphics Device", None),
    ],
)
def test_names_as_tools_print_them(name: str, board: str | None) -> None:
    found = find_board(name)
    assert (found and found.name) == board


@pytest.mark.parametrize(
    ("line", "boards"),
    [
        ("NVLink is faster than PCIe\u5f88\u591a\uff0c\u4f8b\u5982H100\u5361", {"H100"}),
        ("8\u5361A100 PCIe\u670d\u52a1\u5668", {"A100 PCIe"}),
        ("an 8 cards 4090 server", {"RTX 4090"}),
        ("bench: dual 3090", {"RTX 3090"}),
        ("pid 4090 served 3090 requests on port 5090", set()),
    ],
)
def test_names_in_prose_of_any_script(line: str, boards: set[str]) -> None:
    assert find_mentioned(line) == boards


def links(gpus: int, label: str) -> str:
    """A matrix whose GPUs all have one label."""
    names = [f"GPU{i}" for i in range(gpus)]
    rows = [[a, *("X" if a == b else label for b in names), "0-31"] for a in names]
    return "\n".join("\t".join(row) for row in [["", *names, "CPU Affinity"], *rows]) + "\n"


@pytest.mark.parametrize(
    ("beside", "gpus", "label", "switched", "pcie", "nvlink"),
    [
        ("4x Tesla V100-SXM3-32GB\n", 4, "NV6", True, 12, 25),
        ("NVIDIA A800-SXM4-80GB\n", 3, "NV8", True, 24, 25),
        ("", 3, "NV8", True, 24, 25),
        ("H100 SXM5\n", 4, "NV6", False, 48, 25),
        ("", 4, "NV6", False, 48, 25),
        ("NVIDIA A100-SXM4-40GB\n", 4, "NV4", False, 24, 25),
    ],
)
def test_links_beyond_those_of_the_board_end_at_nvswitches(
    beside: str, gpus: int, label: str, switched: bool, pcie: float, nvlink: float
) -> None:
    """Also of a part of a machine, as a container sees it."""
    machine = read(beside + links(gpus, label))
    assert any(d.family == "nvswitch" for d in machine.devices) == switched
    assert (rates(machine, "pcie"), rates(machine, "nvlink")) == ({pcie}, {nvlink})
    assert not any("is not followed" in note for note in machine.notes)


def test_a_grace_cpu_alone_lists_its_boards() -> None:
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0\t\t1\n"
    machine = read(text)
    assert any("GB200" in note and "GH200 is assumed" in note for note in machine.notes)
    assert rates(machine, "c2c") == {450}


@pytest.mark.parametrize(
    ("beside", "rate"),
    [
        ("17:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)\n", 48),
        ("17:00.0 3D controller [0302]: NVIDIA Corporation GA102GL [10de:2235]\n", 24),
        ("|   0  NVIDIA RTX 6000...      Off  | 00000000:01:00.0 Off |\n", 12),
        ("|   0  NVIDIA RTX PRO 6000 Blac...      Off  | 00000000:01:00.0 Off |\n", 48),
        ("one has an RTX 4090, the other an L40S\n", 24),
        ("one has an RTX 4090, the other a T4\nNVIDIA T4\n", 12),
    ],
)
def test_pci_ids_shortened_names_and_equal_boards_beside_a_matrix(beside: str, rate: float) -> None:
    assert rates(read(beside + NODE), "pcie") == {rate}


@pytest.mark.parametrize(
    "beside",
    [
        "GPU 0: NVIDIA B200 (UUID: GPU-1)\nGPU 1: NVIDIA B200 (UUID: GPU-2)\n",
        "GPU models and configuration :\nGPU 0: NVIDIA B200\nGPU 1: NVIDIA B200\n",
        "GPU 0,1: NVIDIA B200\n",
        "|   0  NVIDIA B200                    On  |   00000000:1B:00.0 Off |          0 |\n",
        "index, name\n0, NVIDIA B200, 183359 MiB\n1, NVIDIA B200, 183359 MiB\n",
        "#  Rank  0 Group  0 Pid  1234 on    node device  0 [0000:1b:00] NVIDIA B200\n",
        "Product Name : NVIDIA B200\n",
        "Our box has 8x B200.\n",
    ],
)
def test_a_name_anywhere_beside_a_matrix_decides_its_rates(beside: str) -> None:
    for text in (beside + matrix(), matrix() + "\nLegend:\n\n" + beside):
        machine = read(text)
        assert rates(machine, "nvlink") == {50} and rates(machine, "pcie") == {48}
        assert "no names of GPUs" not in "\n".join(machine.notes)


@pytest.mark.parametrize(
    ("text", "GBps", "says"),
    [
        (matrix(), 25, "B300, B200, B100 (50 GB/s a link); H200 NVL, H200, H20, H100 (25 GB/s"),
        (matrix("0-71", "72-143"), 25, "by the GPUs: GH200 by its 18 NVLinks"),
        (matrix("0-71", "0-71", memory="2"), 50, "GB300, GB200 (50 GB/s a link); GB200 is assumed"),
        (matrix().replace("NV18", "NV12"), 25, "A100 is assumed"),
        (matrix().replace("NV18", "NV4"), 14.0625, "RTX A6000 is assumed"),
        (matrix().replace("NV18", "NV8"), 25, "H800 PCIe, H800, A800 PCIe, A800"),
        (matrix() + "An A100 is slower than an H100.\n", 25, "mentions A100, H100"),
        (matrix() + "GPU 0: NVIDIA L40S\n", 25, "more NVLinks than NVIDIA L40S has"),
    ],
)
def test_without_a_name_the_boards_it_can_be_are_listed(text: str, GBps: float, says: str) -> None:
    machine = read(text)
    assert rates(machine, "nvlink") == {GBps}
    sources = {str(link.source) for link in machine.links}
    assert says in "\n".join([*machine.notes, *sources])


def test_a_gpu_that_is_given_decides_assumed_rates_only() -> None:
    plain = read(NODE)
    assert rates(plain, "pcie") == {12} and "RTX PRO 6000 Gen5" in "\n".join(plain.notes)
    (given,) = state_board([plain], "RTX PRO 6000")
    assert rates(given, "pcie") == {48} and "Gen3" not in "\n".join(given.notes)
    assert {given.by_id[gpu].extra["name"] for gpu in given.ranks} == {"RTX PRO 6000"}
    (rated,) = state_rates([given], {"pcie": Fraction(50)})  # a rate in figures counts more
    assert rates(rated, "pcie") == {50}
    for text, name, reason in (
        (NODE, "RTX PRO 9999", "RTX PRO 5000"),
        (matrix(), "L40S", "has no nvlink links"),
        (NODE + "GPU 0: NVIDIA L4\n", "H100", "'NVIDIA L4', not H100"),
    ):
        with pytest.raises(InputError, match=reason):
            state_board([read(text)], name)


def test_half_of_a_dgx1_is_told_no_fault_of_its_links() -> None:
    """Four V100 of eight, whose other NVLinks lead to GPUs that the job does not see."""
    half = read(
        "\tGPU0\tGPU1\tGPU2\tGPU3\n"
        "GPU0\t X \tNV1\tNV1\tNV2\nGPU1\tNV1\t X \tNV2\tNV1\n"
        "GPU2\tNV1\tNV2\t X \tNV2\nGPU3\tNV2\tNV1\tNV2\t X \n"
    )
    assert list_findings(half) == ()


def test_a_name_that_one_gpu_alone_can_have_is_not_that_of_all() -> None:
    pair = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tPHB\nGPU1\tNV4\t X \tPHB\nGPU2\tPHB\tPHB\t X \n"
    machine = read(f"The display is on a GeForce RTX 5060 Ti.\n\n{pair}")
    assert rates(machine, "nvlink") == {14.0625}
    assert "the name is not followed" in "\n".join(machine.extra["notes"])


def test_a_pair_of_dgx_sparks_has_the_nics_of_its_modules() -> None:
    host = "\tGPU0\tNIC0\tNIC1\nGPU0\t X \tNODE\tNODE\nNIC0\tNODE\t X \tPIX\nNIC1\tNODE\tPIX\t X \n"
    pair = read(f"Two DGX Spark\n$ nvidia-smi topo -m\n{host}\n$ nvidia-smi topo -m\n{host}")
    assert rates(pair, "network") == {12.5}


def test_a_table_of_bandwidths_after_a_matrix_names_no_gpu() -> None:
    machine = read(NODE + " Dst->  GPU0     GPU1\nGPU 0:     -      56.50\nGPU 1:   56.50   -\n")
    assert all("name" not in machine.by_id[gpu].extra for gpu in machine.ranks)


def slot(
    bus: str, inside: str, kind: str = "0x020000", lanes: int = 16, speed: str = "32.0"
) -> str:
    return (
        f'<pci busid="{bus}" class="{kind}" link_speed="{speed} GT/s PCIe" '
        f'link_width="{lanes}">{inside}</pci>'
    )


def nic(number: int, Gbps: int) -> str:
    return (
        f'<nic><net name="mlx5_{number}" dev="{number}" speed="{Gbps}000" port="1" '
        f'guid="0x{number + 1:x}" maxconn="131072" gdr="1"/></nic>'
    )


def spark(host: str) -> Topology:
    """A DGX Spark as NCCL dumps it: a GPU on C2C, PCIe of 2.5 GT/s, NICs with four lanes each."""
    gpu = '<gpu dev="0" sm="121" rank="0" gdr="1"><c2c bw="43125" count="8"/></gpu>'
    nics = "".join(slot(f"000{i}:01:00.0", nic(i, 200), lanes=4) for i in range(3))
    text = (
        f'<system version="1"><cpu host_hash="{host}" numaid="-1" affinity="fffff" arch="arm64">'
        f"{slot('000f:01:00.0', gpu, '0x030000', speed='2.5')}{nics}</cpu></system>"
    )
    return read_topology_text(text, f"{host}.xml")


def test_a_dgx_spark_has_no_rdma_and_nothing_wrong() -> None:
    one = spark("0x1")
    verdicts = judge_pairs(one)
    assert {v.answer for v in verdicts} == {"no"} and len(verdicts) == 3
    assert all("memory of a GB10" in v.rule and v.advice is None for v in verdicts)
    assert not list_findings(one)
    assert not list_findings(join_hosts([one, spark("0x2")]))
    listed = read(
        "GPU 0: NVIDIA GB10 (UUID: GPU-1)\n\tGPU0\tNIC0\nGPU0\t X \tNODE\nNIC0\tNODE\t X \n"
    )
    assert {(x.kind, float(x.bandwidth_GBps)) for x in listed.links} == {("c2c", 345), ("pcie", 12)}
    assert [v.answer for v in judge_pairs(listed)] == ["no"]


def test_eight_gpus_with_896_virtual_functions_are_judged_in_seconds() -> None:
    """NICs right below the CPUs, so that each pair asks which of them is nearest."""
    gpus = "".join(
        slot(f"0000:{i + 1:02x}:00.0", f'<gpu dev="{i}" sm="90" rank="{i}" gdr="1"/>', "0x030200")
        for i in range(8)
    )
    nics = "".join(slot(f"{i // 256 + 1:04x}:{i % 256:02x}:00.0", nic(i, 400)) for i in range(896))
    text = (
        '<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" '
        f'familyid="6" modelid="143">{gpus}{nics}</cpu></system>'
    )
    machine = read_topology_text(text, "many.xml")
    start = time.process_time()
    assert len(judge_pairs(machine)) == 8 * 896 + 28
    assert time.process_time() - start < 10  # 1.5 s; a maximum for each pair took over 100 s


def test_a_pipe_that_the_shell_opened_is_read() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(NODE)
    try:
        assert len(load(f"/dev/fd/{reading}").ranks) == 2
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    ("GBps", "gpu", "count"),
    [
        (900, {}, 18),  # B200: 36 links of 25 GB/s have no GPU
        (450, {}, 18),
        (150, {}, 6),
        (150, {"name": "NVIDIA B200"}, 3),
        ("225/4", {"name": "NVIDIA A40"}, 4),
        ("225/4", {}, 4),
        (80, {"sm": 60}, 4),
        (50, {}, 1),  # one link of NVLink 5, or two older ones
        (77, {}, 1),
        (900, {"name": "NVIDIA H100"}, 1),
    ],
)
def test_a_rate_above_that_of_one_link_is_the_sum_of_several(
    GBps: float | str, gpu: dict[str, object], count: int
) -> None:
    assert count_nvlinks(Fraction(GBps), gpu) == count


def test_a_link_without_a_count_gets_one_when_its_file_is_read() -> None:
    ends = [{"id": "gpu0"}, {"id": "gpu1", "name": "NVIDIA B200"}]
    link = {"src": "gpu0", "dst": "gpu1", "bandwidth_GBps": 900, "kind": "nvlink"}
    found = Topology.from_json({"devices": ends, "links": [link]})
    assert [x.count for x in found.links] == [18]
    other = Topology.from_json({"devices": ends, "links": [link | {"kind": "link"}]})
    assert [x.count for x in other.links] == [1]
    one = Link("gpu0", "gpu1", Fraction(900), kind="nvlink")  # what a program states stays
    machine = Topology("x", (Device("gpu0"), Device("gpu1")), both_directions(one))
    assert Topology.loads(machine.dumps()) == machine
