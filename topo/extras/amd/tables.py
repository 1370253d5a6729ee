"""Parse the tables that AMD's tools print, and the NUMA nodes beside them.

The other modules interpret the words. Quoted and commented texts are read, too.
"""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from ...errors import InputError
from ...formats.pasted import clean

# No machine has as many GPUs; every pair becomes a cell of several tables.
MAX_GPUS = 256
# Five tables of 256 rows take some 1,300 lines. The room for other text is chosen.
MAX_LINES = 100_000
# A bandwidth: MB/s of one link, and of all.
RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
TYPE, HOPS, WEIGHT, BANDWIDTH, OTHER = "link type", "hops", "weight", "bandwidth", ""
# Whether the driver lets a GPU reach another's memory.
ACCESS = "access"
# The table of amd-smi xgmi: a link's rate, and what each link has carried.
METRIC = "link metric"

_TITLES = (
    (TYPE, re.compile(r"=+ Link Type between two GPUs =+|LINK TYPE TABLE:")),
    (HOPS, re.compile(r"=+ Hops between two GPUs =+|HOPS TABLE:")),
    (WEIGHT, re.compile(r"=+ Weight between two GPUs =+|WEIGHT TABLE:")),
    (BANDWIDTH, re.compile(r"=+ (?:Numa )?Bandwidth.* =+|NUMA BW TABLE:", re.IGNORECASE)),
    (METRIC, re.compile(r"LINK METRIC TABLE:")),
    (ACCESS, re.compile(r"=+ Link accessibility between two GPUs =+|ACCESS TABLE:", re.IGNORECASE)),
    (OTHER, re.compile(r"=+ .* =+|[A-Z][A-Z -]{2,40} (?:TABLE|STATUS):")),
)
_SNIFF = re.compile(
    r"^[ \t>#$+|]{0,20}(?:=+ (?:Link Type|Hops|Weight|Link accessibility) between two GPUs =+"
    r"|=+ (?:Numa )?Bandwidth =+[ \t]{0,20}\n[ \t>#+|]{0,40}GPU\d"
    r"|(?:LINK TYPE|HOPS|WEIGHT|LINK METRIC|ACCESS|NUMA BW|CACHE COHERANCY|ATOMICS|DMA) TABLE:)",
    re.MULTILINE,
)
# Characters at the start of a text in which its format is detected.
_SNIFF_CHARACTERS = 2**20
_NAME = re.compile(r"GPU\d{1,4}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_NUMA = re.compile(
    r"GPU ?\[?(\d{1,4})\]?\s{0,20}: \(Topology\) Numa (Node|Affinity): (-?\d{1,6})\s{0,20}"
)
# amd-smi xgmi: "GPU0   0000:0c:00.0 32 Gb/s  512 Gb/s      XGMI", also without the domain.
_METRIC_ROW = re.compile(
    r"GPU\d{1,4}\s{1,40}((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s{1,40}"
    r"(?:\d{1,6} Gb/s|N/A)\s{0,40}(?:(\d{1,10}) Gb/s|N/A)\s{0,40}(?:XGMI|PCIE|N/A)",
    re.IGNORECASE,
)
# Versions before ROCm 6.4 print all bits set, 4294967295, for a rate that is not known.
_MAX_RATE_DIGITS = 7
_CARRIED = re.compile(r"N/A|\d{1,20}(?:\.\d{1,6})? [KMGTPE]?B\b")
_MARK_UP = re.compile(r"[ \t]{0,40}(?:[>#+|][ \t]?){0,8}")  # of a quote, a comment or a change


