"""Escape characters in file contents that a terminal or a page would obey, reorder or hide."""

import re

# Invisible characters that str.isprintable() accepts: joiners, fillers, variation selectors.
_INVISIBLE = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# xml.sax.saxutils has this too, but imports urllib: 20 ms of every command's start.
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    r"""Return one line of text with every invisible character escaped as Python's repr does.

    That is control characters (they move the cursor or set the window's title), bidirectional marks
    (they reorder what follows), zero-width characters and lone surrogates: `\x1b`, `\u202e`.
    """
    if text.isprintable() and _INVISIBLE.search(text) is None:
        return text
    return "".join(
        c
        if c.isprintable() and _INVISIBLE.match(c) is None
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def printable_lines(text: str) -> str:
    """Escape a text like `printable`, except for newlines and tabs."""
    lines = (line.split("\t") for line in text.split("\n"))
    return "\n".join("\t".join(map(printable, parts)) for parts in lines)


def quote(text: str) -> str:
    """Escape a text for HTML and XML; characters that XML excludes become U+FFFD."""
    return _NOT_XML.sub("\ufffd", text).translate(_ENTITIES)
