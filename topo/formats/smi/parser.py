"""Split nvidia-smi's output into matrices of `topo`, sections of `nvlink` and legends.

The output of every version is read: tabs, spaces or both, device columns under any name, affinity
columns or none, underlined headings. Prompts and prose around it are skipped. The other modules
interpret the words.

A label is the cell of a matrix for two devices, such as NV4 or PIX. The affinities of a GPU are the
CPUs and the NUMA nodes that its row names behind the labels.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ...errors import InputError
from ...facts.keys import normalize_bus_id
from ..pasted import clean

# Matrices of more devices are refused: no machine has as many.
MAX_COLUMNS = 512
# Seven matrices of 512 devices take some 4,000 lines. The room for other text is chosen.
MAX_LINES = 100_000
# A machine has one matrix of `-m`, and six of `-p2p`; some texts hold several hosts.
MAX_TABLES = 64
# A longer line cannot be a row of MAX_COLUMNS cells, and is not searched.
_MAX_LINE_CHARACTERS = 256 * 2**10
# Columns of text from one tab stop to the next.
_TAB = 8
# Characters at the start of a text in which its format is detected.
_SNIFF_CHARACTERS = 2**20

# What people put in the place of what they leave out.
DOTS = ("..", "...", "....", "\u2026")
CPU, NUMA, GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
GPU_NAME = re.compile(r"GPU(\d{1,6})")
RANGES = re.compile(r"[0-9]{1,7}(?:[-,][0-9]{1,7}){0,4096}")
_COLUMNS = (
    (CPU, re.compile(r"CPU[\s_]*Affinity", re.IGNORECASE)),
    (GPU_NUMA, re.compile(r"GPU[\s_]*NUMA(?:[\s_]*ID)?", re.IGNORECASE)),
    (
        NUMA,
        re.compile(
            r"(?:NUMA|Node|Memory)[\s_]*Affinity|(?<!\x00)\bNUMA\b(?![\s\x00]*(?:ID|Affinity))",
            re.IGNORECASE,
        ),
    ),
)
# Replaces the spaces in names of columns while a heading is split; no line has it.
_SPACE = "\x00"
_GLUED_NAMES = re.compile(r"(?<=\d)(?=(?:GPU|NIC)\d|mlx\d+_)")  # lost tabs: NIC8NIC9
_QUOTE = re.compile(r"[ \t]{0,40}(?:>[ \t]?){1,8}")
_MARK_UP = re.compile(r"[ \t]{0,40}(?://|#|\*|\+|\|)[ \t]?")  # a comment, a list, a change, a table
_LAST_BARS = re.compile(r"(?:[ \t]{1,40}\|){1,9}$")  # cells that web pages add to each line
_BEFORE_HEADING = re.compile(
    r"[^|]{0,200}?(?:topo -m|[`'\"\u2018-\u201f])(?=\s{1,80}GPU\d)"
)  # a prompt or a quote on the heading's line
_LABEL = re.compile(r"X|[A-Z][A-Z0-9]{0,15}#?")
_KNOWN_LABEL = re.compile(
    r"X|(?:NV|XGMI)\d+|PIX|PXB|PHB|NODE|SYS|SOC|C2C|LNK|SW|NET|DIS|OK|CNS|GNS|TNS|NS|DR|U"
)
_GLUED_LABELS = re.compile(rf"(?:{_KNOWN_LABEL.pattern}){{2,}}")
_CPU_RANGES = re.compile(r"[0-9]{1,7}-[0-9]{1,7}")
_GLUED_AFFINITY = re.compile(
    rf"((?:{_KNOWN_LABEL.pattern})+)(?<=[A-Z])([0-9]{{1,7}}[-,][0-9,-]{{1,999}})"
)
_GLUED_END = re.compile(r"([0-9][0-9,-]{0,999})(N/A)")  # 0N/A, of the last two columns
_TOO_WIDE = f"a matrix of more than {MAX_COLUMNS} devices is refused, since no machine has as many"
_WORTH_A_LOOK = re.compile(r"GPU|NIC\d|topo|Link|^\s*(?:\.{3,}|\u2026)\s*$")
_DEVICE = re.compile(r"[A-Za-z][\w.:@-]{0,63}")
_P2P = re.compile(r"-p2p(?:status)?[ \t=]+([a-z]{1,4})\b")
_PROMPT = re.compile(r"[\w.-]{1,64}@([\w.-]{1,255})")
# A command of another maker, whose labels and devices have other meanings: mthreads-gmi topo -m.
_FOREIGN = re.compile(r"\b((?!nvidia-)[a-z]{2,12}-?[sg]mi) topo\b")
_NIC_LEGEND = re.compile(
    r"\s{0,40}(?:[-*] )?`?(NIC\d{1,6})`?\s{0,9}(?::|=|[-=]>|\t(?=\s{0,9}[a-z]))\s{0,40}(\S.{0,200})"
)
# Words of a legend to which people add interfaces, addresses, rails and speeds.
_WORDS = re.compile(r"[\w.@-]{1,64}(?::\d{1,3})?")
_RDMA_NAME = re.compile(
    r"(?:mlx\d|rocep|roce|ibp|rdmap|bnxt_re|irdma|efa|hfi|hns|ionic|erdma)[\w.-]{0,40}"
)
_GPU_HEAD = re.compile(
    r"\s{0,40}GPU (\d{1,6}): ([A-Za-z].{0,199}?|)(?: \(UUID: ([\w-]{1,80})\))?\s{0,40}"
)
_REMOTE = re.compile(
    r"\s{0,40}Link (\d{1,4}): (?:Remote Device )?"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\b.{0,80}"
)
_SPEED = re.compile(
    r"\s{0,40}Link (\d{1,4}): (?:([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s|<?inactive>?)\s{0,40}",
    re.IGNORECASE,
)
# What is left of a listing of links: a line that breaks off, or dots for the rest.
_CUT_LINK = re.compile(
    r"\s{0,40}(?:Link(?: \d{1,4}(?:: ?(?:R[\w ]{0,14}[0-9A-Fa-f:.]{0,15})?)?)?"
    r"|\.{3,}|\u2026)\s{0,40}"
)
# The end of a legend without the line of NV#, as topo -mp prints it; -m has that line always.
_PCIE_LEGEND = re.compile(
    r"\bPIX\W{1,9}Connection traversing at most a single PCIe bridge\W{0,9}\n(?!\W{0,40}NV)"
)
# A row of a device that the heading does not name: two labels tell it from prose.
_STRANGER = re.compile(
    rf"\s{{0,40}}(?:GPU|NIC)\d{{1,6}}(?:\s{{1,40}}(?:{_KNOWN_LABEL.pattern})(?!\S)){{2}}"
)
# A row of another tool's table: weights, hops or rates.
_NUMBERS = re.compile(r"\s{0,40}GPU\d{1,6}(?:\s{1,40}[\d.]{1,12}){1,512}\s{0,40}")
_SNIFF = re.compile(
    r"^[ \t>/#*|+]{0,40}(?:(?<=\|)(?:[ \t]{0,40}[\d,-]{1,40}[ \t]{0,40}\|){1,3}[ \t]{0,40})?(?:"
    r"GPU\d{1,6}[ \t|]{1,40}(?:(?:(?:\.{2,4}|\u2026)[ \t|]{1,40})?GPU\d{1,6}\b|CPU[ \t]+Affinity"
    r"|NUMA[ \t]+Affinity)"
    r"|GPU\d{1,6}[ \t|]{1,40}(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|DR|U)"
    r"(?=[ \t|\r]|$)"
    r"|GPU \d{1,6}: [^\n]{0,200}\(UUID: [^\n]{0,100}\)\s{0,40}\n[ \t]{1,40}Link \d"
    r"|NVML: Unable to retrieve NVLink information"
    r"|Failed to run topology matrix)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class MatrixRow:
    """A row of a matrix: the cells of its device columns, and its affinities by column heading.

    A cell is None if it is not printed. `unplaced` are affinities that can be in several columns.
    """

    cells: tuple[str | None, ...]
    affinities: dict[str, str]
    unplaced: tuple[str, ...] = ()


@dataclass
class LabelMatrix:
    """A matrix: its devices (`names`) in the order of columns, and its rows by device.

    `line` is the line of its heading, `columns` the headings of its affinity columns. `flag` is
    that of `-p2p`, None for a matrix of `-m`. `repeated` are the devices of rows that differ from
    an earlier one; the first is kept. `start` is the line of the command that printed the matrix,
    else of its heading; `host` is the host in that line's prompt, if any; `has_nvlinks` is False
    for a matrix of `-mp`. `starts` are the columns of text in which the heading has its words,
    empty if some are joined. `numbers` is the first line of a row that has them in place of labels,
    0 if there is none.
    """

    line: int
    names: tuple[str, ...]
    columns: tuple[str, ...]
    flag: str | None
    rows: dict[str, MatrixRow] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    start: int = 0
    host: str | None = None
    has_nvlinks: bool = True
    starts: tuple[int, ...] = ()
    numbers: int = 0

    @cached_property
    def known(self) -> frozenset[str]:
        """The names of the devices as a set."""
        return frozenset(self.names)


@dataclass
class NvlinkListing:
    """A GPU in the output of `nvidia-smi nvlink`.

    `remote` maps a link's number to the PCI address at its other end (-R), `speed` to its GB/s as
    text, None if the link is inactive (-s). Both are empty if that output is missing. `is_cut` says
    that the text leaves links out.
    """

    name: str = ""
    uuid: str | None = None
    remote: dict[int, str] = field(default_factory=dict)
    speed: dict[int, str | None] = field(default_factory=dict)
    is_cut: bool = False

    @property
    def identity(self) -> dict[str, str]:
        """The GPU's name and UUID, if printed, by the keys of facts and devices."""
        return {key: text for key, text in (("name", self.name), ("uuid", self.uuid)) if text}


