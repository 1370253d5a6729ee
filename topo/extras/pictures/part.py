"""Draw the part of a topology that fits on a page or in a notebook.

A box is a group of devices that are connected without the network, such as a server.
"""

import re

from ...graph import Topology
from . import svg
from .collapse import collapse


def draw_part(topology: Topology) -> tuple[str, str | None]:
    """Return (SVG of a machine, text on what was left out); None for the text if it is complete.

    Most of many GPUs are left out, and identical boxes of a wide picture.
    """
    shown = collapse(topology)
    picture = svg.write(shown.topology)
    if read_width(picture) > svg.MAX_WIDTH:
        fewer = collapse(topology, max_boxes=1)
        if fewer.left_out:
            shown, picture = fewer, svg.write(fewer.topology)
    return picture, shown.left_out


def read_width(picture: str) -> int:
    """Return the width of an SVG file in pixels, 0 if it does not say so."""
    match = re.search(r'width="(\d+)"', picture)
    return int(match[1]) if match else 0
