"""Shapes, wires and frames of a picture, which `layout` places.

All sizes are in pixels. A cable stands for the links of one kind between two devices, of both
directions if these are equal; else it is `directed`, one for each direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from ...facts.keys import split_host
from ...graph import Topology
from ...grouping import group_by_key
from ...pictures.cables import Cable

# Sizes in pixels, chosen by eye.
GPU_WIDTH, GPU_HEIGHT = 64, 52
SMALL_GPU_WIDTH, SMALL_GPU_HEIGHT = 40, 34
NIC_WIDTH, NIC_HEIGHT = 66, 40
BAR_HEIGHT = 34  # pixels: a line of text, with room above and below it
# With more GPUs, small rectangles without names, so that 64 still fit a page.
MANY_GPUS = 32
# Offsets of a curve's control point from the middle of its ends, as fractions of their distance;
# the flattest curve that is free is taken.
_BENDS = tuple(i / 10 for i in range(1, 16))
# Points at which a curve is tested against a shape: closer together than a shape is wide.
_POINTS = 48
# Width of a letter as a fraction of the font size: an upper bound for the fonts in `svg`.
LETTER = 0.6
# Font sizes, the room next to a text, and the maximum width of a rectangle for a long id.
_TEXT, _SMALL_TEXT, _BESIDE_TEXT, _WIDEST = 13, 10, 8, 240.0
TIMES = "\u00d7"


@dataclass(frozen=True)
class Shape:
    """A rectangle around (x, y), in pixels, that represents one device or several identical ones.

    `ids` are theirs; `look` is gpu, cpu, pcie, nvswitch, network or nic. `title` is written in it,
    and `subtitle` in small letters below that.
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
    """A line, or with `bend` a curve, that represents `cables` cables like `cable`.

    `bend` is the control point of a quadratic curve, which itself comes half as far from the
    straight line. `start` and `end` are hidden behind the shapes.
    """

    cable: Cable
    start: tuple[float, float]
    end: tuple[float, float]
    bend: tuple[float, float] | None = None
    cables: int = 1

    def map_points(self, change: Callable[[tuple[float, float]], tuple[float, float]]) -> Wire:
        """Return the wire with `change` applied to each of its points."""
        return replace(
            self,
            start=change(self.start),
            end=change(self.end),
            bend=None if self.bend is None else change(self.bend),
        )


@dataclass(frozen=True)
class Frame:
    """A rectangle around the devices of one host, package or box, labelled above or below them.

    A box is a group of devices that are connected without the network. Sizes are in pixels from the
    picture's upper left corner; the label is below if `label_below`.
    """

    label: str
    left: float
    top: float
    width: float
    height: float
    label_below: bool = False


@dataclass(frozen=True)
class Picture:
    """A laid-out machine: `shapes` for its devices, `wires` for links, `frames` around hosts."""

    shapes: tuple[Shape, ...]
    wires: tuple[Wire, ...]
    frames: tuple[Frame, ...]

    @property
    def width(self) -> float:
        """Width of the picture, if its upper left corner is at (0, 0)."""
        return max((x for x, _ in self._list_corners()), default=0.0)

    @property
    def height(self) -> float:
        """Height of the picture, if its upper left corner is at (0, 0)."""
        return max((y for _, y in self._list_corners()), default=0.0)

    def _list_corners(self) -> list[tuple[float, float]]:
        """Return the points that span the picture: corners of shapes and frames, tops of curves."""
        corners = [c for s in self.shapes for c in ((s.left, s.top), (s.right, s.bottom))]
        corners += [
            c for f in self.frames for c in ((f.left, f.top), (f.left + f.width, f.top + f.height))
        ]
        for wire in self.wires:
            if wire.bend is not None:  # a quadratic curve comes half as close as its control point
                (ax, ay), (bx, by), (cx, cy) = wire.start, wire.end, wire.bend
                corners.append(((ax + bx + 2 * cx) / 4, (ay + by + 2 * cy) / 4))
        return corners

    def shift(self, dx: float, dy: float) -> Picture:
        """Return the picture moved by (dx, dy)."""

        def shift_point(point: tuple[float, float]) -> tuple[float, float]:
            return point[0] + dx, point[1] + dy

        return Picture(
            tuple(replace(s, x=s.x + dx, y=s.y + dy) for s in self.shapes),
            tuple(w.map_points(shift_point) for w in self.wires),
            tuple(replace(f, left=f.left + dx, top=f.top + dy) for f in self.frames),
        )

    def move_to_origin(self) -> Picture:
        """Return the picture with its upper left corner at (0, 0)."""
        corners = self._list_corners() or [(0.0, 0.0)]
        return self.shift(-min(x for x, _ in corners), -min(y for _, y in corners))


def get_gpu_size(topology: Topology) -> tuple[float, float]:
    """Return the width and height in pixels of each GPU's shape in the picture of a topology.

    They are small if there are more than MANY_GPUS, else wide enough for the longest id.
    """
    if len(topology.ranks) > MANY_GPUS:
        return SMALL_GPU_WIDTH, SMALL_GPU_HEIGHT
    names = (split_host(gpu)[1] for gpu in topology.ranks)
    return fit_width(names, _SMALL_TEXT, GPU_WIDTH), GPU_HEIGHT


def get_nic_width(topology: Topology) -> float:
    """Return the width in pixels of each NIC's shape: enough for the longest name."""
    names = (split_host(d.id)[1] for d in topology.devices if d.kind == "nic")
    return fit_width(names, _TEXT, NIC_WIDTH)


