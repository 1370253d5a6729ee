"""Undo what terminals, web pages and logs do to a tool's output before somebody pastes it.

Codes of terminals (also without their escape character, which copying loses), HTML, spaces that are
not ASCII, quotes around each line, and what a log puts in front of each line are removed. Lines
stay lines: their numbers are those of the text as given, unless its lines are only marked in it, as
by `<br>` or by the `\\n` of JSON.
"""

import csv
import html
import re
from collections import Counter
from itertools import groupby, islice, takewhile
from operator import itemgetter

_CODES = re.compile(
    r"\x1b\[[0-9;?]{0,40}[A-Za-z]"
    # The escape character as programs print it, or lost. Only colours and styles are certain then.
    r"|(?:\^\[|\\(?:x1[bB]|033|e|u001[bB])|[\u241b\ufffd])?\[[0-9;]{1,20}m"
)
_TAG = re.compile(
    r"</?(?:pre|code|br|p|samp|kbd|table|thead|tbody|tr|td|th)\b[^<>\n]{0,100}>", re.IGNORECASE
)
_CELL = re.compile(r"</t[dh]>[ \t]{0,40}<t[dh]\b[^<>\n]{0,100}>", re.IGNORECASE)
# The end of a line that no other marks.
_BREAK = re.compile(r"(?:<br\s{0,9}/?>|</tr>)(?=[^\n])", re.IGNORECASE)
# Lines in a string of JSON or of a program: at least as many as a matrix has.
_ESCAPED_LINES = re.compile(r"^(?:[^\n]*?\\n){3}", re.MULTILINE)
_ESCAPES = {r"\n": "\n", r"\r": "", r"\t": "\t", r"\"": '"'}
_ESCAPE = re.compile("|".join(map(re.escape, _ESCAPES)))
# A line in quotes, as in a list, or as code.
_QUOTED = re.compile(
    r"^[ \t]{0,40}([\"'`])((?:\\.|(?!\1)[^\\\n])*)\1[ \t]{0,40},?[ \t]{0,40}$", re.MULTILINE
)
# The heading of a matrix in a spreadsheet's file, whose cells commas or semicolons separate.
_SEPARATED = re.compile(
    r"^[ \t]{0,9}(?:[\"\w ]{0,20}[,;])?\s?\"?GPU\d{1,4}\"?\s?[,;]\s?\"?(?:GPU\d|NIC\d|CPU Aff)"
    r"[^\n]{0,20000}\n[ \t]{0,9}\"?GPU\d{1,4}\"?\s?[,;]",
    re.MULTILINE,
)
# Longest row of such a file, in characters.
_MAX_ROW = 20_000
# CPUs whose ranges were separated as cells are: 0-15 and 32-47.
_CPUS = re.compile(r"\d{1,6}-\d{1,6}")
# A line that a terminal wrapped, and was copied with spaces up to the end of its window.
_PAD = re.compile(r"\S {60}")
_WRAPPED = re.compile(r"^([^\n]{40,250}?\S) {60,1000}(\S[^\n]{0,250})$", re.MULTILINE)
_LEAST_WRAPPED = 3
# Bars of tables that are drawn.
_BARS = str.maketrans(dict.fromkeys("\u2502\u2503\u2551", "|"))
_SPACES = {
    **dict.fromkeys([0, 0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " "),
    **dict.fromkeys([0xAD, *range(0x200B, 0x2010), 0x2060, 0xFEFF], ""),
}
# A heading below which the first row stands, and that row, both behind the same prefix.
_HEADING = re.compile(
    r"^(?P<prefix>[^\n]{1,120}?)[ \t]{0,40}"
    r"(?:GPU0[ \t]{1,40}(?:GPU1\b|[^\n]{0,400}Affinity)|=+ [^\n=]{1,40} between two GPUs =+"
    r"|LINK TYPE TABLE:)[^\n]*\n(?P<next>[^\n]*)",
    re.MULTILINE,
)
# Candidates that are tried: prose rarely has more than one, and a hostile text thousands.
_MAX_HEADINGS = 64
# What other code removes: quotes, comments, tables.
_MARK_UP = re.compile(r"[ \t>/#*|+]*")
# The heading of a matrix whose first GPU is not GPU0.
_OTHER_GPU = re.compile(r"(?:^|[ \t])GPU\d+$")


def clean(text: str) -> str:
    """Return a text without the traces of terminals, web pages and logs."""
    text = _join_wrapped(_unquote(remove_codes(text)))
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub("", _CELL.sub("\t", _BREAK.sub("\n", text)))
    if not text.isascii() or "\0" in text:
        text = text.translate(_SPACES).translate(_BARS)
    return _remove_prefix(_separate_by_tabs(text))


def _separate_by_tabs(text: str) -> str:
    """Return a text with tabs for the commas or semicolons of a matrix in a spreadsheet's file.

    Its rows end where a line has none.
    """
    heading = _SEPARATED.search(text) if "GPU" in text else None
    if heading is None:
        return text
    by = heading[0][-1]
    lines = text[heading.start() :].split("\n")
    rows = list(takewhile(lambda line: by in line and len(line) < _MAX_ROW, lines))
    cells = [_read_cells(row.replace("\r", ""), by) for row in rows]
    if cells[0][0].startswith("GPU"):  # without a cell above the names of rows
        cells[0].insert(0, "")
    cells[0][0], width = "", len(cells[0])
    tabbed = ["\t".join(_join_ranges(row, len(row) - width)) for row in cells]
    return text[: heading.start()] + "\n".join([*tabbed, *lines[len(rows) :]])


def _read_cells(row: str, by: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([row], delimiter=by, skipinitialspace=True))]


