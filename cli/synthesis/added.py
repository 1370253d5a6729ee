"""What extras add to topo-synth's options: values of --format, and options, under their names.

An extra is an optional part of topoplan (extras.py). A value of --format is "plan", a file for
another library, or a file of one of the plan's schedules. A mode is an option that does something
else with the topology, a job one that does something else with what is to be planned. Demands are
pieces of data with the ranks that hold and need them, in place of a collective that its name
describes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...extras import (
    ADDITIONS,
    CONSTRAINTS,
    CURVES,
    EXPLANATIONS,
    EXPORTS,
    EXTRAS,
    FILES,
    JOB_OPTIONS,
    JOBS,
    MODES,
    PLAN_FILES,
    PROMISES,
    REQUESTS,
    STRATEGIES,
    WORDS,
    Extra,
    Names,
)
from ..shared.common import mention
from ..shared.outputs import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...synth.ir.collective import DemandName
    from ...synth.ir.demands import Demands
    from ...synth.plan import Plan
    from ...topo.graph import Topology
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
# Those whose file says what to plan for, in place of a collective's name; likewise.
ADDED_REQUESTS = Names(REQUESTS)
# Files that are written beside the plan; likewise.
PLAN_BESIDE = Names(PLAN_FILES)
# Those that all schedules of a plan keep to; likewise.
ADDED_CONSTRAINTS = Names(CONSTRAINTS)
# What the line about a name in each group follows, and what stands before that line.
_MENTIONED = {
    FILES: ("--format {}", ""),
    EXPORTS: ("--format {}", "the plan's schedule for --size: "),
    STRATEGIES: ("--strategy {}", ""),
    WORDS: ("--strategy {}:", ""),
    CURVES: ("--plot", "also "),
    EXPLANATIONS: ("--explain", "also "),
}


@dataclass(frozen=True)
class JobOptions:
    """The options of an extra's jobs, where they are more than a flag for each.

    `values` has what argparse is told of the jobs that are no flags, by their names. `add` adds
    further options, of which `list_given` returns those that the arguments have; `check` raises
    InputError for the first option that contradicts the jobs. The help needs all of it, so that the
    module of one imports no solver.
    """

    values: Mapping[str, Mapping[str, Any]]
    add: Callable[[argparse._ArgumentGroup], None]
    list_given: Callable[[argparse.Namespace], list[str]]
    check: Callable[[argparse.Namespace], None]


@dataclass(frozen=True)
class FileRequest:
    """What `topo-synth --NAME FILE` plans for: demands that the file lists.

    `collective` is the name of such demands, alltoallv or reshard. If `is_named`, users name it
    too; else the file stands in its place, and says which ranks take part. `read` returns the
    demands for the arguments on a topology, and the helpers that the file names (ranks that need
    nothing, and may pass data on), None if it names none. The module of one imports no solver.
    """

    collective: DemandName
    is_named: bool
    read: Callable[[argparse.Namespace, Topology], tuple[Demands, tuple[int, ...] | None]]


@dataclass(frozen=True)
class PlanFile:
    """What `topo-synth --NAME FILE` writes of a plan beside it.

    `make` returns the file's text for a plan, a size in bytes and the suffix of the file's name;
    `remark` returns what is said when it is written, by that suffix, FILE standing for its name.
    Names end in `suffix`, or in that of a picture. The module of one imports no solver.
    """

    make: Callable[[Plan, int, str], str]
    remark: Callable[[str], str]
    suffix: str


class Formats:
    """All values of --format, as argparse's `choices`: for `in`, and to be listed in errors.

    Other packages' formats are loaded only for names that are not topoplan's.
    """

    def __contains__(self, name: object) -> bool:
        return not is_of_schedules(name) or name in SCHEDULE_FORMATS

    def __iter__(self) -> Iterator[str]:
        yield PLAN
        yield from LIBRARY_FORMATS
        yield from SCHEDULE_FORMATS


def is_of_schedules(name: object) -> bool:
    """Return whether `name`, a value of --format, writes one of the plan's schedules.

    False for "plan" and for files for other libraries.
    """
    if name == PLAN or name in LIBRARY_FORMATS.describe():
        return False
    return name in SCHEDULE_FORMATS.describe() or name not in LIBRARY_FORMATS


def takes(name: str, option: str) -> bool:
    """Return whether --format `name` writes a file for a library, and takes `option`.

    `option` is one as typed, such as --hosts.
    """
    if name == PLAN or is_of_schedules(name):
        return False
    return option in LIBRARY_FORMATS.find(name).options


def list_taking(option: str) -> list[str]:
    """Return the values of --format that take an option, without those of other packages."""
    return [name for name in LIBRARY_FORMATS.describe() if takes(name, option)]


def list_suffixes() -> dict[str, str]:
    """Return the values of --format, by the suffix of -o's file that implies each."""
    suffixes = {LIBRARY_FORMATS.find(name).suffix: name for name in LIBRARY_FORMATS.describe()}
    return {".json": PLAN, **{suffix: name for suffix, name in suffixes.items() if suffix}}


def find_request(args: argparse.Namespace) -> FileRequest | None:
    """Return the request whose option is given, None if the arguments name a collective only.

    Raise InputError if its extra is not installed.
    """
    given = (name for name in ADDED_REQUESTS.list_all() if getattr(args, name) is not None)
    return next((ADDED_REQUESTS.find(name) for name in given), None)


def list_plan_files(args: argparse.Namespace) -> dict[str, PlanFile]:
    """Return the files beside the plan that the arguments ask for, by the names of options."""
    given = (name for name in PLAN_BESIDE.list_all() if getattr(args, name))
    return {name: PLAN_BESIDE.find(name) for name in given}


def list_job_options() -> list[JobOptions]:
    """Return the options of the jobs that installed extras add."""
    added = Names(JOB_OPTIONS)
    return [added.find(name) for name in added.describe()]


def add_options(parser: Parser) -> None:
    """Add the options of extras to a parser, in a group each; those not installed are hidden."""
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

    for name in extra.adds.get(REQUESTS, ()):
        group.add_argument(f"--{name}", metavar="FILE", help=find_help(REQUESTS, name))
    for name in extra.adds.get(PLAN_FILES, ()):
        group.add_argument(f"--{name}", help=find_help(PLAN_FILES, name), **OUTPUT)
    for name in extra.adds.get(MODES, ()):
        group.add_argument(f"--{name}", help=find_help(MODES, name))
    of_jobs: list[JobOptions] = [
        Names(JOB_OPTIONS).find(name)
        for name in (extra.adds.get(JOB_OPTIONS, ()) if extra.is_here else ())
    ]
    values = {name: given for options in of_jobs for name, given in options.values.items()}
    for kind in (JOBS, PROMISES):
        for name in extra.adds.get(kind, ()):
            given = values.get(name, {"action": "store_true"})
            group.add_argument(f"--{name}", help=find_help(kind, name), **given)
    for options in of_jobs:
        options.add(group)
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
