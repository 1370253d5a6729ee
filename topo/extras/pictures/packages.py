"""Packages of two GPUs, such as both dies of an MI250, which pictures keep together.

GPUs are numbered by their position in the picture's order; a pair has the smaller number first. A
cable stands for the links of one kind between two devices, of both directions if these are equal.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

from ...grouping import group_by_key
from ...pictures.cables import Cable
from .structures import Arrangement, Pair, Point, arrange

# Packages for which all places on a grid are compared: 40,000 orders for 8 of them.
_MAX_COMPARED = 8
# Between the dies of a package, and between packages, in units of the distance between GPUs.
_DIE_STEP, _PACKAGE_STEP_X, _PACKAGE_STEP_Y = 1.0, 2.9, 1.75


def find_packages(inside: Mapping[Cable, Pair]) -> list[Pair]:
    """Return the pairs of GPUs that are one package each; empty unless all GPUs are in one.

    `inside` are the cables among GPUs, with the indices of their ends. Both dies of a package are
    joined by more xGMI links than any other two: on an MI250 by four.
    """
    rates = group_by_key(
        (end, (cable.GBps, pair)) for cable, pair in inside.items() for end in pair
    )
    packages = set()
    for of_gpu in rates.values():
        (best, pair), *others = sorted(of_gpu, reverse=True)
        if not others or others[0][0] == best:
            return []
        packages.add(pair)
    is_xgmi = all(cable.kind == "xgmi" for cable in inside)
    return sorted(packages) if is_xgmi and len(packages) * 2 == len(rates) else []


def arrange_packages(packages: Sequence[Pair], pairs: frozenset[Pair]) -> Arrangement:
    """Return a point for each GPU, so that linked packages are close, and dies side by side.

    `packages` are from `find_packages`; `pairs` are all linked pairs of GPUs.
    """
    of_gpu = {gpu: number for number, package in enumerate(packages) for gpu in package}
    between = Counter(
        (min(ends), max(ends)) for a, b in pairs if len(ends := {of_gpu[a], of_gpu[b]}) == 2
    )
    places = _place(len(packages), between)
    points: list[Point] = [(0.0, 0.0)] * len(of_gpu)
    for (left, right), (x, y) in zip(packages, places, strict=True):
        points[left] = (x * _PACKAGE_STEP_X, y * _PACKAGE_STEP_Y)
        points[right] = (x * _PACKAGE_STEP_X + _DIE_STEP, y * _PACKAGE_STEP_Y)
    return Arrangement(tuple(points))


def _place(count: int, between: Mapping[Pair, int]) -> Sequence[Point]:
    """Return the column and row of each package: two columns, with the shortest links in all."""
    if count > _MAX_COMPARED:
        return arrange(count, frozenset(between)).points
    cells = [(float(i % 2), float(i // 2)) for i in range(count)]
    squares = {
        (a, b): (cells[a][0] - cells[b][0]) ** 2 + (cells[a][1] - cells[b][1]) ** 2
        for a, b in combinations(range(count), 2)
    }
    squares |= {(b, a): square for (a, b), square in squares.items()}
    # A grid looks the same from all sides, so the first package is in the upper left quarter.
    orders = (
        (first, *rest)
        for first in range(0, (count + 1) // 2, 2)
        for rest in permutations([i for i in range(count) if i != first])
    )
    best = min(
        orders,
        key=lambda order: sum(n * squares[order[a], order[b]] for (a, b), n in between.items()),
    )
    return [cells[cell] for cell in best]
