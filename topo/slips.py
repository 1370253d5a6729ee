"""Unknown fields that are slips of known ones, in JSON that people write.

Readers preserve fields that they do not know. A misspelled one would silently leave the known field
at its default, so a field close to a known one that is absent is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .errors import InputError

# The least share of letters that a slip has in common with the field that is meant, by the
# difference of their lengths in letters.
_SIMILAR = {0: 0.82, 1: 0.82, 2: 0.9}
# Units in which people state rates and times; a known field without its unit, or with another one
# of them, is a slip too: it would be read as the default.
_UNITS = frozenset(
    ("", "gb", "mb", "kb", "gib", "gbs", "mbs", "gbps", "mbps", "kbps", "tbps", "gibps", "mibps")
) | {"gbit", "mbit", "gbits", "ns", "us", "ms", "s", "nsec", "usec", "msec", "sec"}


def check_slips(row: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    """Raise InputError for a field of `row` that is not in `known`, but close to an absent one.

    `where` describes the row, as errors begin.
    """
    for field, value in row.items():
        if field in known:
            continue
        meant = _find_meant(field, known, isinstance(value, (list, dict)))
        if meant is not None and meant not in row:
            raise InputError(
                f"{where}: unknown field {field!r} (did you mean {meant!r}?); correct it, or name "
                "it differently if it is a note of your own"
            )


@lru_cache(maxsize=4096)
def _find_meant(field: str, known: frozenset[str], is_nested: bool) -> str | None:
    """Return the known field that `field` is a slip of; None if it is close to none."""
    return next((name for name in sorted(known) if _is_slip(field, name, is_nested)), None)


def _is_slip(field: str, name: str, is_nested: bool) -> bool:
    given, meant = _reduce(field), _reduce(name)
    if given == meant:
        return True
    if f"{given}s" == meant or given == f"{meant}s":
        # A plural is a field of one's own ("numa_nodes"), unless it names the same list ("link").
        return is_nested and meant[-1] == "s"
    if _is_close(given, meant):
        return True
    stem, _, unit = name.rpartition("_")
    stem = _reduce(stem)
    if not stem or unit.lower() not in _UNITS:
        return False
    return any(
        given.endswith(other) and _is_close(given.removesuffix(other), stem) for other in _UNITS
    )


def _is_close(given: str, meant: str) -> bool:
    if sorted(given) == sorted(meant):
        return True
    least = _SIMILAR.get(abs(len(given) - len(meant)))
    if least is None or given[:1] != meant[:1]:
        return False
    return difflib.SequenceMatcher(None, given, meant).ratio() >= least


def _reduce(field: str) -> str:
    return "".join(character for character in field.lower() if character.isalnum())
