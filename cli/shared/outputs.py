"""Output files of commands, checked before any work is done, and rows as CSV."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...topo.errors import InputError
from ...topo.files import write_whole
from ...topo.pictures.convert import convert_for
from .common import Parser, file_name
from .progress import ProgressReporter

# Arguments of `add_argument` for options that name a file to write.
OUTPUT: dict[str, Any] = {"type": file_name, "metavar": "FILE"}


def add_force(parser: Parser | argparse._ArgumentGroup, *others: str) -> None:
    """Add --force to a parser or group; `others` are the options besides -o that name files."""
    listed = " and ".join([", ".join(["-o", *others[:-1]]), *others[-1:]])
    what = "replace files that exist" if others else "replace a file that exists"
    parser.add_argument("--force", action="store_true", help=f"let {listed} {what}")


def add_csv(parser: Parser, what: str) -> None:
    """Add --csv, which writes rows; `what` describes them in the help text."""
    parser.add_argument(
        "--csv",
        type=file_name,
        metavar="FILE",
        help=f"also write {what} as CSV: a heading, then one line per row",
    )


def check_outputs(args: argparse.Namespace, *options: str) -> None:
    """Raise InputError if the file that one of some options names cannot be written.

    `options` are attributes of `args` (such as output for -o); one that is None is skipped. A file
    must not exist unless --force is given, its folder must exist, and no two options may name one
    file.
    """
    seen: dict[str, str] = {}
    for option in options:
        name = getattr(args, option)
        if name is None:
            continue
        check_output(name, overwrite=args.force)
        path = Path(name)
        other = seen.setdefault(str(path.resolve()), option)
        if other != option and not path.exists():
            raise InputError(
                f"{name}: given for both --{other} and --{option}; use different files"
            )


def check_output(name: str, *, overwrite: bool) -> None:
    """Raise InputError if the file `name` cannot be written.

    So it is if it exists, unless `overwrite` is set, or if its folder does not exist.
    """
    path = Path(name)
    if path.is_file() and not overwrite:
        raise InputError(
            f"{name}: already exists and was not changed; name another file",
            parameter="overwrite",
        )
    if path.is_dir():
        raise InputError(f"{name}: is a folder; expected the name of a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(
            f"{name}: cannot be written: there is no folder {str(folder)!r}; create it first"
        )


def write_output(args: argparse.Namespace, content: str | bytes) -> None:
    """Write `content` to the file of -o, or to standard output without -o.

    --force replaces a file. Raise InputError for bytes on a terminal.
    """
    if args.output is not None:
        write_whole(args.output, content, overwrite=args.force)
    elif isinstance(content, str):
        sys.stdout.write(content)
    elif sys.stdout.isatty():
        raise InputError("a picture of bytes is nothing for a terminal; name a file by -o")
    else:
        sys.stdout.buffer.write(content)


def write_requested(
    args: argparse.Namespace,
    option: str,
    progress: ProgressReporter,
    what: str,
    text: Callable[[], str],
) -> None:
    """Write a text to the file that an option names; do nothing if the option is not given.

    SVG is converted to PNG or PDF if the file's name ends so. `option` is an attribute of `args`,
    such as csv. `text` makes the text, and is called only if the option is given. `what` is the
    message for the user, in which FILE becomes the file's name.
    """
    path = getattr(args, option)
    if path is not None:
        write_whole(path, convert_for(path, text()), overwrite=args.force)
        progress.tell(what.replace("FILE", path))


def rows_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV text under a heading of all keys.

    None becomes an empty field; lists and objects become JSON.
    """
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    cells = ([_show_cell(row.get(column)) for column in columns] for row in rows)
    csv.writer(text, lineterminator="\n").writerows([columns, *cells])
    return text.getvalue()


def _show_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, (list, dict)) else value
