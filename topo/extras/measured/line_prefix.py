"""Strip what a log puts before each line of a program: a time, a host, a rank, a quotation mark."""

from __future__ import annotations

import re

# Longest prefix, in characters.
_MAX_PREFIX = 200


def make_prefix(before: str) -> re.Pattern[str] | None:
    """Return a pattern of the text `before` a heading, for `cut_prefix` to strip from lines.

    Its numbers may differ from line to line: they are times, ranks or processes. None if the text
    is blank, or too long to be a prefix.
    """
    if not before.strip() or len(before) > _MAX_PREFIX:
        return None
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(before)))


def cut_prefix(prefix: re.Pattern[str] | None, line: str) -> str:
    """Return a line without the prefix, unchanged if it lacks it."""
    match = prefix.match(line) if prefix is not None else None
    return line[match.end() :] if match is not None else line
