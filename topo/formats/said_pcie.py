"""Find what a text says about the PCIe links of its GPUs: "PCIe Gen5 x8 per GPU".

People write it beside a matrix, whose labels say nothing of it. A line counts if it speaks of GPUs,
or begins with PCIe, and of no other device. All lines must agree; a line that begins with the
number of a GPU is about that one alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..boards import find_mentioned
from ..hardware import PCIE_GTps, PcieLink
from ..notes import Source, assumed, rated

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
    rf"\b(?:running|runs?|only|now|currently|actual(?:ly)?|negotiated)[\s:]{{1,2}}"
    rf"(?:at\s|as\s)?{_WIDTH}",
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
    r"|\bHBAs?\b|RAID|OCuLink|Thunderbolt|USB|chipset|\bDMI\b|storage|uplink|switch|LnkCap|LnkSta"
    r"|\bif\b|\bwould\b|\bcould\b|\bshould\b|\bsupports?\b|\bcapable\b",
    re.IGNORECASE,
)
_NEXT_GPU = re.compile(r"[,;/|]\s{0,9}(?=GPU\s?#?\d{1,3}\b)", re.IGNORECASE)
_INDEX = re.compile(r"[\s>#*|+\u2022-]{0,40}\**GPU\s?#?(\d{1,3})\b(?!\s?x\b)", re.IGNORECASE)

# Generation and width, None if the line does not say.
_Said = tuple[int | None, int | None]


@dataclass
class SaidPcie:
    """What the lines of a text say about PCIe links: of all GPUs, and of single ones by number.

    `conflict` describes lines that disagree, of which none is followed.
    """

    of_all: tuple[_Said, int] | None = None
    of_one: dict[int, tuple[_Said, int]] = field(default_factory=dict)
    conflict: str = ""

    def __bool__(self) -> bool:
        """Whether anything is said."""
        return bool(self.of_all or self.of_one or self.conflict)

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
        (generation, width), line = found
        most = slot or PcieLink(max(PCIE_GTps), 16)
        link = PcieLink(
            min(generation or (slot.generation if slot else 3), most.generation),
            min(width or most.width, most.width),
        )
        if generation is None and not is_sure:
            what = f"Gen{link.generation} x{link.width}, of which line {line} says x{link.width}"
            return link, assumed(what)
        return link, rated(f"Gen{link.generation} x{link.width}, as line {line} says", "NCCL")


def find_said_pcie(text: str) -> SaidPcie:
    """Return what a text says about the PCIe links of its GPUs."""
    said: dict[int | None, dict[_Said, int]] = {}
    for number, line in enumerate(text.split("\n", _MAX_LINES)[:_MAX_LINES], 1):
        if len(line) > _MAX_CHARACTERS or _OTHER_DEVICES.search(line) or not _is_about_gpus(line):
            continue
        for part in _NEXT_GPU.split(_NEGATED.sub("", line)):
            index = _INDEX.match(part)
            for statement in _read_line(part):
                said.setdefault(int(index[1]) if index else None, {}).setdefault(statement, number)
    unclear = [lines for lines in said.values() if len(lines) > 1]
    if unclear:
        return SaidPcie(conflict=_describe_conflict(unclear[0]))
    single = {index: next(iter(lines.items())) for index, lines in said.items()}
    return SaidPcie(
        single.get(None), {index: found for index, found in single.items() if index is not None}
    )


def _is_about_gpus(line: str) -> bool:
    return bool(_OF_GPUS.search(line) or _STARTS_WITH_PCIE.match(line) or find_mentioned(line))


def _read_line(line: str) -> list[_Said]:
    """Return the links that a line states, generation before width."""
    generations = {float(GTps): generation for generation, GTps in PCIE_GTps.items()}
    statements: list[_Said] = [
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


def _describe_conflict(lines: Mapping[_Said, int]) -> str:
    words = [
        " ".join(
            part
            for part, value in ((f"Gen{generation}", generation), (f"x{width}", width))
            if value is not None
        )
        + f" (line {line})"
        for (generation, width), line in list(lines.items())[:3]
    ]
    return f"the text says {' and '.join(words)} of the GPUs' PCIe, so none is followed"
