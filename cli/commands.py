"""The table of commands: those of the core, and those that extras and other packages add.

`topoplan NAME` runs `main` of the command NAME, and topo-NAME does where it is installed as one. An
extra is an optional part of topoplan (extras.py).
"""

from __future__ import annotations

from importlib import import_module

from ..extras import COMMANDS, SUBCOMMANDS, Names

TYPE_CHECKING = False  # not from typing, whose import takes longer than all else in this module
if TYPE_CHECKING:
    from typing import Protocol

    from .shared.common import Parser

    class Command(Protocol):
        """The module of a command."""

        def main(self, argv: list[str] | None = None) -> int:
            """Run the command and return its exit code."""

        def build_parser(self) -> Parser:
            """Return the parser of its arguments, which has its help."""


# Each in a module of its name in this folder.
_CORE = {
    "probe": "show a machine's topology, check it, measure its links",
    "synth": "synthesize a plan for a collective on a topology, with its bound",
    "run": "run plans on real processes, beside the stock collectives",
}
# The modules in this folder of these and of `topoplan` itself have their names.
_MODULES = (*_CORE, "topoplan")


def list_commands() -> dict[str, str]:
    """Return the help line of each command of the core and of installed extras, by name."""
    return {**_CORE, **Names(COMMANDS).describe(), **Names(SUBCOMMANDS).describe()}


def list_programs() -> list[str]:
    """Return the names of commands that also are programs of their own, topo-NAME."""
    within = Names(SUBCOMMANDS).list_all()
    return [name for name in list_commands() if name not in within]


def is_command(name: str) -> bool:
    """Return whether a command is named so, even one of another package or of a missing extra."""
    of_extras = (*Names(COMMANDS).list_all(), *Names(SUBCOMMANDS).list_all())
    return name in _CORE or name in of_extras or name in Names(COMMANDS)


def import_command(name: str) -> Command:
    """Return the module of the command `name`, or of `topoplan` itself; it has `main`.

    Raise InputError if nothing that is installed has it, TopoplanError if the package that has it
    cannot be loaded.
    """
    if name in _MODULES:
        command: Command = import_module(f".{name}", __package__)
    else:
        group = SUBCOMMANDS if name in Names(SUBCOMMANDS).list_all() else COMMANDS
        command = Names(group).find(name)
    return command
