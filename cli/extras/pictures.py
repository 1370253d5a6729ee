"""Pictures of topo-probe: the machine, and the rates between its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...topo.pictures.convert import convert_svg
from ..probing.added import View

if TYPE_CHECKING:
    from ...topo.graph import Topology


def _draw(topology: Topology) -> str:
    from ...topo.extras.pictures.svg import write

    return write(topology)


def _draw_rates(topology: Topology) -> str:
    from ...synth.extras.heat_map import draw_heat_map

    return draw_heat_map(topology)


SVG = View(_draw, ".svg")
PNG = View(lambda topology: convert_svg(_draw(topology), "png"), ".png")
PDF = View(lambda topology: convert_svg(_draw(topology), "pdf"), ".pdf")
HEAT_MAP = View(_draw_rates)
