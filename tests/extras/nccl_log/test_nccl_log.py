"""The machine that NCCL prints in its log: PCI trees, links of all kinds, ranks and hosts."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from nccl_samples import sign
from needs import has_extra
from verdicts import list_findings

from topoplan.topo.errors import InputError
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Topology
from topoplan.topo.matrix import find_connections
from topoplan.topo.pictures import table

END = "=" * 42
# A host before 2.20 (no number of the system, capitals), as RCCL prints one, and a recent one.
OLD = """\
=== System : maxWidth 12.5 totalWidth 48.0 ===
CPU/0 (1/2/4)
+ SYS[5000.0] - CPU/1
+ PCI[24.0] - PCI/31000 (1000c01010000000)
              + PCI[24.0] - GPU/4C000 (1)
                            + XGMI[24.0] - GPU/47000
              + PCI[24.0] - NIC/35000
                            + NET[12.5] - NET/0 (64300003fd7010/1/12.500000)
                            + NET[12.5] - NET/1 (64300003fd7010/2/12.500000)
CPU/1 (1/2/4)
+ SYS[5000.0] - CPU/0
+ PCI[24.0] - GPU/47000 (0)
              + XGMI[24.0] - GPU/4C000
"""
NEW = """\
=== System : maxBw 370.8 totalBw 370.8 ===
CPU/0-0 (1/1/2)
+ PCI[48.0] - PCI/0-1b000 (1000c010)
              + PCI[48.0] - GPU/0-10000 ({0})
                            + NVL[370.8] - NVS/0-0
                            + C2C[300.0] - CPU/0-0
              + PCI[48.0] - GPU/0-11000 ({1})
                            + NVL[370.8] - NVS/0-0
"""


def write(text: str, host: str, ranks: int = 1) -> str:
    """The lines of some ranks of a host, one line of each rank in turn."""
    lines = [*text.splitlines(), END]
    return "".join(sign(rank, line, host) for line in lines for rank in range(ranks))


def read(text: str) -> Topology:
    return read_topology_text(text, "file")


def rate(topology: Topology, src: str, dst: str) -> float:
    return float(topology.capacity_GBps[src, dst])


def test_a_tree_and_its_links_with_gpus_in_the_order_of_ranks() -> None:
    machine = read(write(OLD, "node1", ranks=3))
    assert machine.name == "node1" and machine.ranks == ("gpu0", "gpu1")
    assert [machine.by_id[gpu].bus_id for gpu in machine.ranks] == ["0000:47:00.0", "0000:4c:00.0"]
    assert rate(machine, "gpu0", "gpu1") == rate(machine, "gpu1", "gpu0") == 24
    assert rate(machine, "gpu1", "pci-0-31000") == rate(machine, "pci-0-31000", "gpu1") == 24
    assert rate(machine, "cpu-0-0", "cpu-0-1") == 5000
    assert machine.by_id["nic-0-35000"].extra["net_speed_GBps"] == 25
    assert all(link.counted_by == "NCCL" for link in machine.links)


def test_nvswitches_and_chip_to_chip_links_go_both_directions() -> None:
    machine = read(NEW.format(0, 1))  # bare lines, without an end
    assert rate(machine, "nvswitch-0", "gpu1") == rate(machine, "gpu1", "nvswitch-0") == 370.8
    assert rate(machine, "cpu-0-0", "gpu0") == rate(machine, "gpu0", "cpu-0-0") == 300
    in_network = machine.by_id["nvswitch-0"].in_network
    assert in_network is not None and in_network.reduce == "possible"


def test_hosts_are_joined_in_the_order_of_their_ranks() -> None:
    text = write(NEW.format(2, 3), "b") + write(NEW.format(0, 1), "a", ranks=2)
    machine = read(text)
    assert len(machine.ranks) == 4
    assert [gpu.partition("/")[2] for gpu in machine.ranks] == ["gpu0", "gpu1", "gpu2", "gpu3"]


@pytest.mark.parametrize("cut", [1, 3])
def test_a_graph_that_is_cut_before_its_gpus_is_refused(cut: int) -> None:
    with pytest.raises(InputError, match="lists no GPU"):
        read("".join(NEW.format(0, 1).splitlines(True)[:cut]))


# NCCL and RCCL 2.30: GPUs hang below devices, which have the links, and have no ranks.
DEVS = """\
=== System : maxBw 24.0 totalBw 48.0 ===
CPU/0-0 (1/1/2)
+ PCI[12.0] - PCI/0-7000 (10b58747)
              + PCI[12.0] - DEV/0-b000 (100266a3)
                            + LOC[5000.0] - GPU/0-b000
                            + XGMI[24.0] - DEV/0-1b000
              + PCI[12.0] - NIC/0-c000
+ PCI[12.0] - DEV/0-1b000 (100266a3)
              + LOC[5000.0] - GPU/0-1b000
              + XGMI[24.0] - DEV/0-b000
              + NVL[164.8] - NVS/0-0
