"""Shapes, wires and frames that a picture of a machine is made of, before it is drawn. Sizes are in
pixels.

`layout` decides where they stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ..facts.keys import split_host
from ..graph import Topology
from .cables import Cable

GPU_WIDTH, GPU_HEIGHT = 64, 52
SMALL_GPU_WIDTH, SMALL_GPU_HEIGHT = 40, 34
NIC_WIDTH, NIC_HEIGHT = 66, 40
MANY_GPUS = 32
# How far a curve's control point is beside the middle of its ends, in parts of their distance.
_BENDS = tuple(i / 10 for i in range(1, 16))
_POINTS = 48
# A letter's width as a part of the font size, on the safe side.
LETTER = 0.6
_TEXT, _SMALL_TEXT, _BESIDE_TEXT, _WIDEST = 13, 10, 8, 240.0
TIMES = "\u00d7"


@dataclass(frozen=True)
class Shape:
    """A device, or several alike, as a rectangle around (x, y). `look` is gpu, cpu, pcie, nvswitch,
    network or nic.
    """

    ids: tuple[str, ...]
    look: str
    title: str
    subtitle: str
    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        """The left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """The right edge."""
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        """The upper edge."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Wire:
    """`cables` alike cables between two points, as a line or, with `bend`, a curve; it ends behind
    the shapes.
    """

    kind: str
    GBps: Fraction
    count: int
    one_way: bool
    start: tuple[float, float]
    end: tuple[float, float]
    bend: tuple[float, float] | None = None
    cables: int = 1

    def map_points(self, change: Callable[[tuple[float, float]], tuple[float, float]]) -> Wire:
        """Return the same wire with each of its points changed."""
        bend = None if self.bend is None else change(self.bend)
        return replace(self, start=change(self.start), end=change(self.end), bend=bend)


@dataclass(frozen=True)
class Frame:
    """The rectangle around everything in one box of the machine."""

    label: str
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Picture:
    """Everything there is to draw, with the upper left corner at (0, 0)."""

    shapes: tuple[Shape, ...]
    wires: tuple[Wire, ...]
    frames: tuple[Frame, ...]

    @property
    def width(self) -> float:
        """Width of the picture."""
        return max((x for x, _ in self._list_corners()), default=0.0)

    @property
    def height(self) -> float:
        """Height of the picture."""
        return max((y for _, y in self._list_corners()), default=0.0)

    def _list_corners(self) -> list[tuple[float, float]]:
        """Return the points that the picture must hold: corners of shapes and frames, middles of
        curves.
        """
        corners = [c for s in self.shapes for c in ((s.left, s.top), (s.right, s.bottom))]
        corners += [
            c for f in self.frames for c in ((f.left, f.top), (f.left + f.width, f.top + f.height))
        ]
        for wire in self.wires:
            if wire.bend is not None:  # the curve's middle is half way to the control point
                (ax, ay), (bx, by), (cx, cy) = wire.start, wire.end, wire.bend
                corners.append(((ax + bx + 2 * cx) / 4, (ay + by + 2 * cy) / 4))
        return corners

    def shift(self, dx: float, dy: float) -> Picture:
        """Return the same picture at another place."""

        def shift_point(point: tuple[float, float]) -> tuple[float, float]:
            return point[0] + dx, point[1] + dy

        return Picture(
            tuple(replace(s, x=s.x + dx, y=s.y + dy) for s in self.shapes),
            tuple(w.map_points(shift_point) for w in self.wires),
            tuple(replace(f, left=f.left + dx, top=f.top + dy) for f in self.frames),
        )

    def move_to_origin(self) -> Picture:
        """Return the same picture with its upper left corner at (0, 0)."""
        corners = self._list_corners() or [(0.0, 0.0)]
        return self.shift(-min(x for x, _ in corners), -min(y for _, y in corners))


def get_gpu_size(topology: Topology) -> tuple[float, float]:
    """Return width and height of a GPU's rectangle: small ones where there are many, else wide
    enough for their ids.
    """
    if len(topology.ranks) > MANY_GPUS:
        return SMALL_GPU_WIDTH, SMALL_GPU_HEIGHT
    return fit_width(map(_name_in_host, topology.ranks), _SMALL_TEXT, GPU_WIDTH), GPU_HEIGHT


def get_nic_width(topology: Topology) -> float:
    """Return the width of a NIC's rectangle: wide enough for the names."""
    names = (_name_in_host(d.id) for d in topology.devices if d.kind == "nic")
    return fit_width(names, _TEXT, NIC_WIDTH)


