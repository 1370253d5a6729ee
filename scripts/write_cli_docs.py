"""Write docs/cli.md from the commands' parsers, and with --man their pages for man: `make
cli-docs`, `make man`.

python scripts/write_cli_docs.py            docs/cli.md
python scripts/write_cli_docs.py --check    exit code 1 where docs/cli.md is not what would be
                                            written
python scripts/write_cli_docs.py --man DIR  DIR/topoplan.1, DIR/topo-probe.1, ... (needs
                                            argparse-manpage)
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from topoplan.cli.commands import import_command, list_commands
from topoplan.topo.version import VERSION

TARGET = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
HEAD = """\
# The commands

What `--help` says, written by `make cli-docs`. All commands are subcommands of `topoplan`, and those that do the work
are commands of their own too: `topoplan probe` is `topo-probe`. Every example below runs as it stands in a copy of the
folder `examples/` of the sources, from the first one of a command to the last.

- **Exit codes**: 0 done, 1 failed, 2 usage (a bad argument or file), 3 there is no such schedule, 4 the time limit
  passed before any was found, 5 verification failed, 130 interrupted.
- **Output**: standard output has results alone; messages and progress go to standard error, progress only on a terminal
  or with `-v`; `-q` leaves errors alone. Tables fit the terminal: columns are left out, the bound and the gap never.
- **Files**: no command replaces a file without `--force`. Files are written whole or not at all. `--csv FILE` writes
  rows for spreadsheets beside what is printed, `--json` prints one object.
- **Spellings**: collectives as torch, NCCL and nccl-tests have them (`all_reduce`, `AllReduce`, `all_reduce_perf`),
  types as torch has them (`half`, `fp16`, `torch.bfloat16`). What is mistyped is answered with what is near.
- **Completion**: `eval "$(topoplan completion bash)"` in `~/.bashrc`; `zsh` and `tcsh` too. `make man` writes pages for
  `man`.
"""


def write_markdown() -> str:
    """Return docs/cli.md; COLUMNS says how wide helps are."""
    parts, commands = [HEAD], list_commands()
    for name in ("topoplan", *commands):
        parser = import_command(name).build_parser()
        what = "" if name == "topoplan" else f"{commands[name][0].upper()}{commands[name][1:]}.\n\n"
        parts.append(f"## {parser.prog}\n\n{what}```text\n{parser.format_help().rstrip()}\n```\n")
    return "\n".join(parts)


def write_man(folder: Path) -> list[Path]:
    """Write a page for each command to a folder; return their files."""
    from argparse_manpage.manpage import Manpage

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
    """Write what the arguments ask for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--man", type=Path, metavar="DIR")
    args = parser.parse_args()
    os.environ["COLUMNS"] = "80"
    if args.man:
        for path in write_man(args.man):
            print(path)
        return 0
    text = write_markdown()
    if args.check:
        return 0 if TARGET.read_text(encoding="utf-8") == text else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
