"""What extras add to topo-probe: sources and files of a topology, and reviews of it.

They are in groups of extras.py at the root; its options have the names that they have there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...extras import BOXES, FORMATS, REVIEWS, SOURCES, Names

if TYPE_CHECKING:
    import argparse

    from ...topo.graph import Topology

# Each finds the topology by itself, and excludes the others.
PROBE_SOURCES = Names(SOURCES)
_REVIEWS = Names(REVIEWS)


@dataclass(frozen=True)
class Review:
    """What `topo-probe --NAME` says of a topology: `write` makes a text of it, `--format` aside.

    `write` is given the columns of a terminal, None for a file. `list_errors` returns a line about
    each thing that makes the exit code 1.
    """

    write: Callable[[Topology, int | None], str]
    list_errors: Callable[[Topology], list[str]]


def list_reviews() -> dict[str, str | None]:
    """Return the help of each review's option, None for those of extras that are not here."""
    return _describe_all(_REVIEWS)


def list_boxes() -> dict[str, str | None]:
    """Return the help of each option that files of places need, None likewise."""
    return _describe_all(Names(BOXES))


def list_formats() -> list[str]:
    """Return what formats of extras are called in the help, each once."""
    return list(dict.fromkeys(Names(FORMATS).describe().values()))


def find_reviews(arguments: argparse.Namespace) -> dict[str, Review]:
    """Return the reviews that the arguments ask for, by the names of their options."""
    return {name: _REVIEWS.find(name) for name in _REVIEWS.list_all() if getattr(arguments, name)}


def _describe_all(names: Names) -> dict[str, str | None]:
    here = names.describe()
    return {name: here.get(name) for name in names.list_all()}
