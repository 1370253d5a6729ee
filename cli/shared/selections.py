"""The options that take a part of a machine, which extras add to topo-probe, -place and -judge.

An extra is an optional part of topoplan; the one here adds --nodes LIST, which takes some hosts.
"""

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
    """Return the part of a topology that the arguments ask for: all of it, if they do not.

    Raise InputError if a list does not fit the topology, or if its extra is not installed.
    """
    for name in _SELECTIONS.list_all():
        if (listed := getattr(arguments, name)) is not None:
            topology = _SELECTIONS.find(name)(topology, listed)
    return topology
