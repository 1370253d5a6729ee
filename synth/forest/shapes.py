"""Shapes of trees over positions 0..n-1, as the parent of each (-1 at the root), in sets whose
trees get equal shares.

Pairs of binary trees (Sanders, Speck, Traeff 2009; NCCL 2.4), a chain rooted in the middle, chains
that begin at every position in turn, and stars around every position in turn; the latter two load
all positions alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

Parents = list[int]


def chain(order: Sequence[int]) -> Parents:
    """Return a chain over boxes in this order, rooted at the middle one."""
    parents = [-1] * len(order)
    middle = len(order) // 2
    for i, (a, b) in enumerate(pairwise(order)):
        if i < middle:
            parents[a] = b
        else:
            parents[b] = a
    return parents


def chains(count: int) -> list[Parents]:
    """Return as many chains around a circle as there are boxes, each beginning at another box."""
    return [chain([(first + i) % count for i in range(count)]) for first in range(count)]


def stars(count: int) -> list[Parents]:
    """Return as many stars as there are boxes, each around another box."""
    return [[-1 if leaf == hub else hub for leaf in range(count)] for hub in range(count)]


def binary_pair(count: int) -> list[Parents]:
    """Return two binary trees; the leaves of one have children in the other."""
    tree = binary(count)
    if count % 2 == 0:
        return [tree, [-1 if p < 0 else count - 1 - p for p in reversed(tree)]]
    shifted = [tree[(i - 1) % count] for i in range(count)]
    return [tree, [-1 if p < 0 else (p + 1) % count for p in shifted]]


def binary(count: int) -> Parents:
    """Return the parents in a binary tree over 0..count-1, in in-order numbering, whose even
    positions are leaves.
    """
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


def turn_to_root(tree: Parents, trees: Sequence[Parents], box: int) -> list[Parents]:
    """Return the trees with all positions shifted round by as much as brings the root of `tree` to
    `box`.
    """
    count = len(tree)
    shift = (box - tree.index(-1)) % count
    return [
        [-1 if p < 0 else (p + shift) % count for p in (*t[count - shift :], *t[: count - shift])]
        for t in trees
    ]


# Sets of trees over boxes by name; every lane uses all trees of a set, with equal shares.
SHAPES: dict[str, Callable[[int], list[Parents]]] = {
    "binary": binary_pair,
    "chain": lambda count: [chain(list(range(count)))],
    "chains": chains,
    "stars": stars,
}
