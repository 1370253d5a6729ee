"""What extras add to topo-probe: sources and files of a topology, and reviews of it.

They are in groups of extras.py at the root; its options have the names that they have there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...extras import BOXES, CORRECTIONS, FORMATS, REVIEWS, SOURCES, VIEWS, Names

if TYPE_CHECKING:
    import argparse

    from ...topo.graph import Topology

# Each finds the topology by itself, and excludes the others.
PROBE_SOURCES = Names(SOURCES)
# Forms of it, by the values of --format.
PROBE_VIEWS = Names(VIEWS)
_REVIEWS, _CORRECTIONS = Names(REVIEWS), Names(CORRECTIONS)


@dataclass(frozen=True)
class Review:
    """What `topo-probe --NAME` says of a topology: `write` makes a text of it, `--format` aside.

    `write` is given the columns of a terminal, None for a file, and what topo-probe was named.
    `list_errors` returns a line for each problem that makes the exit code 1. `explain` makes a text
    of files of which none has a machine, "" if it has nothing to say of them.
    """

    write: Callable[[Topology, int | None, Sequence[str]], str]
    list_errors: Callable[[Topology], list[str]]
    explain: Callable[[Sequence[str]], str] = lambda names: ""


@dataclass(frozen=True)
class View:
    """What `topo-probe --format NAME` writes, which files whose names end in `suffix` imply.

    A view without a suffix returns SVG, and -o says by its suffix whether to write it as PNG or
    PDF.
    """

    write: Callable[[Topology], str | bytes]
    suffix: str = ""


def list_reviews() -> dict[str, str | None]:
    """Return the help of each review's option, None for those of extras that are not here."""
    return _describe_all(_REVIEWS)


def list_boxes() -> dict[str, str | None]:
    """Return the help of each option that files of places need, None likewise."""
    return _describe_all(Names(BOXES))


def list_suffixes() -> dict[str, str]:
    """Return the suffixes of -o that imply views, and the views' names."""
    views = {name: PROBE_VIEWS.find(name) for name in PROBE_VIEWS.describe()}
    return {view.suffix: name for name, view in views.items() if view.suffix}


def list_corrections() -> dict[str, str | None]:
    """Return the help of each option with a file that corrects a topology, None likewise."""
    return _describe_all(_CORRECTIONS)


def list_formats() -> list[str]:
    """Return what formats of extras are called in the help, each once."""
    return list(dict.fromkeys(Names(FORMATS).describe().values()))


def correct(topology: Topology, arguments: argparse.Namespace) -> Topology:
    """Return a topology, corrected by the files that the arguments name."""
    for name in _CORRECTIONS.list_all():
        if (file := getattr(arguments, name)) is not None:
            topology = _CORRECTIONS.find(name)(topology, file)
    return topology


def find_reviews(arguments: argparse.Namespace) -> dict[str, Review]:
    """Return the reviews that the arguments ask for, by the names of their options."""
    return {name: _REVIEWS.find(name) for name in _REVIEWS.list_all() if getattr(arguments, name)}


def _describe_all(names: Names) -> dict[str, str | None]:
    here = names.describe()
    return {name: here.get(name) for name in names.list_all()}
