"""topo-probe --patterns: what flows got that ran at once, as facts of the machine.

A pattern is flows from rank to rank that were measured at once, with their GB/s together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...topo.graph import Topology


def add(topology: Topology, file: str) -> Topology:
    """Return a topology with the patterns of a file among its facts.

    Raise InputError if the file cannot be read or does not fit the topology.
    """
    from ...topo.extras.patterns.facts import add_patterns
    from ...topo.extras.patterns.table import read_patterns
    from ...topo.formats.pasted import clean
    from ...topo.loader.resolve import read_text

    text = clean(read_text(Path(file)))
    return add_patterns(topology, read_patterns(text, Path(file).name, len(topology.ranks)))
