"""What notebooks show of a topology; pages of HTML draw it in the same size."""

import re

from ..graph import Topology
from ..printable import quote
from . import svg
from .collapse import collapse


def draw_part(topology: Topology) -> tuple[str, str | None]:
    """Return a machine as SVG, and a text on the parts left out; None if it is complete.

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


def show(topology: Topology) -> str:
    """Return a machine as HTML: its picture, and the tables of `describe` below, folded."""
    picture, left_out = draw_part(topology)
    caption = "" if left_out is None else f"<figcaption>{quote(left_out)}</figcaption>"
    return (
        f'<figure style="margin:0">{picture}{caption}</figure>'
        f"<details><summary>connections, links and notes</summary>"
        f"<pre>{quote(topology.describe())}</pre></details>"
    )
