"""Trees whose edges are the hardware's routes, one per pair of GPUs.

The best packing may divide the data between two GPUs over several routes. Point-to-point sends
cannot: the hardware takes a single route (topo/routes.py). These trees use only that route, so
their predicted loads are those of the schedule in execution. A forest is a set of trees, each with
a share of the buffer.
"""

from dataclasses import replace
from itertools import combinations, pairwise

import networkx as nx
import numpy as np

from ...topo.routes import Router
from ..ir.transfers import Transfers
from ..machine.links import HOP_SHARE, Floats, Ints
from ..machine.pairs import PairGraph, Tree
from ..packing.generate import TreePacking
from ..packing.trees import root_tree
from ..request import Request
from .candidates import CandidateForest, ForestBuilder

# Above this, a spanning tree over all pairs of GPUs in every turn takes too long.
_MAX_RANKS = 32
# Seconds of an idle core for the column generation.
_WORK_S = 10.0
# Fraction of the packing's rate above which a tree counts as used.
_CARRIES = 1e-9


class RoutedPairGraph(PairGraph):
    """A PairGraph for trees whose edges are the router's routes alone, one per pair of GPUs.

    Prices and capacities remain per pair of devices that links join. `routes` has, for ranks u < v,
    (u, v, ids of the devices on the route from u to v, numbers of its pairs of devices). Two
    ranks without a route, or whose route has a link without an opposite, are left out.
    """

    def __init__(self, router: Router) -> None:
        super().__init__(router.topology)
        self.routes = []
        for u, v in combinations(range(len(self.gpus)), 2):
            route = router.route(u, v)
            if route is not None and all(link in self.number for link in pairwise(route)):
                links = np.array([self.number[link] for link in pairwise(route)])
                self.routes.append((u, v, route, links))

    def cheapest_tree(self, prices: Floats, ends: Ints | None = None) -> tuple[float, Tree]:
        """Return the price and a minimum spanning tree of the GPUs over their routes (Kruskal).

        `prices` are per pair, as in PairGraph; `ends` is not used. Ties go to fewer hops, then to
        the order of the GPUs. Weights are floats: scipy's and networkx's trees are no more exact,
        and take 1.1 to 4.5 times as long on 8 to 32 GPUs (measured).
        """
        hop = HOP_SHARE * max(float(prices.mean()), 1e-300)
        priced = [float(prices[links].sum()) + hop * len(links) for _, _, _, links in self.routes]
        joined: nx.utils.UnionFind[int] = nx.utils.UnionFind(range(len(self.gpus)))
        edges = []
        for i in np.argsort(priced, kind="stable").tolist():
            u, v, route, _ = self.routes[i]
            if joined[u] != joined[v]:
                joined.union(u, v)
                edges.append(route)
        tree = Tree(tuple(edges))
        return self.price(tree, prices), tree


def keeps_to_routes(transfers: Transfers, router: Router) -> bool:
    """Return whether every transfer takes the router's route between its ranks."""
    gpus = router.topology.ranks
    return all(
        router.route(src, dst) == (gpus[src], *between, gpus[dst])
        for src, dst, between in transfers.paths()[0]
    )


def routed_forest(request: Request) -> list[CandidateForest]:
    """Return the best forest of trees over the hardware's routes, in a list of at most one.

    The list is empty if the machine is too large to search, if its routes do not connect all GPUs,
    or if the forest exceeds the request's limits on trees. The request's effort, an allowance of
    work, limits the search. Raise InfeasibleError if the linear program has no optimum.
    """
    n = request.collective.ranks
    if n > _MAX_RANKS:
        return []
    graph = RoutedPairGraph(request.router)
    if len(graph.cheapest_tree(1.0 / graph.capacity)[1].edges) < n - 1:
        return []
    request = replace(request, effort=request.effort.grant(_WORK_S))
    builder, rows = ForestBuilder(request), np.arange(len(graph.links))
    packing = TreePacking(graph, rows).run(request.effort, request.progress)
    least = _CARRIES * packing.shares.sum()
    trees = zip(packing.columns, packing.shares, strict=True)
    used = [root_tree(tree, builder.survey.ranks) for tree, rate in trees if rate > least]
    builder.add_weighed(used, "one route a pair")
    return [forest for forest in builder.candidates if forest.keeps(request.limits)]
