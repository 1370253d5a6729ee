"""What rocm-smi and amd-smi print of the links between GPUs is read; texts of other tools are
refused by name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from needs import has_extra
from verdicts import judge_pairs, list_findings

from topoplan.topo.errors import InputError
from topoplan.topo.facts import keys, load_facts
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve

ADDRESSES = [f"0000:{i}1:00.0" for i in range(1, 5)]


def table(title: str, names: list[str], cell: Callable[[int, int], str]) -> str:
    """A table of all pairs, as both tools print it."""
    lines = [title, " " * 13 + " ".join(names)]
    lines += [
        " ".join([name, *(cell(i, j) for j in range(len(names)))]) for i, name in enumerate(names)
    ]
    return "\n".join(lines) + "\n"


def rocm_smi(far: str = "XGMI", hops: int = 1, nodes: tuple[int, ...] = (0, 0, 1, 1)) -> str:
    """Four GPUs: xGMI in two pairs, `far` between the pairs; NUMA nodes by GPU, none printed where
    there are none.
    """
    names = [f"GPU{i}" for i in range(4)]
    text = "===== ROCm System Management Interface =====\n"
    text += table(
        "== Hops between two GPUs ==",
        names,
        lambda i, j: "0" if i == j else "1" if i ^ 1 == j else f"{hops}",
    )
    text += table(
        "== Link Type between two GPUs ==",
        names,
        lambda i, j: "0" if i == j else "XGMI" if i ^ 1 == j else far,
    )
    text += "===== Numa Nodes =====\n"
    text += "".join(f"GPU[{i}]\t\t: (Topology) Numa Node: {node}\n" for i, node in enumerate(nodes))
    return text + "===== End of ROCm SMI Log =====\n"


def amd_smi(bandwidth: str = "") -> str:
    """Four GPUs by their addresses, xGMI between each two, and bandwidths if there are any."""
    text = table("ACCESS TABLE:", ADDRESSES, lambda i, j: "ENABLED")
    text += table("HOPS TABLE:", ADDRESSES, lambda i, j: str(int(i != j)))
    text += table("LINK TYPE TABLE:", ADDRESSES, lambda i, j: "SELF" if i == j else "XGMI")
    return text + (
        table("NUMA BW TABLE:", ADDRESSES, lambda i, j: "N/A" if i == j else bandwidth)
        if bandwidth
        else ""
    )


def read(text: str) -> Topology:
    return read_topology_text(text, "amd.txt")


def counted(topology: Topology) -> tuple[dict[str, int], dict[str, int]]:
    """Devices and cables by kind."""
    cables = Counter(link.kind for link in topology.links)
    return dict(Counter(d.kind for d in topology.devices)), {
        kind: n // 2 for kind, n in cables.items()
    }


def notes(topology: Topology) -> str:
    return "\n".join(topology.extra["notes"])


def test_rocm_smi_gives_xgmi_links_and_numa_nodes() -> None:
    machine = read(rocm_smi())
    assert counted(machine) == ({"gpu": 4, "cpu": 2}, {"xgmi": 6, "pcie": 4, "smp": 1})
    assert [machine.by_id[gpu].numa_node for gpu in machine.ranks] == [0, 0, 1, 1]
    assert "one xGMI link of 50 GB/s is assumed for each" in notes(machine)
    assert list_findings(machine) == ()


def test_pcie_and_indirect_xgmi_are_no_links_between_two_gpus() -> None:
    for text in (rocm_smi("PCIE", 3), rocm_smi("XGMI", 2)):
        assert counted(read(text)) == ({"gpu": 4, "cpu": 2}, {"xgmi": 2, "pcie": 4, "smp": 1})


@pytest.mark.parametrize("spelled", ["GPU[{}]\t\t: {}", "GPU {}          : {}"])
def test_weights_tell_direct_xgmi_whatever_the_hops(spelled: str) -> None:
    """A ring of four, as rocm-smi prints it: hops 1 for all, weight 15 for each xGMI hop."""
    names = [f"GPU{i}" for i in range(4)]
    weight = {0: "0", 1: "15", 2: "30", 3: "15"}
    text = table("== Weight between two GPUs ==", names, lambda i, j: weight[abs(i - j)])
    text += table("== Hops between two GPUs ==", names, lambda i, j: str(int(i != j)))
    text += table("== Link Type between two GPUs ==", names, lambda i, j: "XGMI" if i != j else "0")
    text += "".join(spelled.format(i, f"(Topology) Numa Node: {i // 2}") + "\n" for i in range(4))
    machine = read(text)
    assert counted(machine) == ({"gpu": 4, "cpu": 2}, {"xgmi": 4, "pcie": 4, "smp": 1})
    named = read(text + "GPU[0]\t\t: Card series: \t\tAMD Instinct MI355X\n")
    assert {float(x.bandwidth_GBps) for x in named.links if x.kind == "xgmi"} == {76.8}
    assert {float(x.bandwidth_GBps) for x in named.links if x.kind == "pcie"} == {48}
    assert "MI250 is assumed" in notes(machine) and "assumed;" not in notes(named)


def test_amd_smi_gives_addresses_and_where_it_prints_them_bandwidths() -> None:
    plain, told = read(amd_smi()), read(amd_smi("50000-100000"))
    assert counted(plain) == counted(told) == ({"gpu": 4}, {"xgmi": 6})
    assert [d.bus_id for d in told.devices] == ADDRESSES
    assert {(str(link.bandwidth_GBps), link.count) for link in told.links} == {("100", 2)}
    assert "assumed" not in notes(told)
    assert {str(link.source) for link in plain.links} == {"assumed: xGMI links of an MI250"}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (("GPU1 1 0 1 1", "GPU1 1 0 1"), "line 5: the row of GPU1 has 3 cells for 4 columns"),
        (("Link Type between", "Something of"), "no table of link types"),
        (
            ("GPU2 GPU3\nGPU0 0 XGMI", "GPU2 GPU4\nGPU0 0 XGMI"),
            "line 9: a table of other GPUs than the first",
        ),
        (
            ("GPU1 GPU2 GPU3\nGPU0 0 1 1 1", "GPU1 GPU2\nGPU0 0 1 1"),
            "line 5: the row of GPU1 has 4",
        ),
        (
            ("0 XGMI XGMI XGMI\nGPU1 XGMI 0", "0 N/A XGMI XGMI\nGPU1 N/A 0"),
            r"the table of link types does not say how GPUs are joined: GPU0 - GPU1 \(N/A\)",
        ),
        (
            ("===== Numa Nodes", rocm_smi("PCIE", 3) + "== Numa Nodes"),
            "line 17: GPU0 - GPU2 was 1 in an earlier table",
        ),
    ],
)
def test_a_damaged_text_is_refused_with_the_line(damage: tuple[str, str], reason: str) -> None:
    text = rocm_smi()
    assert damage[0] in text
    with pytest.raises(InputError, match=f"amd.txt: {reason}"):
        read(text.replace(*damage))


@pytest.mark.parametrize(
    ("hops", "damage", "reason"),
    [
        (2, ("GPU1 1 0 2 2", "GPU1 1 0 2 1"), None),  # those of PCIe tell no link
        (1, ("GPU1 1 0 1 1", "GPU1 2 0 1 1"), "the table of hops has 1 for GPU0 - GPU1 and 2 for"),
        (
            1,
            ("GPU1 XGMI 0", "GPU1 PCIE 0"),
            "the table of link type has XGMI for GPU0 - GPU1 and PCIE for GPU1 - GPU0",
        ),
        (
            1,
            ("GPU[2]\t\t: (Topology) Numa Node: 1", "GPU[0]\t\t: (Topology) Numa Node: 1"),
            "line 17: the NUMA node of GPU0 is 1, and 0 before",
        ),
    ],
)
def test_tables_that_differ_by_direction_and_nodes_that_change_are_refused(
    hops: int, damage: tuple[str, str], reason: str | None
) -> None:
    text = rocm_smi("PCIE", hops)
    assert damage[0] in text
    if reason is None:
        assert read_topology_text(text.replace(*damage), "amd.txt").ranks
        return
    with pytest.raises(InputError, match=f"amd.txt: {reason}") as caught:
        read_topology_text(text.replace(*damage), "amd.txt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (12, "xGMI joins a GPU to 11 others, and none has more than 8 links; these are partitions"),
        (8, "the tables do not say which MI250X have links of their own"),
    ],
)
def test_links_that_cannot_all_be_direct_are_refused(gpus: int, reason: str) -> None:
    text = "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI250X\n" + table(
        "== Link Type between two GPUs ==",
        [f"GPU{i}" for i in range(gpus)],
        lambda i, j: "0" if i == j else "XGMI",
    )
    with pytest.raises(InputError, match=f"amd.txt: {reason}"):
        read(text)


def test_a_mesh_of_eight_has_the_pcie_that_all_boards_of_the_kind_have() -> None:
    names = [f"GPU{i}" for i in range(8)]
    text = table("== Weight between two GPUs ==", names, lambda i, j: "15" if i != j else "0")
    text += table("== Link Type between two GPUs ==", names, lambda i, j: "XGMI" if i != j else "0")
    text += "".join(f"GPU[{i}]\t\t: (Topology) Numa Node: {i // 4}\n" for i in range(8))
    machine = read(text)
    assert {float(x.bandwidth_GBps) for x in machine.links if x.kind == "pcie"} == {48}
    assert "MI325X" in notes(machine) and "MI300A" not in notes(machine)


def test_unknown_gpus_on_pcie_say_what_is_assumed() -> None:
    text = table(
        "== Link Type between two GPUs ==", ["GPU0", "GPU1"], lambda i, j: "0" if i == j else "PCIE"
    )
    assert "PCIe is taken as Gen3 x16" in notes(read(text))
    named = read("[rank=0] using device 0: AMD Radeon AI PRO R9700\n" + text)
    assert "PCIe is taken" not in notes(named)
    assert {float(x.bandwidth_GBps) for x in named.links} == {48}


@pytest.mark.parametrize(
    ("far", "size", "named", "unnamed"),
    [
        ("PCIE", 4, ["MI210", "MI100"], ["MI250", "MI300X"]),  # bridges join no more than four
        ("PCIE", 2, ["MI210", "MI100", "MI50"], ["MI250", "MI300X"]),
        ("XGMI", 4, ["MI250X"], ["MI300X"]),
    ],
)
def test_hives_of_unnamed_gpus_have_the_pcie_that_all_their_boards_have(
    far: str, size: int, named: list[str], unnamed: list[str]
) -> None:
    names = [f"GPU{i}" for i in range(8)]

    def put(near: str, far: str) -> Callable[[int, int], str]:
        return lambda i, j: "0" if i == j else near if i // size == j // size else far

    text = table("== Weight between two GPUs ==", names, put("15", "30" if far == "XGMI" else "72"))
    text += table("== Link Type between two GPUs ==", names, put("XGMI", far))
    text += "".join(f"GPU[{i}]\t\t: (Topology) Numa Node: {i // 4}\n" for i in range(8))
    machine = read(text)
    over_cpus = [x for x in machine.links if x.kind in ("pcie", "smp")]
    assert {float(x.bandwidth_GBps) for x in over_cpus} == {24}
    listed = notes(machine).split("they can be")[1].split("is assumed")[0]
    assert [name for name in named if name not in listed] == []
    assert [name for name in unnamed if name in listed] == []


def test_boards_with_slower_links_than_the_table_of_bandwidths_has_are_none() -> None:
    text = rocm_smi("PCIE").replace("===== Numa Nodes", "{}===== Numa Nodes")
    rates = table("== Bandwidth between two GPUs ==", [f"GPU{i}" for i in range(4)], rate_of_pairs)
    machine = read(text.format(rates))
    sources = {str(x.source) for x in machine.links if x.kind == "pcie"}
    assert sources == {"assumed: Gen4 x16, as MI60 has"}


def rate_of_pairs(i: int, j: int) -> str:
    return "N/A" if i == j else "50000-50000" if i ^ 1 == j else "0-0"


def test_columns_that_are_cut_off_are_refused() -> None:
    cut = "== Link Type between two GPUs ==\n GPU0 GPU1\n" + "".join(
        f"GPU{i} {'0 XGMI' if i == 0 else 'XGMI 0'}\n" for i in range(3)
    )
    with pytest.raises(InputError, match="line 5: a row of GPU2, which the heading does not name"):
        read(cut)


def test_tables_that_occur_twice_are_of_one_machine_with_a_note() -> None:
    once, twice = read(rocm_smi()), read(rocm_smi() * 2)
    assert twice.links == once.links
    assert "the same tables 2 times: taken for one machine" in notes(twice)


def test_a_numa_node_of_minus_one_is_none() -> None:
    machine = read(rocm_smi("PCIE", 2, nodes=(-1, -1, -1, 1)))
    assert [d.numa_node for d in machine.devices if d.kind == "gpu"] == [None, None, None, 1]
    assert [(d.id, d.numa_node) for d in machine.devices if d.kind == "cpu"] == [
        ("cpu0", None),
        ("cpu1", 1),
    ]
    assert "GPU0, GPU1, GPU2: no NUMA node is printed, or -1, which is none" in notes(machine)


def test_numa_nodes_are_those_of_the_numbers_of_gpus() -> None:
    text = rocm_smi()
    for i in (3, 2, 1, 0):
        text = text.replace(f"GPU{i}", f"GPU{i + 4}").replace(f"GPU[{i}]", f"GPU[{i + 4}]")
    assert [d.numa_node for d in read(text).devices if d.kind == "gpu"] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "text",
    [
        '[{"gpu": 0, "bdf": 1, "links": 3}]',
        '[{"gpu": 0, "links": [{"gpu": 1}]}]',
        '[{"gpu":',
        '{"gpu_data": 5}',
        '{"system": {"(Topology) Numa Node": 1}}',
        '[{"gpu":' + "[" * 100_000,
    ],
)
def test_other_json_of_amd_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"^amd.txt: .*JSON") as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_wherever_a_text_breaks_off_it_is_read_or_refused_in_one_line() -> None:
    text = rocm_smi()
    for end in range(0, len(text), 13):
        try:
            read(text[:end])
        except InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "name", ["amd-smi/amd-smi-topology-8gpu.txt", "amd-smi/rocm-smi-showtopo-8gpu-xgmi.txt"]
)
def test_public_texts_of_eight_gpus_are_a_mesh(
    name: str, more_inputs: Callable[[str], Path]
) -> None:
    machine = resolve(str(more_inputs(name)))
    assert {(x.src, x.dst) for x in machine.links if x.kind == "xgmi"} >= set(
        combinations(machine.ranks, 2)
    )
    assert len(machine.ranks) == 8
    assert {x.bandwidth_GBps for x in machine.links if x.kind == "xgmi"} == {64}
    assert sum(d.kind == "cpu" for d in machine.devices) in (0, 2)
    assert list_findings(machine) == ()


def weights(weight: Callable[[int, int], int], count: int = 4) -> str:
    """What is left of amd-smi topology that is cut after its weights."""
    names = ADDRESSES[:count]
    text = table("ACCESS TABLE:", names, lambda i, j: "ENABLED")
    return text + table("WEIGHT TABLE:", names, lambda i, j: str(0 if i == j else weight(i, j)))


def test_a_text_cut_after_the_weights_has_the_types_of_links_by_them() -> None:
    machine = read(weights(lambda i, j: 15 if i ^ 1 == j else 30))
    pairs = {(x.src, x.dst) for x in machine.links if x.kind == "xgmi"}
    assert pairs == {(f"gpu{i}", f"gpu{i ^ 1}") for i in range(4)}
    assert "assumed by the weights: a hop of xGMI weighs 15, PCIe 40" in notes(machine)
    machine = read(weights(lambda i, j: 40 if i ^ 1 == j else 72))
    assert {x.kind for x in machine.links} == {"pcie", "smp"}
    with pytest.raises(InputError, match="the text is cut before it"):
        read(table("ACCESS TABLE:", ADDRESSES, lambda i, j: "ENABLED"))
    half = weights(lambda i, j: 15).rsplit("\n", 3)[0]
    for text in (
        half,
        table("ACCESS TABLE:", ADDRESSES, lambda i, j: "ENABLED") + "WEIGHT TABLE:\n",
    ):
        with pytest.raises(InputError, match=r"LINK TYPE TABLE.*the text is cut before it"):
            read(text)


def test_the_maker_of_cpus_that_the_text_names_is_known() -> None:
    machine = read("Model name: AMD EPYC 7763 64-Core Processor\n" + rocm_smi("PCIE", 3))
    makers = [d.extra.get("vendor") for d in machine.devices if d.kind == "cpu"]
    assert makers and set(makers) == {"AuthenticAMD"}


def test_weights_tell_the_cpus_where_neither_nodes_nor_hops_are_listed() -> None:
    names = [f"GPU{i}" for i in range(4)]
    text = table(
        "== Weight between two GPUs ==", names, lambda i, j: "40" if i // 2 == j // 2 else "61"
    )
    machine = read(text)
    assert {machine.by_id[f"cpu{n}"].kind for n in (0, 1)} == {"cpu"}
    near = [gpu for gpu in machine.ranks if "cpu0" in machine.out_neighbours[gpu]]
    assert near == ["gpu0", "gpu1"]
    assert "a PCIe weight of at most 40" in str(machine.notes)


def test_a_heading_that_breaks_off_is_a_cut_and_no_other_machine() -> None:
    names = [f"GPU{i}" for i in range(4)]
    text = table("== Weight between two GPUs ==", names, lambda i, j: "40" if i != j else "0")
    machine = read(text + "== Hops between two GPUs ==\n       GPU0   GPU1   GPU2\n")
    assert len(machine.ranks) == 4 and "the text is cut" in str(machine.notes)
    with pytest.raises(InputError, match="the row of GPU0 has 4 cells for 3 columns"):
        read(text + "== Hops between two GPUs ==\n GPU0 GPU1 GPU2\nGPU0 0 2 2 2\n")
    with pytest.raises(InputError, match="a table of other GPUs than the first"):
        read(text + "== Hops between two GPUs ==\n GPU1 GPU2 GPU3\n")


@pytest.mark.parametrize("mode", ["SPX", "CPX"])
def test_a_compute_partition_tells_of_boards_that_can_have_one(mode: str) -> None:
    said = f"GPU[0]\t\t: Compute Partition: {mode}\nGPU[1]\t\t: Compute Partition: {mode}\n"
    machine, other = read(said + amd_smi()), read(amd_smi())
    assert max(link.bandwidth_GBps for link in machine.links) == 64
    assert max(link.bandwidth_GBps for link in other.links) == 50
    assert ("partitioned (CPX)" in str(machine.notes)) == (mode == "CPX")


def xgmi(count: int, unlinked: tuple[tuple[int, int], ...] = (), short: bool = False) -> str:
    """What amd-smi xgmi prints, with addresses without their domain if `short`."""
    names = [name[5:] if short else name for name in ADDRESSES[:count]]
    lines = [
        "LINK METRIC TABLE:",
        f"       bdf          bit_rate max_bandwidth link_type {' '.join(names)}",
    ]
    for i, name in enumerate(names):
        lines.append(f"GPU{i}   {name} 32 Gb/s  512 Gb/s      XGMI")
        for word in ("Read", "Write"):
            cells = (
                "N/A" if i == j or tuple(sorted((i, j))) in unlinked else f"{j}.123 {'KMP'[j % 3]}B"
                for j in range(count)
            )
            lines.append(f" {word}   {'   '.join(cells)}")
    status = [f"GPU{i}   {name} SELF U D X" for i, name in enumerate(names)]
    return "\n".join([*lines, "", "XGMI LINK STATUS:", "   bdf " + " ".join(names), *status, ""])


def test_seven_gpus_of_a_board_of_eight_are_noted() -> None:
    names = [f"GPU{i}" for i in range(7)]
    text = table("== Weight between two GPUs ==", names, lambda i, j: "0" if i == j else "15")
    text += table("== Link Type between two GPUs ==", names, lambda i, j: "0" if i == j else "XGMI")
    named = "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X\n"
    assert "7 GPUs all joined by xGMI: boards of MI300X have 8" in notes(read(named + text))
    assert "may be lost" not in notes(read(text)), "MI250 are not all joined"


@pytest.mark.parametrize("short", [False, True])
def test_amd_smi_xgmi_gives_links_and_their_rate(short: bool) -> None:
    machine = read(xgmi(4, short=short))
    links = [x for x in machine.links if x.kind == "xgmi"]
    assert {(x.src, x.dst) for x in links} >= set(combinations(machine.ranks, 2))
    assert {x.bandwidth_GBps for x in links} == {64}  # 512 Gb/s
    assert [machine.by_id[gpu].bus_id for gpu in machine.ranks] == ADDRESSES
    machine = read(xgmi(4, unlinked=((0, 2), (1, 3)), short=short))
    assert not {("gpu0", "gpu2"), ("gpu1", "gpu3")} & {
        (x.src, x.dst) for x in machine.links if x.kind == "xgmi"
    }


def test_amd_smi_xgmi_beside_the_topology_adds_the_rates() -> None:
    machine = read(amd_smi() + xgmi(4))
    assert {x.bandwidth_GBps for x in machine.links if x.kind == "xgmi"} == {64}
    with pytest.raises(InputError, match="list different GPUs"):
        read(amd_smi() + xgmi(3))
    cut = xgmi(4).split("\n")
    for end in (5, 9):
        with pytest.raises(InputError, match=r"has [24] cells, and [1-4] GPUs have rows|missing"):
            read("\n".join(cut[:end]).rpartition("K")[0])


def test_amd_smi_xgmi_that_is_cut_leaves_the_rest_to_the_weights() -> None:
    rows = xgmi(4, short=True).split("\n")
    machine = read(weights(lambda i, j: 15) + "\n".join(rows[:8]))  # two of four GPUs
    links = [x for x in machine.links if x.kind == "xgmi"]
    assert {(x.src, x.dst) for x in links} >= set(combinations(machine.ranks, 2))
    rates = {frozenset((x.src, x.dst)): x.bandwidth_GBps for x in links}
    assert rates[frozenset(("gpu0", "gpu3"))] == 64
    assert "gpu2 - gpu3: the text has no bandwidths" in notes(machine)


def test_rates_of_amd_smi_xgmi_that_are_all_bits_are_not_known() -> None:
    lines = [
        "LINK METRIC TABLE:",
        "   bdf           bit_rate  max_bandwidth  link_type  GPU0  GPU1",
    ]
    for i, name in enumerate(ADDRESSES[:2]):
        lines.append(f"GPU{i}   {name}  65535 Gb/s4294967295 Gb/sN/A")
        lines += [" Read    N/A    N/A", " Write   N/A    N/A"]
    machine = read("\n".join(lines))
    assert counted(machine) == ({"gpu": 2, "cpu": 1}, {"pcie": 2})
    assert "neither NUMA nodes nor hops are listed" in notes(machine)


@pytest.mark.skipif(not has_extra("pasted"), reason="no extra pasted")
@pytest.mark.parametrize(
    "dress",
    [
        lambda text: json.dumps({"gpu_topology": text}),
        lambda text: "".join(f"| {line} |\n" for line in text.splitlines()),
        lambda text: "".join(f'"{line}"\n' for line in text.splitlines()),
    ],
)
def test_tables_are_found_however_they_are_dressed(dress: Callable[[str], str]) -> None:
    plain = read_topology_text(amd_smi("50000-50000"), "amd.txt")
    assert read_topology_text(dress(amd_smi("50000-50000")), "amd.txt").links == plain.links


def test_wrapped_tables_are_refused_with_the_line() -> None:
    lines = amd_smi().splitlines()
    text = "\n".join(f"{line[:40]}\n{line[40:]}" for line in lines)
    with pytest.raises(InputError, match=r"line 25: .* no rows that can be read; are they wrapped"):
        read(text)


@pytest.mark.parametrize(
    ("title", "names", "cell"),
    [
        ("DMA TABLE:", ADDRESSES, "T"),
        ("======== Bandwidth ========", ["GPU0", "GPU1"], "0-0"),
        ("==== Link accessibility between two GPUs ====", ["GPU0", "GPU1"], "True"),
    ],
)
def test_tables_without_those_of_links_are_named(title: str, names: list[str], cell: str) -> None:
    with pytest.raises(InputError, match=r"no table of link types.*printed other tables"):
        read(table(title, names, lambda i, j: "N/A" if i == j else cell))


def refused(machine: Topology) -> list[str]:
    return [v.rule for v in judge_pairs(machine) if v.kind == "p2p" and v.answer == "no"]


@pytest.mark.skipif(not has_extra("pasted"), reason="no extra pasted")
def test_lscpu_beside_the_tables_tells_of_a_guest() -> None:
    text = "CPU(s):  8\nHypervisor vendor:      KVM\nVirtualization type: full\n" + rocm_smi(
        "PCIE", 3
    )
    machine = read(text)
    assert load_facts(machine.extra, "x").get_text(keys.HOST, keys.HOST_VIRTUAL) == "KVM"


def test_gpus_without_access_to_each_other_have_no_p2p() -> None:
    names = ADDRESSES[:2]
    text = table("ACCESS TABLE:", names, lambda i, j: "ENABLED" if i == j else "DISABLED")
    text += table("LINK TYPE TABLE:", names, lambda i, j: "SELF" if i == j else "PCIE")
    assert "no access to each other's memory" in refused(read(text))[0]
    (advice,) = (f.advice for f in list_findings(read(text)) if f.what == "p2p-refused")
    assert "CONFIG_HSA_AMD_P2P" in advice and "registry" not in advice
    assert not refused(read(text.replace("DISABLED", "ENABLED ")))
    title = "===== Link accessibility between two GPUs ====="
    text = table(title, ["GPU0", "GPU1"], lambda i, j: str(i == j))
    text += table("== Link Type between two GPUs ==", ["GPU0", "GPU1"], lambda i, j: "PCIE")
    assert "no access to each other's memory" in refused(read(text))[0]
    assert not refused(read(text.replace("False", "True")))


def listed(gpu: int, *cells: tuple[str, str, str]) -> str:
    """A GPU in amd-smi's JSON until ROCm 6.1: a dictionary for each table."""
    keys = ("link_accessibility", "link_type", "hops")
    words = {
        key: {f"gpu_{i}": cell[n] for i, cell in enumerate(cells)} for n, key in enumerate(keys)
    }
    return json.dumps({"gpu": gpu, **words}, indent=4)