def fit_width(texts: Iterable[str], size: int, minimum: float) -> float:
    """Return a shape's width in pixels that fits each text at font size `size`.

    It is at least `minimum`, and limited for absurdly long texts.
    """
    needed = math.ceil(max(map(len, texts), default=0) * size * LETTER) + _BESIDE_TEXT
    return min(max(minimum, needed), max(minimum, _WIDEST))


def make_shape(topology: Topology, ident: str, rank: int | None, x: float, y: float) -> Shape:
    """Return the shape of the device `ident`: a GPU with its rank, or a NIC if `rank` is None.

    A GPU is titled with its rank; the subtitle is its id without the host, or GPU if that is
    GPU<rank>. A NIC is titled with its name. (x, y) is the centre.
    """
    name = split_host(ident)[1]
    if rank is None:
        return Shape((ident,), "nic", name, "NIC", x, y, get_nic_width(topology), NIC_HEIGHT)
    return Shape(
        (ident,),
        "gpu",
        str(rank),
        "GPU" if name.lower() == f"gpu{rank}" else name,
        x,
        y,
        *get_gpu_size(topology),
    )


def make_bars(
    names: Mapping[tuple[str, ...], str], look: str, left: float, y: float, width: float, gap: float
) -> dict[str, Shape]:
    """Return a bar, a wide flat rectangle, for each group of switches, side by side in `width`.

    `names` maps the ids of each group to the bar's title. The result maps each switch's id to the
    bar of its group. `left` is the left end of the row, `y` its middle, `gap` the room between
    bars.
    """
    bars: dict[str, Shape] = {}
    for i, (ids, name) in enumerate(names.items()):
        title = f"{len(ids)} {TIMES} {name}" if len(ids) > 1 else f"{name} · {ids[0]}"
        x = left + (i + 0.5) * width / len(names)
        bars |= dict.fromkeys(
            ids, Shape(ids, look, title, "", x, y, width / len(names) - gap, BAR_HEIGHT)
        )
    return bars


def make_wire(cable: Cable, a: Shape, b: Shape, bend: tuple[float, float] | None = None) -> Wire:
    """Return the wire of a cable from shape `a` to shape `b`; it meets a wide shape vertically.

    `bend` is the control point of a curve. If None, the wire is straight, but a directed cable's is
    a slight curve, to leave room for one in the other direction.
    """
    start, end = _find_meeting_point(a, b), _find_meeting_point(b, a)
    if cable.directed and bend is None:  # leave room for a cable in the other direction
        dx, dy = (end[0] - start[0]) / 8, (end[1] - start[1]) / 8
        bend = (start[0] + end[0]) / 2 - dy, (start[1] + end[1]) / 2 + dx
    return Wire(cable, start, end, bend)


def _find_meeting_point(shape: Shape, other: Shape) -> tuple[float, float]:
    """Return the point at which a line to `other` meets `shape`.

    It is the middle of `shape`, or, on a wide shape, in line with the middle of `other`.
    """
    if other.bottom >= shape.top and other.top <= shape.bottom:
        return shape.x, shape.y
    # Ends are hidden behind the shapes, so a line to a wide one has to be inside its edges.
    aim = other.x if other.width <= shape.width else shape.x
    margin = min(10.0, shape.width / 2)
    return min(max(aim, shape.left + margin), shape.right - margin), shape.y


def bundle_wires(shapes: Mapping[str, Shape], cables: Iterable[Cable]) -> tuple[Wire, ...]:
    """Return one wire for all identical cables between the same shapes.

    `shapes` maps each device id to its shape, which can represent several devices.
    """
    bundles = group_by_key(
        ((shapes[c.a].ids, shapes[c.b].ids, c.without_ends()), c) for c in cables
    )
    return tuple(
        replace(make_wire(c, shapes[c.a], shapes[c.b]), cables=len(alike))
        for alike in bundles.values()
        for c in alike[:1]
    )


def bend_around(wire: Wire, shapes: Iterable[Shape]) -> Wire:
    """Return the flattest curve between a wire's ends that passes behind none of the shapes.

    That is the wire itself if it is free, or if no curve is.
    """
    ends = {wire.cable.a, wire.cable.b}
    others = [shape for shape in shapes if ends.isdisjoint(shape.ids)]
    (ax, ay), (bx, by) = wire.start, wire.end
    bent = (
        replace(wire, bend=((ax + bx) / 2 - side * (by - ay), (ay + by) / 2 + side * (bx - ax)))
        for part in _BENDS
        for side in (part, -part)
    )
    return next(
        (w for w in chain([wire], bent) if not any(_passes_behind(w, s) for s in others)), wire
    )


def _passes_behind(wire: Wire, shape: Shape) -> bool:
    (ax, ay), (bx, by) = wire.start, wire.end
    cx, cy = wire.bend or ((ax + bx) / 2, (ay + by) / 2)
    if (
        max(ax, bx, cx) < shape.left
        or min(ax, bx, cx) > shape.right
        or max(ay, by, cy) < shape.top
        or min(ay, by, cy) > shape.bottom
    ):
        return False
    # Intersecting the curve exactly would need the roots of two quadratics for each shape.
    for i in range(1, _POINTS):
        t = i / _POINTS
        x = (1 - t) ** 2 * ax + 2 * t * (1 - t) * cx + t * t * bx
        y = (1 - t) ** 2 * ay + 2 * t * (1 - t) * cy + t * t * by
        if shape.left < x < shape.right and shape.top < y < shape.bottom:
            return True
    return False