def fit_width(texts: Iterable[str], size: int, least: float) -> float:
    """Return a width in which each text can be read whole, but for absurdly long ones."""
    longest = max(map(len, texts), default=0)
    return min(max(least, math.ceil(longest * size * LETTER) + _BESIDE_TEXT), max(least, _WIDEST))


def _name_in_host(ident: str) -> str:
    return split_host(ident)[1]


def make_gpu_shape(topology: Topology, ident: str, rank: int, x: float, y: float) -> Shape:
    """Return the shape of a GPU with its rank, and its id where that says something else; its host
    is written elsewhere.
    """
    width, height = get_gpu_size(topology)
    name = _name_in_host(ident)
    return Shape(
        (ident,),
        "gpu",
        str(rank),
        "GPU" if name.lower() == f"gpu{rank}" else name,
        x,
        y,
        width,
        height,
    )


def make_nic_shape(topology: Topology, ident: str, x: float, y: float) -> Shape:
    """Return the shape of a NIC with its name."""
    return Shape(
        (ident,), "nic", _name_in_host(ident), "NIC", x, y, get_nic_width(topology), NIC_HEIGHT
    )


def make_wire(cable: Cable, a: Shape, b: Shape, bend: tuple[float, float] | None = None) -> Wire:
    """Return a cable between two shapes; a wide shape is met where the line stays vertical."""
    start, end = _find_meeting_point(a, b), _find_meeting_point(b, a)
    if cable.one_way and bend is None:  # the way back, if any, is drawn beside it
        dx, dy = (end[0] - start[0]) / 8, (end[1] - start[1]) / 8
        bend = (start[0] + end[0]) / 2 - dy, (start[1] + end[1]) / 2 + dx
    return Wire(cable.kind, cable.GBps, cable.count, cable.one_way, start, end, bend)


def _find_meeting_point(shape: Shape, other: Shape) -> tuple[float, float]:
    """Return where a line to `other` meets `shape`: its middle, or, on wide shapes, above or below
    the other's middle.
    """
    if other.bottom < shape.top or other.top > shape.bottom:
        aim = other.x if other.width <= shape.width else shape.x
        margin = min(10.0, shape.width / 2)
        return min(max(aim, shape.left + margin), shape.right - margin), shape.y
    return shape.x, shape.y


def bend_around(wire: Wire, shapes: Sequence[Shape]) -> Wire:
    """Return the wire, or a curve between its ends that passes behind none of the shapes, the
    flattest there is; the wire itself where there is none.
    """
    if not any(_passes_behind(wire, shape) for shape in shapes):
        return wire
    (ax, ay), (bx, by) = wire.start, wire.end
    for part in _BENDS:
        for side in (part, -part):
            bent = replace(
                wire, bend=((ax + bx) / 2 - side * (by - ay), (ay + by) / 2 + side * (bx - ax))
            )
            if not any(_passes_behind(bent, shape) for shape in shapes):
                return bent
    return wire


def _passes_behind(wire: Wire, shape: Shape) -> bool:
    """Return whether a wire passes through a shape's rectangle, by points of it that lie close to
    each other.
    """
    (ax, ay), (bx, by) = wire.start, wire.end
    cx, cy = wire.bend or ((ax + bx) / 2, (ay + by) / 2)
    if max(ax, bx, cx) < shape.left or min(ax, bx, cx) > shape.right:
        return False
    if max(ay, by, cy) < shape.top or min(ay, by, cy) > shape.bottom:
        return False
    for i in range(1, _POINTS):
        t = i / _POINTS
        x = (1 - t) ** 2 * ax + 2 * t * (1 - t) * cx + t * t * bx
        y = (1 - t) ** 2 * ay + 2 * t * (1 - t) * cy + t * t * by
        if shape.left < x < shape.right and shape.top < y < shape.bottom:
            return True
    return False