@dataclass
class XgmiMetrics:
    """The table of `amd-smi xgmi`.

    `gpus` maps each GPU, in the table's order, to the MB/s of one link (None if not stated).
    `carried` maps a GPU to what its links to each GPU have read: "N/A" if there is no link.
    """

    gpus: dict[str, int | None] = field(default_factory=dict)
    carried: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class AmdOutput:
    """The tables in a text, and the names and NUMA nodes of the GPUs.

    `names` are those in the tables, GPU0 or a PCI address, in their order. `tables` maps a subject
    (TYPE, HOPS, WEIGHT, BANDWIDTH, ACCESS) and then (row, column), both names, to a cell's text;
    `nodes` maps a GPU's number to its NUMA node, `own_nodes` only if it is printed as such, not as
    an affinity. `times` is how often link types are printed, `types_line` the line of the last
    title above them, 0 without any.
    `metrics` are the rows of amd-smi xgmi, which `parse_tables` turns into tables.
    """

    names: tuple[str, ...] = ()
    tables: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    own_nodes: dict[int, int] = field(default_factory=dict)
    times: int = 1
    types_line: int = 0
    metrics: XgmiMetrics = field(default_factory=XgmiMetrics)

    def get_number_of(self, name: str) -> int:
        """Return a GPU's number: the one in its name, else its index in the tables."""
        return int(name[3:]) if name.upper().startswith("GPU") else self.names.index(name)

    def get_cell(self, table: str, a: str, b: str) -> str:
        """Return a table's text for two GPUs, by name, in either direction; "" if none."""
        cells = self.tables.get(table, {})
        return cells.get((a, b)) or cells.get((b, a)) or ""

    def has_type(self, kind: str) -> bool:
        """Return whether any two GPUs have a link of this type, XGMI or PCIE."""
        cells = self.tables.get(TYPE, {})
        return any(cell.upper() == kind for (a, b), cell in cells.items() if a != b)

    @cached_property
    def has_rates(self) -> bool:
        """Whether the table of bandwidths has any number other than 0."""
        return any(re.search("[1-9]", cell) for cell in self.tables.get(BANDWIDTH, {}).values())

    @cached_property
    def link_GBps(self) -> Fraction:
        """The highest rate of one link in the table of bandwidths, in GB/s; 0 if it has none."""
        cells = self.tables.get(BANDWIDTH, {}).values()
        rates = [int(cell.partition("-")[0]) for cell in cells if RANGE.fullmatch(cell)]
        return Fraction(max(rates, default=0), 1000)

    @property
    def tells_direct(self) -> bool:
        """Whether weights or bandwidths show which GPUs xGMI joins directly."""
        weights = self.tables.get(WEIGHT, {}).values()
        return self.has_rates or any(weight.strip("0") for weight in weights)

    def get_number(self, table: str, a: str, b: str) -> int | None:
        """Return a table's number for two GPUs, by name; None if it has none."""
        text = self.get_cell(table, a, b)
        return int(text) if text.isdecimal() and len(text) < 10 else None


def looks_like(text: str) -> bool:
    """Return whether a text's first megabyte contains a table of rocm-smi or amd-smi."""
    return _SNIFF.search(clean(text[:_SNIFF_CHARACTERS])) is not None


def parse_tables(text: str, where: str) -> AmdOutput:
    """Parse a text into tables, without interpreting them; `where` names the file in errors.

    Raise InputError for more than MAX_LINES lines or MAX_GPUS GPUs, tables of different machines,
    and rows that do not fit their heading.
    """
    output = AmdOutput()
    title = OTHER
    columns: tuple[str, ...] = ()
    for number, raw in enumerate(text.splitlines(), 1):
        if number > MAX_LINES:
            raise InputError(
                f"{where}: more than {MAX_LINES} lines; expected what one machine's tool prints"
            )
        line = _MARK_UP.sub("", raw, count=1).strip(" \t|")
        new_title = next((name for name, pattern in _TITLES if pattern.fullmatch(line)), None)
        if new_title is not None:
            title, columns = new_title, ()
            output.types_line = number if new_title == TYPE else output.types_line
            output.times += new_title == TYPE and TYPE in output.tables
        elif numa := _NUMA.fullmatch(line):
            _add_node(output, numa, f"{where}: line {number}")
        elif title == METRIC:
            _parse_metric(output.metrics, line)
        elif title and line:
            columns = _parse_line(output, title, columns, line.split(), f"{where}: line {number}")
    if output.metrics.gpus:
        _add_metrics(output, where)
    return output


def _add_node(output: AmdOutput, numa: re.Match[str], where: str) -> None:
    """Add a GPU's NUMA node; its affinity counts if no node is printed.

    Raise InputError for a node that differs from one that was printed before.
    """
    gpu, node = int(numa[1]), int(numa[3])
    if numa[2] == "Affinity":
        output.nodes.setdefault(gpu, node)
    elif output.own_nodes.setdefault(gpu, node) == node:
        output.nodes[gpu] = node
    else:
        raise InputError(
            f"{where}: the NUMA node of GPU{gpu} is {node}, and {output.own_nodes[gpu]} before; "
            "expected one machine in a file, as the tool printed it"
        )


