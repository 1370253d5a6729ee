"""Combs on grids: trees that take every line of one direction whole, and one line across to join
them.

Of meshes and of other graphs whose ranks have several digits such that a link changes one of them.
All combs together, the lines across at every place in turn, load the links of a mesh nearly alike:
as well as any trees can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from ....topo.graph import Topology
from ..machine.pairs import Tree

Edge = tuple[int, int]


def comb_trees(topology: Topology) -> list[Tree]:
    """Return the combs of a direct network that is a grid; none where it is not."""
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
    trees: dict[Tree, None] = {}
    for order in permutations(range(len(sizes))):
        for place in range(max(sizes[d] for d in order[:-1])):
            edges = list(_comb(sizes, order, place, around))
            if len(edges) == len(ranks) - 1:
                trees[
                    Tree(tuple((topology.ranks[a], topology.ranks[b]) for a, b in sorted(edges)))
                ] = None
    return list(trees)


def _find_digits(count: int, links: Sequence[Edge]) -> list[int] | None:
    """Return the bases of as many digits of rank numbers as possible, the highest first, such that
    each link changes one digit; None where there are not at least two.
    """
    best: list[int] | None = None
    for sizes in _list_products(count):
        if len(sizes) > (len(best) if best else 1) and all(
            _differ_once(a, b, sizes) for a, b in links
        ):
            best = sizes
    return best


def _list_products(count: int, parts: int = 4) -> Iterator[list[int]]:
    """Yield the ordered products of at most so many numbers from 2 on."""
    yield [count]
    if parts > 1:
        for first in range(2, count // 2 + 1):
            if count % first == 0:
                yield from ([first, *rest] for rest in _list_products(count // first, parts - 1))


def _differ_once(a: int, b: int, sizes: Sequence[int]) -> bool:
    """Return whether two rank numbers differ in exactly one digit."""
    return (
        sum(x != y for x, y in zip(_read_digits(a, sizes), _read_digits(b, sizes), strict=True))
        == 1
    )


def _read_digits(rank: int, sizes: Sequence[int]) -> list[int]:
    """Return the digits of a rank number, the highest first."""
    out = []
    for size in reversed(sizes):
        rank, digit = divmod(rank, size)
        out.append(digit)
    return out[::-1]


def _comb(
    sizes: Sequence[int], order: Sequence[int], place: int, around: Sequence[Sequence[int]]
) -> Iterator[Edge]:
    """Yield the edges of a comb: all lines along the first digit of `order`, of those through
    `place` of it all lines along the second digit, and so on.
    """
    weight = [1] * len(sizes)
    for d in range(len(sizes) - 2, -1, -1):
        weight[d] = weight[d + 1] * sizes[d + 1]
    # From the last digit to the first: the ranks that are joined grow from one line to all.
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
    """Yield the edges of a tree of fewest hops over the ranks of a line from the one at place
    `at`.
    """
    inside = set(line)
    reached = {line[at]}
    order = [line[at]]
    for node in order:
        for neighbour in around[node]:
            if neighbour in inside and neighbour not in reached:
                reached.add(neighbour)
                order.append(neighbour)
                yield node, neighbour
