"""Arrange directly connected GPUs so that a reader recognizes rings, grids, cubes and more.

Structures are recognized by their links alone. GPUs are numbered from 0. Coordinates are in units
of the distance between neighbours; y grows downwards.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

Point = tuple[float, float]
Pair = tuple[int, int]

# How far control points of links around a torus are from their row: such a curve leaves the next
# GPU of rows of up to six free, and stays below the row above.
_AROUND = 1.28
_LONGEST_ROW = 10  # GPUs; a longer row is wider than a page
_MAX_KAMADA_KAWAI = 64  # GPUs; the layout of so many takes .6 s, and that of twice as many 2 s
# Where each bit of a rank moves its GPU: a cube in perspective, then cubes side by side.
_BIT_VECTORS: tuple[Point, ...] = (
    (1.7, 0),
    (0, 1.7),
    (0.85, -0.8),
    (3.5, 0),
    (0, 3.4),
    (7.4, 0),
    (0, 7.0),
)


@dataclass(frozen=True)
class Arrangement:
    """A point for each GPU, and a control point for each pair whose link is a curve.

    The unit is the distance between neighbours; y grows downwards.
    """

    points: tuple[Point, ...]
    bends: Mapping[Pair, Point] = field(default_factory=dict)


def arrange(count: int, pairs: frozenset[Pair]) -> Arrangement:
    """Arrange GPUs 0 to count - 1 with links between `pairs`, whose smaller index comes first."""
    # The first that fits wins: three GPUs all to all are a ring, and a ring of four is no grid.
    methods: tuple[Callable[[int, frozenset[Pair]], Arrangement | None], ...] = (
        _arrange_row,
        _arrange_ring,
        _arrange_complete,
        _arrange_two_quads,
        _arrange_hypercube,
        _arrange_grid,
        _arrange_star,
        _arrange_any_graph,
    )
    return next(filter(None, (method(count, pairs) for method in methods)))


def _arrange_row(count: int, pairs: frozenset[Pair]) -> Arrangement | None:
    """Arrange a path in rank order, or GPUs without links; long rows turn back and forth."""
    if pairs and pairs != {(i, i + 1) for i in range(count - 1)}:
        return None
    width = count if count <= _LONGEST_ROW else math.ceil(math.sqrt(2 * count))
    return Arrangement(
        tuple(
            (float(i % width if i // width % 2 == 0 else width - 1 - i % width), float(i // width))
            for i in range(count)
        )
    )


def _place_on_circle(order: Sequence[int], spacing: float) -> tuple[Point, ...]:
    """Place nodes on a circle in `order`; even circles are flat on top."""
    radius = max(1.0, spacing * len(order) / (2 * math.pi))
    start = -math.pi / 2 - (math.pi / len(order) if len(order) % 2 == 0 else 0)
    angle = {node: start + 2 * math.pi * k / len(order) for k, node in enumerate(order)}
    return tuple(
        (radius * math.cos(angle[i]), radius * math.sin(angle[i])) for i in range(len(order))
    )


def _arrange_ring(count: int, pairs: frozenset[Pair]) -> Arrangement | None:
    """Arrange a ring in any order of ranks on a circle."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for a, b in pairs:
        neighbours[a].add(b)
        neighbours[b].add(a)
    if count < 3 or any(len(neighbours[i]) != 2 for i in range(count)):
        return None
    order = [0, min(neighbours[0])]
    while order[-1] != 0:
        order += neighbours[order[-1]] - {order[-2]}
    # Of several rings only the first would be on the circle.
    return Arrangement(_place_on_circle(order[:-1], 1.1)) if len(order) == count + 1 else None


def _arrange_complete(count: int, pairs: frozenset[Pair]) -> Arrangement | None:
    return (
        Arrangement(_place_on_circle(range(count), 1.6))
        if pairs == set(combinations(range(count), 2))
        else None
    )


def _arrange_two_quads(count: int, pairs: frozenset[Pair]) -> Arrangement | None:
    """Arrange a hybrid cube mesh: two complete quads, each GPU linked to a partner in the other."""
    if count != 8 or len(pairs) != 16:
        return None
    for rest in combinations(range(1, 8), 3):
        left = (0, *rest)
        right = tuple(i for i in range(8) if i not in left)
        partners = {a: [b for b in right if (min(a, b), max(a, b)) in pairs] for a in left}
        inside = all(pair in pairs for quad in (left, right) for pair in combinations(quad, 2))
        if inside and all(len(linked) == 1 for linked in partners.values()):
            return _mirror_quads(left, {a: linked[0] for a, linked in partners.items()})
    return None


