"""Read NCCL's graph XML: what NCCL_GRAPH_DUMP_FILE writes and NCCL_GRAPH_FILE reads.

The rules are those of NCCL's graph/search.cc and graph/xml.cc; what NCCL would stop on, or read as
something else than it says, is an InputError with file and line. Whether the channels make sense is
for `graph_check`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ...topo.errors import InputError
from ...topo.formats.safe_xml import Element, parse_xml

RING_ID, TREE_ID, COLLNET_CHAIN_ID, NVLS_ID, COLLNET_DIRECT_ID = range(5)
# What the ids of graphs stand for.
NAMES = {
    RING_ID: "ring",
    TREE_ID: "tree",
    COLLNET_CHAIN_ID: "CollNet chain",
    NVLS_ID: "NVLS",
    COLLNET_DIRECT_ID: "CollNet direct",
}
# Types of paths that NCCL's files name, the nearest first.
TYPES = ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")

MOST_CHARACTERS = 8 * 2**20
_MOST_VALUE_bytes = 253
_DECLARATION = re.compile(r"\s*<\?")
# NCCL reads how a comment begins as the name of a tag: with a "=" in it, or without an end, it
# refuses the file.
_COMMENT = re.compile(
    rf"<!--(?=[^ >/\n\r=]{{0,{_MOST_VALUE_bytes - 3}}}[ >/\n\r]).*?-->", re.DOTALL
)
_NAME_FORM = r"[A-Za-z_][\w.:-]{0,99}"
_VALUE_FORM = rf"""(?:"[^"<&]{{0,{_MOST_VALUE_bytes}}}"|'[^'<&]{{0,{_MOST_VALUE_bytes}}}')"""
_TAG_FORM = re.compile(rf"</{_NAME_FORM}>|<{_NAME_FORM}(?: +{_NAME_FORM}={_VALUE_FORM})* ?/?>")
_WHOLE = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,18})")
_REAL = re.compile(r"[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,2})?")
_DEV = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{1,16}")


@dataclass(frozen=True)
class NcclGraph:
    """One graph of a file: NCCL's attributes, and of each channel its GPUs in order, its nets and
    the ranks it names.

    GPUs and nets are `dev` numbers: a GPU's is its NVML index, with the number of its host from bit
    56 on. Speeds in GB/s are a channel's. `ranks` has None where a GPU has no rank, as it should.
    """

    id: int
    pattern: int
    nchannels: int
    speedintra: Fraction
    speedinter: Fraction
    typeintra: str
    typeinter: str
    crossnic: int
    samechannels: int
    latencyinter: Fraction
    channels: tuple[tuple[int, ...], ...]
    nets: tuple[tuple[int, ...], ...]
    ranks: tuple[tuple[int | None, ...], ...]
    line: int = 0

    @property
    def name(self) -> str:
        """What the graph is called in messages."""
        return f"graph {self.id} ({NAMES.get(self.id, 'not known')})"


@dataclass(frozen=True)
class GraphFile:
    """A graph file: its graphs in order, `where` it was found, and doubts about it, a line each."""

    where: str
    graphs: tuple[NcclGraph, ...]
    notes: tuple[str, ...] = ()

    def find(self, number: int) -> NcclGraph | None:
        """Return the graph of an id, None where the file has none."""
        return next((graph for graph in self.graphs if graph.id == number), None)


def looks_like_graph_file(text: str) -> bool:
    """Return whether a text begins as a graph file does, after comments and a declaration."""
    return (
        re.match(r"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*<graphs\b", text.lstrip("\ufeff"), re.DOTALL)
        is not None
    )


def read_graph_file(text: str, where: str) -> GraphFile:
    """Return the graphs of an XML text; `where` names the file in errors.

    Raises InputError where the text is cut off or no graph file, and where NCCL would not load it.
    """
    if not text.strip():
        raise InputError(
            f'{where}: the file is empty; expected <graphs version="1">, as NCCL_GRAPH_DUMP_FILE '
            "writes it"
        )
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"{where}: {len(text)} characters; more than {MOST_CHARACTERS} are no graph file"
        )
    root = parse_xml(text, where)
    if root.tag != "graphs":
        other = (
            "; this is a topology, as NCCL_TOPO_DUMP_FILE writes it" if root.tag == "system" else ""
        )
        raise root.make_error(
            f"is not NCCL's graph file; expected <graphs> as the outermost element{other}"
        )
    _check_form(text, where)
    if root.get("version") is None or _read_whole(root, "version") != 1:
        raise root.make_error(f"version={root.get('version')!r}: NCCL reads version 1 only")
    notes: dict[str, None] = {}
    graphs = tuple(_read_graph(element, notes) for element in _select(root, "graph", notes))
    if not graphs:
        raise root.make_error("has no <graph>; NCCL would find its own, as without a file")
    for graph in graphs:
        first = next(other for other in graphs if other.id == graph.id)
        if first is not graph:
            raise InputError(
                f"{where}, line {graph.line}: a second {graph.name}, after line {first.line}; "
                "NCCL would mix them"
            )
    return GraphFile(where, graphs, tuple(f"{where}: {note}" for note in notes))