def _parse_metric(metrics: XgmiMetrics, line: str) -> None:
    """Add a row of amd-smi xgmi: a GPU's, or that of what its links have read."""
    if row := _METRIC_ROW.fullmatch(line):
        address = row[1].lower()
        name = address if address.count(":") > 1 else f"0000:{address}"
        # Gb/s of one link in one direction
        is_rate = row[2] and len(row[2]) <= _MAX_RATE_DIGITS
        metrics.gpus[name] = int(row[2]) * 125 if is_rate else None
    elif line.startswith("Read") and metrics.gpus:
        metrics.carried.setdefault(list(metrics.gpus)[-1], _CARRIED.findall(line))


def _add_metrics(output: AmdOutput, where: str) -> None:
    """Turn the rows of amd-smi xgmi into tables of link types and rates, unless there are others.

    Of a table that is cut, beside others, the rows that are there count. Raise InputError for other
    GPUs than those of other tables, and for rows with missing cells.
    """
    names = tuple(output.metrics.gpus)
    rows = output.metrics.carried.values()
    is_cut = names == output.names[: len(names)] and all(len(r) == len(output.names) for r in rows)
    if is_cut and rows:
        names = output.names
    if output.names and names != output.names:
        raise InputError(
            f"{where}: amd-smi xgmi and the other tables list different GPUs; expected one machine "
            "in a file"
        )
    if len(names) > MAX_GPUS:
        raise InputError(f"{where}: {len(names)} GPUs, more than {MAX_GPUS}; expected one machine")
    output.names = names
    cells: dict[tuple[str, str], str] = {}
    for name, row in output.metrics.carried.items():
        if len(row) != len(names):
            raise InputError(
                f"{where}: amd-smi xgmi: the row Read of {name} has {len(row)} cells, and "
                f"{len(names)} GPUs have rows; give the whole output, as the tool printed it"
            )
        cells |= {
            (name, other): "PCIE" if cell == "N/A" else "XGMI"
            for other, cell in zip(names, row, strict=True)
            if other != name
        }
    if TYPE not in output.tables and len(rows) == len(names):
        output.tables[TYPE] = cells
    rates = output.tables.setdefault(BANDWIDTH, {})
    for pair, kind in cells.items():
        MBps = output.metrics.gpus[pair[0]]
        if kind == "XGMI" and MBps:
            rates.setdefault(pair, f"{MBps}-{MBps}")


def _parse_line(
    output: AmdOutput, title: str, columns: tuple[str, ...], words: list[str], where: str
) -> tuple[str, ...]:
    """Add a row to a table, or return the columns of a new one."""
    if all(map(_NAME.fullmatch, words)) and not columns:
        if len(words) > MAX_GPUS or len(set(words)) < len(words):
            raise InputError(
                f"{where}: names {len(words)} GPUs, some twice or more than {MAX_GPUS}; expected "
                "one machine"
            )
        if output.names and tuple(words) == output.names[: len(words)]:
            return tuple(words)  # whole, or cut at the end of the text: rows do not fit then
        if output.names:
            raise InputError(
                f"{where}: a table of other GPUs than the first; expected one machine in a file"
            )
        output.names = tuple(words)
        return output.names
    if columns and words[0] in columns:
        if len(words) != len(columns) + 1:
            raise InputError(
                f"{where}: the row of {words[0]} has {len(words) - 1} cells for {len(columns)} "
                "columns; give the output as the tool printed it"
            )
        cells = output.tables.setdefault(title, {})
        for column, cell in zip(columns, words[1:], strict=True):
            if cells.setdefault((words[0], column), cell) != cell:
                raise InputError(
                    f"{where}: {words[0]} - {column} was {cells[words[0], column]} in an earlier "
                    "table; expected one machine in a file"
                )
    elif columns and _NAME.fullmatch(words[0]):
        raise InputError(
            f"{where}: a row of {words[0]}, which the heading does not name; columns are missing, "
            "so give the output as the tool printed it"
        )
    return columns
