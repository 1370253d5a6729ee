"""What extras add to topo-probe: sources and files of a topology, and reviews of it.

A source finds the topology, a view or writer writes it, a correction changes its rates or facts by
a file, and a review says what it finds of the machine. An extra is an optional part of topoplan;
the groups by which they add these are in extras.py at the root. Options of topo-probe have the
names that they have there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...extras import BOXES, CORRECTIONS, FORMATS, REVIEWS, SOURCES, VIEWS, WRITERS, Names
from ...topo.errors import InputError

if TYPE_CHECKING:
    import argparse

    from ...topo.graph import Topology

# Each finds the topology by itself, and excludes the others.
PROBE_SOURCES = Names(SOURCES)
# Views of the topology, by the values of --format, and by options of their own.
PROBE_VIEWS, PROBE_WRITERS = Names(VIEWS), Names(WRITERS)
_REVIEWS, _CORRECTIONS = Names(REVIEWS), Names(CORRECTIONS)


@dataclass(frozen=True)
class Reviewed:
    """What a review is of: the `topology`, and topo-probe's parsed `arguments`.

    These have the values of the review's own options and forms too, as attributes. `given` has the
    topologies that the arguments name before they are joined, none where a source or a launch finds
    the machine. `columns` are those of a terminal, None for a file.
    """

    topology: Topology
    arguments: argparse.Namespace
    given: Sequence[Topology] = ()
    columns: int | None = None


@dataclass(frozen=True)
class Review:
    """What `topo-probe --NAME` says of a machine.

    `write` makes a text, which is printed in place of the topology. It is not called if --format,
    --json, a writer or the suffix of -o asks for a format, which is then of the topology, and of
    several reviews only the first one's is. `list_errors` returns a line for each problem that
    makes the exit code 1; they are printed unless the text was. `list_fields` returns the fields
    that the JSON of the topology has beside the machine.

    `options` are more options that are for this review alone, by name, with what `add_argument`
    takes; none has a default. `forms` are flags, by name with their help, that ask for another form
    of the text, and exclude --format. `write` finds in `Reviewed.arguments` which of both are
    given.

    `explain` is called for TOPOLOGY arguments, as given, that could not be read as a machine, such
    as paths of logs; it makes a text of them, as JSON if its second argument is true, "" if it has
    nothing to say.
    """

    write: Callable[[Reviewed], str]
    list_errors: Callable[[Reviewed], list[str]]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    forms: Mapping[str, str] = field(default_factory=dict)
    list_fields: Callable[[Reviewed], dict[str, Any]] = lambda reviewed: {}
    explain: Callable[[Sequence[str], bool], str] = lambda names, as_json: ""


@dataclass(frozen=True)
class View:
    """What `topo-probe --format NAME` writes: `write` makes the file of a topology.

    `suffix` is that of file names which imply this format. A view that `is_svg` has none; the
    suffix of -o then says whether it is converted to PNG or PDF. `list_notes` returns a line for
    each thing that people should know about what is written.
    """

    write: Callable[[Topology], str | bytes]
    suffix: str = ""
    is_svg: bool = False
    list_notes: Callable[[Topology], list[str]] | None = None


def list_reviews() -> dict[str, str | None]:
    """Return the help text of each review's option, by name; None if its extra is not installed."""
    return _describe_all(_REVIEWS)


def list_installed_reviews() -> list[Review]:
    """Return the reviews of installed extras, whose own options the command has."""
    return [_REVIEWS.find(name) for name in _REVIEWS.describe()]


def list_boxes() -> dict[str, str | None]:
    """Return the help text of each option that names a box, by name: what one host contains.

    Files that only say which switch each host is below need one. The text is None for those of
    extras that are not installed.
    """
    return _describe_all(Names(BOXES))


def list_suffixes() -> dict[str, str]:
    """Return the names of views, by the suffix of -o that implies each."""
    views = {name: PROBE_VIEWS.find(name) for name in PROBE_VIEWS.describe()}
    return {view.suffix: name for name, view in views.items() if view.suffix}


def list_writers() -> dict[str, str | None]:
    """Return the help text of each option that writes a view in place of NCCL's XML, by name.

    It is None for those of extras that are not installed.
    """
    return _describe_all(PROBE_WRITERS)


def list_corrections() -> dict[str, str | None]:
    """Return the help text of each option that takes a file to correct a topology, by name.

    It is None for those of extras that are not installed.
    """
    return _describe_all(_CORRECTIONS)


def list_formats() -> list[str]:
    """Return the names for users of the file formats that extras read, each once."""
    return list(dict.fromkeys(Names(FORMATS).describe().values()))


def correct(topology: Topology, arguments: argparse.Namespace) -> Topology:
    """Return a topology, corrected by the files that the parsed arguments name.

    Raise InputError if a file cannot be read or does not fit it, or if the extra is not installed.
    """
    for name in _CORRECTIONS.list_all():
        if (file := getattr(arguments, name)) is not None:
            topology = _CORRECTIONS.find(name)(topology, file)
    return topology


def find_reviews(arguments: argparse.Namespace) -> dict[str, Review]:
    """Return the reviews that the arguments ask for, by the names of their options.

    Raise InputError for an option of one that they do not ask for, and for one whose extra is not
    installed.
    """
    for name in _REVIEWS.describe():
        review: Review = _REVIEWS.find(name)
        own = (*review.options, *review.forms)
        used = [x for x in own if getattr(arguments, x.replace("-", "_"))]
        if used and not getattr(arguments, name):
            raise InputError(f"--{used[0]} is for --{name}; give that too")
    return {name: _REVIEWS.find(name) for name in _REVIEWS.list_all() if getattr(arguments, name)}


def _describe_all(names: Names) -> dict[str, str | None]:
    here = names.describe()
    return {name: here.get(name) for name in names.list_all()}
