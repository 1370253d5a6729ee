"""Minimum spanning arborescences of dense directed graphs: cheapest out-trees.

The algorithm is that of Chu and Liu (1965) and Edmonds (1967). Invariant: contracting a cycle of
cheapest edges changes the price of every out-tree by the same amount, so the optimum of the smaller
graph extends to one of the whole.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def cheapest_out_tree(price: NDArray[Any], root: int) -> list[int]:
    """Return the parent of every node (-1 at `root`) in an out-tree of least total price.

    `price[u, v]` is the price of the edge u -> v. Prices are floats, or exact integers in an array
    of objects. If there is no edge between two nodes, its price must exceed the sum of all others.
    """
    return _contract(price.copy(), root)


def _contract(cost: NDArray[Any], root: int) -> list[int]:
    """Return the same as `cheapest_out_tree`; `cost` is changed."""
    n = len(cost)
    if n == 1:
        return [-1]
    # If the cheapest edges into all nodes form no cycle, they are the tree.
    top = cost.max() + 1
    np.fill_diagonal(cost, top)
    parent: list[int] = cost.argmin(axis=0).tolist()
    parent[root] = -1
    cycle = _find_cycle(parent)
    if not cycle:
        return parent
    # The cycle becomes one node (the last); entering it at v saves the edge inside the cycle that
    # led to v.
    rest = sorted(set(range(n)) - set(cycle))
    m = len(rest)
    smaller = np.empty((m + 1, m + 1), dtype=cost.dtype)
    from_rest = cost[rest]
    smaller[:m, :m] = from_rest[:, rest]
    entering = from_rest[:, cycle] - cost[[parent[v] for v in cycle], cycle]
    leaving = cost[cycle][:, rest]
    smaller[:m, m] = entering.min(axis=1)
    smaller[m, :m] = leaving.min(axis=0)
    smaller[m, m] = top
    inner = _contract(smaller, rest.index(root))
    # The tree of the smaller graph enters the cycle at one node, whose edge inside the cycle is
    # dropped; the rest stays.
    parent[cycle[int(np.argmin(entering[inner[m]]))]] = rest[inner[m]]
    for i, node in enumerate(rest):
        if inner[i] == m:
            parent[node] = cycle[int(np.argmin(leaving[:, i]))]
        elif inner[i] >= 0:
            parent[node] = rest[inner[i]]
    return parent


def _find_cycle(parent: list[int]) -> list[int]:
    done: set[int] = {-1}
    for start in range(len(parent)):
        path: dict[int, None] = {}
        node = start
        while node not in done and node not in path:
            path[node] = None
            node = parent[node]
        if node in path:
            nodes = list(path)
            return nodes[nodes.index(node) :]
        done.update(path)
    return []
