"""Combs on grids: trees that take all lines of one direction, joined by one line across.

For meshes and other graphs whose ranks have several digits such that each link changes one of them.
All combs together, with the line across at every place in turn, load the links of a mesh nearly
equally, as well as any trees can.

A grid is a network of GPUs whose rank numbers have several digits, of which a link changes one. A
line is the ranks that differ in one digit alone.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod

import numpy as np

from ...topo.graph import Topology
from ..machine.pairs import Tree

Edge = tuple[int, int]
# Maximum number of dimensions of grids that are recognised.
_MAX_DIGITS = 4


def comb_trees(topology: Topology) -> list[Tree]:
    """Return the combs of a direct network that is a grid; an empty list if it is not a grid.

    A comb is a tree of all lines of one direction and one line across them.
    """
    ranks = {gpu: r for r, gpu in enumerate(topology.ranks)}
    both = [
        (ranks[a], ranks[b]) for a, b in topology.capacity_GBps if (b, a) in topology.capacity_GBps
    ]
    sizes = _find_digits(len(ranks), both)
    if sizes is None:
        return []
    around: list[list[int]] = [[] for _ in ranks]
    for a, b in both:
        around[a].append(b)
    trees = []
    for order in permutations(range(len(sizes))):
        for place in range(max(sizes[d] for d in order[:-1])):
            edges = sorted(_comb(sizes, order, place, around))
            if len(edges) == len(ranks) - 1:
                trees.append(Tree(tuple((topology.ranks[a], topology.ranks[b]) for a, b in edges)))
    return list(dict.fromkeys(trees))


def _find_digits(count: int, links: Sequence[Edge]) -> list[int] | None:
    """Return the bases of the digits of rank numbers such that each link changes one digit.

    The result has as many digits as possible, the highest first. None if there are fewer than two.
    """
    best: list[int] | None = None
    for sizes in _list_products(count):
        if len(sizes) > (len(best) if best else 1):
            digits = [np.unravel_index(ranks, sizes) for ranks in np.array(links).reshape(-1, 2).T]
            if (sum(a != b for a, b in zip(*digits, strict=True)) == 1).all():
                best = sizes
    return best


def _list_products(count: int, parts: int = _MAX_DIGITS) -> Iterator[list[int]]:
    """Yield the ordered factorisations of `count` into at most `parts` factors from 2 on."""
    yield [count]
    if parts > 1:
        for first in range(2, count // 2 + 1):
            if count % first == 0:
                yield from ([first, *rest] for rest in _list_products(count // first, parts - 1))


def _comb(
    sizes: Sequence[int], order: Sequence[int], place: int, around: Sequence[Sequence[int]]
) -> Iterator[Edge]:
    """Yield the edges of a comb.

    It has all lines along the first digit of `order`; among the lines along the second digit, those
    through `place` on the first; and so on.
    """
    weight = [prod(sizes[d + 1 :]) for d in range(len(sizes))]
    # From the last digit to the first, the connected ranks grow from one line to all ranks.
    joined = [sum(place % size * times for size, times in zip(sizes, weight, strict=True))]
    for d in reversed(order):
        grown = []
        for rank in joined:
            first = rank - rank // weight[d] % sizes[d] * weight[d]
            line = [first + i * weight[d] for i in range(sizes[d])]
            yield from _join_line(line, place % sizes[d], around)
            grown += line
        joined = grown


def _join_line(line: Sequence[int], at: int, around: Sequence[Sequence[int]]) -> Iterator[Edge]:
    """Yield the edges of a tree of fewest hops over the ranks of a line, from index `at`."""
    outside = set(line) - {line[at]}
    order = [line[at]]
    for node in order:
        for neighbour in around[node]:
            if neighbour in outside:
                outside.remove(neighbour)
                order.append(neighbour)
                yield node, neighbour
