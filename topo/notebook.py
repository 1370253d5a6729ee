"""What notebooks show of topologies, schedules, plans and Pareto fronts: extras draw them.

An extra is an optional part of topoplan; it adds a Renderer to the group `notebooks` (extras.py at
the root) under the name of the class that it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..extras import NOTEBOOKS, Names


@dataclass(frozen=True)
class Renderer:
    """How a notebook shows objects of a class.

    `draw` returns an object as the text of an SVG file, `show` as HTML; None if it has no such
    form.
    """

    draw: Callable[[Any], str | None]
    show: Callable[[Any], str | None]


def draw(thing: object) -> str | None:
    """Return an object as the text of an SVG file; None if no extra draws objects of its class."""
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
