"""Name what other tools print, where it does not say how GPUs are joined, and what to give
instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SNIFF_CHARACTERS = 256 * 2**10
_TOPO = "give nvidia-smi topo -m of the machine, or run topo-probe on it"


@dataclass(frozen=True)
class OtherText:
    """A text that is refused: how it is told, what it is, and what to give instead."""

    pattern: re.Pattern[str]
    name: str
    instead: str


def _describe(pattern: str, name: str, instead: str) -> OtherText:
    return OtherText(re.compile(pattern, re.MULTILINE), name, instead)


_AT_THE_START = (
    _describe(
        r"<(?:!DOCTYPE\s+)?nvidia_smi_log\b",
        "the output of nvidia-smi -q -x: GPUs, but not what joins them",
        _TOPO,
    ),
    _describe(
        r"<graphs\b",
        "a graph file: rings and trees that NCCL found (NCCL_GRAPH_DUMP_FILE), not the machine",
        "give the machine (NCCL_TOPO_DUMP_FILE); topo-judge compares the two",
    ),
    _describe(
        r"Machine \(", "lstopo's text for people", "expected its XML: run lstopo machine.xml"
    ),
    _describe(
        r"\[\s*\{",
        "a list in JSON, as amd-smi topology --json prints",
        "give the text of amd-smi topology",
    ),
)
# Lines that no format which is read has, wherever in a text they stand.
_ANYWHERE = (
    _describe(r"\bNCCL (?:INFO|WARN|ERROR|TRACE)\b|^NCCL version \d", "a log of NCCL or RCCL",
              "give the file of NCCL_TOPO_DUMP_FILE; topo-judge reads the log beside it"),
    _describe(r"^=+\s*NVSMI LOG\s*=+", "the output of nvidia-smi -q: GPUs, but not what joins "
                                       "them", _TOPO),
    _describe(r"^\| NVIDIA-SMI \d", "nvidia-smi's table of GPUs, which does not say what joins "
                                    "them", _TOPO),
    _describe(r"^GPU \d+: .{1,200}\(UUID: ", "the output of nvidia-smi -L: GPUs, but not what "
                                             "joins them", _TOPO),
    _describe(r"^hca_id:\s", "the output of ibv_devinfo: NICs, but no GPUs", _TOPO),
    _describe(r"^CA '[\w.-]+'$", "the output of ibstat: NICs, but no GPUs", _TOPO),
    _describe(
        r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (?:[A-Z\"]|[0-9a-f]{4}: )|^-\+?-?\[[0-9a-f]{4}:[0-9a-f]{2}",
        "the output of lspci: PCI functions without NVLinks and NUMA nodes",
        "run topo-probe on the machine, or copy its /sys and /proc into a folder and give that",
    ),
    _describe(r"^#\s+nThread \d|^# nccl-tests", "a table of nccl-tests", "give the machine; "
                                                                         "topo-judge reads this"),
    _describe(r"^ROCk module|^HSA Agents", "the output of rocminfo", "give rocm-smi --showtopo or "
                                                                     "amd-smi topology"),
    _describe(
        r"^=+ ROCm System Management Interface =+|^\| AMD-SMI \d",
        "AMD's table of GPUs, which does not say what joins them",
        "give rocm-smi --showtopo or amd-smi topology",
    ),
    _describe(r"^available: \d+ nodes|^Architecture:\s", "CPUs and NUMA nodes, but no GPUs", _TOPO),
)  # fmt: skip


def explain_at_start(start: str) -> str | None:
    """Return why a text that begins like this is no topology, and what to give; None where it may
    be one.
    """
    return next((f"{o.name}; {o.instead}" for o in _AT_THE_START if o.pattern.match(start)), None)


def explain_anywhere(text: str) -> str | None:
    """Return the same for a text that no reader knows, by any of its lines."""
    head = text[:_SNIFF_CHARACTERS]
    return next((f"{o.name}; {o.instead}" for o in _ANYWHERE if o.pattern.search(head)), None)