@dataclass
class SmiOutput:
    """All parts of a text.

    `tables` are its matrices, in order. `nics` maps a NIC column to its name in the legend,
    `nvlinks_by_gpu` a GPU's number to its links. `failed` is the number of the line in which
    nvidia-smi gave up on the matrix, `stray` the number of the first line that looks like one of a
    matrix but follows no heading that can be read; None if there is none. If that line is a heading
    itself, `odd` is the column in it that nvidia-smi does not print, else "".
    """

    tables: list[LabelMatrix] = field(default_factory=list)
    nics: dict[str, str] = field(default_factory=dict)
    nvlinks_by_gpu: dict[int, NvlinkListing] = field(default_factory=dict)
    failed: int | None = None
    stray: int | None = None
    odd: str = ""


def looks_like(text: str) -> bool:
    """Return whether a text's first megabyte contains output of nvidia-smi: a matrix or links."""
    head = text[:_SNIFF_CHARACTERS]
    return "GPU" in head and _SNIFF.search(clean(head)) is not None


def parse_output(text: str, where: str) -> SmiOutput:
    """Split a text into its parts, without interpreting them; `where` names the file in errors.

    Raise InputError for more than MAX_LINES lines, MAX_COLUMNS devices or MAX_TABLES matrices, for
    rows that do not fit their heading or that it does not name, and for another maker's matrix.
    """
    output = SmiOutput()
    matrix: LabelMatrix | None = None
    listing: NvlinkListing | None = None
    flag: str | None = None
    command: tuple[int, str] | None = None
    last = text.count("\n")  # a line after the last newline may be cut off
    for number, line in _iterate_lines(text, where):
        if not _WORTH_A_LOOK.search(line) and (
            matrix is None or line.split(maxsplit=1)[0] not in matrix.known
        ):
            matrix = None if line.strip() in ("Legend:", "```") else matrix
            continue
        # the flag belongs to the next matrix: commands and titles precede their output
        flags = _P2P.search(line) if "-p2p" in line else None
        if flags or "topo -m" in line:
            flag = flags.group(1) if flags else None
            command = number, line
        if "Failed to run topology matrix" in line:
            output.failed = number
        elif (heading := _parse_heading(line, number, flag, where)) is not None:
            _add_command(heading, *(command or (number, "")), where)
            matrix, listing, flag, command = heading, None, None, None
            output.tables.append(matrix)
            if len(output.tables) > MAX_TABLES:
                raise InputError(
                    f"{where}: line {number}: more than {MAX_TABLES} matrices; expected one "
                    "machine in a file"
                )
        elif matrix is not None and (row := _parse_row(line, matrix, where, number, number > last)):
            name, cells = row
            if matrix.rows.setdefault(name, cells) != cells:
                matrix.repeated.append(name)
        elif named := _NIC_LEGEND.fullmatch(line):
            output.nics.setdefault(named.group(1), _find_nic_name(named.group(2)))
        elif gpu := _GPU_HEAD.fullmatch(line):
            listing = output.nvlinks_by_gpu.setdefault(int(gpu.group(1)), NvlinkListing())
            listing.name, listing.uuid = gpu.group(2) or listing.name, gpu.group(3) or listing.uuid
            matrix = None
        elif listing is not None:
            _parse_link(line, listing)
        elif matrix is None:
            if output.stray is None and _SNIFF.match(line):
                output.stray, output.odd = number, _find_odd_column(line)
        elif _STRANGER.match(line):
            raise InputError(
                f"{where}: line {number}: a row of {line.split(maxsplit=1)[0]}, which the heading "
                f"of line {matrix.line} does not name; the columns on the right are missing, so "
                "give the whole output (nvidia-smi topo -m > matrix.txt)"
            )
    _mark_pcie_only(text, output.tables)
    return output


