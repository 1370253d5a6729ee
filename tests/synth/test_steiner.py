"""Cheapest trees to some nodes: against all trees of small graphs, and grown for many terminals."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from thorough import count_examples

from topoplan.synth.numeric.arborescence import cheapest_out_tree
from topoplan.synth.numeric.steiner import MAX_TERMINALS, SteinerTrees


def price_of(parents: list[int], price: NDArray[np.int64]) -> int:
    return sum(int(price[parent, node]) for node, parent in enumerate(parents) if parent >= 0)


def brute_force(price: NDArray[np.int64], terminals: list[int], root: int) -> int:
    """The cheapest spanning out-tree of any set of nodes with the root and the terminals."""
    needed = {root, *terminals}
    others = [node for node in range(len(price)) if node not in needed]
    sets = chain.from_iterable(combinations(others, k) for k in range(len(others) + 1))
    costs = []
    for more in sets:
        nodes = sorted({*needed, *more})
        part = price[np.ix_(nodes, nodes)]
        costs.append(price_of(cheapest_out_tree(part, nodes.index(root)), part))
    return min(costs)


@settings(max_examples=count_examples(25))
@given(st.data())
def test_trees_are_the_cheapest_and_reach_the_terminals(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 6))
    prices = data.draw(st.lists(st.integers(0, 9), min_size=n * n, max_size=n * n))
    price = np.array(prices, dtype=np.int64).reshape(n, n)
    terminals = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    trees = SteinerTrees(price, terminals)
    assert trees.is_exact
    for root in range(n):
        parents = trees.find(root)
        assert parents[root] == -1
        for terminal in terminals:
            path = [terminal]
            while path[-1] != root:
                path.append(parents[path[-1]])
                assert path[-1] >= 0 and len(path) <= n
        # A pruned tree may be cheaper than the sum of paths, never dearer, and none is cheaper.
        assert price_of(parents, price) == trees.price(root) == brute_force(price, terminals, root)


def test_many_terminals_are_reached_by_grown_trees() -> None:
    n = MAX_TERMINALS + 4
    price = np.random.default_rng(1).integers(1, 100, (n, n))
    terminals = list(range(1, MAX_TERMINALS + 2))
    trees = SteinerTrees(price, terminals)
    assert not trees.is_exact
    parents = trees.find(0)
    assert all(parents[terminal] >= 0 for terminal in terminals)
    exact = SteinerTrees(price, terminals[:MAX_TERMINALS])
    assert price_of(parents, price) >= exact.price(0)
