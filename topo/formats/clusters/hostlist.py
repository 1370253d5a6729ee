"""Slurm's host lists: `tux[0-3,12,18-20],login` names ten hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from ...errors import InputError
from .cluster import MOST_HOSTS

_PIECE = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand_hostlist(text: str, place: str) -> list[str]:
    """Return the names that a list stands for, in order. Raises InputError, naming the place, for
    what is no list.
    """
    names: list[str] = []
    for part in _split(text, place):
        pieces: list[list[str]] = []
        at = 0
        while at < len(part):
            match = _PIECE.match(part, at)
            if match is None or match.end() == at:
                raise _refuse(part, place)
            pieces.append([match[1]])
            if match[2] is not None:
                pieces.append(_expand_ranges(match[2], part, place))
            at = match.end()
        count = 1
        for piece in pieces:
            count *= len(piece)
        if len(names) + count > MOST_HOSTS:
            raise InputError(
                f"{place}: {part!r:.60} stands for more than {MOST_HOSTS} names; give a part of "
                "the cluster"
            )
        names += map("".join, product(*pieces))
    return names


def _split(text: str, place: str) -> Iterator[str]:
    """Yield the parts between commas that are not in brackets."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise _refuse(text, place)
        if character == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
    if depth or not text.strip():
        raise _refuse(text, place)
    yield text[start:].strip()


def _expand_ranges(text: str, part: str, place: str) -> list[str]:
    numbers: list[str] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise _refuse(part, place)
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise _refuse(part, place)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _refuse(text: str, place: str) -> InputError:
    return InputError(
        f"{place}: {text!r:.60} is no list of names; expected for example node[01-04,7] or a,b"
    )
