"""Draw the flow of chunks through a machine as SVG pictures.

The flow of a chunk is all transfers that move it, a tree if the schedule is one of trees. GPUs have
the positions that they have in the picture of the machine, or stand in a circle for each host or
socket; a thin box is around the GPUs of each.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from ....topo.derived.hosts import group_by_host
from ....topo.extras.pictures.layout import lay_out
from ....topo.facts.keys import split_host
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ...ir.schedule import Schedule
from ...pictures.drawing import draw_text, start_svg

# Most GPUs for which arrows can be distinguished.
MAX_GPUS = 64
# Pixels: the picture, its margin, and the line of text above.
_WIDTH, _PAD, _HEAD = 300, 34, 24
# Pixels: largest bend of arrows, and least distance between GPUs.
_MAX_BEND, _MIN_DISTANCE = 46, 24.0
_MIN_HEIGHT, _MAX_HEIGHT = 90, 260
# Pixels: around the circle of a group, from its GPUs to its box, the label above that.
_AROUND, _BOX_PAD, _LABEL = 20, 6, 14
# Most NUMA nodes of a host that are taken for sockets.
_MAX_SOCKETS = 2
# Sender, receiver, operation.
_Edge = tuple[int, int, str]
_Point = tuple[float, float]
# The name of a host or socket, and the ranks of its GPUs.
_Group = tuple[str, list[int]]


@dataclass(frozen=True)
class ChunkFlow:
    """The transfers that several chunks share, and how much of the buffer these make up.

    `edges` maps (source rank, destination rank, "reduce" or "copy") to the first step of that
    transfer. `chunks` is the number of chunks, `share` their fraction of the buffer.
    """

    edges: Mapping[_Edge, int]
    share: Fraction
    chunks: int


def list_flows(schedule: Schedule) -> list[ChunkFlow]:
    """Return the different flows of chunks, those with the largest share of the buffer first."""
    edges_of: dict[int, dict[_Edge, int]] = defaultdict(dict)
    for t in schedule.transfers:
        edges, key = edges_of[t.chunk], (t.src, t.dst, t.op)
        edges[key] = min(t.step, edges.get(key, t.step))
    grouped = group_by_key((frozenset(edges.items()), chunk) for chunk, edges in edges_of.items())
    flows = [
        ChunkFlow(dict(key), sum((schedule.chunks[c].share for c in of), Fraction(0)), len(of))
        for key, of in grouped.items()
    ]
    return sorted(flows, key=lambda flow: (-flow.share, sorted(flow.edges.items())))


def draw_flow(topology: Topology, flow: ChunkFlow) -> str:
    """Draw one flow on the machine: dashed arrows for data that is added, solid ones for copies."""
    groups = _list_groups(topology)
    places = _place_gpus(topology, groups)
    height = _HEAD + max(y for _, y in places) + _PAD
    share, is_double = float(flow.share), _spreads_back(flow)
    last = max(flow.edges.values(), default=0) + 1
    lines = start_svg(_WIDTH, height, f"{share:.3g} of the buffer, {last} steps")
    chunks = f" ({flow.chunks} chunks)" if flow.chunks > 1 else ""
    lines.append(draw_text(8, 18, f"{share:.2%} of the buffer{chunks}", 12))
    radius = _choose_radius(places)
    if len(groups) > 1:
        lines += _draw_boxes(groups, places, radius)
    drawn = {edge: step for edge, step in flow.edges.items() if edge[2] == "copy" or not is_double}
    for (src, dst, op), step in sorted(drawn.items(), key=lambda item: (item[1], item[0])):
        # Earlier steps are stronger.
        strength = 0.45 + 0.55 * (1 - step / last)
        lines += _draw_arrow(places[src], places[dst], radius, op, strength, is_double)
    for rank, (x, y) in enumerate(places):
        lines.append(
            f'<circle class="node" cx="{x:.1f}" cy="{y + _HEAD:.1f}" r="{radius:g}" '
            'stroke-width="1.4"/>'
        )
        size = 11 if radius > 9 else 8
        lines.append(draw_text(x, y + _HEAD + size * 0.36, str(rank), size, anchor="middle"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _choose_radius(places: Sequence[_Point]) -> float:
    return min(11.0, max(5.0, _find_least_distance(places) / 2.3))


def _list_groups(topology: Topology) -> list[_Group]:
    """Return the GPUs of each host; of a single host with CPUs, those of each socket.

    There is one group if each would have one GPU.
    """
    gpus = [topology.by_id[ident] for ident in topology.ranks]
    hosts = group_by_host(gpus)
    names = [split_host(gpus[ranks[0]].id)[0] or f"host {i}" for i, ranks in enumerate(hosts)]
    groups = list(zip(names, hosts, strict=True))
    if len(groups) == 1 and any(device.kind == "cpu" for device in topology.devices):
        nodes = group_by_key((gpu.numa_node, rank) for rank, gpu in enumerate(gpus))
        kind = "socket" if len(nodes) <= _MAX_SOCKETS else "NUMA node"
        if None not in nodes:
            groups = [(f"{kind} {node}", ranks) for node, ranks in nodes.items()]
    if len(groups) == len(gpus):
        return [("", list(range(len(gpus))))]
    return groups


def _find_boxes(
    groups: Sequence[_Group], places: Sequence[_Point], radius: float
) -> list[tuple[float, float, float, float]]:
    """Return the left, top, right and bottom edge of the box around each group's GPUs."""
    pad = radius + _BOX_PAD
    return [
        (
            min(places[rank][0] for rank in ranks) - pad,
            min(places[rank][1] for rank in ranks) - pad,
            max(places[rank][0] for rank in ranks) + pad,
            max(places[rank][1] for rank in ranks) + pad,
        )
        for _, ranks in groups
    ]


