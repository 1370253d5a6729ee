"""Show text from files on terminals: what a terminal would obey, reorder or hide becomes an
escape.
"""

from __future__ import annotations

import re

# Characters without a shape that Python counts as printable: joiners, fillers, variation selectors.
_INVISIBLE = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def printable(text: str) -> str:
    r"""Return a text of one line with every character that does not show as an escape.

    Control characters (which move the cursor or set the window's title), bidirectional marks (which
    reorder what follows), zero-width characters and lone surrogates are written as Python's repr
    does: `\x1b`, `\u202e`.
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
    """Return a text of several lines as `printable` does, with its line ends and tabs as they
    are.
    """
    lines = (line.split("\t") for line in text.split("\n"))
    return "\n".join("\t".join(map(printable, parts)) for parts in lines)
