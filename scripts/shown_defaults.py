"""What mkdocstrings shows of defaults: the value where a signature has the name of a constant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe


class ShownDefaults(griffe.Extension):
    """Replace names of our constants in defaults by what they are assigned."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Do it once all modules are read: in parameters, and in fields of dataclasses."""
        for member in _list_members(pkg):
            if isinstance(member, griffe.Function):
                for parameter in member.parameters:
                    parameter.default = _find_value(pkg, parameter.default)
            elif isinstance(member.parent, griffe.Class):
                member.value = _find_value(pkg, member.value)


def _list_members(
    parent: griffe.Module | griffe.Class,
) -> Iterator[griffe.Function | griffe.Attribute]:
    for member in list(parent.members.values()):
        if isinstance(member, (griffe.Function, griffe.Attribute)):
            yield member
        elif isinstance(member, (griffe.Module, griffe.Class)):
            yield from _list_members(member)


def _find_value(pkg: griffe.Module, shown: str | griffe.Expr | None) -> str | griffe.Expr | None:
    """Return the value of a constant of ours, and anything else as it is."""
    if not isinstance(shown, griffe.ExprName):
        return shown
    try:
        found = pkg[shown.canonical_path.removeprefix(f"{pkg.name}.")]
        found = found.final_target if isinstance(found, griffe.Alias) else found
    except (KeyError, griffe.GriffeError):  # a name of Python's, or of another package
        return shown
    value = found.value if isinstance(found, griffe.Attribute) else None
    return value or shown
