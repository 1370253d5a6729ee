"""Find what a text says about the PCIe links of its GPUs: "PCIe Gen5 x8 per GPU".

People write it beside a matrix such as that of `nvidia-smi topo -m`, whose labels say nothing of
it. A line counts if it speaks of GPUs, or begins with PCIe, and of no other device. All lines must
agree; a line that begins with the number of a GPU, or stands below such a heading, is about that
one alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...boards import find_mentioned
from ...hardware import PCIE_GTps, PcieLink
from ...names import join_first
from ...notes import Source, assumed, rated
from .trained_pcie import (
    FIRST_SPEED_AT_WORK,
    AddressReader,
    QueryReader,
    Said,
    find_sections,
    leave_out_capability,
    read_trained,
)

# Lines that are searched, in a second or two at worst, and the length of one that can be a remark.
_MAX_LINES = 2_000
_MAX_CHARACTERS = 250
_PCIE = r"PCI[- ]?E(?:xpress)?"
_GENERATION = (
    rf"(?:{_PCIE}[\s:]{{0,2}}(?:Gen(?:eration)?[.:\s]{{0,2}})?|Gen(?:eration)?[.:\s]{{0,2}})"
    r"([1-6])(?:\.0)?"
)
_WIDTH = r"[x\u00d7]\s?(16|8|4|2|1)(?!\w|\.\d)"
_BOTH = re.compile(rf"{_GENERATION}[\s,@/:(-]{{0,3}}(?:width:?\s)?{_WIDTH}", re.IGNORECASE)
_TURNED = re.compile(
    rf"(?<![\w.]){_WIDTH}(?:\s?lanes)?[\s,@/:(-]{{0,3}}(?:of\s)?{_GENERATION}", re.IGNORECASE
)
_SPEED = re.compile(
    rf"(?<![\d.])(2\.5|5|8|16|32|64)(?:\.0)?\s?GT/s(?:\s?PCIe)?[\s,@/:(-]{{0,3}}{_WIDTH}",
    re.IGNORECASE,
)
# A generation or width alone is a common word, so it must be said of a link at work.
_AT_WORK = r"(?:\b(?:on|at|running|runs?|limited to|link is|only|with)\s(?:at\s|an?\s)?)"
_GENERATION_AT_WORK = re.compile(rf"{_AT_WORK}{_GENERATION}(?!\.?\w)", re.IGNORECASE)
_WIDTH_AT_WORK = re.compile(
    rf"(?:{_AT_WORK}(?:{_PCIE}\s?)?|{_PCIE}\s){_WIDTH}"
    rf"|(?<![\w.]){_WIDTH}(?:\s?lanes)?\s(?:per|each|to each)\b"
    rf"|\b(16|8|4|2|1)\s(?:{_PCIE}\s)?lanes\s(?:per|each|to each)\b"
    r"|\bwidth[:\s]{1,3}(16|8|4|2|1)x\b"
    rf"|\b(?:gets?|has|have)\s(?:only\s)?(16|8|4|2|1)\s(?:{_PCIE}\s)?lanes\b",
    re.IGNORECASE,
)
_RUNNING = re.compile(
    rf"(?:\b(?:running|runs?|only|now|currently|actual(?:ly)?|negotiated)[\s:]{{1,2}}"
    rf"(?:at\s|as\s)?|@\s?){_WIDTH}",
    re.IGNORECASE,
)
# What is said not to be: "x8, not x16".
_NEGATED = re.compile(
    rf"\b(?:not|instead of|rather than|no longer)\s(?:[\w-]{{1,20}}\s){{0,3}}?"
    rf"(?:{_GENERATION}\s?)?{_WIDTH}",
    re.IGNORECASE,
)
_OF_GPUS = re.compile(r"\b(?:GPUs?\d{0,3}|graphics cards?|cards?|accelerators?)\b", re.IGNORECASE)
_STARTS_WITH_PCIE = re.compile(r"[\s>#*|+\u2022-]{0,40}\**PCI[- ]?E", re.IGNORECASE)
_OTHER_DEVICES = re.compile(
    r"NVMe|SSD|[MU]\.2|\bNICs?\b|ConnectX|\bCX-?\d|mlx|Mellanox|BlueField|Ethernet|InfiniBand"
    r"|\bHBAs?\b|RAID|OCuLink|Thunderbolt|USB|chipset|\bDMI\b|storage|uplink|switch"
    r"|\bif\b|\bwould\b|\bcould\b|\bshould\b",
    re.IGNORECASE,
)
# A generation of which the line does not say what has it, and one in a table's cell.
_ANY_PCIE = re.compile(rf"{_PCIE}\b", re.IGNORECASE)
_ANY_GENERATION = re.compile(rf"\b{_GENERATION}(?!\.?\w)", re.IGNORECASE)
_CELL = re.compile(r"[|:]\s{0,9}Gen\s?([1-6])\s{0,9}(?:\||$)", re.IGNORECASE)
# What GPUs and slots can do is not what their links do.
_ABLE = re.compile(r"\bsupports?\b|\bcapable\b|LnkCap|LnkSta", re.IGNORECASE)
_NEXT_GPU = re.compile(r"[,;/|]\s{0,9}(?=GPU\s?#?\d{1,3}\b)", re.IGNORECASE)
_INDEX = re.compile(r"[\s>#*|+\u2022-]{0,40}\**GPU\s?#?(\d{1,3})\b(?!\s?x\b)", re.IGNORECASE)

# A heading or list item about one GPU, which the lines below it are about, too.
_HEAD = re.compile(rf"{_INDEX.pattern}\s{{0,3}}(?:[:([,|\u2013\u2014-]|$)", re.IGNORECASE)
_OF_EACH = re.compile(
    r"\b(?:each|both|per (?:GPU|card)|all (?:\w{1,9} ){0,2}(?:GPUs|cards|slots))\b", re.IGNORECASE
)
_ABOUT_LINK = re.compile(
    r"[\s>#|+\u2022-]{0,40}(?:link|bus|slot|lanes|width|LnkSta|current)\b", re.IGNORECASE
)

# What is said, (generation, width), and the lines in words: "line 3 says".
_Stated = tuple[Said, str]
# What lines say of all GPUs (None) or of one, with the number of the first line that says it.
_Lines = dict[int | None, dict[Said, int]]


@dataclass(frozen=True)
class SaidPcie:
    """What the lines of a text say about PCIe links: of all GPUs, and of single ones by number.

    Each is ((generation, width), the lines in words), with None for what is not said. `of_address`
    has those of GPUs that the text knows by their PCI addresses, `of_nic` those of NICs. `notes`
    describe lines that are not followed, since they disagree or do not say what they are about.
    `unread` describes the first line that names a generation without a GPU's link, "" if there is
    none.
    """

    of_all: _Stated | None = None
    of_one: Mapping[int, _Stated] = field(default_factory=dict)
    of_address: Mapping[str, _Stated] = field(default_factory=dict)
    of_nic: Mapping[str, _Stated] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: str = ""

    def __bool__(self) -> bool:
        """Whether anything is said."""
        return bool(self.of_all or self.of_one or self.of_address or self.of_nic or self.notes)

    def place_addresses(self, gpus: Sequence[int]) -> "SaidPcie":
        """Return the same with the links of addresses as those of `gpus`, the numbers of all GPUs.

        nvidia-smi numbers GPUs in the order of their addresses; a note says if there are others.
        """
        if not self.of_address:
            return self
        if len(gpus) != len(self.of_address):
            known = join_first(self.of_address, 3)
            note = f"{known}: which GPUs they are is not known, so their PCIe links are left out"
            return replace(self, of_address={}, notes=(*self.notes, note))
        links = (self.of_address[address] for address in sorted(self.of_address))
        placed = dict(zip(sorted(gpus), links, strict=True))
        return replace(self, of_one={**self.of_one, **placed}, of_address={})

    def find_nics(self, nics: int, notes: list[str]) -> tuple[PcieLink, Source] | None:
        """Return the link that all of a number of NICs have, None if that is not known.

        Which address is which column of a matrix is not known, so they must be as many and alike;
        else a line in `notes` says that they are left out.
        """
        if not self.of_nic:
            return None
        stated = {said for said, _ in self.of_nic.values()}
        (generation, width), lines = next(iter(self.of_nic.values()))
        if len(self.of_nic) == nics and len(stated) == 1 and generation and width:
            link = PcieLink(generation, width)
            words = f"Gen{generation} x{width}, as {lines} of {next(iter(self.of_nic))}"
            return link, rated(words, "NCCL")
        links = (
            f"{address} {_describe_link(*said)} ({lines.removesuffix(' says')})"
            for address, (said, lines) in self.of_nic.items()
        )
        if nics:
            notes.append(
                f"PCIe links of NICs that the text states: {join_first(links, 3)}; which columns "
                "they are is not known, so they are left out"
            )
        return None

    def find(
        self, index: int, slot: PcieLink | None, is_sure: bool
    ) -> tuple[PcieLink, Source] | None:
        """Return the link of a GPU and its source, None if nothing is said.

        `slot` is that of its board, which no statement exceeds, None if the board is not known;
        `is_sure` is False for a board that is only assumed.
        """
        found = self.of_one.get(index, self.of_all)
        if found is None:
            return None
        (generation, width), lines = found
        most = slot or PcieLink(max(PCIE_GTps), 16)
        link = PcieLink(
            min(generation or (slot.generation if slot else 3), most.generation),
            min(width or most.width, most.width),
        )
        words = f"Gen{link.generation} x{link.width}"
        if (generation or 0) > most.generation or (width or 0) > most.width:
            told = _describe_link(generation, width)
            return link, rated(f"{words}, as the board has of the {told} that {lines}", "NCCL")
        if generation is None and not is_sure:
            return link, assumed(f"{words}, of which {lines} x{link.width}")
        return link, rated(f"{words}, as {lines}", "NCCL")


def find_said_pcie(text: str) -> SaidPcie:
    """Return what a text says about the PCIe links of its GPUs.

    What a link has negotiated counts before what it is otherwise said to be.
    """
    said: _Lines = {}
    trained: _Lines = {}
    queries, addresses = QueryReader(), AddressReader()
    raw_lines = text.split("\n", _MAX_LINES)[:_MAX_LINES]
    lines = [line.replace("*", "").replace("`", "") for line in raw_lines]
    sections = find_sections(lines, _find_head)
    for number, (line, section) in enumerate(zip(lines, sections, strict=True), 1):
        if len(line) > _MAX_CHARACTERS:
            continue
        is_about_gpus = _is_about_gpus(line) or (
            section is not None and _ABOUT_LINK.match(line) is not None
        )
        addresses.read(line, number, is_known=is_about_gpus)
        if row := queries.read(line):
            trained.setdefault(row[0], {}).setdefault(row[1], number)
        elif is_about_gpus and not _OTHER_DEVICES.search(line):
            _add_statements(line, number, None if _OF_EACH.search(line) else section, said, trained)
    notes = list(addresses.notes)
    single, negotiated = _take_single(said, notes), _take_single(trained, notes)
    for index, stated in negotiated.items():
        single[index] = _complete(stated, single.get(index, single.get(None)))
    of_all = single.pop(None, None)
    of_address = {key: _complete(stated, of_all) for key, stated in addresses.links.items()}
    of_one = {index: stated for index, stated in single.items() if index is not None}
    unread = _find_unread(lines)
    return SaidPcie(of_all, of_one, of_address, addresses.nics, tuple(notes), unread)


def _find_unread(lines: Sequence[str]) -> str:
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_CHARACTERS or _OTHER_DEVICES.search(line):
            continue
        pattern = _ANY_GENERATION if _ANY_PCIE.search(line) else _CELL
        named = [int(match[1]) for match in pattern.finditer(line)]
        if named and named[0] >= FIRST_SPEED_AT_WORK:
            return f"line {number} names PCIe Gen{named[0]}, but not as the link that a GPU has"
    return ""


def _find_head(line: str) -> int | None:
    match = _HEAD.match(line)
    return int(match[1]) if match else None


def _add_statements(
    line: str, number: int, section: int | None, said: _Lines, trained: _Lines
) -> None:
    """Add what a line says, of the GPU that it begins with, else of that of its section."""
    for part in _NEXT_GPU.split(_NEGATED.sub("", line)):
        match = _INDEX.match(part)
        index = int(match[1]) if match else section
        if (link := read_trained(part)) is not None:
            trained.setdefault(index, {}).setdefault(link, number)
        elif not _ABLE.search(line):
            for statement in _read_line(leave_out_capability(part)) or _read_line(part):
                said.setdefault(index, {}).setdefault(statement, number)


def _take_single(lines: _Lines, notes: list[str]) -> dict[int | None, _Stated]:
    """Return the one statement about each GPU; none at all, and a note, if some disagree."""
    unclear = [each for each in lines.values() if len(each) > 1]
    if unclear:
        notes.append(_describe_conflict(unclear[0]))
        return {}
    return {
        index: (statement, f"line {number} says")
        for index, each in lines.items()
        for statement, number in each.items()
    }


def _complete(negotiated: _Stated, other: _Stated | None) -> _Stated:
    """Return what a link has negotiated, with the generation of another line if it says none."""
    (generation, width), lines = negotiated
    if generation is not None or other is None or other[0][0] is None:
        return negotiated
    both = " and ".join(words.split()[1] for words in (other[1], lines))
    return (other[0][0], width), f"lines {both} say"


def _is_about_gpus(line: str) -> bool:
    return bool(_OF_GPUS.search(line) or _STARTS_WITH_PCIE.match(line) or find_mentioned(line))


def _read_line(line: str) -> list[Said]:
    """Return the links that a line states, generation before width."""
    generations = {float(GTps): generation for generation, GTps in PCIE_GTps.items()}
    statements: list[Said] = [
        *((int(match[1]), int(match[2])) for match in _BOTH.finditer(line)),
        # not the x2 of "2 cards: RTX 3090 x2, PCIe 4.0 x8"
        *((int(match[2]), int(match[1])) for match in _TURNED.finditer(_BOTH.sub(";", line))),
        *((generations[float(match[1])], int(match[2])) for match in _SPEED.finditer(line)),
    ]
    running = _RUNNING.search(line)
    if statements and running:  # "Gen5 x16 slots, running at x8"
        statements = [(generation, int(running[1])) for generation, _ in statements]
    if statements:
        return list(dict.fromkeys(statements))
    generation, width = _GENERATION_AT_WORK.search(line), _WIDTH_AT_WORK.search(line)
    if generation is None and width is None:
        return []
    lanes = next(filter(None, width.groups())) if width else None
    return [(int(generation[1]) if generation else None, int(lanes) if lanes else None)]


def _describe_conflict(lines: Mapping[Said, int]) -> str:
    words = [f"{_describe_link(*said)} (line {line})" for said, line in list(lines.items())[:3]]
    return f"the text says {' and '.join(words)} of the GPUs' PCIe, so none is followed"


def _describe_link(generation: int | None, width: int | None) -> str:
    known = ((f"Gen{generation}", generation), (f"x{width}", width))
    return " ".join(part for part, value in known if value is not None)
