"""topo-probe --measured: rates that other tools measured between the GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...topo.graph import Topology


def correct(topology: Topology, file: str) -> Topology:
    """Return a topology with the rates of links that are to be believed by a file's measurements.

    These are rates between pairs of GPUs, as other tools print them;
    topo/extras/measured/believe.py has the rules. Each link's `extra` gets its declared and its
    measured rate. Raise InputError if the file cannot be read, has no such measurements, or has
    those of another number of GPUs.
    """
    from ...topo.extras.measured.believe import believe
    from ...topo.extras.measured.matrices import read_measurements
    from ...topo.formats.pasted import clean
    from ...topo.loader.resolve import read_text

    text = clean(read_text(Path(file)))
    return believe(topology, read_measurements(text, Path(file).name, topology))
