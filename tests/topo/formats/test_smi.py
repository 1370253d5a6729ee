"""What nvidia-smi prints, of every vintage, is read as the machine it describes, and written for
any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fact_keys import find_key
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import has_extra, long_cases
from random_graphs import graphs
from small_matrices import UUID, alike, facts, labels, matrix, notes, read, status
from thorough import count_examples
from verdicts import judge_pairs, list_findings

from topoplan.topo.errors import InputError
from topoplan.topo.facts import keys as fact_keys
from topoplan.topo.facts import load_facts
from topoplan.topo.formats import smi
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.hardware import LATENCY_us
from topoplan.topo.presets import PRESETS, preset


def devices(topology: Topology) -> dict[str, int]:
    """How many there are of each kind, switches by their family."""
    return dict(Counter(d.family or d.kind for d in topology.devices))


def cables(topology: Topology) -> dict[tuple[str, int], int]:
    """How many links there are of each kind and number of lanes, both directions counted as one."""
    assert topology.is_symmetric
    found = Counter((link.kind, link.count) for link in topology.links)
    return {key: number // 2 for key, number in found.items()}


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("machine.txt: ")
    return str(caught.value)


def check_written_text_comes_back(topology: Topology) -> Topology:
    """The text of the topology that is read from its text is that text."""
    text = smi.write(topology)
    assert smi.looks_like(text)
    back = read(text)
    assert smi.write(back) == text
    assert "nearest is taken" not in notes(back)
    return back


# -- recorded machines

RECORDED: dict[str, tuple[dict[str, int], dict[tuple[str, int], int]]] = {
    "smi/01-dgx1v-8xV100-mlx5x4_msccl-tools.txt": (
        {"gpu": 8, "nic": 4, "pcie": 4, "cpu": 2},
        {("pcie", 1): 16, ("nvlink", 1): 8, ("nvlink", 2): 8, ("smp", 1): 1},
    ),
    "smi/04-8xA100-nvswitch_stas00.txt": (
        {"gpu": 8, "cpu": 2, "nvswitch": 1},
        {("pcie", 1): 8, ("nvlink", 12): 8, ("smp", 1): 1},
    ),
    "smi/08-l40s-4gpu-2nic-2numa_warpem-miss-alignment-106.txt": (
        {"gpu": 4, "nic": 2, "cpu": 2, "pcie": 1},
        {("pcie", 1): 7, ("smp", 1): 1},
    ),
    "smi/09-pcie-8gpu-mlx5-2socket_lattice-quda-669.txt": (
        {"gpu": 8, "nic": 1, "cpu": 2, "pcie": 6},
        {("pcie", 1): 15, ("smp", 1): 1},
    ),
    "smi/12-2x5090-PHB-with-p2p-GNS_club-3090-1229.txt": ({"gpu": 2, "cpu": 1}, {("pcie", 1): 2}),
    "smi/13-a100pcie-4gpu-one-bridge-missing-mlx5_k8s-device-plugin-436.txt": (
        {"gpu": 4, "nic": 2, "cpu": 2, "pcie": 1},
        {("pcie", 1): 7, ("nvlink", 12): 1, ("smp", 1): 1},
    ),
    "smi/19-7gpu-PIX-PHB-mlx4_find_string37354995983.txt": (
        {"gpu": 7, "nic": 1, "cpu": 1, "pcie": 2},
        {("pcie", 1): 10},
    ),
    "smi/20-single-P4-numa-NA_HAMi-99.txt": ({"gpu": 1, "cpu": 1}, {("pcie", 1): 1}),
    "nvlink/h100pcie-pair_R.txt": ({"gpu": 2}, {("nvlink", 12): 1}),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_machines_have_the_devices_and_links_that_they_have(
    name: str, recorded: Callable[[str], Path]
) -> None:
    text = recorded(name).read_text()
    assert smi.looks_like(text)
    machine = read(text)
    assert (devices(machine), cables(machine)) == RECORDED[name]
    assert "nearest is taken" not in notes(machine)
    check_written_text_comes_back(machine)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "smi/06-p2p-matrices-OK-and-CNS_stas00.txt",
            "line 8: a -p2p matrix says what GPUs may do",
        ),
        (
            "smi/21-failed-topology-matrix_gvisor-14407.txt",
            "line 2: nvidia-smi failed to run its matrix",
        ),
        ("nvlink/h100pcie-pair_s.txt", "which NVLinks are up, not where they end"),
    ],
)
def test_recorded_texts_without_ways_are_refused(
    name: str, reason: str, recorded: Callable[[str], Path]
) -> None:
    text = recorded(name).read_text()
    assert smi.looks_like(text)
    assert reason in refusal(text)


def test_both_recorded_lists_of_nvlinks_together_give_links_and_rates(
    recorded: Callable[[str], Path],
) -> None:
    pair = read("".join(recorded(f"nvlink/h100pcie-pair_{flag}.txt").read_text() for flag in "sR"))
    assert pair.capacity_GBps["gpu0", "gpu1"] == 12 * 25
    assert facts(pair).get_number("gpu/1/nvlink/15", fact_keys.NVLINK_SPEED_MBps) == 26562
    assert facts(pair).get_text("gpu/1/nvlink/4", fact_keys.NVLINK_STATE) == "inactive"
    assert facts(pair).get_text("gpu/0/nvlink/15", fact_keys.NVLINK_REMOTE_BUS_ID) == "0000:d5:00.0"
    assert pair.by_id["gpu0"].bus_id == "0000:c2:00.0"
    assert all("26.562 GB/s a link, 25 by the datasheet" in str(link.source) for link in pair.links)


# -- vintages


@pytest.mark.parametrize(
    ("name", "count", "label", "note"),
    [
        ("NVIDIA B300 SXM6 AC", 7, "NV18", "boards of B300 have 8; 1 may be lost"),
        ("NVIDIA H100 80GB HBM3", 6, "NV18", "boards of H100 have 8; 2 may be lost"),
        ("NVIDIA A100-SXM4-80GB", 3, "NV12", "boards of A100 have 4; 1 may be lost"),
        ("NVIDIA B300 SXM6 AC", 8, "NV18", ""),
        ("NVIDIA B300 SXM6 AC", 4, "NV18", ""),
        ("NVIDIA RTX A6000", 7, "PHB", ""),
        ("NVIDIA L40S", 7, "NODE", ""),
    ],
)
def test_fewer_gpus_than_a_board_has_are_noted(
    name: str, count: int, label: str, note: str
) -> None:
    places = ";".join(f"{i // 3} {i // 3}" for i in range(count))
    text = alike(count, label, places, "CPU Affinity|NUMA Affinity")
    machine = read(f"GPU 0: {name} (UUID: {UUID.format(0)})\n{text}")
    assert note in notes(machine)
    assert ("may be lost" in notes(machine)) == bool(note)
    found = [finding.message for finding in list_findings(machine)]
    assert any("may be lost" in message for message in found) == bool(note)


def test_a_gpu_with_fewer_links_to_the_nvswitch_is_noted() -> None:
    machine = read(matrix("X NV18 NV18 NV12/NV18 X NV18 NV12/NV18 NV18 X NV12/NV12 NV12 NV12 X"))
    assert "gpu3: fewer NVLinks than the 18 of the others" in notes(machine)
    assert machine.capacity_GBps["gpu0", "nvswitch0"] > machine.capacity_GBps["gpu3", "nvswitch0"]


def test_a_gpu_near_several_numa_nodes_counts_with_the_first() -> None:
    machine = read(matrix("X PHB/PHB X", "0-9 0-1; 0-9 0-1", "CPU Affinity|NUMA Affinity"))
    assert machine.by_id["gpu1"].numa_node == 0
    assert "GPU0, GPU1: near several NUMA nodes" in notes(machine)
    assert facts(machine).get_text("gpu/0", fact_keys.GPU_NUMA_NODE) == "0-1"
    check_written_text_comes_back(machine)


def test_nics_are_called_as_the_legend_says() -> None:
    text = matrix("X PIX/PIX X", "0-9 0", "CPU Affinity|NUMA Affinity", "GPU0 NIC0")
    machine = read(text + "\nNIC Legend:\n\n  NIC0: mlx5_bond_0\n")
    assert [(d.id, d.kind, d.numa_node) for d in machine.devices][:2] == [
        ("gpu0", "gpu", 0),
        ("mlx5_bond_0", "nic", 0),
    ]
    assert [d.id for d in read(text).devices][1] == "NIC0"
    assert "mlx5_7" in read(text.replace("NIC0", "mlx5_7")).by_id


@pytest.mark.parametrize(
    ("legend", "name"),
    [
        ("NIC0: rocep80s0   -> ens2005np0  10.0.16.0/24   (rail 0)", "rocep80s0"),
        ("  NIC0: mlx5_0 (ConnectX-7, 400G)", "mlx5_0"),
        ("- NIC0: ConnectX-7 mlx5_4", "mlx5_4"),
        ("NIC0 = mlx5_3, rail 3", "mlx5_3"),
        ("NIC0 -> enp1s0f0np0 10.0.0.1", "enp1s0f0np0"),
        ("NIC0: ibp26s0 / ib0", "ibp26s0"),
        ("NIC0: (down)", "down"),
        ("| NIC0 | mlx5_0 | 0 |", "mlx5_0"),
        ("- `NIC0`: `rocep33s0f0`.", "rocep33s0f0"),
        ("* NIC0: mlx5_2", "mlx5_2"),
    ],
)
def test_rails_and_addresses_in_a_legend_are_no_names_of_nics(legend: str, name: str) -> None:
    text = matrix("X PIX/PIX X", "0-9 0", "CPU Affinity|NUMA Affinity", "GPU0 NIC0")
    assert [d.id for d in read(f"{text}\n{legend}\n").devices][1] == name


@pytest.mark.parametrize(
    ("affinities", "columns", "node", "note"),
    [
        ("0-7,16-23;8-15,24-31;0-7,16-23;8-15,", "CPU Affinity", 1, "those of GPU1 (8-15,24-31)"),
        ("0-7,16-23;8-15,24-31;0-7,16-23;8-15,2", "CPU Affinity", 1, "breaks off"),
        ("0-7,16-23;8-15,24-31;0-7,16-23;8-15", "CPU Affinity", 1, "breaks off"),
        ("0-7,16-23;8-15,24-31;0-7,16-23;8-", "CPU Affinity", 1, "breaks off"),
        ("0-7,16-23;8-15,24-31;0-7,16-23;9-1", "CPU Affinity", None, "what follows is not known"),
        ("0-7,1;8-15,24-31;0-7,16-23;8-15,", "CPU Affinity", 1, "those of GPU2 (0-7,16-23)"),
        ("16-31;8-15;16-31;1", "CPU Affinity", 2, ""),  # a job may have a single CPU
        ("0-7,16-23;8-15;0-7,16-23;8-15", "CPU Affinity", 1, ""),
        ("0-7 2;8-15 3;0-7 2;8-15", "CPU Affinity|NUMA Affinity", 3, "those of GPU1 (8-15)"),
        ("0-7 2;8-15 3;0-7 2;8-1", "CPU Affinity|NUMA Affinity", 3, "those of GPU1 (8-15)"),
        ("0-7 2;0-7 3;0-7 2;0-", "CPU Affinity|NUMA Affinity", None, "what follows is not"),
    ],
)
def test_a_row_cut_in_its_affinities_is_near_the_cpu_of_those_that_begin_alike(
    affinities: str, columns: str, node: int | None, note: str
) -> None:
    machine = read(alike(4, "SYS", affinities, columns))
    assert machine.by_id["gpu3"].numa_node == node
    assert note in notes(machine)
    assert ("breaks off" in notes(machine)) == bool(note)
    whole = affinities.split(";")[3].split()[0]
    fact = facts(machine).get_text("gpu/3", fact_keys.GPU_CPU_AFFINITY)
    assert fact == (whole if not note or f"({whole})" in note else None)


WITH_OWN = "CPU Affinity|NUMA Affinity|GPU NUMA ID"


@pytest.mark.parametrize(
    ("spaced", "nodes", "is_noted"),
    [
        (lambda text: text, [5, 2], False),
        (lambda text: text.expandtabs(8), [5, 2], False),
        (lambda text: text.expandtabs(8).replace("\n", "\n    "), [5, 2], False),
        (lambda text: text.replace("X", " X ").expandtabs(8), [5, 2], False),
        (lambda text: text.replace("\tN/A", "").expandtabs(8), [5, 2], False),
        (lambda text: text.replace("\t\tN/A", ""), [5, 2], False),
        (lambda text: text.replace("\t\t", "\t").replace("\t", " "), [], True),
    ],
)
def test_an_empty_affinity_shifts_none_where_spaces_replaced_tabs(
    spaced: Callable[[str], str], nodes: list[int], is_noted: bool
) -> None:
    text = matrix("X NV4/NV4 X", "", WITH_OWN).replace("NV4\n", "NV4\t\t5\t\tN/A\n", 1)
    machine = read(spaced(text.replace("\tX\n", "\tX\t\t2\t\tN/A\n")))
    found = [machine.by_id[g].numa_node for g in machine.ranks]
    assert [node for node in found if node is not None] == nodes
    assert [d.id for d in machine.devices if d.kind == "cpu"] == [f"cpu{n}" for n in nodes]
    assert ("which are empty is not known" in notes(machine)) == is_noted


def test_affinities_below_the_words_of_the_heading_are_in_their_columns() -> None:
    heads = ["", "GPU0", "GPU1", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    rows = [["GPU0", "X", "NV4", "", "5", "N/A"], ["GPU1", "NV4", "X", "3-4", "2", "N/A"]]
    lines = ["".join(f"{cell:<15}" for cell in row) for row in [heads, *rows]]
    machine = read("\n".join(lines))
    assert [machine.by_id[g].numa_node for g in machine.ranks] == [5, 2]
    assert facts(machine).get_text("gpu/1", fact_keys.GPU_CPU_AFFINITY) == "3-4"


@pytest.mark.parametrize(
    ("end", "cpus", "node"),
    [
        ("0-15,32-47\t\t\tN/A", "0-15,32-47", None),  # the NUMA node is empty
        ("0-15\t\t\tN/A", "0-15", None),
        ("0-15,32-47 N/A", "0-15,32-47", None),
        ("0-15,32-473 N/A", "0-15,32-47", 3),
        ("0-15 N/A", None, None),  # all of it, or CPUs 0-1 and node 5
        ("7 N/A", None, None),
        ("7", "7", None),  # below the tabs, but not where they are lost
        ("7 ", None, None),
    ],
)
def test_a_list_of_cpus_is_cut_for_a_node_only_where_that_is_certain(
    end: str, cpus: str | None, node: int | None
) -> None:
    rows = f"\tGPU0\tGPU1\t{WITH_OWN}\nGPU0\tX\tNV4\t{end}\nGPU1\tNV4\tX\t{end}\n"
    if " " in end:
        rows = rows.replace("\t", " ")
    machine = read(rows.replace("|", "\t"))
    assert facts(machine).get_text("gpu/0", fact_keys.GPU_CPU_AFFINITY) == cpus
    assert machine.by_id["gpu0"].numa_node == node
    assert ("which are empty is not known" in notes(machine)) == (cpus is None)


CONTAINER = "X NV8 SYS SYS PIX SYS/NV8 X SYS SYS SYS PIX/{}".format(
    "SYS SYS X SYS SYS SYS/SYS SYS SYS X SYS SYS/PIX SYS SYS SYS X SYS/SYS PIX SYS SYS SYS X"
)


@pytest.mark.parametrize(
    ("text", "cpus", "note"),
    [
        (
            matrix(CONTAINER, "", "CPU Affinity|NUMA Affinity", "GPU0 GPU1 NIC0 NIC1 NIC2 NIC3"),
            2,
            "no affinities are given, and SYS is what containers",
        ),
        (matrix(CONTAINER, "", "", "GPU0 GPU1 NIC0 NIC1 NIC2 NIC3"), 2, "no affinities are given"),
        (alike(8, "SYS"), 1, "no affinities are given, and SYS is what containers"),
        (alike(8, "NV18"), 0, ""),
        (alike(4, "SYS", "0-7 0;" * 4, "CPU Affinity|NUMA Affinity"), 1, "no affinities tell CPUs"),
        (
            alike(4, "SYS", "N/A N/A;" * 4, "CPU Affinity|NUMA Affinity"),
            1,
            "no affinities are given",
        ),
        (alike(2, "SYS"), 2, ""),  # two sockets are common
        (
            alike(4, "SYS", "0 0-1;" * 4, "CPU Affinity|NUMA Affinity"),
            1,
            "SYS between devices whose",
        ),
        (
            alike(2, "SYS", "0 0-1;" * 2, "CPU Affinity|NUMA Affinity"),
            1,
            "SYS between devices whose",
        ),
        (
            alike(4, "SYS", "0-7 0;0-7 0;8-15 1;8-15 1", "CPU Affinity|NUMA Affinity"),
            2,
            "SYS between devices whose",
        ),
        (alike(4, "SYS", "0-7 0;8-15 1;16-23 2;24-31 3", "CPU Affinity|NUMA Affinity"), 4, ""),
    ],
)
def test_sys_without_affinities_that_differ_is_no_evidence_of_many_sockets(
    text: str, cpus: int, note: str
) -> None:
    machine = read(text)
    assert sum(device.kind == "cpu" for device in machine.devices) == cpus
    assert note in notes(machine)
    assert ("SYS" in notes(machine)) == bool(note)


@pytest.mark.parametrize(
    "text",
    ["", "GPU", '{"format": "x"}', "<system/>", "a GPU0 is fast\n", "\x00" * 1000, "GPU " * 9999],
)
def test_other_texts_do_not_look_like_it_and_are_refused(text: str) -> None:
    assert not smi.looks_like(text)
    assert "no matrix found" in refusal(text)


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        ("NODE\tPIX", "NODEPIX"),
        ("SYS\tSYS\t0-9", "SYSSYS0-9"),
        ("NIC0\tNIC1", "NIC0NIC1"),
        ("NIC1\tCPU", "NIC1CPU"),
    ],
)
def test_tabs_that_were_lost_are_put_back_where_it_is_plain_where_they_were(
    lost: str, kept: str
) -> None:
    rows = "X NV18 NODE PIX/NV18 X SYS SYS/NODE SYS X SYS/PIX SYS SYS X"
    text = matrix(rows, "0-9 0; 0-9 1", "CPU Affinity|NUMA Affinity", "GPU0 GPU1 NIC0 NIC1")
    assert lost in text
    plain, found = read(text), read(text.replace(lost, kept))
    assert (found.devices, found.links, found.extra) == (plain.devices, plain.links, plain.extra)


@pytest.mark.parametrize(
    "row", ["GPU1\tSYS\tX\tSYS\t0-9\n", "GPU1\tNV1812\tX\t0-9\n", "GPU1\tSYS\tX\tSYS\tSYS\tSYS\n"]
)
def test_cells_that_are_not_as_many_as_the_columns_are_refused_with_the_line(row: str) -> None:
    text = matrix("X SYS SYS SYS", "0-9", "CPU Affinity", "GPU0 GPU1 NIC0 NIC1") + row + "\n"
    assert "line 3: the row of GPU1 has " in refusal(text)
    assert "for 4 columns; give the output as nvidia-smi printed it" in refusal(text)


def test_equal_matrices_are_of_hosts_that_are_alike_and_different_ones_are_refused() -> None:
    text = alike(2, "NV4", "0-9 0; 0-9 0", "CPU Affinity|NUMA Affinity")
    named = "".join(f"me@node{i}:~$ nvidia-smi topo -m\n{text}\n" for i in range(2))
    for both in (text + "\n" + text, named):
        machine = read(both)
        assert machine.ranks == ("host0/gpu0", "host0/gpu1", "host1/gpu0", "host1/gpu1")
        assert "the same matrix 2 times: taken for 2 hosts" in notes(machine)
        assert devices(machine) == {"gpu": 4, "cpu": 2, "network": 1}
    assert read(named).extra["hosts"] == ["node0", "node1"]
    assert "give topo-probe a file for each" in refusal(text + "\n" + alike(2, "NV2"))
    wide = matrix(" ".join(["X", *["SYS"] * 400]))
    assert "more than 1024 devices together" in refusal(3 * (wide + "\n"))


def test_the_matrix_of_mp_says_that_nvlinks_are_left_out_and_m_beside_it_is_read() -> None:
    seen = f"# nvidia-smi topo -m\n{alike(2, 'NV4')}"
    without = f"# nvidia-smi topo -mp\n{alike(2, 'PIX')}"
    assert "topo -mp leaves NVLinks out" in notes(read(without))
    assert cables(read(seen + without)) == cables(read(seen)) == {("nvlink", 4): 1}
    assert [(f.severity, f.what) for f in list_findings(read(without))] == [
        ("warning", "no-nvlink-told")
    ]


@pytest.mark.parametrize(
    ("labels", "last", "is_noted"),
    [
        ("X SYS/SYS X", "", True),
        ("X SYS/SYS X", "\nNIC Legend:\n\n  NIC0: mlx5_0\n", True),
        ("X SYS/SYS X", "  NV#  = Connection traversing a bonded set of # NVLinks\n", False),
        ("X NV4/NV4 X", "", False),
    ],
)
def test_a_legend_without_nvlinks_is_that_of_mp(labels: str, last: str, is_noted: bool) -> None:
    legend = "Legend:\n\n  X    = Self\n"
    legend += "  PIX  = Connection traversing at most a single PCIe bridge\n"
    assert ("topo -mp leaves" in notes(read(f"{matrix(labels)}\n{legend}{last}"))) is is_noted


def test_affinities_before_the_devices_of_a_table_are_theirs() -> None:
    table = """\
