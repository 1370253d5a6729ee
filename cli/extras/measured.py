"""topo-probe --measured: rates that other tools measured between the GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...topo.graph import Topology


def correct(topology: Topology, file: str) -> Topology:
    """Return a topology with the rates that a file of other tools' measurements proves."""
    from ...topo.extras.measured.believe import believe
    from ...topo.extras.measured.matrices import read_measurements
    from ...topo.formats.pasted import clean
    from ...topo.loader.resolve import read_text

    text = clean(read_text(Path(file)))
    return believe(topology, read_measurements(text, Path(file).name, topology))