def _draw_boxes(groups: Sequence[_Group], places: Sequence[_Point], radius: float) -> list[str]:
    lines = []
    boxes = _find_boxes(groups, places, radius)
    for (name, _), (left, top, right, bottom) in zip(groups, boxes, strict=True):
        letters = max(3, int((right - left) / 5.5))
        lines += [
            f'<rect class="w" x="{left:.1f}" y="{top + _HEAD:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}" rx="8"/>',
            draw_text(left + 2, top + _HEAD - 4, name[-letters:], 10, look="f"),
        ]
    return lines


def _are_apart(groups: Sequence[_Group], places: Sequence[_Point]) -> bool:
    """Return whether no group's box, with its label, touches that of another."""
    return not any(
        a[0] < b[2] and b[0] < a[2] and a[1] - _LABEL < b[3] and b[1] - _LABEL < a[3]
        for a, b in combinations(_find_boxes(groups, places, _choose_radius(places)), 2)
    )


def _find_least_distance(points: Sequence[_Point]) -> float:
    return min((math.dist(a, b) for a, b in combinations(points, 2)), default=math.inf)


def _spreads_back(flow: ChunkFlow) -> bool:
    """Return whether all sums are copied back over the edges along which they were reduced."""
    sums = {(src, dst) for src, dst, op in flow.edges if op == "reduce"}
    return bool(sums) and sums == {(dst, src) for src, dst, op in flow.edges if op == "copy"}