def _join_ranges(cells: list[str], spare: int) -> list[str]:
    """Join ranges of CPUs, as 0-15,32-47, whose commas made `spare` cells too many of them."""
    at = next((i for i, cell in enumerate(cells) if _CPUS.fullmatch(cell)), len(cells))
    ranges = cells[at : at + spare + 1]
    if spare < 1 or not all(map(_CPUS.fullmatch, ranges)):
        return cells
    return [*cells[:at], ",".join(ranges), *cells[at + spare + 1 :]]


def _join_wrapped(text: str) -> str:
    """Return a text without the spaces that a terminal's copy has where it wrapped long lines.

    They begin at the same column in several lines, the width of the terminal.
    """
    if _PAD.search(text) is None:
        return text
    starts = Counter(len(match[1]) for match in _WRAPPED.finditer(text))
    column, count = max(starts.items(), key=itemgetter(1), default=(0, 0))
    if count < _LEAST_WRAPPED:
        return text
    return _WRAPPED.sub(
        lambda match: match[1] + match[2] if len(match[1]) == column else match[0], text
    )


def _unquote(text: str) -> str:
    """Return the lines that a string or a list of strings has, and those of old Macs."""
    if "\n" not in text:
        text = text.replace("\r", "\n")
    text = _QUOTED.sub(_unescape_line, text)
    if "\\n" in text and _ESCAPED_LINES.search(text):
        return _ESCAPE.sub(lambda match: _ESCAPES[match[0]], text)
    return text


def _unescape_line(match: re.Match[str]) -> str:
    return match[2].replace("\\t", "\t")


def remove_codes(text: str) -> str:
    """Return a text without the colours and styles of terminals."""
    return _CODES.sub("", text) if "[" in text else text


def _remove_prefix(text: str) -> str:
    """Remove what stands in front of each line of a log: a host, a rank, a time, a line's number.

    It is the text before a matrix's heading if the row below has the same, but for numbers. Lines
    of several hosts that are mixed are left alone, since each would be read as part of another.
    """
    for heading in islice(_HEADING.finditer(text), _MAX_HEADINGS):
        prefix = heading["prefix"].rstrip()
        if _MARK_UP.fullmatch(prefix) or _OTHER_GPU.search(prefix):
            continue
        words = [re.sub(r"\d+", r"\\d+", re.escape(word)) for word in prefix.split()]
        shape = re.compile(r"^[ \t]*" + r"[ \t]+".join(words), re.MULTILINE)
        if shape.match(heading["next"]) is None:
            continue
        runs = [run for run, _ in groupby(shape.findall(text))]
        return shape.sub("", text) if len(runs) == len(set(runs)) else text
    return text
