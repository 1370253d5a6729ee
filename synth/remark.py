"""What extras remark on a finished plan, such as what it gains over stock NCCL by a model.

Extras are the optional features that extras.py at the root lists; each adds a function to its group
`remarks`. A remark's name is its field in topo-synth's JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..extras import REMARKS, Names

if TYPE_CHECKING:
    from .plan import Plan


@dataclass(frozen=True)
class Remark:
    """A remark on a plan: `line` is the sentence for people, `figures` the same as JSON data."""

    line: str
    figures: dict[str, Any]


def list_remarks(plan: Plan, size_bytes: int) -> dict[str, Remark]:
    """Return the remarks on a plan for a buffer of a size, by name, in the order of the extras."""
    names = Names(REMARKS)
    return {name: names.find(name)(plan, size_bytes) for name in names.describe()}