def _mirror_quads(left: tuple[int, ...], partner: Mapping[int, int]) -> Arrangement:
    """Mirror the quads so that partners face each other: straight lines inside, arcs outside."""
    places = ((0.0, 0.0), (1.5, 0.0), (0.0, 1.5), (1.5, 1.5))
    points = dict(zip(left, places, strict=True))
    mirror_x = 5.2
    points |= {partner[a]: (mirror_x - x, y) for a, (x, y) in points.items()}
    bends = {
        (min(a, partner[a]), max(a, partner[a])): (mirror_x / 2, arc_y)
        for a, arc_y in ((left[0], -1.5), (left[2], 3.0))
    }
    return Arrangement(tuple(points[i] for i in range(8)), bends)


def _arrange_hypercube(count: int, pairs: frozenset[Pair]) -> Arrangement | None:
    """Arrange a hypercube in rank order: each bit of a rank moves its GPU in its own direction."""
    dimension = count.bit_length() - 1
    cube = {(a, a | 1 << k) for a in range(count) for k in range(dimension) if not a >> k & 1}
    if not 3 <= dimension <= len(_BIT_VECTORS) or count != 1 << dimension or pairs != cube:
        return None
    bits = [[_BIT_VECTORS[k] for k in range(dimension) if a >> k & 1] for a in range(count)]
    points = tuple((sum(x for x, _ in v), sum(y for _, y in v)) for v in bits)
    bends: dict[Pair, Point] = {}
    for a, b in cube:
        (x, y), (dx, dy) = points[a], _BIT_VECTORS[(b - a).bit_length() - 1]
        if dx > 3 or dy > 3:  # links between cubes pass next to the GPUs in between
            bends[a, b] = (x + dx / 2, y + dy / 2 - 0.75) if dx else (x - 0.75, y + dy / 2)
    return Arrangement(points, bends)


def _arrange_grid(count: int, pairs: frozenset[Pair]) -> Arrangement | None:
    """Arrange a mesh or torus of two dimensions in row-major order."""
    for rows in range(2, count // 2 + 1):
        columns, left_over = divmod(count, rows)
        if left_over or columns < 2:
            continue
        across = {(i, i + 1) for i in range(count) if (i + 1) % columns}
        down = {(i, i + columns) for i in range(count - columns)}
        around_row = (
            {(i, i + columns - 1) for i in range(0, count, columns)} if columns > 2 else set()
        )
        around_column = {(i, i + count - columns) for i in range(columns)} if rows > 2 else set()
        if not across | down <= pairs <= across | down | around_row | around_column:
            continue
        # Wrap-around links are curves next to their row or column, so that they hide no other link.
        points = tuple((float(i % columns), float(i // columns)) for i in range(count))
        bends = {(a, b): ((columns - 1) / 2, points[a][1] - _AROUND) for a, b in around_row & pairs}
        bends |= {
            (a, b): (points[a][0] - _AROUND, (rows - 1) / 2) for a, b in around_column & pairs
        }
        return Arrangement(points, bends)
    return None


def _arrange_star(count: int, pairs: frozenset[Pair]) -> Arrangement | None:
    hubs = [i for i in range(count) if all(i in pair for pair in pairs)]
    if count < 4 or len(pairs) != count - 1 or len(hubs) != 1:
        return None
    points = [(1.2 * x, 1.2 * y) for x, y in _place_on_circle(range(count - 1), 1.1)]
    points.insert(hubs[0], (0.0, 0.0))
    return Arrangement(tuple(points))


def _arrange_any_graph(count: int, pairs: frozenset[Pair]) -> Arrangement:
    """Arrange any graph: on a circle if it is small and dense, else by springs."""
    if count <= 12 and len(pairs) > 2 * count:
        return Arrangement(_place_on_circle(range(count), 1.5))
    import networkx as nx  # slow to import, and only these graphs need it

    graph = nx.Graph(sorted(pairs))
    graph.add_nodes_from(range(count))
    positions = (
        nx.kamada_kawai_layout(graph)
        if count <= _MAX_KAMADA_KAWAI and nx.is_connected(graph)
        else nx.spring_layout(graph, seed=1, iterations=200)
    )
    points = [(float(positions[i][0]), float(positions[i][1])) for i in range(count)]
    # Scale so that all but the closest tenth of the GPUs have room for their shapes.
    gaps = sorted(min(math.dist(p, q) for q in points if q is not p) for p in points)
    scale = min(1.0 / max(gaps[count // 10], 1e-9), math.sqrt(count) * 1.2)
    return Arrangement(tuple((round(x * scale, 2), round(y * scale, 2)) for x, y in points))
