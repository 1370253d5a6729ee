"""Recognize matrices of measured rates between pairs of GPUs in the output of tools.

nvbandwidth (its text and its JSON), p2pBandwidthLatencyTest of the CUDA samples, CUDA's busGrind
and nvloom print them; `describe` gives the range of each.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ...formats.pasted import clean
from .line_prefix import cut_prefix, make_prefix

# Characters in which headings are searched, and lines of a matrix: an NVL72 has 72 GPUs.
_MAX_CHARACTERS = 2 * 2**20
_MAX_ROWS = 1024
_CELL = re.compile(r"(?P<rate>\d{1,9}(?:\.\d{1,9})?|N/A|X|[-\u2013\u2014]{1,3})(?:;\(\S{1,80}\))?")

# nvbandwidth's first line, and what it says where it measures nothing.
_OUTPUT = re.compile(r"^\s{0,9}nvbandwidth Version", re.MULTILINE)
_WRONG = re.compile(r"Invalid value when checking the pattern")
_WAIVED = re.compile(
    r"(?:^\s{0,9}Waiving "  # its text, else its JSON
    r"|\"name\"\s{0,9}:\s{0,9}\"(?=\w{1,70}\",\s{1,99}\"status\"\s{0,9}:\s{0,9}\"Waived))"
    r"(device_to_device_\w{1,60})",
    re.MULTILINE,
)
# What p2pBandwidthLatencyTest says of which GPUs reach which, and the names of its tests.
_ACCESS = re.compile(r"\bDevice=(\d{1,4}) CAN(NOT)? Access Peer Device=(\d{1,4})\b")
_CONNECTED = re.compile(r"P2P Connectivity Matrix")
_REACHES = re.compile(r"\s*\d{1,4}(?:\s+[01])+\s*")
_ENABLED, _DISABLED = "P2P enabled", "P2P disabled"

_Rows = list[list[float | None]]


@dataclass(frozen=True)
class PairRates:
    """A matrix of measured rates in GB/s between the GPU of the row and that of the column.

    `tool` and `test` name what measured it. Cells are None if they were not measured. `is_one_way`
    is False for the sum of two directions, `is_of_pairs` for rates of each GPU to something else:
    its CPU, or all other GPUs.
    """

    tool: str
    test: str
    rows: _Rows
    is_one_way: bool
    is_of_pairs: bool = True

    def list_rates(self) -> list[float]:
        """Return the rates measured above 0, in GB/s, row by row.

        Of a matrix between pairs of GPUs, those of a GPU to itself are left out.
        """
        return [
            rate
            for i, row in enumerate(self.rows)
            for j, rate in enumerate(row)
            if rate and not (self.is_of_pairs and i == j)
        ]

    @property
    def is_read(self) -> bool:
        """Whether the GPU of the row reads from that of the column."""
        return "<- " in self.test or "_read_" in f"{self.test}_"

    @property
    def is_through_memory(self) -> bool:
        """Whether copies went through the host's memory, without peer-to-peer."""
        return "disabled" in self.test

    @property
    def count(self) -> int:
        """The number of GPUs."""
        return max(len(self.rows), *map(len, self.rows))


@dataclass(frozen=True)
class _Tool:
    """A tool: a pattern of its headings, its name, and what a heading says.

    `describe` returns the test, whether its rates are one direction's, and whether they are
    between pairs of GPUs.
    """

    heading: re.Pattern[str]
    name: str
    describe: Callable[[re.Match[str]], tuple[str, bool, bool]]


# The tools, in the order in which their headings are searched.
_TOOLS = (
    _Tool(
        re.compile(
            r"\bmemcpy (CE|SM) ([CG]PU)\(row\) (->|<-|<->) GPU\(column\)(?: \w+)? "
            r"bandwidth \(GB/s\)"
        ),
        "nvbandwidth",
        lambda match: (
            f"{match[1]} copies {match[2]} {match[3]} GPU",
            match[3] != "<->",
            match[2] == "GPU",
        ),
    ),
    _Tool(
        re.compile(
            r"\b(Uni|Bi)directional P2P=(Enabled|Disabled) Bandwidth (?:\(P2P Writes\) )?"
            r"(?:Matrix )?\(GB/s\)"
        ),
        "p2pBandwidthLatencyTest",
        lambda match: (f"P2P {match[2].lower()}", match[1] == "Uni", True),
    ),
    _Tool(
        re.compile(
            r"\bP2P Bandwidth Matrix \(GB/s\) - (Uni|Bi)directional, P2P=(Enabled|Disabled)"
        ),
        "busGrind",
        lambda match: (f"P2P {match[2].lower()}", match[1] == "Uni", True),
    ),
    _Tool(
        # nvbandwidth's line ends in a full stop.
        re.compile(
            r"^.{0,80}\bRunning ((device_to_device|bisect|gpu_to_rack|rack_to_rack|multicast"
            r"|all_(?:to|from)_one)_\w+)[ \t]*$",
            re.MULTILINE,
        ),
        "nvloom",
        lambda match: (match[1], "_bidir" not in match[1], match[2] == "device_to_device"),
    ),
)


def find_pair_rates(text: str) -> list[PairRates]:
    """Return the matrices of rates in a text, without those of a single GPU."""
    text = text[:_MAX_CHARACTERS]
    found = list(_read_json(text)) if text.lstrip()[:1] == "{" else []
    text = clean(text)
    for tool in _TOOLS:
        for match in tool.heading.finditer(text):
            says = tool.describe(match)
            rows = _read_rows(_list_below(text, match))
            found.append(PairRates(tool.name, says[0], rows, *says[1:]))
    refused = find_refused(text)
    parted = [part for rates in found for part in _part_refused(rates, refused)]
    return [rates for rates in parted if rates.list_rates()]


