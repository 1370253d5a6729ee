"""Trees over abstract places 0..n-1, as the parent of each (-1 at the root), in sets of which each carries as much.

Pairs of binary trees (Sanders, Speck, Traeff 2009; NCCL 2.4), chains from the middle, chains begun at every place in
turn, and stars about every place in turn; the latter two load all places alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

Parents = list[int]


def chain(order: Sequence[int]) -> Parents:
    """Boxes in a row, hung up at the middle one."""
    parents = [-1] * len(order)
    middle = len(order) // 2
    for i, (a, b) in enumerate(pairwise(order)):
        if i < middle:
            parents[a] = b
        else:
            parents[b] = a
    return parents


def chains(count: int) -> list[Parents]:
    """As many chains as boxes, each beginning at another one of a circle."""
    return [chain([(first + i) % count for i in range(count)]) for first in range(count)]


def stars(count: int) -> list[Parents]:
    """Each box as the hub of all others."""
    return [[-1 if box == hub else hub for box in range(count)] for hub in range(count)]


def binary_pair(count: int) -> list[Parents]:
    """Two binary trees; who is a leaf in one has children in the other."""
    tree = binary(count)
    if count % 2 == 0:
        return [tree, [-1 if p < 0 else count - 1 - p for p in reversed(tree)]]
    shifted = [tree[(i - 1) % count] for i in range(count)]
    return [tree, [-1 if p < 0 else (p + 1) % count for p in shifted]]


def binary(count: int) -> Parents:
    """Parent of each of 0..count-1 in a binary tree in which even positions are leaves (in-order numbering)."""
    parents = [-1] * count

    def attach(low: int, high: int, parent: int) -> None:
        if low > high:
            return
        middle = max(range(low, high + 1), key=lambda i: (i + 1) & -(i + 1))
        parents[middle] = parent
        attach(low, middle - 1, middle)
        attach(middle + 1, high, middle)

    attach(0, count - 1, -1)
    return parents


SHAPES: dict[str, Callable[[int], list[Parents]]] = {
    "binary": binary_pair,
    "chain": lambda count: [chain(list(range(count)))],
    "chains": chains,
    "stars": stars,
}
"""Sets of trees of boxes by name; every lane uses each tree of a set alike."""
