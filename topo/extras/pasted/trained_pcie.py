"""Find the width that a PCIe link has negotiated, in sentences and in what tools print.

Speeds below Gen3 are left out where a tool reads them: links of GPUs rest at those.
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from ...hardware import PCIE_GTps

_PCIE = r"PCI[- ]?E(?:xpress)?"
_GENERATION = (
    rf"(?:{_PCIE}[\s:]{{0,2}}(?:Gen(?:eration)?[.:\s]{{0,2}})?|Gen(?:eration)?[.:\s]{{0,2}})"
    r"[1-6](?:\.0)?"
)
_WIDTH = r"[x\u00d7]\s?(16|8|4|2|1)(?!\w|\.\d)"
_DONE = r"(?:negotiat(?:ed|es)|train(?:ed|s)|down-?graded|degraded|electrical(?:ly)?|wired)"
FIRST_SPEED_AT_WORK = 3
# "x4 lanes negotiated", "negotiated at x8", "x8 (electrical)", "x4 of x16 lanes"
_SENTENCES = re.compile(
    rf"\b{_DONE}(?:\s(?:at|to|as|only|down|link|width)){{0,3}}[\s:=]{{1,2}}"
    rf"(?:{_GENERATION}[\s,]{{0,2}})?{_WIDTH}"
    rf"|(?<![\w.]){_WIDTH}(?:\slanes)?[\s,(]{{1,2}}(?:(?:is|was|are)\s)?{_DONE}\b"
    rf"|\b(16|8|4|2|1)\s(?:{_PCIE}\s)?lanes\s(?:(?:are|were)\s)?{_DONE}\b"
    rf"|(?<![\w.]){_WIDTH}\s(?:lanes\s)?(?:out\s)?of\sx?(?:16|8)\b",
    re.IGNORECASE,
)
_STATUS = re.compile(
    rf"\bLnkSta:?\s{{1,9}}Speed\s([\d.]{{1,4}})\s?GT/s[^;|]{{0,20}}?\bWidth\s{_WIDTH}",
    re.IGNORECASE,
)
_CURRENT = re.compile(
    r"(?:pcie\.link\.width\.current|current\s(?:link\s|PCIe\s){0,2}width|"
    r"link\swidth\s\(?current\)?)[\s:=]{1,9}x?(16|8|4|2|1)x?(?!\w)",
    re.IGNORECASE,
)
_CURRENT_GENERATION = re.compile(r"pcie\.link\.gen\.current[\s:=]{1,9}([1-6])\b", re.IGNORECASE)
# What a slot or a card could have: "GPU max x16".
_CAPABILITY = re.compile(
    rf"\b(?:max(?:imum)?|capable of|up to|supports?|capability)[\s:=]{{1,2}}(?:up to\s)?"
    rf"(?:{_GENERATION}[\s,]{{0,2}})?{_WIDTH}|\bLnkCap:[^;|]{{0,99}}?(?=LnkSta|$)",
    re.IGNORECASE,
)
_ANY_GENERATION = re.compile(rf"({_GENERATION})(?!\.?\w)", re.IGNORECASE)
_AT_MOST = re.compile(
    r"\bGen(?:eration)?\s(?:up to|at most|max(?:imum)?)\s([1-6])\b", re.IGNORECASE
)
# The heading of a device in lspci's list, or of a GPU in nvidia-smi's report.
_DEVICE = re.compile(
    r"\s{0,8}(?:GPU )?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:\s|$)", re.IGNORECASE
)
_GPU = re.compile(
    r"^\s*GPU |(?:VGA compatible|3D|Display) controller.{0,9}: (?:NVIDIA|Advanced Micro|AMD)"
    r"|Processing accelerators.{0,9}: Advanced Micro",
    re.IGNORECASE,
)
_NIC = re.compile(r"(?:InfiniBand|Ethernet|Network) controller.{0,9}: ", re.IGNORECASE)
_CURRENT_WIDTH = re.compile(r"\s{1,40}Current\s{1,40}: (16|8|4|2|1)x\s{0,9}")
_QUERY = re.compile(r"--query-gpu[=\s](\S{1,400})")
_WIDTH_COLUMN, _GENERATION_COLUMN = "pcie.link.width.current", "pcie.link.gen.current"

# Generation and width, None if the line does not say.
Said = tuple[int | None, int | None]


def read_trained(line: str) -> Said | None:
    """Return the link that a line says is negotiated, None if it says nothing of that."""
    line = leave_out_capability(line)
    if status := _STATUS.search(line):
        speed = next((g for g, GTps in PCIE_GTps.items() if float(GTps) == float(status[1])), None)
        return _leave_out_rest(speed), int(status[2])
    if current := _CURRENT.search(line):
        generation = _CURRENT_GENERATION.search(line)
        return _leave_out_rest(int(generation[1]) if generation else None), int(current[1])
    stated = _SENTENCES.search(line)
    if stated is None:
        return None
    most, named = _AT_MOST.search(line), _ANY_GENERATION.search(line)
    number = most[1] if most else re.findall("[1-6]", named[1])[0] if named else None
    return int(number) if number else None, int(next(filter(None, stated.groups())))


def leave_out_capability(line: str) -> str:
    """Return a line without the link that a slot or a card could have: "GPU max x16"."""
    return _CAPABILITY.sub("", line)


def _leave_out_rest(generation: int | None) -> int | None:
    return generation if generation and generation >= FIRST_SPEED_AT_WORK else None


class QueryReader:
    """Reads the rows of `nvidia-smi --query-gpu=index,pcie.link.width.current --format=csv`.

    The columns are those of the command, or of the heading that the tool prints.
    """

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._rows = 0

    def read(self, line: str) -> tuple[int, Said] | None:
        """Return the number of a row's GPU, and its (generation, width); None for any other line.

        Call it with all lines in order: headings set the columns of the rows below them.
        """
        query = _QUERY.search(line)
        cells = [cell.strip() for cell in (query[1] if query else line).split(",")]
        if query or (len(cells) > 1 and any(_WIDTH_COLUMN in cell for cell in cells)):
            names = [cell.partition(" ")[0].strip("'\"") for cell in cells]
            self._columns = names if _WIDTH_COLUMN in names else []
            self._rows = 0
            return None
        width = self._find(cells, _WIDTH_COLUMN)
        if width is None:
            self._columns = self._columns if not line.strip() or "```" in line else []
            return None
        self._rows += 1
        index = self._find(cells, "index")
        link = _leave_out_rest(self._find(cells, _GENERATION_COLUMN)), width
        return (self._rows - 1 if index is None else index), link

    def _find(self, cells: list[str], column: str) -> int | None:
        if len(cells) != len(self._columns) or column not in self._columns:
            return None
        cell = cells[self._columns.index(column)]
        return int(cell) if cell.isdecimal() and len(cell) < 4 else None


class AddressReader:
    """Collects the links that lspci -vv and nvidia-smi -q print of GPUs and NICs, by PCI address.

    `links` are those of GPUs, `nics` those of NICs: ((generation, width), "line 3 says"). `notes`
    has a line on the first link of which no device is named.
    """

    def __init__(self) -> None:
        self.links: dict[str, tuple[Said, str]] = {}
        self.nics: dict[str, tuple[Said, str]] = {}
        self.notes: list[str] = []
        self._address = self._nic = ""
        self._has_devices = False

    def read(self, line: str, number: int, is_known: bool) -> None:
        """Read a line, which belongs to the device that the last heading names.

        `is_known` is whether it says itself which GPU it is about.
        """
        if head := _DEVICE.match(line):
            self._has_devices = True
            domain = int(head[1] or "0", 16)
            address = f"{domain:04x}:{head[2].lower()}"
            self._address = address if _GPU.search(line) else ""
            self._nic = address if _NIC.search(line) else ""
            return
        status = read_trained(line) if _STATUS.search(line) and not is_known else None
        if status is None and self._address and (width := _CURRENT_WIDTH.fullmatch(line)):
            status = None, int(width[1])
        if status is None:
            return
        if self._address:
            self.links.setdefault(self._address, (status, f"line {number} says"))
        elif self._nic:
            self.nics.setdefault(self._nic, (status, f"line {number} says"))
        elif not self._has_devices and not self.notes:
            self.notes.append(
                f"line {number}: a PCIe link of x{status[1]}, but not of which device; left out"
            )


def find_sections(lines: Sequence[str], find_gpu: Callable[[str], int | None]) -> list[int | None]:
    """Return for each line the number of the GPU below whose heading or list item it stands.

    `find_gpu` returns the GPU of such a heading, None for other lines. Lines that are not indented
    belong to the heading above them if in their paragraph another heading follows some.
    """
    heads = [find_gpu(line) for line in lines]
    is_between = _find_between(lines, heads)
    sections: list[int | None] = []
    gpu, margin, is_title = None, 0, False
    for line, head, is_flat in zip(lines, heads, is_between, strict=True):
        text = line.lstrip()
        indent = len(line) - len(text)
        if head is not None:
            gpu, margin, is_title = head, indent, text.startswith("#")
        elif text and (
            text.startswith("#")
            if is_title
            else indent < margin or (indent == margin and not is_flat)
        ):
            gpu = None
        sections.append(gpu if text and head is None else None)
    return sections


def _find_between(lines: Sequence[str], heads: Sequence[int | None]) -> list[bool]:
    """Return for each line whether headings of its paragraph have lines between them."""
    found = [False] * len(lines)
    start = 0
    for end in range(len(lines) + 1):
        if end < len(lines) and not lines[end].isspace() and lines[end]:
            continue
        here = [i for i in range(start, end) if heads[i] is not None]
        if any(b - a > 1 for a, b in pairwise(here)):
            found[start:end] = [True] * (end - start)
        start = end + 1
    return found
