"""Read NCCL's graph XML, which NCCL_GRAPH_DUMP_FILE makes NCCL write and NCCL_GRAPH_FILE read.

A graph is NCCL's name for a set of channels, which are rings, or trees of one kind. The rules are
those of NCCL's graph/search.cc and graph/xml.cc. Anything that NCCL would stop on is an InputError
with file and, inside it, line; what only some versions misread is noted. graph_check.py checks
whether the channels make sense.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from ....topo.errors import InputError
from ....topo.formats.safe_xml import Element, parse_xml

RING_ID, TREE_ID, COLLNET_CHAIN_ID, NVLS_ID, COLLNET_DIRECT_ID = range(5)
# The names of the graphs.
NAMES = {
    RING_ID: "ring",
    TREE_ID: "tree",
    COLLNET_CHAIN_ID: "CollNet chain",
    NVLS_ID: "NVLS",
    COLLNET_DIRECT_ID: "CollNet direct",
}

# Far more than needed for 65,536 elements, the most that any version reads.
MAX_CHARACTERS = 8 * 2**20
# Size of NCCL's buffer for an attribute's value.
_MAX_VALUE_BYTES = 253
# Largest integer that NCCL may have written; larger ones are damage.
_MAX_WHOLE = 10**6

# NCCL reads the beginning of a comment as the name of a tag. If there is a "=" in it, or no end,
# NCCL refuses the file.
_COMMENT = re.compile(rf"<!--(?=[^ >/\n\r=]{{0,{_MAX_VALUE_BYTES - 3}}}[ >/\n\r]).*?-->", re.DOTALL)
_NAME_FORM = r"[A-Za-z_][\w.:-]{0,99}"
_VALUE_FORM = rf"""(?:"[^"<&]{{0,{_MAX_VALUE_BYTES}}}"|'[^'<&]{{0,{_MAX_VALUE_BYTES}}}')"""
_TAG_FORM = re.compile(rf"</{_NAME_FORM}>|<{_NAME_FORM}(?: +{_NAME_FORM}={_VALUE_FORM})* ?/?>")
_WHOLE = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,18})")
_REAL = re.compile(r"[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,2})?")
_DEV = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{1,16}")


@dataclass(frozen=True)
class NcclGraph:
    """A graph of a file: NCCL's attributes, and each channel's GPUs, NICs and ranks in order.

    Attributes have NCCL's names: `id` (ring, tree ...), `pattern` of the search, `typeintra` and
    `typeinter` the types of the farthest paths inside a host and to NICs, `speedintra` and
    `speedinter` a channel's GB/s, `crossnic`, `samechannels`, `latencyinter`. GPUs and `nets`
    (NICs) are `dev` numbers; a GPU's is its NVML index, with the number of its host from bit 56 on.
    `ranks` has None for a GPU without a rank, which is the usual case. `line` is the file's.
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
        """The name of the graph in messages."""
        return f"graph {self.id} ({NAMES.get(self.id, 'not known')})"


@dataclass(frozen=True)
class GraphFile:
    """A graph file: its name `where`, its graphs in order, and notes on doubtful parts."""

    where: str
    graphs: tuple[NcclGraph, ...]
    notes: tuple[str, ...] = ()

    def find(self, number: int) -> NcclGraph | None:
        """Return the graph whose id is `number` (RING_ID, TREE_ID); None if the file has none."""
        return next((graph for graph in self.graphs if graph.id == number), None)


def looks_like_graph_file(text: str) -> bool:
    """Return whether a text begins like a graph file, after comments and a declaration."""
    start = r"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*<graphs\b"
    return re.match(start, text.lstrip("\ufeff"), re.DOTALL) is not None


def read_graph_file(text: str, where: str) -> GraphFile:
    """Return the graphs of an XML text; `where` names the file in errors.

    Raise InputError if the text is cut off, is no graph file, or would not be loaded by NCCL.
    """
    if not text.strip():
        raise InputError(
            f'{where}: the file is empty; expected <graphs version="1">, as NCCL_GRAPH_DUMP_FILE '
            "writes it"
        )
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"{where}: {len(text)} characters; more than {MAX_CHARACTERS} are no graph file"
        )
    root = parse_xml(text, where)
    if root.tag != "graphs":
        other = "; this is a topology, as NCCL_TOPO_DUMP_FILE writes it"
        raise root.make_error(
            "is not NCCL's graph file; expected <graphs> as the outermost element"
            f"{other if root.tag == 'system' else ''}"
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
    """Raise InputError for valid XML that NCCL's parser does not read.

    Such are declarations, text, tabs, and spaces around `=`.
    """
    if text.startswith("\ufeff"):
        raise InputError(
            f"{where}, line 1: begins with a byte order mark, which NCCL does not read; save it "
            "without"
        )
    if text.lstrip().startswith("<?"):
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
                'on one line, one space before each name="value", no more than '
                f"{_MAX_VALUE_BYTES} bytes in it, no &...;"
            )
    _check_between(blank, position, len(blank), where)


def _check_between(text: str, start: int, end: int, where: str) -> None:
    stray = text[start:end].strip(" \r\n")
    if stray:
        line = text.count("\n", 0, text.index(stray, start)) + 1
        raise InputError(
            f"{where}, line {line}: {stray[:40]!r} between elements; NCCL reads spaces and ends "
            "of lines there"
        )


def _select(parent: Element, tag: str, notes: dict[str, None], *others: str) -> list[Element]:
    """Return the children with some tags; note the others, which NCCL ignores."""
    for child in parent:
        if child.tag not in (tag, *others):
            notes[f"<{child.tag[:40]}> in <{parent.tag}> is ignored, by NCCL too"] = None
    return [child for child in parent if child.tag in (tag, *others)]


def _read_graph(element: Element, notes: dict[str, None]) -> NcclGraph:
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
            "GPUs have ranks, which NCCL 2.30 and later use in every communicator, in spite of dev"
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
    text = element.get(key)
    if text is None:
        raise element.make_error(f"has no {key}, which NCCL demands")
    return text


def _read_whole(element: Element, key: str) -> int:
    """Return an integer, decimal or hexadecimal with 0x."""
    text = _read_text(element, key)
    if not _WHOLE.fullmatch(text):
        raise element.make_error(f"{key}={text[:40]!r}: expected a whole number")
    value = int(text, 16 if "x" in text.lower() else 10)
    if abs(value) > _MAX_WHOLE:
        raise element.make_error(
            f"{key}={text[:40]!r}: expected a whole number of at most a million"
        )
    return value


def _read_real(element: Element, key: str) -> Fraction:
    text = _read_text(element, key)
    if not _REAL.fullmatch(text):
        raise element.make_error(f"{key}={text[:40]!r}: expected a number that is not negative")
    return Fraction(text)


def _read_dev(element: Element, notes: dict[str, None]) -> int:
    """Return a dev number: hexadecimal with 0x or letters, else decimal, as before NCCL 2.21."""
    text = _read_text(element, "dev")
    if not _DEV.fullmatch(text):
        raise element.make_error(f"dev={text[:40]!r}: expected a number such as 0x3 or 3")
    if text.isdigit():
        if int(text) > 9:
            notes[
                f'dev="{text}" is read as {int(text)}, as meant before NCCL 2.21; later ones read '
                f"{int(text, 16)}"
            ] = None
        return int(text)
    return int(text, 16)
