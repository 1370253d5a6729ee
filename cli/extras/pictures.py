"""Pictures of topo-probe: the machine, its graph, and the rates between its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...topo.pictures.convert import convert_svg
from ..probing.added import View

if TYPE_CHECKING:
    from ...topo.graph import Topology


def _draw(topology: Topology) -> str:
    from ...topo.extras.pictures.svg import write

    return write(topology)


def _write_dot(topology: Topology) -> str:
    from ...topo.extras.pictures.dot import write

    return write(topology)


def _draw_rates(topology: Topology) -> str:
    from ...synth.extras.heat_map import draw_heat_map

    return draw_heat_map(topology)


DOT = View(_write_dot)
SVG = View(_draw, ".svg")
PNG = View(lambda topology: convert_svg(_draw(topology), "png"), ".png")
PDF = View(lambda topology: convert_svg(_draw(topology), "pdf"), ".pdf")
HEAT_MAP = View(_draw_rates, is_svg=True)
