"""What extras add to topo-synth's options: values of --format, and options, under their names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...extras import (
    ADDITIONS,
    CONSTRAINTS,
    CURVES,
    EXPLANATIONS,
    EXPORTS,
    EXTRAS,
    FILES,
    JOBS,
    MODES,
    PROMISES,
    WORDS,
    Extra,
    Names,
)
from ..shared.common import mention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..shared.common import Parser

PLAN = "plan"
# Formats for other programs: files that tune libraries, and those that hold one of the plan's
# schedules.
LIBRARY_FORMATS = Names(FILES)
SCHEDULE_FORMATS = Names(EXPORTS)
# Options that do something else with the topology; refused where their extra is not here.
ADDED_MODES = Names(MODES)
# Those that do something else with what is planned; likewise.
ADDED_JOBS = Names(JOBS)
# Those that all schedules of a plan keep to; likewise.
ADDED_CONSTRAINTS = Names(CONSTRAINTS)
# What the line about a name in each group follows, and what stands before that line.
_MENTIONED = {
    FILES: ("--format {}", ""),
    EXPORTS: ("--format {}", "the plan's schedule for --size: "),
    WORDS: ("--strategy {}:", ""),
    CURVES: ("--plot", "also "),
    EXPLANATIONS: ("--explain", "also "),
}


class Formats:
    """All values of --format; formats of other packages are looked at for what is not ours."""

    def __contains__(self, name: object) -> bool:
        return not is_of_schedules(name) or name in SCHEDULE_FORMATS

    def __iter__(self) -> Iterator[str]:
        yield PLAN
        yield from LIBRARY_FORMATS
        yield from SCHEDULE_FORMATS


def is_of_schedules(name: object) -> bool:
    """Return whether a value of --format is that of a schedule, if any: no plan, and no file for a
    library.
    """
    if name == PLAN or name in LIBRARY_FORMATS.describe():
        return False
    return name in SCHEDULE_FORMATS.describe() or name not in LIBRARY_FORMATS


def takes(name: str, option: str) -> bool:
    """Return whether a value of --format is that of a file which an option is for."""
    if name == PLAN or is_of_schedules(name):
        return False
    return option in LIBRARY_FORMATS.find(name).options


def list_taking(option: str) -> list[str]:
    """Return the formats that an option is for, but those of other packages."""
    return [name for name in LIBRARY_FORMATS.describe() if takes(name, option)]


def list_suffixes() -> dict[str, str]:
    """Return the formats that the suffix of a file's name implies."""
    suffixes = {LIBRARY_FORMATS.find(name).suffix: name for name in LIBRARY_FORMATS.describe()}
    return {".json": PLAN, **{suffix: name for suffix, name in suffixes.items() if suffix}}


def add_options(parser: Parser) -> None:
    """Add the options of extras, a group for each; those of extras that are not here are hidden."""
    groups = {extra.name: parser.add_extra(extra.name) for extra in EXTRAS}
    for extra in EXTRAS:
        _add_own(groups[extra.name], extra)
        if extra.is_here:
            _mention_values(groups[extra.name], extra)
    _add_of_formats(groups)


def _add_own(group: argparse._ArgumentGroup, extra: Extra) -> None:
    """Add the options that an extra declares."""

    def find_help(kind: str, name: str) -> str:
        return extra.adds[kind][name][1] if extra.is_here else argparse.SUPPRESS

    for name in extra.adds.get(MODES, ()):
        group.add_argument(f"--{name}", help=find_help(MODES, name))
    for kind in (JOBS, PROMISES):
        for name in extra.adds.get(kind, ()):
            group.add_argument(f"--{name}", action="store_true", help=find_help(kind, name))
    for name in extra.adds.get(CONSTRAINTS, ()):
        group.add_argument(f"--{name}", metavar="LIMITS", help=find_help(CONSTRAINTS, name))
    for name in extra.adds.get(ADDITIONS, ()):
        group.add_argument(f"--{name}", choices=("links",), help=find_help(ADDITIONS, name))


def _mention_values(group: argparse._ArgumentGroup, extra: Extra) -> None:
    """Say what an extra adds to options that are not its own."""
    for kind, (spelled, before) in _MENTIONED.items():
        for name, (_, about) in extra.adds.get(kind, {}).items():
            mention(group, spelled.format(name), f"{before}{about}")


def _add_of_formats(groups: dict[str, argparse._ArgumentGroup]) -> None:
    """Add the options that formats of libraries take.

    Each stands under the first extra that has such a format; hidden where none is here.
    """

    def add(option: str, about: str, **given: object) -> None:
        names = list_taking(option)
        text = f"with {', '.join(names)}: {about}" if names else argparse.SUPPRESS
        owners = [x.name for x in EXTRAS if {*names} & {*x.adds.get(FILES, ())}]
        group = groups[owners[0]] if owners else next(iter(groups.values()))
        group.add_argument(option, help=text, **given)  # type: ignore[arg-type]

    add(
        "--nccl-version",
        "the NCCL in use, such as 2.21 (default: the newest); older ones take fewer channels, and "
        "do not start on all machines",
        metavar="V",
    )
    add(
        "--hosts",
        "write the file for jobs of N hosts like the topology, which has the NICs (default: one "
        "host)",
        type=int,
        metavar="N",
    )
    add(
        "--no-guard",
        "write the file even where stock NCCL or RCCL may be as fast, or does not start with it",
        action="store_true",
    )
    add(
        "--measured",
        "what topo-run --stock --json printed with these forced; may be repeated",
        action="append",
        default=[],
        metavar="ALGORITHM/PROTOCOL/CHANNELS=FILE",
    )