"""
STARTED = (
    "[Rank 0] ncclCommInitAll_impl comm 0x5{0} rank {0} nranks 2 cudaDev {0} nvmlDev {0} "
    "busId {1} commId 0x1b - Init START"
)


def test_gpus_below_devices_have_their_links_and_the_ranks_of_the_log() -> None:
    starts = sign(0, STARTED.format(0, "1b000"), "n") + sign(1, STARTED.format(1, "b000"), "n")
    machine = read(starts + write(DEVS, "n", ranks=2))
    buses = [machine.by_id[gpu].bus_id for gpu in machine.ranks]
    assert machine.ranks == ("gpu0", "gpu1") and buses == ["0000:1b:00.0", "0000:0b:00.0"]
    assert rate(machine, "gpu0", "gpu1") == rate(machine, "gpu1", "gpu0") == 24
    assert rate(machine, "gpu1", "pci-0-7000") == 12 and rate(machine, "gpu0", "cpu-0-0") == 12
    assert rate(machine, "gpu0", "nvswitch-0") == 164.8
    assert {device.kind for device in machine.devices} == {"gpu", "cpu", "nic", "switch"}
    assert not machine.notes


def test_without_ranks_gpus_are_in_the_order_of_their_addresses_with_a_note() -> None:
    machine = read(DEVS)  # bare lines
    assert [machine.by_id[gpu].bus_id for gpu in machine.ranks] == ["0000:0b:00.0", "0000:1b:00.0"]
    (note,) = machine.notes
    assert "order of their PCI addresses" in str(note)
    # A line of another host says nothing of this one's.
    other = sign(0, STARTED.format(0, "1b000"), "b") + write(DEVS, "a")
    assert len(read(other).notes) == 1


def test_a_graph_with_fewer_gpus_than_started_is_noted() -> None:
    starts = "".join(
        sign(rank, STARTED.format(rank, bus), "n") for rank, bus in enumerate(("b000", "1b000"))
    )
    machine = read(starts + "".join(sign(0, line, "n") for line in DEVS.splitlines()[:6]))
    assert len(machine.ranks) == 1 and "1 of the 2 GPUs" in str(machine.notes[0])


@pytest.mark.parametrize("before", ["{}: ", "> ", "[1,{}]<stdout>: ", "node7: "])
def test_what_stands_before_bare_lines_is_removed(before: str) -> None:
    lines = [before.format(8 + i) + line for i, line in enumerate(DEVS.splitlines(True))]
    assert read("".join(lines)).links == read(DEVS).links


def test_lines_without_their_indentation_are_refused() -> None:
    flat = "".join(line.lstrip() for line in DEVS.splitlines(True))
    with pytest.raises(InputError, match="lost their indentation"):
        read(flat)


def test_ranks_that_interrupt_each_other_have_their_own_graphs() -> None:
    lines = [sign(1, line, "n") for line in (*NEW.format(0, 1).splitlines(), END)]
    whole = read("".join(lines))
    cut = sign(2, "=== System ", "n").rstrip("\n")
    # Two headers on one line, of which the first is interrupted.
    assert read(cut + "".join(lines)) == whole
    # The interrupted one has the only graph.
    other = [sign(2, line, "n") for line in NEW.format(0, 1).splitlines()[1:]]
    assert read(cut + "".join(lines[:1]) + "".join(other)) == whole
    # The end of an interrupted word before the name of the host, in the header and below it.
    for at in (0, 3):
        glued = [*lines[:at], "GPU/0-" + lines[at], *lines[at + 1 :]]
        assert read("".join(glued)) == whole


def test_a_graph_that_another_rank_interrupts_is_not_taken() -> None:
    lines = NEW.format(0, 1).splitlines()
    whole = [sign(1, line, "n") for line in lines]
    # Without the switch, which would be above the GPUs; with a GPU whose number is cut.
    lost = [sign(0, line, "n") for line in (*lines[:2], *lines[3:])]
    cut = "".join(lost)[:-1] + sign(0, "              + PCI[48.0] - GPU/0-1", "n").rstrip()
    for other in ("".join(lost), cut):
        assert read(other + "".join(whole)) == read("".join(whole))


@pytest.mark.parametrize(
    ("total", "count"),
    [("370.8", 18), ("123.6", 6), ("20.0", 1), ("240.0", 12), ("401.0", 10), ("24.0", 2)],
)
def test_a_sum_that_only_one_number_of_nvlinks_has_gives_their_number(
    total: str, count: int
) -> None:
    machine = read(NEW.format(0, 1).replace("370.8", total))
    (link,) = (x for x in machine.links if (x.src, x.dst) == ("gpu0", "nvswitch-0"))
    assert link.is_counted and link.count == count and link.bandwidth_GBps == Fraction(total)
    assert (f"sum, {count} links of" in str(link.source)) == (count > 1)


@pytest.mark.parametrize(
    ("total", "label"), [("24.0", "XGMI1"), ("192.0", "XGMI4"), ("48.0", "LNK")]
)
def test_sums_of_xgmi_links_of_several_generations_give_no_number(total: str, label: str) -> None:
    machine = read(OLD.replace("XGMI[24.0]", f"XGMI[{total}]"))
    assert find_connections(machine)[0][1].label == label


def test_no_number_of_links_is_made_up() -> None:
    machine = read(NEW.format(0, 1).replace("370.8", "36.0"))  # 2 x 18 or 3 x 12
    assert not any(link.is_counted for link in machine.links)
    shown = table.write(machine)
    assert "NV1" not in shown and "SW 36" in shown
    assert "36 GB/s by all links of a pair, whose number is unknown" in shown
    rows = re.findall(r"^ +(?:NVLink|PCIe|NVLink-C2C) +\d+ +[\d.]+ +(\S+) ", shown, re.MULTILINE)
    assert rows == ["the"] * 3
    assert Topology.from_json(machine.to_json()).links == machine.links


@pytest.mark.parametrize(
    ("old", "new", "about"),
    [
        ("+ PCI[48.0] - PCI/0-1b000", "+ PCI[0.2] - PCI/0-1b000", ("pci-0-1b000",)),
        ("PCI[48.0] - GPU/0-11000", "PCI[0.2] - GPU/0-11000", ("gpu1",)),
        # With NVLink-C2C, which NCCL takes instead, and of another generation.
        ("PCI[48.0] - GPU/0-10000", "PCI[0.2] - GPU/0-10000", None),
        ("+ PCI[48.0] - PCI/0-1b000", "+ PCI[0.4] - PCI/0-1b000", None),
    ],
)
def test_rates_of_placeholders_are_found(old: str, new: str, about: tuple[str] | None) -> None:
    text = NEW.format(0, 1)
    assert old in text
    found = [f for f in list_findings(read(text.replace(old, new))) if "placeholder" in f.what]
    assert [(f.severity, f.about) for f in found] == ([("warning", about)] if about else [])
    assert all("counted as 2.5 GT/s x1" in f.message for f in found)


@pytest.mark.parametrize(("port", "is_slow"), [("1.2", True), ("0.1", False)])
def test_a_placeholder_matters_to_a_nic_that_is_faster(port: str, is_slow: bool) -> None:
    nic = f"+ PCI[0.2] - NIC/0-35000\n              + NET[{port}] - NET/0-0 (0/1/1/{port}00000)\n"
    found = list_findings(read(NEW.format(0, 1) + nic))
    assert [f.about for f in found if f.what == "placeholder-pcie"] == [("nic-0-35000",)] * is_slow


@pytest.mark.parametrize(
    ("text", "kept", "outside"), [(OLD, 9, ["CPU/0-1", "GPU/0-47000"]), (DEVS, 7, ["DEV/0-1b000"])]
)
def test_links_to_devices_below_the_cut_are_noted(text: str, kept: int, outside: list[str]) -> None:
    def find_ends(lines: list[str]) -> list[str]:
        notes = " ".join(str(note) for note in read("".join(lines)).notes)
        return sorted(re.findall(r"a link leads to (\S+), which NCCL's graph does not list", notes))

    assert find_ends(text.splitlines(True)) == []
    assert find_ends(text.splitlines(True)[:kept]) == outside


def test_hosts_whose_graphs_have_the_same_ranks_are_noted() -> None:
    def find_notes(second: tuple[int, int]) -> list[str]:
        text = write(NEW.format(0, 1), "a") + write(NEW.format(*second), "b")
        return [str(note) for note in read(text).notes if "the same ranks" in str(note)]

    assert find_notes((2, 3)) == []
    (note,) = find_notes((0, 1))
    assert note.startswith("a, b: ")


@pytest.mark.skipif(not has_extra("pasted"), reason="no extra pasted")
def test_what_else_describes_a_machine_in_a_text_is_noted() -> None:
    matrix = "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"
    xml = (
        '<system version="1">\n<cpu numaid="0" affinity="ff" arch="x86_64">\n'
        '<pci busid="0000:01:00.0" class="0x030000" link_speed="16.0 GT/s" link_width="16">\n'
        '<gpu dev="0" sm="80" rank="0" gdr="1"/>\n</pci>\n</cpu>\n</system>\n'
    )
    for text, left in (
        (matrix + NEW.format(0, 1), "a log of NCCL"),
        (matrix + "```xml\n" + xml + "```\n", "text of nvidia-smi"),
        (xml, None),
        (matrix, None),
    ):
        notes = [str(note) for note in read(text).notes if "the text also has" in str(note)]
        assert [left in note for note in notes if left] == [True] * (left is not None)
        assert bool(notes) is (left is not None)


def test_names_of_another_form_are_not_read_in_part() -> None:
    with pytest.raises(InputError, match="lists no GPU"):
        read_topology_text(OLD.replace("GPU/4", "GPU/0-0-4") + END, "log")
