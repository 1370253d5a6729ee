"""The picture of a machine before it is drawn: which shapes stand where, and which wires join them.

GPUs that are joined directly are arranged by structure (`arrange`). Machines with sockets, switches or several boxes
are drawn in rows (`boxes`). Sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from ..graph import Topology
from .cables import Cable
from .structures import arrange

GPU_WIDTH, GPU_HEIGHT = 64, 52
SMALL_GPU_WIDTH, SMALL_GPU_HEIGHT = 40, 34
NIC_WIDTH, NIC_HEIGHT = 66, 40
MANY_GPUS = 32
TIMES = "\u00d7"
_UNIT, _SMALL_UNIT = 104, 64


@dataclass(frozen=True)
class Shape:
    """A device, or several alike, as a rectangle around (x, y). `look` is gpu, cpu, pcie, nvswitch, network or nic."""

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
    """`cables` cables of a class between two places, as a line or, with `bend`, a curve; it ends behind the shapes."""

    kind: str
    GBps: Fraction
    count: int
    one_way: bool
    start: tuple[float, float]
    end: tuple[float, float]
    bend: tuple[float, float] | None = None
    cables: int = 1


@dataclass(frozen=True)
class Frame:
    """A box of the machine: a rectangle around what is in it."""

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
        """How wide the picture is."""
        return max((x for x, _ in self._extent()), default=0.0)

    @property
    def height(self) -> float:
        """How high the picture is."""
        return max((y for _, y in self._extent()), default=0.0)

    def _extent(self) -> list[tuple[float, float]]:
        corners = [c for s in self.shapes for c in ((s.left, s.top), (s.right, s.bottom))]
        corners += [c for f in self.frames for c in ((f.left, f.top), (f.left + f.width, f.top + f.height))]
        for wire in self.wires:
            if wire.bend is not None:  # the curve's middle is half way to the control point
                (ax, ay), (bx, by), (cx, cy) = wire.start, wire.end, wire.bend
                corners.append(((ax + bx + 2 * cx) / 4, (ay + by + 2 * cy) / 4))
        return corners

    def moved(self, dx: float, dy: float) -> Picture:
        """The same picture at another place."""

        def at(point: tuple[float, float]) -> tuple[float, float]:
            return point[0] + dx, point[1] + dy

        return Picture(
            tuple(replace(s, x=s.x + dx, y=s.y + dy) for s in self.shapes),
            tuple(
                replace(w, start=at(w.start), end=at(w.end), bend=None if w.bend is None else at(w.bend))
                for w in self.wires
            ),
            tuple(replace(f, left=f.left + dx, top=f.top + dy) for f in self.frames),
        )

    def cornered(self) -> Picture:
        """The same picture with its upper left corner at (0, 0)."""
        corners = self._extent() or [(0.0, 0.0)]
        return self.moved(-min(x for x, _ in corners), -min(y for _, y in corners))


def gpu_size(topology: Topology) -> tuple[int, int]:
    """Width and height of a GPU's rectangle: small ones where there are many."""
    return (SMALL_GPU_WIDTH, SMALL_GPU_HEIGHT) if len(topology.ranks) > MANY_GPUS else (GPU_WIDTH, GPU_HEIGHT)


def gpu_shape(topology: Topology, ident: str, rank: int, x: float, y: float) -> Shape:
    """A GPU with its rank, and its id where that says something else."""
    width, height = gpu_size(topology)
    subtitle = "GPU" if ident.lower() == f"gpu{rank}" else ident
    return Shape((ident,), "gpu", str(rank), subtitle, x, y, width, height)


def wire_between(cable: Cable, a: Shape, b: Shape, bend: tuple[float, float] | None = None) -> Wire:
    """A cable between two shapes; a wide shape is met where the line stays vertical."""
    start, end = _meeting(a, b), _meeting(b, a)
    if cable.one_way and bend is None:  # the way back, if any, is drawn beside it
        dx, dy = (end[0] - start[0]) / 8, (end[1] - start[1]) / 8
        bend = (start[0] + end[0]) / 2 - dy, (start[1] + end[1]) / 2 + dx
    return Wire(cable.kind, cable.GBps, cable.count, cable.one_way, start, end, bend)


def _meeting(shape: Shape, other: Shape) -> tuple[float, float]:
    """Where a line to `other` meets `shape`: its middle, or, on wide shapes, above or below the other's middle."""
    if other.bottom < shape.top or other.top > shape.bottom:
        aim = other.x if other.width <= shape.width else shape.x
        margin = min(10.0, shape.width / 2)
        return min(max(aim, shape.left + margin), shape.right - margin), shape.y
    return shape.x, shape.y


def flat_picture(topology: Topology, gpus: Iterable[str], joined: Iterable[Cable]) -> Picture:
    """GPUs arranged by the structure of their direct links."""
    rank = {ident: i for i, ident in enumerate(topology.ranks)}
    order = tuple(gpus)
    index = {ident: i for i, ident in enumerate(order)}
    inside = [c for c in joined if c.a in index and c.b in index]
    pairs = frozenset((min(index[c.a], index[c.b]), max(index[c.a], index[c.b])) for c in inside)
    found = arrange(len(order), pairs)
    unit = _SMALL_UNIT if len(topology.ranks) > MANY_GPUS else _UNIT
    shapes: Mapping[str, Shape] = {
        ident: gpu_shape(topology, ident, rank[ident], unit * x, unit * y)
        for ident, (x, y) in zip(order, found.points, strict=True)
    }
    wires = []
    for c in inside:
        bend = found.bends.get((min(index[c.a], index[c.b]), max(index[c.a], index[c.b])))
        wires.append(
            wire_between(c, shapes[c.a], shapes[c.b], None if bend is None else (unit * bend[0], unit * bend[1]))
        )
    return Picture(tuple(shapes.values()), tuple(wires), ())