def _check_form(text: str, where: str) -> None:
    """Raise InputError for what is sound XML but not read by NCCL's parser: declarations, text,
    tabs, spaces around `=`.
    """
    start = text.removeprefix("\ufeff")
    if start is not text:
        raise InputError(
            f"{where}, line 1: begins with a byte order mark, which NCCL does not read; save it "
            "without"
        )
    if _DECLARATION.match(text):
        raise InputError(
            f"{where}, line 1: begins with <?...?>, which NCCL does not read; remove the "
            "declaration"
        )
    blank = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    position = 0
    for tag in re.finditer(r"<[^>]*>", blank):
        _check_between(blank, position, tag.start(), where)
        position = tag.end()
        if not _TAG_FORM.fullmatch(tag.group()):
            line = blank.count("\n", 0, tag.start()) + 1
            raise InputError(
                f"{where}, line {line}: {tag.group()[:60]!r} is not written as NCCL reads tags: "
                "on one line, one space "
                f'before each name="value", no more than {_MOST_VALUE_bytes} bytes in it, no &...;'
            )
    _check_between(blank, position, len(blank), where)


def _check_between(text: str, start: int, end: int, where: str) -> None:
    """Raise InputError for anything but spaces and ends of lines between two tags."""
    stray = text[start:end].strip(" \r\n")
    if stray:
        line = text.count("\n", 0, text.index(stray, start)) + 1
        raise InputError(
            f"{where}, line {line}: {stray[:40]!r} between elements; NCCL reads spaces and ends "
            "of lines there"
        )


def _select(parent: Element, tag: str, notes: dict[str, None], *others: str) -> list[Element]:
    """Return the elements of some tags below another, and note those that NCCL ignores."""
    for child in parent:
        if child.tag not in (tag, *others):
            notes[f"<{child.tag[:40]}> in <{parent.tag}> is ignored, by NCCL too"] = None
    return [child for child in parent if child.tag in (tag, *others)]


def _read_graph(element: Element, notes: dict[str, None]) -> NcclGraph:
    """Return the graph of an element."""
    channels, nets, ranks = [], [], []
    for channel in _select(element, "channel", notes):
        members = _select(channel, "gpu", notes, "net")
        gpus = [member for member in members if member.tag == "gpu"]
        channels.append(tuple(_read_dev(gpu, notes) for gpu in gpus))
        nets.append(tuple(_read_dev(member, notes) for member in members if member.tag == "net"))
        ranks.append(
            tuple(None if gpu.get("rank") is None else _read_whole(gpu, "rank") for gpu in gpus)
        )
    if any(rank is not None for row in ranks for rank in row):
        notes[
            "GPUs have ranks, which NCCL 2.30 and later believe, in every communicator, whatever "
            "dev says"
        ] = None
    return NcclGraph(
        id=_read_whole(element, "id"),
        pattern=_read_whole(element, "pattern"),
        nchannels=_read_whole(element, "nchannels"),
        speedintra=_read_real(element, "speedintra"),
        speedinter=_read_real(element, "speedinter"),
        typeintra=_read_text(element, "typeintra"),
        typeinter=_read_text(element, "typeinter"),
        crossnic=_read_whole(element, "crossnic"),
        samechannels=_read_whole(element, "samechannels"),
        latencyinter=_read_real(element, "latencyinter")
        if element.get("latencyinter")
        else Fraction(0),
        channels=tuple(channels),
        nets=tuple(nets),
        ranks=tuple(ranks),
        line=element.line,
    )


def _read_text(element: Element, key: str) -> str:
    """Return an attribute that NCCL demands."""
    text = element.get(key)
    if text is None:
        raise element.make_error(f"has no {key}, which NCCL demands")
    return text


def _read_whole(element: Element, key: str) -> int:
    """Return a whole number in decimal or 0x hex, as NCCL reads them."""
    text = _read_text(element, key)
    if not _WHOLE.fullmatch(text):
        raise element.make_error(f"{key}={text[:40]!r}: expected a whole number")
    value = int(text, 16 if "x" in text.lower() else 10)
    if abs(value) > 10**6:
        raise element.make_error(
            f"{key}={text[:40]!r}: expected a whole number of at most a million"
        )
    return value


def _read_real(element: Element, key: str) -> Fraction:
    """Return a number that is not negative, exactly as it is written."""
    text = _read_text(element, key)
    if not _REAL.fullmatch(text):
        raise element.make_error(f"{key}={text[:40]!r}: expected a number that is not negative")
    return Fraction(text)


def _read_dev(element: Element, notes: dict[str, None]) -> int:
    """Return a dev number: hex after 0x or with letters, else decimal, as NCCL before 2.21 wrote
    it.
    """
    text = _read_text(element, "dev")
    if not _DEV.fullmatch(text):
        raise element.make_error(f"dev={text[:40]!r}: expected a number such as 0x3 or 3")
    if text.isdigit():
        if int(text) > 9:
            later = f"{int(text)}, as meant before NCCL 2.21; later ones read {int(text, 16)}"
            notes[f'dev="{text}" is read as {later}'] = None
        return int(text)
    return int(text, 16)