def _place_gpus(topology: Topology, groups: Sequence[_Group]) -> list[_Point]:
    """Return the positions of the GPUs by rank.

    These are the positions in the picture of the machine, scaled to fit, or on a circle for each
    group if GPUs or groups would be too close.
    """
    at = {ident: (shape.x, shape.y) for shape in lay_out(topology).shapes for ident in shape.ids}
    points = [at[ident] for ident in topology.ranks]
    left, top = min(x for x, _ in points), min(y for _, y in points)
    wide, high = max(x for x, _ in points) - left, max(y for _, y in points) - top
    scale_x = (_WIDTH - 2 * _PAD) / wide if wide else 0.0
    height = min(_MAX_HEIGHT, max(_MIN_HEIGHT, high * scale_x if wide else _MAX_HEIGHT))
    scale_y = height / high if high else 0.0
    shift_x, shift_y = _PAD if wide else _WIDTH / 2, _PAD if high else _MIN_HEIGHT / 2
    placed = [((x - left) * scale_x + shift_x, (y - top) * scale_y + shift_y) for x, y in points]
    # In one or two rows arrows pass over GPUs, which takes more room than in a grid.
    least = _MIN_DISTANCE * (2 if len({round(y) for _, y in placed}) <= 2 else 1)
    if _find_least_distance(placed) >= least and _are_apart(groups, placed):
        return placed
    return _place_on_circles(groups)


def _place_on_circles(groups: Sequence[_Group]) -> list[_Point]:
    """Return the positions of the GPUs on a circle for each group, in rows of two or four groups.

    The first two GPUs of a circle are side by side at its top.
    """
    columns = min(len(groups), 2 if len(groups) <= 4 else 4)
    cell = (_WIDTH - _PAD) / columns
    radius = min(_MAX_HEIGHT, cell) / 2 - _AROUND
    label = _LABEL if len(groups) > 1 else 0
    at: dict[int, _Point] = {}
    for number, (_, ranks) in enumerate(groups):
        row, column = divmod(number, columns)
        x = _PAD / 2 + cell * (column + 0.5)
        y = (radius + _AROUND) * (1 + 2 * row) + label * (1 + row)
        for i, rank in enumerate(ranks):
            turn = 2 * math.pi * (i - 0.5) / len(ranks) - math.pi / 2
            at[rank] = (x + radius * math.cos(turn), y + radius * math.sin(turn))
    return [at[rank] for rank in sorted(at)]


def _draw_arrow(
    start: _Point, end: _Point, radius: float, op: str, strength: float, is_double: bool
) -> list[str]:
    """Return a curved arrow from the rim of one GPU to that of another, bent around others."""
    (ax, ay), (bx, by) = (start[0], start[1] + _HEAD), (end[0], end[1] + _HEAD)
    length = math.dist((ax, ay), (bx, by)) or 1.0
    bend = min(0.3, _MAX_BEND / length)
    cx, cy = (ax + bx) / 2 - (by - ay) * bend, (ay + by) / 2 + (bx - ax) * bend
    sx, sy = _toward((ax, ay), (cx, cy), radius + 2 * is_double)
    ex, ey = _toward((bx, by), (cx, cy), radius + 2)
    dashed = ' stroke-dasharray="5 3"'
    look, fill, dash = ("ce", "copy", "") if op == "copy" else ("ae", "add", dashed)
    heads = [(x, y, math.atan2(y - cy, x - cx)) for x, y in ((ex, ey), (sx, sy))]
    out = [
        f'<path class="{look}" stroke-width="1.7" opacity="{strength:.2f}"{dash} '
        f'd="M{sx:.1f} {sy:.1f}Q{cx:.1f} {cy:.1f} {ex:.1f} {ey:.1f}"/>'
    ]
    for x, y, turn in heads if is_double else heads[:1]:
        corners = [
            (x - 7 * math.cos(turn + side), y - 7 * math.sin(turn + side)) for side in (0.42, -0.42)
        ]
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in ((x, y), *corners))
        out.append(f'<polygon class="{fill}" opacity="{strength:.2f}" points="{points}"/>')
    return out


def _toward(point: _Point, other: _Point, distance: float) -> _Point:
    """Return the point at a distance from one point in the direction of another."""
    part = distance / (math.dist(point, other) or 1.0)
    (x, y), (to_x, to_y) = point, other
    return x + (to_x - x) * part, y + (to_y - y) * part
