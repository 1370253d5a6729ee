"""topoplan extras: list the extras (optional parts) and what they and other packages add."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

from ...extras import (
    ADDITIONS,
    BOXES,
    BY_NAME,
    CODECS,
    COMMANDS,
    CORRECTIONS,
    EXAMPLES,
    EXPORTS,
    EXTRAS,
    FILES,
    FORMATS,
    JOBS,
    LAYERS,
    LINKS,
    MODES,
    NAMES,
    OPEN,
    PLAN_FILES,
    PROMISES,
    REQUESTS,
    REVIEWS,
    RUN_FILES,
    RUN_MODES,
    SELECTIONS,
    SOURCES,
    STRATEGIES,
    SUBCOMMANDS,
    VIEWS,
    WORDS,
    WRITERS,
    Extra,
    list_points,
)
from ...topo.errors import InputError, suggest
from ...topo.output_head import output_head
from ..shared.common import Example, Parser, run_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.metadata import EntryPoint

PROG = "topoplan extras"
_SHOWN: tuple[Example, ...] = (
    ("topoplan extras", "all, and what other packages add"),
    (f"topoplan extras {EXTRAS[0].name} {EXTRAS[1].name}", "these alone"),
    ("topoplan extras --json", "the same for programs"),
)
ABOUT = """\
An extra is a feature outside the core: topoplan works without it, and then refuses in one line what
it adds. Other packages add by entry points, which docs/extending.md describes.
"""
# Columns of the tables in a file or a pipe, unless COLUMNS sets them.
_WIDTH = 160
# How users name what is added to a group; other groups are inside.
_SPELLED = {
    ADDITIONS: "topo-synth --{}",
    BOXES: "topo-probe --{}",
    CODECS: "compress={}",
    COMMANDS: "topoplan {}",
    CORRECTIONS: "topo-probe --{}",
    EXPORTS: "topo-synth --format {}",
    FILES: "topo-synth --format {}",
    FORMATS: "files of {}",
    JOBS: "topo-synth --{}",
    LAYERS: "{}=",
    LINKS: "transport {}",
    MODES: "topo-synth --{}",
    NAMES: "topoplan.{}",
    PLAN_FILES: "topo-synth --{}",
    PROMISES: "topo-synth --{}",
    REQUESTS: "topo-synth --{}",
    REVIEWS: "topo-probe --{}",
    RUN_FILES: "topo-run --{}",
    RUN_MODES: "topo-run --{}",
    SELECTIONS: "--{}",
    SOURCES: "topo-probe --{}",
    STRATEGIES: "--strategy {}",
    SUBCOMMANDS: "topoplan {}",
    VIEWS: "topo-probe --format {}",
    WORDS: "--strategy {}:",
    WRITERS: "topo-probe --{}",
}
# A policy names layers of other packages; those of extras have options of their own.
_SPELLED_OUTSIDE = {**_SPELLED, LAYERS: "around={}"}


def main(argv: list[str] | None = None) -> int:
    """Print the lists that `argv` (default: sys.argv) asks for, and return the exit code."""
    return run_command(PROG, lambda: _run(build_parser().parse_args(argv)))


def build_parser() -> Parser:
    """Return the parser of topoplan extras."""
    parser = Parser(PROG, _SHOWN, ABOUT, "[NAME ...] [--json]")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these extras")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _run(args: argparse.Namespace) -> int:
    for name in args.names:
        if name not in BY_NAME:
            raise InputError(
                f"{name}: there is no such extra{suggest(name, list(BY_NAME))}; expected some of "
                f"{', '.join(BY_NAME)}"
            )
    extras = [extra for extra in EXTRAS if extra.name in args.names or not args.names]
    points = [] if args.names else list_points()
    if args.json:
        described = {
            "extras": [_describe_extra(extra) for extra in extras],
            "packages": [_describe_point(point) for point in points],
        }
        print(json.dumps(output_head("topoplan-extras") | described))
    else:
        _print_tables(extras, points)
    return 0


def _describe_extra(extra: Extra) -> dict[str, Any]:
    adds = [
        {"group": group, "name": name, "about": about}
        for group, added in extra.adds.items()
        if group != EXAMPLES
        for name, (_, about) in added.items()
    ]
    return {"name": extra.name, "is_here": extra.is_here, "needs": list(extra.needs), "adds": adds}


def _describe_point(point: EntryPoint) -> dict[str, Any]:
    group = point.group.removeprefix("topoplan.")
    owner = point.dist
    package = None if owner is None else {"name": owner.name, "version": owner.version}
    return {
        "package": package,
        "group": group,
        "name": point.name,
        "value": point.value,
        "is_used": group in OPEN,
    }


def _print_tables(extras: Sequence[Extra], points: Sequence[EntryPoint]) -> None:
    from ...topo.pictures.console import SafeConsole

    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    console = SafeConsole(width=None if sys.stdout.isatty() else columns)
    rows = [row for extra in extras for row in _list_rows(extra)]
    _print_table(console, ("extra", "here", "adds", "what it is"), rows)
    if points:
        console.print()
        outside = [_make_row(_describe_point(point)) for point in points]
        _print_table(console, ("package", "adds", "what it is"), outside)


def _list_rows(extra: Extra) -> Iterator[tuple[str, ...]]:
    """Yield a row for each of an extra's additions; only the first names the extra."""
    described = _describe_extra(extra)
    added = [
        (_SPELLED.get(row["group"], f"{row['group']}: {{}}").format(row["name"]), row["about"])
        for row in described["adds"]
    ]
    if not added:
        users = [other.name for other in EXTRAS if extra.name in other.needs]
        added = [("", f"what {', '.join(users)} need{'s' * (len(users) == 1)}" if users else "")]
    head = (extra.name, "yes" if extra.is_here else _explain_absence(extra))
    for row in added:
        yield (*head, *row)
        head = ("", "")


def _explain_absence(extra: Extra) -> str:
    gone = [name for name in extra.needs if not BY_NAME[name].is_here]
    return f"no: without {', '.join(gone)}" if gone else "no"


def _make_row(point: dict[str, Any]) -> tuple[str, ...]:
    package, group = point["package"], point["group"]
    spelled = _SPELLED_OUTSIDE.get(group, f"{group}: {{}}").format(point["name"])
    remark = "" if point["is_used"] else f"; not used: packages add nothing to {group!r}"
    name = "" if package is None else f"{package['name']} {package['version']}"
    return name, spelled, f"{point['value']}{remark}"


def _print_table(console: Any, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    from ...topo.pictures.console import safe_text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        is_name, most = title in ("extra", "package"), 24 if title == "here" else None
        table.add_column(title, overflow="fold", no_wrap=is_name, max_width=most)
    for row in rows:
        table.add_row(*map(safe_text, row))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
