"""What notebooks show of topologies, schedules, plans and fronts: extras draw them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..extras import NOTEBOOKS, Names


@dataclass(frozen=True)
class Renderer:
    """How a notebook shows objects of a class: as an SVG file, as HTML, or neither (None)."""

    draw: Callable[[Any], str | None]
    show: Callable[[Any], str | None]


def draw(thing: object) -> str | None:
    """Return an object as an SVG file; None if no extra draws objects of its class."""
    renderer = _find_renderer(thing)
    return None if renderer is None else renderer.draw(thing)


def show(thing: object) -> str | None:
    """Return an object as HTML; None if no extra shows objects of its class."""
    renderer = _find_renderer(thing)
    return None if renderer is None else renderer.show(thing)


def _find_renderer(thing: object) -> Renderer | None:
    names, kind = Names(NOTEBOOKS), type(thing).__name__
    renderer: Renderer | None = names.find(kind) if kind in names.describe() else None
    return renderer
