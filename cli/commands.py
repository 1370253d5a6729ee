"""The table of commands: those of the core, and those that extras and other packages add.

`topoplan NAME` runs `main` of the command NAME, and topo-NAME does where it is installed as one. An
extra is an optional part of topoplan (extras.py).
"""

from __future__ import annotations

from importlib import import_module

from ..extras import COMMANDS, EXTRAS, Names

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
# Those that are no programs of their own; cli/extras/ is a folder, so that one's module is not it.
_WITHIN = {
    "extras": "list the extras, and what other packages add",
    "completion": "print the script that lets a shell complete these commands",
}
_MODULES = {**{name: name for name in (*_CORE, *_WITHIN, "topoplan")}, "extras": "list_extras"}


def list_commands() -> dict[str, str]:
    """Return the help line of each installed command, by name, without other packages' commands."""
    return {**_CORE, **Names(COMMANDS).describe(), **_WITHIN}


def list_own() -> list[str]:
    """Return the names of commands that also are programs topo-NAME."""
    return [name for name in list_commands() if name not in _WITHIN]


def is_command(name: str) -> bool:
    """Return whether a command is named so, even one of another package or of a missing extra."""
    return (
        name in list_commands()
        or any(name in extra.adds.get(COMMANDS, ()) for extra in EXTRAS)
        or name in Names(COMMANDS)
    )


def import_command(name: str) -> Command:
    """Return the module of the command `name`, or of `topoplan` itself; it has `main`.

    Raise InputError if nothing that is installed has it, TopoplanError if the package that has it
    cannot be loaded.
    """
    command: Command = (
        import_module(f".{_MODULES[name]}", __package__)
        if name in _MODULES
        else Names(COMMANDS).find(name)
    )
    return command
