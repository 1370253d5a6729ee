"""Show a topology in notebooks: its picture, and its tables.

`TOPOLOGY` is what topo/notebook.py uses for objects of that class.
"""

from ..graph import Topology
from ..notebook import Renderer
from ..printable import quote
from .pictures.part import draw_part


def show(topology: Topology) -> str:
    """Return a topology as HTML: its picture, and below it the text of `describe()`, folded.

    A caption says what the picture leaves out of a large machine.
    """
    picture, left_out = draw_part(topology)
    caption = "" if left_out is None else f"<figcaption>{quote(left_out)}</figcaption>"
    return (
        f'<figure style="margin:0">{picture}{caption}</figure>'
        f"<details><summary>connections, links and notes</summary>"
        f"<pre>{quote(topology.describe())}</pre></details>"
    )


TOPOLOGY = Renderer(lambda topology: draw_part(topology)[0], show)