def find_refused(text: str) -> set[tuple[int, int]]:
    """Return the pairs of GPUs without P2P access, according to p2pBandwidthLatencyTest."""
    refused, allowed = set[tuple[int, int]](), set[tuple[int, int]]()
    text = clean(text[:_MAX_CHARACTERS])
    for a, no, b in _ACCESS.findall(text):
        (refused if no else allowed).add((int(a), int(b)))
    for match in _CONNECTED.finditer(text):
        for i, line in enumerate(takewhile(_REACHES.fullmatch, _list_below(text, match)[1:])):
            for j, cell in enumerate(line.split()[1:]):
                (allowed if cell == "1" else refused).add((i, j))
    return refused - allowed


def _list_below(text: str, heading: re.Match[str]) -> list[str]:
    """Return the lines below a heading, without what a log puts before all of them.

    Blank lines are left out if one is right below the heading, as where pages put one after each,
    and so are the fences of code.
    """
    before = text[text.rfind("\n", 0, heading.start()) + 1 : heading.start()]
    prefix = make_prefix(before)
    lines = text[heading.end() : heading.end() + _MAX_CHARACTERS].split("\n", _MAX_ROWS)[1:]
    below = [cut_prefix(prefix, line) for line in lines if not line.startswith("```")]
    is_spaced = bool(below) and not below[0].strip()
    return [line for line in below if line.strip()] if is_spaced else below


def _part_refused(rates: PairRates, refused: set[tuple[int, int]]) -> list[PairRates]:
    """Part a matrix with P2P: its test copies through host memory where P2P is refused."""
    if rates.test != _ENABLED or not refused:
        return [rates]
    cells = [
        [(rate, (i, j) in refused) for j, rate in enumerate(row)]
        for i, row in enumerate(rates.rows)
    ]
    direct = [[None if is_refused else rate for rate, is_refused in row] for row in cells]
    other = [[rate if is_refused else None for rate, is_refused in row] for row in cells]
    return [replace(rates, rows=direct), replace(rates, rows=other, test=_DISABLED)]


def describe(text: str) -> str | None:
    """Return a line on the measured rates in a text and how to use them; None if it has none.

    If nvbandwidth printed no rates, the line says why, if the text does.
    """
    found = find_pair_rates(text)
    if not found:
        return _describe_failure(text[:_MAX_CHARACTERS])
    best = max(found, key=_rank)
    rates = best.list_rates()
    low, high = min(rates), max(rates)
    span = f"{low:g} GB/s" if low == high else f"{low:g} to {high:g} GB/s"
    kind = "between pairs of" if best.is_of_pairs else "of each of"
    ways = "one way" if best.is_one_way else "both ways together"
    is_direct = best.is_of_pairs and best.is_one_way and not best.is_through_memory
    use = "; correct the rates of a topology by them" if is_direct else ""
    return (
        f"rates {kind} {best.count} GPUs, measured by {best.tool} ({best.test}: "
        f"{span} {ways}), which do not say what joins the GPUs{use}"
    )


def _describe_failure(text: str) -> str | None:
    """Say why a tool printed no rates between GPUs; None if a text is no tool's output.

    nvbandwidth itself says it; p2pBandwidthLatencyTest has but one GPU then.
    """
    waived = _WAIVED.findall(text)
    if _OUTPUT.search(text) is None and not (waived and '"nvbandwidth"' in text):
        tool = next((tool.name for tool in _TOOLS if tool.heading.search(text)), None)
        return f"{tool}'s output without rates of several GPUs" if tool is not None else None
    what = "nvbandwidth's output without rates of several GPUs"
    if (match := _WRONG.search(text)) is not None:
        line = text.count("\n", 0, match.start()) + 1
        return f"{what}: line {line}: it found wrong values in what it had copied; mend that first"
    if waived:
        return f"{what}: it waived {waived[0]}, as it does where GPUs do not reach each other (P2P)"
    return what


def _rank(rates: PairRates) -> tuple[bool, bool, bool]:
    """Order matrices: plans send between pairs, one way and directly."""
    return rates.is_of_pairs, rates.is_one_way, not rates.is_through_memory


def _read_rows(lines: Sequence[str]) -> _Rows:
    """Return the rows below a heading and the line of column names."""
    rows: _Rows = []
    for number, line in enumerate(lines):
        cells = _read_cells(line)
        # The names of columns are whole numbers.
        if not cells or (not rows and number < 2 and all(cell.isdecimal() for cell in cells)):
            if rows or number > 1:
                break
            continue
        # Where the text breaks off within a row, its last number may, too.
        is_cut = number == len(lines) - 1 and bool(rows) and len(cells) < len(rows[0])
        whole = cells[:-1] if is_cut else cells
        if whole:
            rows.append([float(cell) if cell[0].isdigit() else None for cell in whole])
    return rows


def _read_cells(line: str) -> list[str]:
    """Return the cells of a row after its name; none if other text is among them."""
    _, *words = line.replace("|", " ").split() or [""]
    matches = [_CELL.fullmatch(word) for word in words]
    cells = [match["rate"] for match in matches if match is not None]
    return cells if len(cells) == len(words) else []


def _read_json(text: str) -> Iterator[PairRates]:
    """Yield the matrices between GPUs of nvbandwidth's JSON."""
    try:
        data = json.loads(text)
        cases = data["nvbandwidth"]["testcases"]
        for case in cases:
            name, matrix = str(case["name"]), case.get("bandwidth_matrix", [])
            if name.startswith("device_to_device") and "latency" not in name:
                rows: _Rows = [
                    [None if cell == "N/A" else float(cell) for cell in row] for row in matrix
                ]
                yield PairRates("nvbandwidth", name, rows, "bidirectional" not in name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
