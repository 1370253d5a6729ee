"""The parts of a text that nvidia-smi printed: matrices of `topo`, sections of `nvlink`, legends; the rest is passed over.

Every vintage is read: tabs, spaces or both, device columns under any name, affinity columns or none, underlined headings,
prompts and prose around. Nothing is made of the words here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ...errors import InputError

MAX_COLUMNS = 512
MAX_LINES = 100_000
"""Matrices of more devices than this are refused: no machine has as many."""

MAX_TABLES = 64
"""A text with more matrices is refused; a machine has one, and six of `-p2p`."""

_MAX_LINE = 256 * 2**10
_SNIFF_CHARACTERS = 2**20

CPU, NUMA, GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
GPU_NAME = re.compile(r"GPU(\d{1,6})")
_COLUMNS = (
    (CPU, re.compile(r"CPU\s+Affinity")),
    (GPU_NUMA, re.compile(r"GPU\s+NUMA\s+ID")),
    (NUMA, re.compile(r"(?:NUMA|Memory)\s+Affinity")),
)
_MARK = {CPU: "\x00c", NUMA: "\x00n", GPU_NUMA: "\x00g"}
_COLUMN_OF = {mark: column for column, mark in _MARK.items()}
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]")
_MARK_UP = re.compile(r"[ \t]{0,40}(?:>|//|#|\*|\|)[ \t]?")  # a quote, a comment, a list, a table
_BEFORE_HEADING = re.compile(r"[^|]{0,200}?(?:topo -m|`)(?=\s{1,80}GPU\d)")  # a prompt or a quote on the heading's line
_LABEL = re.compile(r"X|[A-Z][A-Z0-9]{0,15}#?")
_KNOWN_LABEL = re.compile(r"X|(?:NV|XGMI)\d+|PIX|PXB|PHB|NODE|SYS|SOC|C2C|LNK|SW|NET|DIS|OK|CNS|GNS|TNS|NS|DR|U")
_ENDS = ("Legend:", "```")
_WORTH_A_LOOK = re.compile(r"GPU|NIC\d|topo|Link")
_DEVICE = re.compile(r"[A-Za-z][\w.:@-]{0,63}")
_P2P = re.compile(r"-p2p(?:status)?[ \t=]+([a-z]{1,4})\b")
_NIC_LEGEND = re.compile(r"\s{0,40}(NIC\d{1,6}):\s{0,40}(\S.{0,200})")
_GPU_HEAD = re.compile(r"\s{0,40}GPU (\d{1,6}): (.{0,200}?)(?: \(UUID: ([\w-]{1,80})\))?\s{0,40}")
_REMOTE = re.compile(
    r"\s{0,40}Link (\d{1,4}): (?:Remote Device )?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\b.{0,80}"
)
_SPEED = re.compile(
    r"\s{0,40}Link (\d{1,4}): (?:([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s|<?inactive>?)\s{0,40}", re.IGNORECASE
)
_SNIFF = re.compile(
    r"^[ \t>/#*|]{0,40}(?:"
    r"GPU\d{1,6}[ \t|]{1,40}(?:GPU\d{1,6}\b|CPU[ \t]+Affinity|NUMA[ \t]+Affinity)"
    r"|GPU\d{1,6}[ \t|]{1,40}(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|DR|U)(?=[ \t|\r]|$)"
    r"|GPU \d{1,6}: [^\n]{0,200}\(UUID: [^\n]{0,100}\)\s{0,40}\n[ \t]{1,40}Link \d"
    r"|NVML: Unable to retrieve NVLink information"
    r"|Failed to run topology matrix)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Row:
    """A line of a matrix: a cell a device column (None: not printed), and the affinities by the names of their columns."""

    cells: tuple[str | None, ...]
    affinities: dict[str, str]


@dataclass
class Table:
    """A matrix: the devices of its columns in order, its rows by device, and the flag of `-p2p` if a line before gives it."""

    line: int
    names: tuple[str, ...]
    columns: tuple[str, ...]
    flag: str | None
    rows: dict[str, Row] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)

    @cached_property
    def known(self) -> frozenset[str]:
        """The names of its devices, to look one up in."""
        return frozenset(self.names)


@dataclass
class LinkTable:
    """What `nvidia-smi nvlink` says of a GPU: bus addresses of remote ends (-R), rates in GB/s or None if inactive (-s)."""

    name: str = ""
    uuid: str | None = None
    remote: dict[int, str] = field(default_factory=dict)
    speed: dict[int, str | None] = field(default_factory=dict)


@dataclass
class Parts:
    """All parts of a text; `link_tables` are by GPU index.

    `failed` is the line where nvidia-smi gave the matrix up, `stray` that of the first row of a matrix without a heading.
    """

    tables: list[Table] = field(default_factory=list)
    nics: dict[str, str] = field(default_factory=dict)
    link_tables: dict[int, LinkTable] = field(default_factory=dict)
    failed: int | None = None
    stray: int | None = None


def looks_like(text: str) -> bool:
    """Whether nvidia-smi printed this, or a part of it: a matrix, or the links of a GPU. Looks at the first megabyte."""
    head = text[:_SNIFF_CHARACTERS]
    return "GPU" in head and _SNIFF.search(_plain(head)) is not None


def parts(text: str, where: str) -> Parts:
    """The parts of a text. Raises InputError for more than MAX_COLUMNS devices or MAX_TABLES matrices."""
    found = Parts()
    table: Table | None = None
    link_table: LinkTable | None = None
    flag: str | None = None
    for number, line in _lines(text, where):
        if not _WORTH_A_LOOK.search(line) and (table is None or line.split(maxsplit=1)[0] not in table.known):
            table = None if line.strip() in _ENDS else table
            continue
        flags = _P2P.search(line) if "-p2p" in line else None
        if flags or "topo -m" in line:
            flag = flags.group(1) if flags else None
        if "Failed to run topology matrix" in line:
            found.failed = number
        elif (heading := _heading(line, number, flag, where)) is not None:
            table, link_table, flag = heading, None, None
            found.tables.append(table)
            if len(found.tables) > MAX_TABLES:
                raise InputError(
                    f"{where}: line {number}: more than {MAX_TABLES} matrices; expected one machine in a file"
                )
        elif table is not None and (row := _row(line, table)) is not None:
            name, cells = row
            if name in table.rows:
                table.repeated += [name] if table.rows[name] != cells else []
            else:
                table.rows[name] = cells
        elif named := _NIC_LEGEND.fullmatch(line):
            found.nics.setdefault(named.group(1), " ".join(named.group(2).split()))
        elif gpu := _GPU_HEAD.fullmatch(line):
            link_table = found.link_tables.setdefault(int(gpu.group(1)), LinkTable())
            link_table.name, link_table.uuid = gpu.group(2) or link_table.name, gpu.group(3) or link_table.uuid
            table = None
        elif link_table is not None:
            _link(line, link_table)
        elif found.stray is None and table is None and _SNIFF.match(line):
            found.stray = number
    return found


def _lines(text: str, where: str) -> Iterator[tuple[int, str]]:
    """Lines that may matter, with their numbers, without terminal codes. Raises InputError for more than MAX_LINES."""
    for number, raw in enumerate(text.split("\n"), 1):
        if number > MAX_LINES:
            raise InputError(f"{where}: more than {MAX_LINES} lines; expected what nvidia-smi prints of one machine")
        if len(raw) < 3 or raw.isspace():
            continue
        if len(raw) > _MAX_LINE:
            if _SNIFF.match(_ANSI.sub("", raw[:1000])):
                raise InputError(f"{where}: line {number} has {len(raw)} characters; {_TOO_WIDE}")
            continue
        yield number, _bare(_plain(raw).rstrip("\r"))


def _plain(text: str) -> str:
    """A text without the codes of terminals and the spaces of web pages."""
    text = _ANSI.sub("", text) if "\x1b" in text else text
    return text.replace("\x00", " ").replace("&nbsp;", " ").replace("\xa0", " ")


def _bare(line: str) -> str:
    """A line without the mark that a document begins it with; a row of a table has tabs for its bars."""
    mark = _MARK_UP.match(line)
    if mark is None:
        return line
    inside = line[mark.end() :]
    return inside.rstrip().removesuffix("|").replace("|", "\t") if "|" in mark.group() else inside


_TOO_WIDE = f"a matrix of more than {MAX_COLUMNS} devices is refused, since no machine has as many"


def _heading(line: str, number: int, flag: str | None, where: str) -> Table | None:
    """The table that a heading opens: GPUs first, then other devices, then affinities. None for any other line."""
    before = _BEFORE_HEADING.match(line)
    line = line[before.end() :] if before else line
    start = line.split(maxsplit=2)[:2]
    if not start or not GPU_NAME.fullmatch(start[0]) or _KNOWN_LABEL.fullmatch(start[-1]):
        return None
    for column, pattern in _COLUMNS:
        line = pattern.sub(_MARK[column], line)
    words = line.split()
    names = [word for word in words if word not in _COLUMN_OF]
    columns = tuple(_COLUMN_OF[word] for word in words if word in _COLUMN_OF)
    gpus = sum(GPU_NAME.fullmatch(name) is not None for name in names)
    others = [name for name in names if not GPU_NAME.fullmatch(name)]
    if (
        any(_KNOWN_LABEL.fullmatch(name) or not _DEVICE.fullmatch(name) for name in others)
        or words[: len(names)] != names
    ):
        return None
    numbered = all(re.search(r"\d", name) for name in others)
    if not columns and not (numbered and (gpus > 1 or line[0].isspace())):
        return None
    if len(names) > MAX_COLUMNS:
        raise InputError(f"{where}: line {number} is the head of a matrix of {len(names)} devices; {_TOO_WIDE}")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"{where}: line {number} names {twice[:40]} twice; expected the heading of one matrix")
    return Table(number, tuple(names), columns, flag)


def _row(line: str, table: Table) -> tuple[str, Row] | None:
    """A row of the table, with the device that it is of; None for any other line."""
    words = line.split(maxsplit=2)
    if len(words) < 2 or words[0] not in table.known or not _LABEL.fullmatch(words[1]):
        return None
    wide = len(table.names)
    fields = [cell.strip() for cell in line.lstrip().split("\t")]
    if len(fields) > wide and all(not cell or _LABEL.fullmatch(cell) for cell in fields[1 : wide + 1]):
        cells: list[str | None] = [cell or None for cell in fields[1 : wide + 1]]
        rest = fields[wide + 1 :]
    else:
        rest = line.split()[1:]
        cells = []
        while rest and len(cells) < wide and _LABEL.fullmatch(rest[0]):
            cells.append(rest.pop(0))
    cells += [None] * (wide - len(cells))
    told = [word for word in rest if word]
    columns = table.columns if not rest or rest[0] else table.columns[max(0, len(table.columns) - len(told)) :]
    return words[0], Row(tuple(cells), dict(zip(columns, told, strict=False)))


def _link(line: str, table: LinkTable) -> None:
    if remote := _REMOTE.fullmatch(line):
        table.remote.setdefault(int(remote.group(1)), bus_id(remote.group(2)))
    elif speed := _SPEED.fullmatch(line):
        table.speed.setdefault(int(speed.group(1)), speed.group(2))


def bus_id(text: str) -> str:
    """A PCI address as Linux writes it: `00000000:D5:00.0` is `0000:d5:00.0`."""
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()
