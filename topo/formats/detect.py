"""Detect the format of a text from its content, and read it.

Output of other tools that does not describe connections between GPUs is refused by name; the
message says what to give instead. Formats are the core's and those of extras, the optional parts of
topoplan (extras.py at the root). Files of clusters only say which switch each host is below; a box,
what one host contains, completes them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...extras import ASIDES, BOXES, FORMATS, Names
from ..errors import InputError, TopoplanError
from ..graph import Topology
from . import nccl_xml, smi
from .format import Aside, Format, PlaceFormats
from .pasted import find_xml

log = logging.getLogger("topoplan")

# An XML declaration and comments before the root element.
_PROLOGUE = re.compile(r"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*", re.DOTALL)
# Bound the time that patterns take on a hostile text.
_PROLOGUE_CHARACTERS = 64 * 2**10
# Headings of other tools are near the start, but logs may begin with other output.
_REFUSED_CHARACTERS = 256 * 2**10


def _is_own_json(start: str) -> bool:
    """Return whether a text is topoplan's JSON, not an object that has a tool's output in it."""
    return start.startswith("{") and (
        '"devices"' in start
        or not any(format.in_json and format.starts(start) for format in list_formats().values())
    )


# The formats of the core, in the order in which they are tried: each after those of extras that
# come `before` it, and the other ones of extras after all.
_OWN = {
    "json": Format("topoplan's JSON (starts with {)", _is_own_json, Topology.loads),
    "nccl-xml": Format(
        "NCCL's or RCCL's XML (starts with <system)",
        re.compile(r"<(?:system\b|!DOCTYPE|!ENTITY)").match,
        nccl_xml.read,
        root="system",
    ),
    "smi": Format(
        "text of nvidia-smi topo or nvidia-smi nvlink", smi.looks_like, smi.read, in_json=True
    ),
}


def list_formats() -> dict[str, Format]:
    """Return the formats of machines that are read, by name, in the order in which they are tried.

    They are those of the core and of installed extras, without other packages' and without those
    that take a box.
    """
    names = Names(FORMATS)
    added: dict[str, Format] = {name: names.find(name) for name in names.describe()}
    formats: dict[str, Format] = {}
    for own, format in _OWN.items():
        formats |= {name: other for name, other in added.items() if other.before == own}
        formats[own] = format
    return formats | {name: other for name, other in added.items() if not other.before}


# Outermost elements of XML that is refused.
_OTHER_ROOTS = ("graphs", "nvidia_smi_log")
_TOPO = "give nvidia-smi topo -m of the machine, or run topo-probe on it"
_LSTOPO = ("lstopo's text for people", "expected its XML: run lstopo machine.xml")
_GRAPHS = (
    "a graph file: rings and trees that NCCL found (NCCL_GRAPH_DUMP_FILE), not the machine",
    "give the machine (NCCL_TOPO_DUMP_FILE); topo-judge compares the two",
)
# Refused texts: a pattern, a description of the text, and what to give instead. These patterns are
# matched at the start of a text, before any reader is tried ...
_REFUSED_AT_START = (
    (
        r"<(?:!DOCTYPE\s+)?nvidia_smi_log\b",
        "the output of nvidia-smi -q -x: GPUs, but not what joins them",
        _TOPO,
    ),
    (r"<graphs\b", *_GRAPHS),
    (r"Machine \(", *_LSTOPO),
    (
        r"\[\s*\{(?!\s*\"gpu\":)",
        "a list in JSON, but not that of amd-smi topology",
        "give that, or a text",
    ),
)
_CONVERT = (
    "give Slurm's topology.conf or topograph's graph in JSON, which topograph makes of it "
    "(github.com/NVIDIA/topograph), with a box; or a list of hosts and their switches"
)
# ... these on any line of it, since no other format has such lines ...
_REFUSED_NETWORKS = (
    (
        r"^# Topology file: generated on|^(?:switchguid|caguid)=0x[0-9a-f]",
        "the output of ibnetdiscover, which is not read: ports of InfiniBand, but no GPUs",
        _CONVERT,
    ),
    (
        r"^(?:CA|Switch): (?:0x[0-9a-f]{16} )?\S.{0,200}:[ \t\r]*$\n"
        r"\s{1,40}(?:0x[0-9a-f]{16}\s{1,9})?\d{1,5}\s{1,9}\d{1,3}\[",
        "the output of iblinkinfo, which is not read: ports of InfiniBand, but no GPUs",
        _CONVERT,
    ),
    (
        r"^(?:Ca|Switch)\t: 0x[0-9a-f]{16} ports \d",
        "the output of ibhosts or ibswitches, which is not read: it does not say what joins hosts",
        _CONVERT,
    ),
    (
        r"^Matching (?:lldp|topology) records?:"
        r"|\A\s{0,40}[\[{][^\0]{0,400}?"
        r"\"(?:peer_hostname|peerHostname|peer_ifname|compound_nodes|cnode)\"",
        "the output of NetQ, which is not read: switches and their neighbours, but no GPUs",
        _CONVERT,
    ),
    (
        r"^LLDP neighbors:\s{0,9}$",
        "the output of lldpctl, which is not read: neighbours of one host, but no GPUs",
        _CONVERT,
    ),
)
# ... and these on any line of a text that no reader recognizes.
_REFUSED_ANYWHERE = (
    (
        r"\bNCCL INFO {1,80}\+ (?:PCI|SYS|NVL|XGMI)\[\d[\d.]{0,20}\] - [A-Z]{3}/",
        "a part of NCCL's graph, without its beginning",
        "give it from === System to =====, or the file of NCCL_TOPO_DUMP_FILE",
    ),
    (
        r"\bNCCL (?:INFO|WARN|ERROR|TRACE)\b|^NCCL version \d",
        "a log of NCCL or RCCL",
        "give the file of NCCL_TOPO_DUMP_FILE; topo-judge reads the log beside it",
    ),
    (
        r"^=+\s*NVSMI LOG\s*=+",
        "the output of nvidia-smi -q: GPUs, but not what joins them",
        _TOPO,
    ),
    (
        r"^[ \t>]{0,40}\|(?: NVIDIA-SMI \d"
        r"|\s{1,6}\d{1,3}\s{1,4}(?:NVIDIA|Tesla|GeForce|Quadro) [^|]{2,50}\|)",
        "nvidia-smi's table of GPUs, which does not say what joins them",
        _TOPO,
    ),
    (
        r"^[ \t>|]{0,40}(?:GPU Link Info|\| GPU ID: \d+ +\| Topology Information +\|)[ \t\r]*$",
        "a part of nvidia-smi -q, or the output of dcgmi topo: neither tells the whole machine",
        _TOPO,
    ),
    (
        r"^The GPUs that have an affinity with CPU \d"
        r"|Device \d+ is connected (?:to device \d+ )?by way of ",
        "the output of nvidia-smi topo -c, -n or -p, which tells of some GPUs only",
        _TOPO,
    ),
    (
        r"^\W{0,40}Peer access from .{1,200} : (?:Yes|No)\b|\bDevice=\d+ CAN(?:NOT)? Access Peer ",
        "what CUDA's samples say of P2P, but not what joins the GPUs",
        f"{_TOPO}; the samples' lines count beside it",
    ),
    (
        r"^GPU \d+: .{1,200}\(UUID: ",
        "the output of nvidia-smi -L: GPUs, but not what joins them",
        _TOPO,
    ),
    (r"^[ \t>|]{0,120}<graphs? (?:version|id)=\"", *_GRAPHS),
    (
        r"^[ \t>|]{0,120}<(?:cpu (?:host_hash|numaid)|pci busid|gpu dev|nvlink target)=\"",
        "a part of NCCL's XML, without the <system> around it",
        "give the whole file of NCCL_TOPO_DUMP_FILE",
    ),
    (
        r"^[ \t>|]{0,120}(?:(?:Package|NUMANode|(?:Host|PCI)Bridge|PCI|L3(?:Cache)?) L#\d"
        r"|Machine \((?:P#)?\d)",
        *_LSTOPO,
    ),
    (r"^\w+ port \d+ ==> \S+ \(", "the output of ibdev2netdev: NICs, but no GPUs", _TOPO),
    (r"^hca_id:\s", "the output of ibv_devinfo: NICs, but no GPUs", _TOPO),
    (r"^CA '[\w.-]+'$", "the output of ibstat: NICs, but no GPUs", _TOPO),
    (
        r"^[ \t>#]{0,20}#bytes\s{1,20}#iterations\s",
        "the output of perftest (ib_write_bw): the rate of one NIC, but no GPUs",
        _TOPO,
    ),
    (
        r"^[ \t>]{0,40}(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] "
        r"(?:[A-Z\d][^:\n]{1,60}: |\"|[0-9a-f]{4}: )"
        r"|^-\+?-?\[[0-9a-f]{4}:[0-9a-f]{2}",
        "the output of lspci: PCI functions without NVLinks and NUMA nodes",
        "run topo-probe on the machine, or copy its /sys and /proc into a folder and give that",
    ),
    (
        r"^#\s+nThread \d|^# nccl-tests",
        "a table of nccl-tests",
        "give the machine; topo-judge reads this",
    ),
    (
        r"^\W*OSU (?:MPI|NCCL|RCCL)\S* [A-Z][\w /-]+ Test\b"
        r"|bandwidth of all_reduce (?:over|with a) \d",
        "a table of OSU's micro-benchmarks or of all_reduce_bench.py",
        "give the machine; topo-judge reads this",
    ),
    (
        r"^ROCk module|^HSA Agents",
        "the output of rocminfo",
        "give rocm-smi --showtopo or amd-smi topology",
    ),
    (
        r"^=+ ROCm System Management Interface =+|^\| AMD-SMI \d",
        "AMD's table of GPUs, which does not say what joins them",
        "give rocm-smi --showtopo or amd-smi topology",
    ),
    (
        r"^[ \t>|]{0,40}(?!GPU\d)[A-Z][A-Za-z]{1,9} ?\d{1,3}(?:/\d{1,2})?"
        r"(?:[ \t|]{1,40}(?:X|S|OK|PIX|PXB|PHB|NODE|SYS|HCCS\w{0,4}|MDF|[A-Z]{2,4}\d{1,2})"
        r"(?=[ \t|])){2}",
        "a matrix of devices that neither nvidia-smi nor AMD's tools print (NPUs, or other makers' "
        "GPUs), which are not read",
        "give nvidia-smi topo -m, rocm-smi --showtopo or amd-smi topology",
    ),
    (r"^available: \d+ nodes|^Architecture:\s", "CPUs and NUMA nodes, but no GPUs", _TOPO),
)


def read_topology_text(text: str, where: str, box: Any = None) -> Topology:
    """Read a topology from `text`, whatever its format; `where` names the file in errors.

    Formats of clusters say only which switch each host is below: `box` is what every host contains,
    as their `read_box` reads it, None for all other formats. Formats of other packages are tried
    for texts that nothing here reads. Raise InputError for a text in no known format, for one that
    the format's reader refuses, and for a box that is missing or not wanted.
    """
    try:
        return _read_own(text, where, box)
    except _NotReadError:
        other = _find_other(text)
        if other is None:
            raise
    return other.read(text, where)


class _NotReadError(InputError):
    """Why no format here reads a text."""


def _find_other(text: str) -> Format | None:
    """Return the format of another package in which a text is, None if there is none."""
    names, start = Names(FORMATS), _skip_prologue(text.removeprefix("\ufeff"))
    for name in names.list_others():
        try:
            format: Format = names.find(name)
        except TopoplanError as error:  # which must not hide why the text is refused
            log.warning("%s; its format is left out", error)
        else:
            if format.starts(start):
                return format
    return None


def _read_own(text: str, where: str, box: Any) -> Topology:
    """Read a text in a format of the core or an extra; see `read_topology_text`."""
    formats, places = list_formats(), _list_places()
    names = " or ".join(
        [*(x.name for x in formats.values()), *(name for x in places for name in x.list_names())]
    )
    if not text.strip("\ufeff \t\r\n"):
        raise InputError(f"{where}: the file is empty; expected {names}")
    head = text[:_REFUSED_CHARACTERS]
    _refuse(_REFUSED_NETWORKS, lambda pattern: re.search(pattern, head, re.MULTILINE), where)
    for place in places:
        if (cluster := place.read(text, where, box)) is not None:
            return cluster
    text = text.removeprefix("\ufeff")
    roots = [format.root for format in formats.values() if format.root]
    pasted = None if _is_bare(text, roots) else find_xml(text, *roots)
    whole = text
    if pasted is not None and pasted.is_whole:
        text = pasted.text
    start = _skip_prologue(text)
    _refuse(_REFUSED_AT_START, lambda pattern: re.match(pattern, start), where)
    asides = _list_asides()
    if start.startswith("{"):
        _refuse_asides([aside for aside in asides if aside.mark in text], start, where)
    for name, format in formats.items():
        if format.starts(start):
            return _note_left_out(format.read(text, where), name, whole)
    if pasted is not None:  # cut off, which the reader says with its line
        return _read_own(pasted.text, where, None)
    for format in formats.values():
        if format.find_inside is not None and (inside := format.find_inside(text)) is not None:
            return format.read(inside, where)
    _refuse_asides(asides, text, where)
    _refuse(_REFUSED_ANYWHERE, lambda pattern: re.search(pattern, head, re.MULTILINE), where)
    raise _NotReadError(
        f"{where}: the format is not recognized (the text starts with {start[:30]!r}); expected "
        f"{names}{_list_missing()}"
    )


def find_place_formats(name: str) -> PlaceFormats:
    """Return the formats that an extra adds for files of clusters, which take a box.

    `name` is that of the parameter that names the box: "box". Raise InputError if the extra is not
    installed.
    """
    found: PlaceFormats = Names(BOXES).find(name)
    return found


def _list_places() -> list[PlaceFormats]:
    return [find_place_formats(name) for name in Names(BOXES).describe()]


def _list_asides() -> list[Aside]:
    names = Names(ASIDES)
    return [names.find(name) for name in names.describe()]


def _list_missing() -> str:
    """Return which extras that read other formats are not in this copy, as the end of an error."""
    missing = [
        names.explain_missing(name)
        for names in map(Names, (FORMATS, BOXES))
        for name in names.list_all()
        if name not in names.describe()
    ]
    return "".join(f"; {why}" for why in dict.fromkeys(missing))


def _note_left_out(topology: Topology, name: str, whole: str) -> Topology:
    """Note what else in the whole text describes a machine, this one or another.

    `name` is that of the text's format; only formats that are tried after it are looked for. JSON
    has one alone.
    """
    if whole.lstrip().startswith(("{", "[")):
        return topology
    formats = list_formats()
    format, names = formats[name], [*formats]
    left = [
        formats[other].name
        for other in names[names.index(name) + 1 :]
        if formats[other].read is not format.read
        and other not in format.like
        and formats[other].starts(whole)
    ]
    notes = [
        f"the text also has {' and '.join(left)}, which is left out: {format.name} counts; if it "
        "is of another machine, give topo-probe a file for each"
    ] * bool(left)
    notes += [
        f"the text also has {what}; left out here"
        for aside in _list_asides()
        if (what := aside.describe(whole)) is not None
    ]
    if not notes:
        return topology
    return replace(topology, extra={**topology.extra, "notes": [*topology.notes, *notes]})


def _is_bare(text: str, roots: Sequence[str]) -> bool:
    """Return whether a text is JSON, or XML without other text around it."""
    bare = rf"[{{[]|<(?:!|(?:{'|'.join((*roots, *_OTHER_ROOTS))})\b)"
    return re.match(bare, _skip_prologue(text)) is not None and text.rstrip().endswith(
        ("}", "]", ">")
    )


def _skip_prologue(text: str) -> str:
    skipped = _PROLOGUE.match(text[:_PROLOGUE_CHARACTERS])
    return text[skipped.end() if skipped else 0 :]


def _refuse_asides(asides: Sequence[Aside], text: str, where: str) -> None:
    for aside in asides:
        if (what := aside.describe(text)) is not None:
            raise InputError(f"{where}: {what}; {_TOPO}")


def _refuse(
    texts: tuple[tuple[str, str, str], ...], matches: Callable[[str], object], where: str
) -> None:
    for pattern, name, instead in texts:
        if matches(pattern):
            raise _NotReadError(f"{where}: {name}; {instead}")
