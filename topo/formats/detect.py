"""Tell which format a text is in, from the text itself, and read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputError
from ..graph import Topology
from . import amd_smi, hwloc_xml, nccl_xml, smi
from .refused import explain_anywhere, explain_at_start

if TYPE_CHECKING:
    from .clusters import Box

_BEFORE_THE_ROOT = re.compile(r"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*", re.DOTALL)
_SNIFF_CHARACTERS = 64 * 2**10


@dataclass(frozen=True)
class Format:
    """A format: its `name` in messages, a test of how its texts start, and its reader."""

    name: str
    starts: Callable[[str], bool]
    read: Callable[[str, str], Topology]


def _match_opening(pattern: str) -> Callable[[str], bool]:
    """Return a test of whether a text begins with a pattern."""
    compiled = re.compile(pattern)
    return lambda start: compiled.match(start) is not None


# Formats that are understood, in the order in which they are tried.
FORMATS = (
    Format("topoplan's JSON (starts with {)", _match_opening(r"\{"), Topology.loads),
    Format(
        "hwloc's XML (starts with <topology)",
        _match_opening(r"<(?:topology\b|!DOCTYPE\s+topology\b)"),
        hwloc_xml.read,
    ),
    Format(
        "NCCL's or RCCL's XML (starts with <system)",
        _match_opening(r"<(?:system\b|!DOCTYPE|!ENTITY)"),
        nccl_xml.read,
    ),
    Format("text of rocm-smi --showtopo or amd-smi topology", amd_smi.looks_like, amd_smi.read),
    Format("text of nvidia-smi topo or nvidia-smi nvlink", smi.looks_like, smi.read),
)


def read_topology_text(text: str, where: str, box: Box | None = None) -> Topology:
    """Return the topology in `text`, whatever format it is in; `where` names the file in errors
    (InputError).

    `box` is what each host is, of formats that only say where hosts are.
    """
    if not text.strip("\ufeff \t\r\n"):
        raise InputError(f"{where}: the file is empty; expected {_list_formats()}")
    from .clusters import read_cluster  # when a file is read: presets and this machine do without

    cluster = read_cluster(text, where, box)
    if cluster is not None:
        return cluster
    text = text.removeprefix("\ufeff")
    skipped = _BEFORE_THE_ROOT.match(text[:_SNIFF_CHARACTERS])
    start = text[skipped.end() if skipped else 0 :]
    refusal = explain_at_start(start)
    if refusal is None:
        for format in FORMATS:
            if format.starts(start):
                return format.read(text, where)
        refusal = explain_anywhere(text)
    if refusal is not None:
        raise InputError(f"{where}: {refusal}")
    raise InputError(
        f"{where}: not a format that is understood (it starts with {start[:30]!r}); expected "
        f"{_list_formats()}"
    )


def _list_formats() -> str:
    """Return the names of the formats for a message."""
    from .clusters import CLUSTER_FORMATS

    return " or ".join(format.name for format in (*FORMATS, *CLUSTER_FORMATS))
