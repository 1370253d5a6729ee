"""A list of hosts by hand: lines `host rack spine`, the first of which may name the columns."""

from __future__ import annotations

import re

from ...errors import InputError
from .cluster import Cluster
from .layers import Row, add_rows

WHAT = "a list of hosts"
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HEAD = "host"
_MOST_CHARACTERS = 2**21


def looks_like(text: str) -> bool:
    """Return whether a text is a list of hosts: its first line begins with the word host, or all
    lines are as many names, at least two, of which the last is on more than one line.
    """
    rows = [words for _, words in _list_lines(text)] if len(text) <= _MOST_CHARACTERS else []
    if not rows:
        return False
    if rows[0][0].lower() == _HEAD and len(rows[0]) > 1 and all(map(_WORD.fullmatch, rows[0])):
        return True
    last = [row[-1] for row in rows]
    if any("X" in row for row in rows):  # the diagonal of a matrix of nvidia-smi
        return False
    alike = len(rows) > 1 and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)
    return (
        alike
        and len(set(last)) < len(last)
        and all(_WORD.fullmatch(word) for row in rows for word in row)
    )


def read(text: str, where: str) -> Cluster:
    """Return the cluster of a list of hosts. Raises InputError, naming file and line, for what is
    wrong in it.
    """
    lines = _list_lines(text)
    if lines[0][1][0].lower() == _HEAD:
        columns, lines = lines[0][1], lines[1:]
    else:
        columns = [_HEAD, *(f"tier {number}" for number in range(1, len(lines[0][1])))]
    rows: list[Row] = []
    for number, words in lines:
        place = f"{where}: line {number}"
        if len(words) != len(columns):
            raise InputError(
                f"{place}: {len(words)} words, and {len(columns)} columns ({', '.join(columns)}); "
                "give each host all tiers"
            )
        rows.append((words[0], tuple(words[1:]), place))
    cluster = Cluster(WHAT, where)
    add_rows(cluster, rows, qualify=False)
    return cluster.finish()


def _list_lines(text: str) -> list[tuple[int, list[str]]]:
    """Return the number and the words of each line that has any; # begins a comment."""
    lines = (
        (number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)
    )
    return [(number, words) for number, words in lines if words]
