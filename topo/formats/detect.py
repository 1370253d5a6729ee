"""Which format a text is in, told by the text itself."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import InputError
from ..graph import Topology
from . import nccl_xml

_BEFORE_THE_ROOT = re.compile(r"\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*", re.DOTALL)
_SNIFF_CHARACTERS = 64 * 2**10

READERS: tuple[tuple[str, re.Pattern[str], Callable[[str, str], Topology]], ...] = (
    ("topoplan's JSON (starts with {)", re.compile(r"\{"), Topology.loads),
    ("NCCL's or RCCL's XML (starts with <system)", re.compile(r"<(?:system\b|!DOCTYPE|!ENTITY)"), nccl_xml.read),
)
"""Formats that are understood: what it is called in messages, how its text starts, and its reader."""


def read_topology_text(text: str, where: str) -> Topology:
    """The topology in `text`, whatever format it is in; `where` names the file in errors (InputError)."""
    if not text.strip("\ufeff \t\r\n"):
        raise InputError(f"{where}: the file is empty; expected {_understood()}")
    text = text.removeprefix("\ufeff")
    head = text[:_SNIFF_CHARACTERS]
    skipped = _BEFORE_THE_ROOT.match(head)
    start = head[skipped.end() if skipped else 0 :]
    for _, opening, reader in READERS:
        if opening.match(start):
            return reader(text, where)
    raise InputError(
        f"{where}: not a format that is understood (it starts with {start[:30]!r}); expected {_understood()}"
    )


def _understood() -> str:
    return " or ".join(name for name, _, _ in READERS)