def _mark_pcie_only(text: str, tables: list[LabelMatrix]) -> None:
    """Mark matrices that their own legend tells to be of `-mp`, also without the command."""
    for match in _PCIE_LEGEND.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        above = [table for table in tables if table.line < number and table.flag is None]
        lines = text[: match.end()].split("\n")[above[-1].line :] if above else []
        if lines and not re.search(r"\bNV(?:#|\d)", "\n".join(lines)):
            above[-1].has_nvlinks = False


def _add_command(heading: LabelMatrix, number: int, typed: str, where: str) -> None:
    """Add what the line of a command, `typed`, says of its matrix.

    Raise InputError for another maker's command.
    """
    if foreign := _FOREIGN.search(typed):
        raise InputError(
            f"{where}: line {number}: the matrix of {foreign.group(1)}, which is not read; "
            "expected that of nvidia-smi topo -m, rocm-smi --showtopo or amd-smi topology"
        )
    prompt = _PROMPT.search(typed)
    heading.start = number
    heading.host = prompt.group(1) if prompt else None
    heading.has_nvlinks = "topo -mp" not in typed


def _iterate_lines(text: str, where: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers and texts of lines that may matter, without markup."""
    for number, raw in enumerate(text.split("\n"), 1):
        if number > MAX_LINES:
            raise InputError(
                f"{where}: more than {MAX_LINES} lines; expected what nvidia-smi prints of one "
                "machine"
            )
        if len(raw) < 3 or raw.isspace():
            continue
        if len(raw) > _MAX_LINE_CHARACTERS:
            if _SNIFF.match(raw[:1000]):
                raise InputError(f"{where}: line {number} has {len(raw)} characters; {_TOO_WIDE}")
            continue
        if line := _remove_markup(_LAST_BARS.sub("", raw.rstrip())):
            yield number, line


def _remove_markup(line: str) -> str:
    """Remove the mark at the beginning of a document's line; in a table, replace bars by tabs."""
    if quote := _QUOTE.match(line):
        line = line[quote.end() :]
    mark = _MARK_UP.match(line)
    if mark is None:
        return line
    content = line[mark.end() :]
    if "|" not in mark.group():
        return content
    return _move_affinities(content.rstrip().removesuffix("|").replace("**", "").split("|"))


def _move_affinities(cells: list[str]) -> str:
    """Join a table's cells by tabs, with affinities that pages put before devices at the end."""
    words = [cell.strip() for cell in cells]
    of_affinities = [
        not word or RANGES.fullmatch(word) or any(c.fullmatch(word) for _, c in _COLUMNS)
        for word in words[:-1]
    ]
    count = of_affinities.index(False) if False in of_affinities else 0
    if not any(words[:count]) and not (count > 1 and _DEVICE.fullmatch(words[count])):
        count = 0
    elif words[count].startswith("GPU0") and not words[count - 1]:
        count -= 1  # the corner above the devices
    return "\t".join([*cells[count:], *cells[:count]])


def _parse_heading(line: str, number: int, flag: str | None, where: str) -> LabelMatrix | None:
    """Parse a heading (GPUs, other devices, affinities); return None for any other line."""
    if before := _BEFORE_HEADING.match(line):
        line = line[before.end() :]
    starts = () if before else _find_starts(line)
    start = [part for word in line.split(maxsplit=2)[:2] for part in _GLUED_NAMES.split(word)]
    if not start or not GPU_NAME.fullmatch(start[0]) or _KNOWN_LABEL.fullmatch(start[-1]):
        return None
    for column, pattern in _COLUMNS:
        line = pattern.sub(f" {column.replace(' ', _SPACE)} ", line)
    words = [part for word in line.split() for part in _GLUED_NAMES.split(word)]
    names = [word for word in words if _SPACE not in word]
    columns = tuple(word.replace(_SPACE, " ") for word in words if _SPACE in word)
    others = [name for name in names if not GPU_NAME.fullmatch(name)]
    if (
        any(_KNOWN_LABEL.fullmatch(name) or not _DEVICE.fullmatch(name) for name in others)
        or any(name.startswith("GPU") for name in others)  # a number is cut off or misread
        or words[: len(names)] != names
    ):
        return None
    # without affinity columns, prose that begins with the name of a GPU is no heading
    is_numbered = all(re.search(r"\d", name) for name in others)
    has_gpus = len(names) - len(others) > 1 or line[0].isspace()
    if not columns and not (is_numbered and has_gpus):
        return None
    if len(names) > MAX_COLUMNS:
        raise InputError(
            f"{where}: line {number} has the heading of {len(names)} devices; {_TOO_WIDE}"
        )
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise InputError(
            f"{where}: line {number} names {twice[0][:40]} twice; expected the heading of one "
            "matrix"
        )
    if len(starts) != len(words):
        starts = ()
    return LabelMatrix(number, tuple(names), columns, flag, starts=starts)


def _find_starts(heading: str) -> tuple[int, ...]:
    """Return where the names of devices and columns start in a heading without tabs."""
    if "\t" in heading:
        return ()
    for _, pattern in _COLUMNS:
        heading = pattern.sub(lambda match: "_" * len(match[0]), heading)
    return tuple(word.start() for word in re.finditer(r"\S+", heading))


def _find_odd_column(line: str) -> str:
    """Return the column without a number in a line that is otherwise a heading, or ""."""
    words = line.split()
    if len(words) > 2 and words[1] in DOTS:
        words.insert(0, words.pop(1))
        return words[0] if all(map(GPU_NAME.fullmatch, words[1:3])) else ""
    if len(words) < 2 or not all(GPU_NAME.fullmatch(word) for word in words[:2]):
        return ""
    return next((word for word in words if not any(map(str.isdigit, word))), "")


def _parse_row(
    line: str, matrix: LabelMatrix, where: str, number: int, is_cut_off: bool
) -> tuple[str, MatrixRow] | None:
    """Parse a row of the matrix and return its device and cells; None for any other line.

    The first row of numbers is recorded in the matrix. Labels that lost the tab between them are
    split. Raise InputError unless there are as many cells as columns, since it is then unknown
    which cell belongs to which column; only the first cells of a row in which the text breaks off
    (`is_cut_off`) are known to be in place.
    """
    words = line.split(maxsplit=2)
    if len(words) < 2 or words[0] not in matrix.known:
        return None
    if not _LABEL.match(words[1]):
        if _NUMBERS.fullmatch(line) is not None:
            matrix.numbers = matrix.numbers or number
        return None
    width = len(matrix.names)
    fields = _split_fields(line, matrix)
    if len(fields) > width and all(
        not cell or (_LABEL.fullmatch(cell) and _split_glued(cell) == [cell])
        for cell in fields[1 : width + 1]
    ):
        cells: list[str | None] = [cell or None for cell in fields[1 : width + 1]]
        rest, is_placed = fields[width + 1 :], True
    else:
        cells, is_placed = [], False
        rest = [part for word in line.split()[1:] for part in _split_glued(word)]
    while rest and (_LABEL if len(cells) < width else _KNOWN_LABEL).fullmatch(rest[0]):
        cells.append(rest.pop(0))
    if not cells:
        return None
    if len(cells) > width or (len(cells) < width and not is_cut_off):
        raise InputError(
            f"{where}: line {number}: the row of {words[0]} has {len(cells)} cells for {width} "
            "columns; give the output as nvidia-smi printed it (nvidia-smi topo -m > matrix.txt), "
            "with its tabs"
        )
    if is_cut_off and not rest and cells[-1] != "X":
        cells.pop()  # it may be cut off too: NV1 of NV18
    cells += [None] * (width - len(cells))
    placed = _place_affinities(rest, matrix.columns, is_placed)
    unplaced = () if placed is not None else tuple(filter(None, rest))
    return words[0], MatrixRow(tuple(cells), placed or {}, unplaced)


def _split_fields(line: str, matrix: LabelMatrix) -> list[str]:
    """Split a row at its tabs, or where spaces have replaced them.

    That is where words start below those of the heading, else at every eighth column of text. The
    result is a single field if neither fits.
    """
    if "\t" in line:
        return [cell.strip() for cell in line.lstrip().split("\t")]
    found = [(word.start(), word[0]) for word in re.finditer(r"\S+", line)]
    (margin, name), *others = found
    is_margin = bool(matrix.starts) and margin + len(name) < matrix.starts[0]
    if is_margin and all(start in matrix.starts for start, _ in others):
        below = dict(others)
        return [name, *(below.get(start, "") for start in matrix.starts)]
    fields, end = [name], len(name)
    for start, text in others:
        column, word = start - margin, text
        if word == "X" and column % _TAB == 1:  # nvidia-smi prints " X "
            column, word = column - 1, " X "
        tabs = column // _TAB - end // _TAB
        if column % _TAB or tabs < 1:
            return [line]
        fields += [""] * (tabs - 1) + [word.strip()]
        end = column + len(word)
    return fields


def _place_affinities(
    rest: list[str], columns: tuple[str, ...], is_placed: bool
) -> dict[str, str] | None:
    """Return the affinities at the end of a row by column; None if that can be several.

    `is_placed` says that the row was split where its columns are, so that empty ones are known.
    """
    texts = [word for word in rest if word]
    if len(texts) >= len(columns) or not texts:
        return dict(zip(columns, texts, strict=False))
    is_usual = columns[:2] == (CPU, NUMA)
    # nvidia-smi prints an empty field before the last column
    of_field = [*columns[:2], *columns[2:] * 2] if is_usual else list(columns)
    if is_placed and (not rest[0] or len(rest) == len(of_field)):
        found = {c: word for c, word in zip(of_field, rest, strict=False) if word}
        if len(found) == len(texts):
            return found
    if rest and not rest[0]:  # an empty first affinity: the others are in the last columns
        return dict(zip(columns[-len(texts) :], texts, strict=True))
    if columns == (CPU, NUMA, GPU_NUMA) and len(texts) == 2 and texts[1] == "N/A":
        parts = _split_affinities(texts[0])
        if parts is None:
            return None
        return {**dict(zip(columns, parts, strict=False)), GPU_NUMA: texts[1]}
    if is_usual and texts[0].isdigit() and not is_placed:
        return None  # one CPU, or a NUMA node behind an empty affinity
    return dict(zip(columns, texts, strict=False))


def _split_glued(word: str) -> list[str]:
    """Split a word that lost its tabs: `NODEPXB` into NODE and PXB, `SYS0-15` into SYS and 0-15.

    `0N/A`, a node and the end of the row, is split, too.

    `NV18` followed by a number stays whole, since the boundary between them is unknown.
    """
    if _KNOWN_LABEL.fullmatch(word):
        return [word]
    if _GLUED_LABELS.fullmatch(word):
        return _KNOWN_LABEL.findall(word)
    glued = _GLUED_AFFINITY.fullmatch(word) or _GLUED_END.fullmatch(word)
    return [*_split_glued(glued.group(1)), glued.group(2)] if glued else [word]


def _split_affinities(word: str) -> tuple[str, ...] | None:
    """Split CPUs from the NUMA node behind them: `0-45,92-1370` into 0-45,92-137 and 0.

    All ranges of CPUs have one length; if those of the whole word have, it is CPUs alone. The
    result is None if the boundary is not known: `0-15` can be all of a word, or 0-1 and 5.
    """
    for digits in (0, 1, 2):
        cpus, node = word[: len(word) - digits], word[len(word) - digits :]
        ranges = _CPU_RANGES.findall(cpus)
        ends = [[int(end) for end in part.split("-")] for part in ranges]
        lengths = {last - first for first, last in ends}
        if ",".join(ranges) == cpus and len(ranges) > 1 and len(lengths) == 1 and min(lengths) >= 0:
            return (cpus, node) if node else (cpus,)
    return None


def _find_nic_name(legend: str) -> str:
    """Return the name in a NIC's legend: its RDMA device, else the first word.

    People add to it: "rocep80s0 -> ens2005np0 10.0.16.0/24 (rail 0)".
    """
    words = _WORDS.findall(legend)
    return next(filter(_RDMA_NAME.fullmatch, words), words[0] if words else legend.split()[0])


def _parse_link(line: str, listing: NvlinkListing) -> None:
    if remote := _REMOTE.fullmatch(line):
        listing.remote.setdefault(int(remote.group(1)), normalize_bus_id(remote.group(2)))
    elif speed := _SPEED.fullmatch(line):
        listing.speed.setdefault(int(speed.group(1)), speed.group(2))
    elif _CUT_LINK.fullmatch(line):
        listing.is_cut = True
