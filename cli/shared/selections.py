"""The options that take a part of a machine, which extras add to all commands that read one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...extras import SELECTIONS, Names

if TYPE_CHECKING:
    from ...topo.graph import Topology
    from .common import Parser

_SELECTIONS = Names(SELECTIONS)


def add_selections(parser: Parser) -> None:
    """Add the options, each --NAME LIST; those of extras that are not here are refused in use."""
    here = _SELECTIONS.describe()
    for name in _SELECTIONS.list_all():
        parser.add_argument(f"--{name}", metavar="LIST", help=here.get(name, argparse.SUPPRESS))


def select(topology: Topology, arguments: argparse.Namespace) -> Topology:
    """Return the part of a topology that the arguments ask for: all of it, if they do not."""
    for name in _SELECTIONS.list_all():
        if (listed := getattr(arguments, name)) is not None:
            topology = _SELECTIONS.find(name)(topology, listed)
    return topology
