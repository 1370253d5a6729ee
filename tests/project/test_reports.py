"""Texts from public reports that were misread or refused: what the commands answer now.

Each text is one that people posted; what is checked is the fact that had come out wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from called import call_command

PROBE, JUDGE, SYNTH = "probe", "judge", "synth"


@pytest.mark.parametrize(
    ("command", "name", "options", "said", "unsaid"),
    [
        (JUDGE, "01-table-row-cut.txt", (), ["23.23     11.62", "22.2"], ["387", "e+05"]),
        (PROBE, "02-loc-graph.log", (), ["0000:0b:00.0", "GPU0 X        XGMI1 24"], []),
        pytest.param(  # long
            *(JUDGE, "02-loc-graph.log", (), ["communicator of 4 ranks: 2 rings"]),
            ["neither whole"],
            marks=pytest.mark.long,
        ),
        (PROBE, "02b-loc-graph-nvs.txt", (), ["164.8", "in the order of their PCI"], []),
        (PROBE, "03-hwloc-vga.xml", (), ["2 ranks"], ["assumed for the others"]),
        (PROBE, "04-hwloc-b200.xml", (), ["B200 boards have 18 NVLinks"], []),
        (SYNTH, "04-hwloc-b200.xml", ("--bound-only",), ["if its GPUs have no other NVLinks"], []),
        (SYNTH, "05-two-sockets-gen5.txt", ("--bound-only",), ["if the link between"], ["19.2"]),
        (JUDGE, "06-log-ends-in-warn.log", (), ["line 4", "too many XML nodes"], ["whole log"]),
        (PROBE, "07-bridged-offer.txt", ("--check",), ["no graph file"], ["give NCCL"]),
        (PROBE, "08-fenced-xml.md", (), ["2 ranks", "PHB 48"], []),
        (JUDGE, "09-fall-in-place.txt", (), ["allreduce in place falls"], []),
        (PROBE, "10-ibnetdiscover.out", ("--box", "dgx1"), ["ibnetdiscover", "topograph"], []),
        (PROBE, "10-ibnetdiscover.out", (), ["ibnetdiscover", "topograph"], []),
        (PROBE, "11-seven-of-eight.txt", ("--check",), ["boards of B300 have 8"], []),
        (PROBE, "12-said-x8.md", (), ["PHB 24", "as line 2 says"], ["PHB 48"]),
        (PROBE, "13-hwloc-idle-link.xml", (), ["PHB 24", "at rest"], ["PHB 1.5"]),
        (JUDGE, "14-nccl_alltoall.log", (), ["alltoall on 8 ranks"], ["allgather"]),
        (PROBE, "15-nic-legend.txt", (), ["rocep203s0"], ["rail", "10.0.16"]),
        (PROBE, "16-container-all-sys.txt", (), ["containers", "sockets        1 "], ["cpu2"]),
        (PROBE, "16b-one-socket-snc.txt", (), ["cpu0"], ["cpu1"]),
        (JUDGE, "17-gather-table.txt", (), ["gather"], ["broadcast"]),
        (JUDGE, "18-mnnvl-health.log", (), ["INIT and GRAPH", "0xaa: healthy"], []),
        (PROBE, "19-amd-cut-after-weight.txt", (), ["XGMI1", "text is cut"], []),
    ],
)  # fmt: skip
def test_a_report_is_read_as_it_was_meant(
    command: str,
    name: str,
    options: tuple[str, ...],
    said: list[str],
    unsaid: list[str],
    more_inputs: Callable[[str], Path],
) -> None:
    file = str(more_inputs(f"reports/{name}"))
    asked = ("allreduce", file) if command == SYNTH else (file,)
    ended = call_command(command, *asked, *options)
    output = (ended.stdout + ended.stderr).replace(file, "")
    assert [text for text in said if text not in output] == []
    assert [text for text in unsaid if text in output] == []
