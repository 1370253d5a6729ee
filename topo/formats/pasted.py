"""Undo what terminals, web pages and logs do to a tool's output before somebody pastes it.

Codes of terminals (also without their escape character, which copying loses), HTML, spaces that are
not ASCII, and what a log puts in front of each line are removed. Lines stay lines: their numbers
are those of the text as given.
"""

import html
import re
from itertools import groupby, islice

_CODES = re.compile(
    r"\x1b\[[0-9;?]{0,40}[A-Za-z]"
    # The escape character as programs print it, or lost. Only colours and styles are certain then.
    r"|(?:\^\[|\\(?:x1[bB]|033|e|u001[bB])|[\u241b\ufffd])?\[[0-9;]{1,20}m"
)
_TAG = re.compile(r"</?(?:pre|code|br|p|samp|kbd)\b[^<>\n]{0,100}>", re.IGNORECASE)
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
    text = remove_codes(text)
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub("", text)
    return _remove_prefix(text if text.isascii() and "\0" not in text else text.translate(_SPACES))


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
