"""Logs of NCCL 2.30: rings by PCI address, starts that fail, and the health of a fabric."""

from __future__ import annotations

from pathlib import Path

import pytest
from nccl_samples import GRAPH, HEADER, row, sign

from topoplan.synth.extras.judge.file_contents import FileContents
from topoplan.synth.extras.judge.machine import Machines, is_topology_file
from topoplan.synth.extras.judge.readers.detect import read_text
from topoplan.topo.errors import InputError

BUSES = ("b000", "1b000", "e000", "1e000")
FOUND = """\
Pattern 4, crossNic 0, nChannels 2, bw 24.000000/24.000000, type XGMI/PIX, sameChannels 0
 0 : GPU/0-b000 GPU/0-e000 GPU/0-1e000 GPU/0-1b000
 1 : GPU/0-b000 GPU/0-1b000 GPU/0-1e000 GPU/0-e000
Pattern 1, crossNic 0, nChannels 1, bw 24.000000/24.000000, type XGMI/PIX, sameChannels 0
 0 : GPU/0-e000 GPU/0-b000 GPU/0-1b000 GPU/0-1e000
"""


def start(rank: int, bus: str, ranks: int = 4) -> str:
    place = f"comm 0x5{rank} rank {rank} nranks {ranks} cudaDev {rank} nvmlDev {rank} busId {bus}"
    return sign(rank, f"ncclCommInitRank {place} commId 0x1b - Init START")


def write(text: str, rank: int = 3) -> str:
    return "".join(sign(rank, line) for line in text.splitlines())


def read(text: str) -> FileContents:
    return read_text(text, "file")


def test_rings_of_the_search_are_read_by_pci_address() -> None:
    starts = "".join(start(rank, bus) for rank, bus in enumerate(BUSES))
    (c,) = read(starts + write(FOUND)).communicators
    assert c.rings == ((0, 2, 3, 1), (0, 1, 3, 2)) and c.ranks == 4
    # The rings of the channels are those in use.
    (c,) = read(starts + write(FOUND + "Channel 00/01 :    0   1   2   3")).communicators
    assert c.rings == ((0, 1, 2, 3),)


def test_without_ranks_the_order_of_addresses_is_taken_with_a_note() -> None:
    contents = read(write(FOUND))
    (c,) = contents.communicators
    assert c.rings == ((0, 1, 3, 2), (0, 2, 3, 1))
    assert [place.bus for place in c.locations.values()][:2] == ["0000:0b:00.0", "0000:0e:00.0"]
    assert any("order of their PCI addresses" in note for note in contents.notes)


def test_rings_by_rank_are_those_of_older_versions() -> None:
    (c,) = read(
        write(
            FOUND.replace("0-b000", "0")
            .replace("0-1b000", "1")
            .replace("0-e000", "2")
            .replace("0-1e000", "3")
        )
    ).communicators
    assert c.rings == ((0, 2, 3, 1), (0, 1, 3, 2))


WARNED = "node07:1:1 [0] graph/xml.h:180 NCCL WARN Error : too many XML nodes (max 256)\n"
TRACE = sign(0, "graph/topo.cc:900 -> 3") + sign(0, "init.cc:1200 -> 3")


@pytest.mark.parametrize("after", ["", TRACE, TRACE + sign(0, "comm 0x5 - Abort COMPLETE")])
def test_a_start_that_fails_is_said_with_its_line(after: str) -> None:
    early = "node07:1:1 [0] misc/cudawrap.cc:90 NCCL WARN something early\n"
    text = "NCCL version 2.30.4+cuda13.0\n" + start(0, "53000", 8)
    with pytest.raises(
        InputError, match=r"the start failed: line 3: graph/xml.h:180 NCCL WARN Err"
    ):
        read(text + WARNED + after)
    with pytest.raises(InputError, match=r"failed: line 5: graph/xml.h:180"):
        read(text + early + sign(0, "Using network IB") + WARNED + after)


def test_a_warning_after_which_the_log_goes_on_is_no_failure() -> None:
    text = start(0, "53000", 8) + WARNED + sign(0, "Using network IB")
    with pytest.raises(InputError, match="the log is cut"):
        read(text)
    with pytest.raises(InputError, match="without the lines of INIT and GRAPH"):
        read(WARNED)  # alone it may be from any part of a log


def test_a_start_that_fails_after_its_rings_is_a_finding() -> None:
    starts = "".join(start(rank, bus) for rank, bus in enumerate(BUSES))
    contents = read(starts + write(FOUND) + WARNED + TRACE)
    assert "start-failed" in {finding.name for finding in contents.findings}


def fabric(state: int, mask: str, bus: str = "0x901000") -> str:
    said = f"MNNVL busId {bus} fabric UUID 0.0 cliqueId 0x7ffe state {state} healthMask {mask}"
    return sign(0, said)


def test_a_healthy_fabric_is_said_where_the_log_has_nothing_else() -> None:
    with pytest.raises(InputError) as caught:
        read(fabric(3, "0xaa") + fabric(3, "0xaa", "0x801000"))
    said = str(caught.value)
    assert "without the lines of INIT and GRAPH" in said
    assert "fabric of 2 GPUs is registered, healthMask 0xaa: healthy, so a fault is" in said


@pytest.mark.parametrize(
    ("state", "mask", "name", "says"),
    [
        (3, "0xa9", "fabric-unhealthy", "degraded bandwidth (healthMask 0xa9)"),
        (3, "0x99", "fabric-unhealthy", "degraded bandwidth, unhealthy routes"),
        (2, "0x0", "fabric-not-completed", "in progress (state 2)"),
    ],
)
def test_a_fabric_that_is_not_well_is_a_finding(
    state: int, mask: str, name: str, says: str
) -> None:
    (finding,) = read(fabric(state, mask)).findings
    assert finding.name == name and says in finding.message and finding.advice


SYSTEM = """\
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="191" modelid="2">
    <pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="86" rank="0" gdr="1"/>
    </pci>
    <pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="86" rank="1" gdr="1"/>
    </pci>
  </cpu>
</system>
"""
FENCED = f"The topology:\n```xml\n{SYSTEM}```\n"


def test_a_dump_in_a_fence_is_read_with_the_topology_beside_it(tmp_path: Path) -> None:
    dump = GRAPH.format('<gpu dev="0"/><gpu dev="1"/>')
    contents = read(f"{FENCED}and the graph:\n```\n{dump}\n```\n")
    assert contents.communicators[0].rings and contents.machine is not None
    assert Machines(None, []).find(contents).source == "the topology in the file"
    with pytest.raises(InputError, match="a topology, which says what the machine is"):
        read(FENCED)
    for text, expected in ((FENCED, True), (SYSTEM, True), (FENCED + HEADER, False)):
        (tmp_path / "file.md").write_text(text)
        assert is_topology_file(str(tmp_path / "file.md")) is expected


def test_a_table_beside_a_topology_is_judged_on_it() -> None:
    contents = read(FENCED + HEADER + row(1 << 30, 10, 10))
    assert contents.machine is not None and len(contents.machine.ranks) == 2
    assert {m.algbw_GBps for m in contents.measurements} == {10}
