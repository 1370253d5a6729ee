"""The ways that chunks take through a machine as SVG pictures: GPUs where the picture of the
machine has them, with arrows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from ...topo.graph import Topology
from ...topo.pictures.collapse import list_boxes
from ...topo.pictures.layout import lay_out
from ..ir.schedule import Schedule
from .drawing import draw_text, start_svg

# With more GPUs nothing is drawn.
MOST_GPUS = 64
_WIDTH, _PAD, _HEAD = 300, 34, 24
_MOST_BEND, _LEAST_DISTANCE = 46, 24.0
_LEAST_HEIGHT, _MOST_HEIGHT = 90, 260
# Sender, receiver, operation.
_Edge = tuple[int, int, str]


@dataclass(frozen=True)
class Way:
    """What chunks of one kind do: their transfers, each with its first step, and the share of the
    buffer that goes so.
    """

    edges: Mapping[_Edge, int]
    share: Fraction
    chunks: int


def list_ways(schedule: Schedule) -> list[Way]:
    """Return the different ways that chunks take, those with the most of the buffer first."""
    edges_of: dict[int, dict[_Edge, int]] = defaultdict(dict)
    for t in schedule.transfers:
        edges = edges_of[t.chunk]
        key = (t.src, t.dst, t.op)
        edges[key] = min(t.step, edges.get(key, t.step))
    grouped: dict[frozenset[tuple[_Edge, int]], list[int]] = defaultdict(list)
    for chunk, edges in edges_of.items():
        grouped[frozenset(edges.items())].append(chunk)
    ways = [
        Way(dict(key), sum((schedule.chunks[c].share for c in of), Fraction(0)), len(of))
        for key, of in grouped.items()
    ]
    return sorted(ways, key=lambda way: (-way.share, sorted(way.edges.items())))


def draw_way(topology: Topology, way: Way, *, alone: bool = False) -> str:
    """Return the picture of one way on the machine. Sums go along dashed arrows, what is kept along
    whole ones.
    """
    places = _place_gpus(topology)
    height = _HEAD + max(y for _, y in places) + _PAD
    share = float(way.share)
    both_ways = _spreads_back(way)
    title = f"{share:.3g} of the buffer, {1 + max(way.edges.values(), default=0)} steps"
    lines = start_svg(_WIDTH, height, title, alone=alone)
    lines.append(
        draw_text(
            8,
            18,
            f"{share:.2%} of the buffer" + (f" ({way.chunks} chunks)" if way.chunks > 1 else ""),
            12,
        )
    )
    near = min((math.dist(a, b) for a, b in combinations(places, 2)), default=math.inf)
    radius = min(11.0, max(5.0, near / 2.3))
    last = max(way.edges.values(), default=0) + 1
    drawn = {edge: step for edge, step in way.edges.items() if edge[2] == "copy" or not both_ways}
    for (src, dst, op), step in sorted(drawn.items(), key=lambda item: item[1]):
        lines += _draw_arrow(
            places[src], places[dst], _HEAD, radius, op, 0.45 + 0.55 * (1 - step / last), both_ways
        )
    for rank, (x, y) in enumerate(places):
        lines.append(
            f'<circle class="node" cx="{x:.1f}" cy="{y + _HEAD:.1f}" r="{radius:g}" '
            'stroke-width="1.4"/>'
        )
        size = 11 if radius > 9 else 8
        lines.append(draw_text(x, y + _HEAD + size * 0.36, str(rank), size, anchor="middle"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def spreads_back(schedule: Schedule) -> bool:
    """Return whether all chunks are spread along the arrows along which they were summed up, the
    other way around.
    """
    return all(_spreads_back(way) for way in list_ways(schedule))


def _spreads_back(way: Way) -> bool:
    sums = {(src, dst) for src, dst, op in way.edges if op == "reduce"}
    return bool(sums) and sums == {(dst, src) for src, dst, op in way.edges if op == "copy"}


def _place_gpus(topology: Topology) -> list[tuple[float, float]]:
    """Return where the GPUs stand, by rank: as in the picture of the machine, made to fit, or,
    where they would stand too close, a circle for each box.
    """
    at = {ident: (shape.x, shape.y) for shape in lay_out(topology).shapes for ident in shape.ids}
    points = [at[ident] for ident in topology.ranks]
    left, top = min(x for x, _ in points), min(y for _, y in points)
    wide, high = max(x for x, _ in points) - left, max(y for _, y in points) - top
    scale_x = (_WIDTH - 2 * _PAD) / wide if wide else 0.0
    height = (
        min(_MOST_HEIGHT, max(_LEAST_HEIGHT, high * scale_x if wide else _MOST_HEIGHT))
        if high
        else 0.0
    )
    scale_y = height / high if high else 0.0
    shift_y = _PAD if high else _LEAST_HEIGHT / 2
    shift_x = _PAD if wide else _WIDTH / 2
    placed = [((x - left) * scale_x + shift_x, (y - top) * scale_y + shift_y) for x, y in points]
    near = min((math.dist(a, b) for a, b in combinations(placed, 2)), default=math.inf)
    # In one or two rows arrows pass over GPUs, which takes more room than in a grid.
    in_rows = len({round(y) for _, y in placed}) <= 2
    return (
        placed if near >= _LEAST_DISTANCE * (2 if in_rows else 1) else _place_on_circles(topology)
    )


def _place_on_circles(topology: Topology) -> list[tuple[float, float]]:
    """Return where the GPUs stand with those of each box on a circle; boxes are rows of at most two
    (or four) circles.
    """
    boxes = [[d.id for d in box if d.kind == "gpu"] for box in list_boxes(topology)]
    boxes = [box for box in boxes if box]
    if len(boxes) == len(topology.ranks):
        boxes = [list(topology.ranks)]
    columns = min(len(boxes), 2 if len(boxes) <= 4 else 4)
    cell = (_WIDTH - _PAD) / columns
    radius = min(_MOST_HEIGHT, cell) / 2 - 20
    at: dict[str, tuple[float, float]] = {}
    for number, box in enumerate(boxes):
        x, y = (
            _PAD / 2 + cell * (number % columns + 0.5),
            (radius + 20) * (1 + 2 * (number // columns)),
        )
        for place, ident in enumerate(box):
            turn = 2 * math.pi * place / len(box) - math.pi / 2
            at[ident] = (x + radius * math.cos(turn), y + radius * math.sin(turn))
    return [at[ident] for ident in topology.ranks]


def _draw_arrow(
    start: tuple[float, float],
    end: tuple[float, float],
    head: float,
    radius: float,
    op: str,
    strength: float,
    double: bool,
) -> list[str]:
    """Return a curved arrow between two GPUs, from rim to rim; arrows past GPUs in between bend
    further away.
    """
    (ax, ay), (bx, by) = (start[0], start[1] + head), (end[0], end[1] + head)
    length = math.dist((ax, ay), (bx, by)) or 1.0
    bend = min(0.3, _MOST_BEND / length)
    cx, cy = (ax + bx) / 2 - (by - ay) * bend, (ay + by) / 2 + (bx - ax) * bend
    (sx, sy), (ex, ey) = (
        _toward((ax, ay), (cx, cy), radius),
        _toward((bx, by), (cx, cy), radius + 2),
    )
    look = "ce" if op == "copy" else "ae"
    fill = "copy" if op == "copy" else "add"
    dash = "" if op == "copy" else ' stroke-dasharray="5 3"'
    angle = math.atan2(ey - cy, ex - cx)
    heads = [(ex, ey, angle)]
    if double:
        (sx, sy) = _toward((ax, ay), (cx, cy), radius + 2)
        heads.append((sx, sy, math.atan2(sy - cy, sx - cx)))
    out = [
        f'<path class="{look}" stroke-width="1.7" opacity="{strength:.2f}"{dash} '
        f'd="M{sx:.1f} {sy:.1f}Q{cx:.1f} {cy:.1f} {ex:.1f} {ey:.1f}"/>'
    ]
    for x, y, turn in heads:
        corners = [
            (x - 7 * math.cos(turn + side), y - 7 * math.sin(turn + side)) for side in (0.42, -0.42)
        ]
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in ((x, y), *corners))
        out.append(f'<polygon class="{fill}" opacity="{strength:.2f}" points="{points}"/>')
    return out


def _toward(
    point: tuple[float, float], other: tuple[float, float], distance: float
) -> tuple[float, float]:
    """Return the point that lies `distance` from one point on the way to another."""
    length = math.dist(point, other) or 1.0
    return point[0] + (other[0] - point[0]) * distance / length, point[1] + (
        other[1] - point[1]
    ) * distance / length