def test_json_is_read_amid_other_text_and_in_its_old_form() -> None:
    own, other = ("ENABLED", "SELF", "0"), ("DISABLED", "PCIE", "2")
    old = f"[\n{listed(0, own, other)},\n{listed(1, other, own)}\n]\n"
    for text in (old, f"$ amd-smi topology --json\n```json\n{old}```\nAs you see, {{no}} P2P.\n"):
        machine = read(text)
        assert counted(machine) == ({"gpu": 2, "cpu": 1}, {"pcie": 2})
        assert "no access" in refused(machine)[0]
    with pytest.raises(
        InputError, match=r"JSON of AMD's tools, but is none: .*line 7 .*printed it"
    ):
        read("as follows:\n" + old.replace('"gpu_1": "DISABLED"', "...", 1))
    rocm = {"card0": {"(Topology) Numa Node": "0"}, "card1": {"(Topology) Numa Node": "1"}}
    link = "(Topology) Link type between DRM devices 0 and 1"
    text = "$ rocm-smi --showtopo --json\n" + json.dumps({**rocm, "system": {link: "XGMI"}})
    assert counted(read(text)) == ({"gpu": 2, "cpu": 2}, {"xgmi": 1, "pcie": 2, "smp": 1})


# -- texts of other tools

OTHERS = {
    '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM '
    '"x.dtd">\n<nvidia_smi_log>': "nvidia-smi -q -x.*topo -m",
    "==============NVSMI LOG==============\n\nTimestamp : now": "nvidia-smi -q.*topo -m",
    "+-----+\n| NVIDIA-SMI 550.54   Driver Version: 550.54 |": "table of GPUs.*topo -m",
    "|   0  NVIDIA RTX PRO 6000 Blac...    On  | 00000000:42:00.0 Off |": "table of GPUs.*topo -m",
    "GPU 0: NVIDIA H100 (UUID: GPU-1)\nGPU 1: NVIDIA H100 (UUID: GPU-2)\n": "nvidia-smi -L.*topo "
    "-m",
    '<graphs version="1">\n<graph id="0">': "a graph file.*NCCL_TOPO_DUMP_FILE.*topo-judge",
    'As an example:\n<graphs version="1">\n  <graph id="0">\n': "a graph file.*NCCL_TOPO_DUMP_FILE",
    ' it shows\n <graph id="0" pattern="4">\n  <gpu dev="0"/>\n': "a graph file.*topo-judge",
    "hca_id:\tmlx5_0\n\ttransport:\tInfiniBand (0)\n": "ibv_devinfo.*topo -m",
    "> Peer access from Tesla K40m (GPU0) -> Tesla K40m (GPU1) : No\n": "samples say of P2P.*topo",
    "Device=0 CANNOT Access Peer Device=1\n": "samples say of P2P.*topo -m",
    "mlx5_0 port 1 ==> ib0 (Up)\n": "ibdev2netdev.*topo -m",
    " #bytes     #iterations    BW peak[Gb/sec]\n 65536  5000  98.01\n": "perftest.*topo -m",
    "        GPU Link Info\n            PCIe Generation\n": "nvidia-smi -q.*topo -m",
    "+----+\n| GPU ID: 0         | Topology Information     |\n": "dcgmi topo.*topo -m",
    " 1a:00.0 3D controller: NVIDIA Corporation Device 2330\n": "lspci.*/sys and /proc",
    "CA 'mlx5_0'\n\tCA type: MT4129\n": "ibstat.*topo -m",
    "00:00.0 Host bridge: Intel Corporation Device 09a2\n": "lspci.*/sys and /proc",
    "-[0000:00]-+-00.0  Intel Corporation Device\n": "lspci.*/sys and /proc",
    "box:1:1 [0] NCCL INFO Bootstrap : Using eth0\n": "a log of NCCL or "
    "RCCL.*NCCL_TOPO_DUMP_FILE.*topo-judge",
    "box:1:2 [4] NCCL INFO + PCI[24.0] - PCI/0-ca000 (1000c010)\n": "a part of NCCL's graph.*=== "
    "System",
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 1024\n": "nccl-tests.*topo-judge",
    "ROCk module is loaded\n=====\nHSA Agents\n": "rocminfo.*rocm-smi --showtopo",
    "===== ROCm System Management Interface =====\n==== Concise Info "
    "====\n": "AMD's table.*rocm-smi --showtopo",
    '[{"gpu": 0, "links": []}]': "list in JSON.*amd-smi topology",
    "\tNPU0   NPU1   CPU Affinity\nNPU0   X      HCCS   0-23\n": "NPUs.*topo -m",
    " GPU 0/0|GPU 0/1|CPU Affinity\n GPU 0/0  S   | MDF | 0-23\n": "neither nvidia-smi.*topo -m",
    "| Device 0 | X        | SYS      | 0-31 |\n": "neither nvidia-smi.*topo -m",
    "     PPU0    PPU1\n PPU0    X       OK\n PPU1    OK      X       OK\n": "neither nvidia-smi",
    "  PPU0    X       ICN6    PHB     0-47    0\n": "neither nvidia-smi.*topo -m",
    "# nvidia-smi topo -c 48\nThe GPUs that have an affinity with CPU 48 are:\n0, 1\n": "topo -c.*"
    "topo -m",
    "$ nvidia-smi topo -p -i 0,1Device 0 is connected to device 1 by way of multiple PCIe "
    "switches.\n": "topo -c, -n or -p.*topo -m",
    'The CPU:\n<cpu numaid="3" arch="x86_64">\n</cpu>\n': "NCCL's XML.*NCCL_TOPO_DUMP_FILE",
    '  <gpu dev="5" sm="90">\n  </gpu>\n</system>\n': "part of NCCL's XML.*NCCL_TOPO_DUMP_FILE",
    "Machine (503GB total)\n": "lstopo's text for people",
    "$ lstopo -\nMachine (251GB total)\n  Package L#0\n": "lstopo's text.*lstopo machine.xml",
    "  PCIBridge L#2 (busid=0000:3d:00.0)\n  PCIBridge L#3 (busid=0000:3e:00.0)\n": "lstopo's "
    "text.*lstopo machine.xml",
}
_CONV = "which is not read: .*topology.conf or topograph's graph.*with a box"
NETWORKS = {
    "#\n# Topology file: generated on Wed Aug  6 16:11:23 2025\n#\n": f"ibnetdiscover, {_CONV}",
    "vendid=0x2c9\nswitchguid=0xe2af7f6de47de25b(e2af7f6de47de25b)\n": f"ibnetdiscover, {_CONV}",
    "CA: node1 mlx5_0:\n      0x1070fd0300b3a1c4      5    1[  ] ==( 4X 53.125 Gbps Active": (
        f"iblinkinfo, {_CONV}"
    ),
    'Switch\t: 0xe2af7f6de47de25b ports 65 "leaf1" enhanced port 0 lid 73\n': "ibswitches, which",
    "Matching lldp records:\nHostname  Interface  Peer Hostname\n": f"NetQ, {_CONV}",
    '[{"hostname": "node1", "ifname": "eth1", "peer_hostname": "leaf1"}]': f"NetQ, {_CONV}",
    "-----\nLLDP neighbors:\n-----\n": "lldpctl, which is not read",
}


@pytest.mark.parametrize("box", ["", "dgx1"])
@pytest.mark.parametrize("text", NETWORKS)
def test_texts_of_networks_name_the_converter_with_a_box_and_without(
    text: str, box: str, tmp_path: Path
) -> None:
    path = tmp_path / "network.txt"
    path.write_text(text)
    with pytest.raises(
        InputError, match=f"network.txt: the output of .*{NETWORKS[text]}"
    ) as caught:
        resolve(str(path), box or None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", OTHERS)
def test_what_other_tools_print_is_refused_by_name_with_what_to_give_instead(text: str) -> None:
    with pytest.raises(InputError, match=f"^other.txt: .*{OTHERS[text]}") as caught:
        read_topology_text(text, "other.txt")
    assert "\n" not in str(caught.value)
