"""topoplan: all commands as subcommands of one."""

import argparse
import sys
from itertools import takewhile

from .commands import import_command, is_command, list_commands
from .shared.common import Example, Parser, call_as, list_examples, run_command

PROG = "topoplan"
# `topoplan help COMMAND` is `topoplan COMMAND --help`.
HELP = "help"
# Options that may stand before the subcommand too.
_FLAGS = ("-v", "--verbose", "-q", "--quiet")
EXAMPLES: tuple[Example, ...] = (
    ("topoplan probe", "this machine: GPUs, links, what is wrong with it"),
    (
        "topoplan synth allreduce dgx1 -o plan.json",
        "a plan for a DGX-1, with its bound",
    ),
    ("topoplan run plan.json", "the plan on processes of this host, beside the stock allreduce"),
    *list_examples(PROG),
)
ABOUT = """\
topoplan reads a machine, synthesizes schedules of collectives for it, proves how far each is from
the best possible on its links, and runs them. `topoplan COMMAND --help` has each command's
examples and options; each is a command of its own too: topo-probe is topoplan probe.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command that `argv` (default: sys.argv) names and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    flags = list(takewhile(lambda word: word in _FLAGS, arguments))
    name, *rest = arguments[len(flags) :] or [HELP]
    if name == HELP:
        rest.insert(1, "--help")  # behind the command's name, before what the help is of
        name, *rest = rest
    if name != HELP and is_command(name):
        return _run(name, [*flags, *rest])
    build_parser().parse_args([name])  # exits: with help, with the version, or with an error
    raise AssertionError(f"{name} is no command, and the parser took it for one")


def _run(name: str, arguments: list[str]) -> int:
    """Run a subcommand, with its full name in errors and help."""
    call_as(f"{PROG} {name}")
    try:
        return run_command(PROG, lambda: import_command(name).main(arguments))
    finally:
        call_as("")


def build_parser(*, with_options: bool = False) -> Parser:
    """Return the parser of topoplan; `with_options` adds all options, for completion."""
    parser = Parser(PROG, EXAMPLES, ABOUT, "COMMAND ...")
    commands = parser.add_subparsers(
        title="commands",
        metavar="COMMAND",
        dest="command",
        required=True,
        parser_class=argparse.ArgumentParser,
    )
    for name, what in list_commands().items():
        own = [import_command(name).build_parser()] if with_options else []
        commands.add_parser(name, help=what, add_help=False, parents=own)
    asked = commands.add_parser(HELP, help="show the help of a command", add_help=False)
    if with_options:
        asked.add_argument("name", nargs="?", choices=list(list_commands()), help="the command")
    return parser


if __name__ == "__main__":
    sys.exit(main())
