"""Trees whose edges are the routes that the hardware takes, one a pair of GPUs.

The best packing may divide what goes between two GPUs over several routes. Point-to-point sends
cannot: the system chooses the route (topo/routes.py). These trees use only that one, so that their
predicted loads are those of the schedule as sent.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ...topo.routes import Router
from ..effort import Effort
from ..ir.transfers import Transfers
from .generate import generate
from .machine.pairs import Floats, PairGraph, Tree
from .plant import Limits, Nursery, Planted
from .survey import Survey
from .trees import hang_tree

_MOST_RANKS = 32
_WORK_S = 10.0


class RoutedPairs(PairGraph):
    """A PairGraph whose trees may only use the system's own route from one GPU to another."""

    def __init__(self, router: Router) -> None:
        super().__init__(router.topology)
        ranks = range(len(router.topology.ranks))
        candidates = ((u, v, router.route(u, v)) for u in ranks for v in ranks if u < v)
        self.routes = [
            (u, v, route, np.array([self.number[link] for link in pairwise(route)]))
            for u, v, route in candidates
            if route is not None and all(link in self.number for link in pairwise(route))
        ]

    def cheapest_tree(
        self, prices: Floats, ends: NDArray[np.int64] | None = None
    ) -> tuple[float, Tree]:
        """Return the price of a minimum spanning tree of the GPUs over their routes (Kruskal), and
        the tree.

        Ties go to fewer hops, then to the order of the GPUs. Weights are floats: scipy's and
        networkx's trees are no more exact, and take 1.1 to 4.5 times as long on 8 to 32 GPUs
        (measured).
        """
        hop = 1e-6 * max(float(prices.mean()), 1e-300)
        priced = [float(prices[links].sum()) + hop * len(links) for _, _, _, links in self.routes]
        joined: nx.utils.UnionFind[int] = nx.utils.UnionFind(range(len(self.gpus)))
        edges = []
        for i in np.argsort(priced, kind="stable").tolist():
            u, v, route, _ = self.routes[i]
            if joined[u] != joined[v]:
                joined.union(u, v)
                edges.append(route)
        tree = Tree(tuple(edges))
        return float(sum(prices[i] * times for i, times in self.uses(tree).items())), tree


def keeps_to_routes(transfers: Transfers, router: Router) -> bool:
    """Return whether every transfer takes the route that the system would choose."""
    return all(router.route(src, dst) == (router.topology.ranks[src], *way, router.topology.ranks[dst])
               for src, dst, way in transfers.paths()[0])  # fmt: skip


def routed_forest(
    machine: Survey,
    router: Router,
    bound_GBps: Fraction,
    limits: Limits,
    effort: Effort,
    say: Callable[[str], None] | None,
) -> list[Planted]:
    """Return the best forest of such trees, if the machine is small enough to search and its routes
    join all GPUs.
    """
    if len(machine.ranks) > _MOST_RANKS:
        return []
    graph = RoutedPairs(router)
    if len(graph.cheapest_tree(1.0 / graph.capacity)[1].edges) < len(machine.ranks) - 1:
        return []
    effort = effort.grant(_WORK_S)
    columns = generate(graph, np.arange(len(graph.pairs)), effort, say)
    nursery = Nursery(machine, router, bound_GBps, limits, effort, say)
    used = [
        tree
        for tree, rate in zip(columns.trees, columns.rates, strict=True)
        if rate > 1e-9 * columns.rates.sum()
    ]
    nursery.keep_weighed([hang_tree(tree, machine.ranks) for tree in used], "one route a pair")
    return [planted for planted in nursery.planted if limits.allows(planted)]