| CPU Affinity | NUMA Affinity |        | GPU0 | GPU1 | mlx5_0 |
|--------------|---------------|--------|------|------|--------|
| 24-31,56-63  | 3             | GPU0   | X    | NV4  | SYS    |
| 0-7,32-39    | 0             | GPU1   | NV4  | X    | PHB    |
|              |               | mlx5_0 | SYS  | PHB  | X      |
"""
    machine = read_topology_text(table, "page.md")
    assert devices(machine) == {"gpu": 2, "nic": 1, "cpu": 2}
    assert cables(machine)["nvlink", 4] == 1
    assert [d.numa_node for d in machine.devices[:2]] == [3, 0]


@pytest.mark.parametrize("labels", ["X PIX/PIX X", "X PIX PHB/PIX X SYS/PHB SYS X"])
def test_a_matrix_of_mp_of_another_machine_is_refused(labels: str) -> None:
    seen = f"# nvidia-smi topo -m\n{matrix('X NV4 PHB/NV4 X PHB/PHB PHB X')}"
    assert read(f"{seen}# nvidia-smi topo -mp\n{matrix('X PIX PHB/PIX X PHB/PHB PHB X')}").links
    assert "two matrices that differ" in refusal(f"{seen}# nvidia-smi topo -mp\n{matrix(labels)}")


# -- the tree


def test_nvlinks_hide_the_tree_which_the_nics_show() -> None:
    names = "GPU0 GPU1 mlx5_0"
    near = read(matrix("X NV4 PIX/NV4 X PIX/PIX PIX X", names=names))
    assert devices(near) == {"gpu": 2, "nic": 1, "pcie": 1, "cpu": 1}
    assert "hide" not in notes(near)
    apart = read(
        matrix(
            "X NV4 PIX/NV4 X SYS/PIX SYS X", "0-9 0; 10-19 1", "CPU Affinity|NUMA Affinity", names
        )
    )
    assert devices(apart) == {"gpu": 2, "nic": 1, "pcie": 1, "cpu": 2}


# -- NVLinks and other links


@pytest.mark.parametrize(
    ("gpus", "label", "switched"),
    [
        *(
            (8, "NV12", True),
            (8, "NV18", True),
            (16, "NV6", True),
            (3, "NV12", True),
            (4, "NV18", True),
        ),
        *(
            (4, "NV6", False),
            (4, "NV4", False),
            (2, "NV18", False),
            (2, "NV12", False),
            (3, "NV2", False),
        ),
    ],
)
def test_more_nvlinks_than_a_gpu_has_end_at_switches(gpus: int, label: str, switched: bool) -> None:
    machine, count = read(alike(gpus, label)), int(label[2:])
    pairs = gpus * (gpus - 1) // 2
    assert cables(machine) == {("nvlink", count): gpus if switched else pairs}
    assert devices(machine).get("nvswitch", 0) == switched
    assert {link.bandwidth_GBps for link in machine.links} == {25 * count}
    assert all(str(link.source).startswith("assumed: ") for link in machine.links)
    assert set(labels(machine).values()) == {label}


@pytest.mark.parametrize("label", ["XGMI2", "LNK", "SW", "NET", "DIS"])
def test_labels_of_topoplan_are_read_back(label: str) -> None:
    assert set(labels(read(alike(3, label))).values()) == {label}


# -- what is missing or odd


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\tGPU0\tGPU1\n", "the matrix of line 1 has no row of a GPU"),
        (
            "\tGPU0\tmlx5_0\tCPU Affinity\nmlx5_0\tPIX\tX\n",
            "the matrix of line 1 has no row of a GPU",
        ),
        (alike(2, "PIX") + alike(3, "PIX"), "two matrices that differ, at lines 1 and 4"),
        (alike(2, "OK"), "line 1: a -p2p matrix says what GPUs may do to each other"),
        ("\tGPU0\tGPU1\nFailed to run topology matrix\n", "run topo-probe on the machine"),
        (
            matrix("X MX/MX X", "0 0-31; 0 0-31", "Node Affinity|CPU Affinity"),
            "joins gpu0 - gpu1 by MX, which nvidia-smi does not print",
        ),
        ("\n$ mthreads-gmi topo -m\n" + alike(2, "NODE"), "line 2: the matrix of mthreads-gmi"),
        ("\tGPU0\tGPU1\tGPU0\n", "line 1 names GPU0 twice"),
        (
            "\t" + "\t".join(f"GPU{i}" for i in range(10_000)),
            "line 1 has the heading of 10000 devices",
        ),
        ("\tGPU0\tGPU1\n" * 65, "line 65: more than 64 matrices"),
        (
            alike(
                129, "SYS", ";".join(f"{i} {i}" for i in range(129)), "CPU Affinity|NUMA Affinity"
            ),
            "129 NUMA nodes; more than 128 are refused",
        ),
        (
            alike(3, "PIX").replace("\tGPU2", "", 1).replace("X\tPIX\tPIX", "X\tPIX"),
            "line 3: the row of GPU1 has 3 cells for 2 columns",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX\nGPU2\tSYS\tPIX\n",
            "line 4: a row of GPU2, which the heading of line 1 does not name",
        ),
        (
            "".join(alike(4, "PIX").splitlines(keepends=True)[:2]),
            "the matrix of line 1 does not say how gpu1 - gpu2, gpu1 - gpu3, gpu2 - gpu3 are",
        ),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1", "does not say how gpu0 - gpu1 are joined"),
        ("\tGPU0\tGPU\nGPU0\tX\tPIX\n", "a row of a matrix without a heading"),
        (
            "\tGPU0\tGPU1\tHost\nGPU0\tX\tPIX\tPHB\nGPU1\tPIX\tX\tPHB\n",
            "line 1: a heading with the column 'Host', which nvidia-smi topo -m does not print",
        ),
        (
            "".join(
                f"node{host}: {line}\n" for line in alike(2, "PIX").splitlines() for host in (0, 1)
            ),
            "no matrix found",
        ),
    ],
    ids=[
        "no-row",
        "nic-row",
        "two",
        "p2p",
        "failed",
        "other-labels",
        "other-command",
        "name-twice",
        "wide",
        "many",
        "nodes",
        "cut-heading",
        "odd-heading",
        "cut-columns",
        "cut-rows",
        "cut-label",
        "cut-name",
        "mixed-hosts",
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, reason: str) -> None:
    assert reason in refusal(text)
    assert isinstance(smi.looks_like(text), bool)


def test_long_texts_are_refused_in_one_line() -> None:
    junk = "".join(chr(c * 7919 % 1114 + 1) for c in range(300_000))
    for text, reason in (
        ("GPU0 " * 2_000_000, "line 1 has 10000000 characters"),
        ("GPU0\t" + "X" * 10_000_000, "no matrix found"),
        (junk, "no matrix found"),
    ):
        test_what_cannot_be_read_is_refused_in_one_line(text, reason)


# -- topo -p2p


@pytest.mark.parametrize(
    ("flag", "keys"),
    [
        ("r", ["read"]),
        ("w", ["write"]),
        ("rw", ["read", "write"]),
        ("a", ["atomics"]),
        ("n", ["nvlink"]),
        ("p", ["pcie"]),
    ],
)
def test_p2p_matrices_become_facts_of_what_their_flag_asks(flag: str, keys: list[str]) -> None:
    told = facts(read(alike(2, "PHB") + f"$ nvidia-smi topo -p2p {flag}\n" + alike(2, "GNS")))
    every = ("read", "write", "atomics", "nvlink", "pcie")
    assert [
        key
        for key in every
        if told.get_text("gpu/0/p2p/1", find_key("gpu/0/p2p/1", key)) == "gpu not supported"
    ] == keys
    assert (
        told.get_source("gpu/1/p2p/0", find_key("gpu/1/p2p/0", keys[0]))
        == f"nvidia-smi topo -p2p {flag}"
    )


# -- nvlink -R and -s


def remote(ends: dict[int, list[str]]) -> str:
    """`nvlink -R`: for each GPU, the bus numbers that its links end at."""
    lines = []
    for gpu, buses in ends.items():
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: {UUID.format(gpu)})")
        lines += [
            f"\t Link {i}: Remote Device 00000000:{bus}:00.0: Link {i + 3}"
            for i, bus in enumerate(buses)
        ]
    return "\n".join(lines) + "\n"


def test_remote_addresses_that_are_no_gpus_are_switches() -> None:
    text = remote({gpu: ["05", "06", "05", "07"] for gpu in range(3)})
    machine = read(text)
    assert devices(machine) == {"gpu": 3, "nvswitch": 1}
    assert cables(machine) == {("nvlink", 4): 3}
    assert "taken for NVSwitches" in notes(machine)
    assert devices(read(alike(3, "NV4") + text)) == {"gpu": 3, "nvswitch": 1}


def test_a_matrix_takes_the_rate_of_its_nvlinks_from_the_status() -> None:
    text = status({0: ["53.125 GB/s", "<inactive>"], 1: ["<inactive>", "53.125 GB/s"]})
    machine = read(alike(2, "NV1") + text)
    assert machine.capacity_GBps["gpu0", "gpu1"] == 50
    assert "all rates but those of NVLinks are assumed" in notes(machine)
    assert facts(machine).get_text("gpu/0/nvlink/1", fact_keys.NVLINK_STATE) == "inactive"
    odd = read(alike(2, "NV1") + text.replace("53.125", "31.5"))
    assert odd.capacity_GBps["gpu0", "gpu1"] == Fraction(63, 2)


@pytest.mark.parametrize("rest", ["         Link 1: Remote Device 00", "         Link", "..."])
def test_links_that_break_off_are_not_taken_for_all(rest: str) -> None:
    gpus = "".join(
        f"GPU {gpu}: NVIDIA A100 (UUID: {UUID.format(gpu)})\n"
        + "".join(
            f"\t Link {i}: Remote Device 00000000:{gpu}{i}:00.0: Link 3\n" for i in range(count)
        )
        for gpu, count in ((0, 2), (1, 1))
    )
    with pytest.raises(InputError, match="links of GPU 1 break off"):
        read(gpus + rest)
    machine = read(alike(2, "NV2") + gpus + rest)
    assert "the links of gpu1 break off in the text" in notes(machine)
    facts = load_facts(machine.extra, "x").items
    assert any(f.subject.startswith("gpu/0/nvlink") for f in facts)
    assert not any(f.subject.startswith("gpu/1/nvlink") for f in facts)


@pytest.mark.parametrize(
    ("label", "active", "is_noted"),
    [
        ("NV4", 2, True),
        ("NV4", 0, True),
        ("NV4", 6, True),
        ("PHB", 4, True),
        ("NV4", 4, False),
        ("NV2", 4, False),  # two links to each of the two others
        ("PHB", 0, False),
    ],
)
def test_other_counts_of_active_links_are_noted(label: str, active: int, is_noted: bool) -> None:
    links = ["25.781 GB/s"] * active + ["<inactive>"] * (6 - active)
    found = notes(read(alike(3, label) + status(dict.fromkeys(range(3), links))))
    assert (f"do not fit the matrix: {active} of gpu0, {active} of gpu1" in found) == is_noted
    alone = notes(read(alike(1, "X") + status({0: links})))
    assert "do not fit" not in alone


def test_the_status_alone_is_refused() -> None:
    assert "add the output of nvidia-smi topo -m" in refusal(status({0: ["25.781 GB/s"]}))


# -- written and read again


def test_a_written_matrix_is_as_nvidia_smi_prints_it() -> None:
    lines = smi.write(preset("pcie-2socket")).splitlines()
    heads = [*(f"GPU{i}" for i in range(8)), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    assert lines[0] == "\t" + "\t".join(heads)
    assert lines[3] == "GPU2\tPHB\tPHB\t X \tPIX\tSYS\tSYS\tSYS\tSYS\tN/A\t0\t\tN/A"
    assert "  NV#  = Connection traversing a bonded set of # NVLinks" in lines
    assert not any("label of topoplan" in line for line in lines)


def test_labels_that_nvidia_smi_lacks_are_in_the_legend() -> None:
    text = smi.write(preset("mi250:2"))
    assert "  XGMI# = # bonded xGMI links (a label of topoplan)\n" in text
    assert "  NIC0: nic0\n" in text


@pytest.mark.parametrize(
    "name",
    long_cases(
        [*(p.example for p in PRESETS.values()), "dgx-a100:3", "ring:1", "switch:2"],
        *("gb200-nvl72", "torus:8x8"),
    ),
)
def test_every_preset_comes_back_as_the_text_it_was_written_as(name: str) -> None:
    back = check_written_text_comes_back(preset(name))
    assert len(back.ranks) == len(preset(name).ranks)


@settings(max_examples=count_examples(20))
@given(graphs(8, switches=4))
def test_random_graphs_come_back_as_the_text_they_were_written_as(graph: Topology) -> None:
    check_written_text_comes_back(graph)


class Builder:
    """Devices and links of a random machine, as hypothesis draws them."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.devices: list[Device] = []
        self.links: list[Link] = []

    def add(
        self, kind: str, node: int | None = None, root: str | None = None, family: str | None = None
    ) -> str:
        ident = f"{kind}{sum(d.kind == kind for d in self.devices)}"
        extra = {"root": root} if root and kind in ("gpu", "nic") else {}
        self.devices.append(Device(ident, kind, family, numa_node=node, extra=extra))
        return ident

    def join(self, a: str, b: str, kind: str, count: int = 1, us: str = "") -> None:
        rate = Fraction(self.draw(st.integers(1, 9)))
        self.links += both_directions(Link(a, b, rate, LATENCY_us[us or kind], kind, count))

    def grow(self, above: str, node: int | None, root: str | None, depth: int) -> None:
        kind = self.draw(st.sampled_from(("gpu", "gpu", "nic", *["switch"] * (depth < 3))))
        ident = self.add(kind, node, root, "pcie" if kind == "switch" else None)
        self.join(ident, above, "pcie")
        for _ in range(self.draw(st.integers(1, 3)) if kind == "switch" else 0):
            self.grow(ident, node, root, depth + 1)

    def socket(self, number: int, node: int | None) -> None:
        before = [d.id for d in self.devices if d.kind == "cpu"]
        cpu = f"cpu{number}"
        extra = {"cpus": f"{8 * number}-{8 * number + 7}"} if self.draw(st.booleans()) else {}
        self.devices.append(Device(cpu, "cpu", numa_node=node, extra=extra))
        for other in before:
            self.join(cpu, other, "smp")
        has_roots = self.draw(st.booleans())
        for root in range(self.draw(st.integers(1, 3))):
            for _ in range(self.draw(st.integers(0, 2))):
                self.grow(cpu, node, f"pci{number}{root}" if has_roots else None, 0)

    def nvlinks(self) -> None:
        gpus = [d.id for d in self.devices if d.kind == "gpu"]
        how = self.draw(st.sampled_from(("none", "pairs", "switch")))
        if how == "switch":
            switch = self.add("switch", family="nvswitch")
            for gpu in gpus:
                self.join(
                    gpu, switch, "nvlink", self.draw(st.sampled_from((6, 12, 18))), "nvswitch"
                )
        for i, a in enumerate(gpus if how == "pairs" else ()):
            for b in gpus[:i]:
                count = self.draw(st.integers(0, 4))
                if count:
                    self.join(a, b, "nvlink", count)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Sockets with root complexes, trees of PCIe switches, GPUs and NICs below, and NVLinks between
    GPUs.
    """
    builder = Builder(draw)
    numbered = draw(st.sampled_from(("numbered", "unknown", "one")))
    # more than two CPUs are read only from affinities that differ
    for number in range(draw(st.integers(1, 3 if numbered == "numbered" else 2))):
        builder.socket(number, {"numbered": 2 * number, "unknown": None, "one": 0}[numbered])
    if not any(d.kind == "gpu" for d in builder.devices):
        builder.join(builder.add("gpu"), "cpu0", "pcie")
    builder.nvlinks()
    return Topology("random", tuple(builder.devices), tuple(builder.links))


@pytest.mark.parametrize(
    "line",
    [
        "| GPU{} | NVIDIA {} |",
        "- **GPU {}:** NVIDIA {} | 24576 MiB | driver 595.71.05",
        "- GPU{}: {} (PCIe slot 3)",
        "GPU #{} = {}, 48 GB",
    ],
)
def test_lists_of_gpus_in_prose_name_them(line: str) -> None:
    said = "\n".join(line.format(i, name) for i, name in enumerate(("RTX A4000", "RTX A6000")))
    names = [d.extra.get("name") for d in read(f"{said}\n\n{alike(2, 'PHB')}").devices[:2]]
    assert [str(name).removeprefix("NVIDIA ") for name in names] == ["RTX A4000", "RTX A6000"]


@pytest.mark.parametrize(
    ("name", "label", "one"),
    [
        ("GeForce RTX 3090", "NV3", "4"),
        ("A100-PCIE-40GB", "NV6", "4"),
        ("Quadro GV100", "NV3", "2"),
    ],
)
def test_bridges_of_which_some_links_do_not_come_up_are_noted(
    name: str, label: str, one: str
) -> None:
    said = f"GPU 0: NVIDIA {name} (UUID: GPU-0)\nGPU 1: NVIDIA {name} (UUID: GPU-1)\n"
    (note,) = (str(x) for x in read(said + alike(2, label)).notes if "do not come up" in str(x))
    assert note.startswith(f"gpu0 - gpu1: {label[2:]} NVLinks") and f"has {one}: some" in note
    for whole in ("NV4", "PHB"):
        assert "do not come up" not in str(read(said + alike(2, whole)).notes)


def test_sys_between_gpus_of_one_numa_node_is_noted() -> None:
    columns = "CPU Affinity|NUMA Affinity"
    contradicted = read(matrix("X SYS/SYS X", "24-47 1;24-47 1", columns))
    assert sum(device.kind == "cpu" for device in contradicted.devices) == 2
    assert any("contradict each other; the labels" in str(note) for note in contradicted.notes)
    for printed, nodes in (("X SYS/SYS X", "0-23 0;24-47 1"), ("X NODE/NODE X", "0-23 0;0-23 0")):
        assert "contradict" not in str(read(matrix(printed, nodes, columns)).notes)


def test_a_node_and_the_end_of_a_row_that_lost_their_tab_are_split() -> None:
    columns = "CPU Affinity|NUMA Affinity|GPU NUMA ID"
    cut = matrix("X NV8/NV8 X", "0-27 0N/A;28-55 1N/A", columns).replace("\t", "  ")
    whole = matrix("X NV8/NV8 X", "0-27 0 N/A;28-55 1 N/A", columns)
    assert read(cut).devices == read(whole).devices
    assert [d.numa_node for d in read(cut).devices[:2]] == [0, 1]


def test_cells_that_web_pages_add_to_each_line_are_none() -> None:
    text = alike(2, "SOC", "0-9;10-19", "CPU Affinity").replace("\t", " ").replace("\n", " | |\n")
    assert read(text).links == read(text.replace(" | |", "")).links


@settings(max_examples=count_examples(20))
@given(machines())
def test_random_machines_come_back_as_the_text_they_were_written_as(machine: Topology) -> None:
    back = check_written_text_comes_back(machine)
    nics = [{" ".join(d.id.split()) for d in t.devices if d.kind == "nic"} for t in (machine, back)]
    assert nics[0] == nics[1]


@settings(max_examples=count_examples(50))
@given(
    st.lists(
        st.sampled_from(["X", "PIX", "PXB", "NODE", "SYS", "NV2", "NV18", "SW", "NET", "DIS", "-"]),
        min_size=16,
        max_size=16,
    )
)
def test_any_labels_at_all_are_read_or_refused_in_one_line(cells: list[str]) -> None:
    rows = (" ".join(cells[4 * i : 4 * i + 4]) for i in range(4))
    try:
        machine = read(matrix("/".join(rows)))
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert machine.ranks == ("gpu0", "gpu1", "gpu2", "gpu3")
        smi.write(machine)


def test_the_maker_of_cpus_that_the_text_names_decides_as_nccl_does() -> None:
    asked = "$ nvidia-smi topo -p2p rw\n" + alike(2, "OK")
    for name, answer in (("EPYC 7352", "unknown"), ("Xeon Gold 6348", "no")):
        machine = read(f"CPU: {name} 24-Core Processor\n{alike(2, 'SYS')}{asked}")
        (p2p,) = (v for v in judge_pairs(machine) if v.kind == "p2p")
        assert p2p.answer == answer and "vendor" not in str(p2p.evidence)
    (p2p,) = (v for v in judge_pairs(read(alike(2, "SYS") + asked)) if v.kind == "p2p")
    assert "CPU: vendor not known" in p2p.evidence


def test_drives_in_a_matrix_are_left_out_with_a_note() -> None:
    text = (
        "\tGPU0\tNVMe0\tGPU1\tnvme1n1\tNIC0\nGPU0\tX\tPIX\tPHB\tSYS\tPHB\n"
        "NVMe0\tPIX\tX\tPHB\tSYS\tPHB\nGPU1\tPHB\tPHB\tX\tSYS\tPHB\n"
        "NIC0\tPHB\tPHB\tPHB\tSYS\tX\n"
    )
    machine = smi.read(text, "a.txt")
    assert [d.id for d in machine.devices if d.kind == "nic"] == ["NIC0"]
    assert any("NVMe0, nvme1n1: drives" in str(note) for note in machine.notes)


@pytest.mark.parametrize(
    "heading", ["GPU0 GPU1 ... GPU7", "GPU0 ... GPU7", "GPU0 GPU1 \u2026 GPU7"]
)
def test_a_heading_that_leaves_columns_out_is_refused_for_that(heading: str) -> None:
    cells = heading.split()
    row = "GPU0 X " + " ".join("NV18" if c.startswith("GPU") else c for c in cells[1:])
    with pytest.raises(InputError, match="line 1: a heading that leaves columns out"):
        smi.read(f"{heading} CPU Affinity\n{row} 0-55\n", "a.txt")


def test_a_mentioned_board_with_more_nvlinks_into_nvswitches_is_not_followed() -> None:
    names = [f"GPU{i}" for i in range(4)]
    rows = [[name, *("X" if name == other else "NV8" for other in names)] for name in names]
    matrix = "\n".join("\t".join(row) for row in [["", *names], *rows])
    machine = smi.read(f"{matrix}\n\nNVSwitches join several A100 GPUs.\n", "a.txt")
    assert "as A800 has, so A100, which the text mentions, is not followed" in notes(machine)
    assert "A100" not in str(machine.links[0].source)
    named = smi.read(f"{matrix}\n\nNVSwitches join several A800 GPUs.\n", "a.txt")
    assert "A800, which line 7 mentions" in str(named.links[0].source)


@pytest.mark.skipif(not has_extra("measured"), reason="no extra measured")
def test_rates_of_pairs_beside_a_matrix_are_noted() -> None:
    matrix = "\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX\n"
    pairs = (
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n"
        "     0 916.92  24.78\n     1  24.85 920.12\n\n"
    )
    assert "also has rates between pairs of 2 GPUs" in notes(
        read_topology_text(matrix + pairs, "a.txt")
    )
    assert "also has" not in notes(read_topology_text(matrix, "a.txt"))


def test_a_gpu_numa_id_that_is_a_node_of_cpus_is_no_memory_of_the_gpu() -> None:
    heading = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    rows = "GPU0\tX\tNV18\t0-63\t0\t\t{}\nGPU1\tNV18\tX\t64-127\t1\t\t{}\n"
    wrong = smi.read(heading + rows.format(0, 1), "a.txt")
    assert "GPU NUMA ID 0, 1 is a node of CPUs, too" in notes(wrong)
    assert not any(link.kind == "c2c" for link in wrong.links)
    right = smi.read(heading + rows.format(2, 10), "a.txt")
    assert "is a node of CPUs" not in notes(right)
    assert any(link.kind == "c2c" for link in right.links)


@pytest.mark.skipif(not has_extra("measured"), reason="no extra measured")
def test_the_last_rate_of_a_matrix_of_pairs_that_breaks_off_is_left_out() -> None:
    text = (
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n          0         1         2\n"
        "0       N/A    172.16    172.24\n1    171.99       N/A    172.05\n2    171.96    1"
    )
    with pytest.raises(InputError, match=r"171\.96 to 172\.24 GB/s"):
        read_topology_text(text, "a.txt")
    with pytest.raises(InputError, match=r"\(CE copies GPU -> GPU: 1 to 172.24 GB/s"):
        read_topology_text(text + "\n", "a.txt")


def test_a_matrix_of_numbers_is_refused_for_that() -> None:
    text = "|      | GPU0 | GPU1 |\n| **GPU0** | 0 | 15 |\n| **GPU1** | 15 | 0 |\n"
    with pytest.raises(InputError, match="line 2: a row of numbers in the matrix of line 1"):
        read(text)


@pytest.mark.skipif(not has_extra("measured"), reason="no extra measured")
def test_the_rates_of_bus_grind_are_noted() -> None:
    rates = "P2P Bandwidth Matrix (GB/s) - Unidirectional, P2P=Enabled\n D\\D 0 1\n"
    rates += " 0 257.84 3.32\n 1 3.32 263.90\n"
    notes = read_topology_text(f"{rates}\n{alike(2, 'PHB')}", "m").notes
    assert any("measured by busGrind (P2P enabled: 3.32 GB/s one way)" in str(n) for n in notes)


def test_a_p2p_matrix_of_too_many_gpus_is_left_out_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(smi.facts, "MAX_PAIRED", 1)
    read = smi.read(
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-23\nGPU1\tPHB\t X \t0-23\n\n"
        " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tOK\tX\t\n",
        "text",
    )
    said = [str(note) for note in read.extra["notes"]]
    assert "the -p2p matrix of line 5 has more than 1 GPUs; left out" in said
