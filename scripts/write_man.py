"""Write the commands' pages for man from their parsers: `make man`.

python scripts/write_man.py FOLDER    FOLDER/topoplan.1, FOLDER/topo-probe.1, ...
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

from topoplan.cli.commands import import_command, list_commands
from topoplan.topo.version import VERSION


def write_man(folder: Path) -> list[Path]:
    """Write a page for each command to a folder; return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    written, commands = [], list_commands()
    for name in ("topoplan", *commands):
        parser = import_command(name).build_parser()
        parser.prog = parser.prog.replace(" ", "-")
        parser.describe_in_prose()
        parser.man_short_description = commands.get(name, "a topology-aware communication planner")  # type: ignore[attr-defined]
        data = {"project_name": "topoplan", "version": VERSION, "manual_title": "topoplan"}
        page = Manpage(parser, _data=data)
        page.add_section(
            "examples", "=", "\n".join(_write_example(*example) for example in parser.examples)
        )
        path = folder / f"{parser.prog}.1"
        path.write_text(str(page), encoding="utf-8")
        written.append(path)
    return written


def _write_example(command: str, meaning: str) -> str:
    """Return an example as roff: the command as it is, what it is for below."""
    escaped = [
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
        for text in (command, meaning)
    ]
    return f".PP\n.nf\n\\fB{escaped[0]}\\fR\n.fi\n.RS\n\\&{escaped[1]}\n.RE"


def main() -> int:
    """Write the pages to the folder that is named; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    os.environ["COLUMNS"] = "80"
    for path in write_man(parser.parse_args().folder):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
