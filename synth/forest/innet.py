"""Trees for switches that add and copy: such a switch may be an inner node of a tree.

A tree over the GPUs and some of those switches is found as a spanning tree. Every GPU then sends to
the nearest GPU above it; those that meet in a switch send in the same step, so that the switch adds
them up (see synth/cost/loads.py for what that costs). Which switches take part is searched (all
subsets of a few, else one more or fewer at a time): the problem is Steiner's, so unlike elsewhere
nothing is proved here; the bound is a cut's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np

from ...topo.graph import Topology
from ...topo.routes import Route, Router
from ..effort import Effort
from .machine.pairs import Floats, PairGraph
from .plant import Limits, Nursery, Planted
from .survey import Survey
from .trees import RootedTree

_ALL_SUBSETS = 6
_TURNS = 40
_ROOTS = 16
# Seconds of a quiet core for a spanning tree over GPUs and switches, and for each pair of devices
# in it.
_TREE_S, _TREE_PAIR_S = 1e-3, 4e-6


def in_network_forests(
    survey: Survey,
    router: Router,
    bound_GBps: Fraction,
    limits: Limits,
    effort: Effort,
    say: Callable[[str], None] | None = None,
) -> list[Planted]:
    """Return forests of such trees: single trees, and all trees that were tried with the best
    shares.
    """
    topology = survey.topology
    adders = [d.id for d in topology.devices if d.kind != "gpu" and d.can_reduce]
    nursery = Nursery(survey, router, bound_GBps, limits, effort, say)
    graph = survey.graph
    trees: dict[RootedTree, None] = {}
    load = np.zeros(len(graph.pairs))
    tree_s = _TREE_S + _TREE_PAIR_S * len(load)
    for turn in range(_TURNS):
        if trees and effort.is_over("trees through switches"):
            break
        # Links that earlier trees load cost more, so that the next tree avoids them.
        prices = (1 + load * len(load) / max(float(load.sum()), 1.0)) / graph.capacity
        fresh = list(_find_cheapest(graph, topology, adders, prices))
        effort.spend(tree_s * (len(list(_list_subsets(adders))) + _ROOTS))
        before = len(trees)
        for tree, pairs in fresh:
            if tree not in trees:
                trees[tree] = None
            for pair in pairs:
                load[pair] += 1 / graph.capacity[pair]
        if turn and len(trees) == before:
            break
    # Single trees first: fewest messages, and often all that the bound takes.
    listed = list(trees)
    for tree in listed[:_ROOTS]:
        nursery.keep_weighed([tree], "one tree through switches")
    if len(listed) > 1 and not nursery.is_at_bound():
        nursery.keep_weighed(listed, "trees through switches")
    # Trees among GPUs alone may use links that trees through switches leave idle.
    if not nursery.is_at_bound():
        nursery.grow()
        plain = max(
            (p.forest for p in nursery.planted if p.forest.images is None), key=lambda f: f.count
        )
        nursery.keep_weighed([*listed, *plain.trees], "trees of both kinds")
    return nursery.planted


def _find_cheapest(
    graph: PairGraph, topology: Topology, adders: list[str], prices: Floats
) -> Iterator[tuple[RootedTree, list[int]]]:
    """Yield the cheapest tree found over GPUs and adding switches, rooted at each of a few GPUs,
    with its pairs.
    """
    best: tuple[float, list[int]] | None = None
    for chosen in _list_subsets(adders):
        candidate = _find_steiner_tree(graph, topology, chosen, prices)
        if candidate is not None and (best is None or candidate[0] < best[0]):
            best = candidate
    if best is None:
        return
    for root in range(min(len(topology.ranks), _ROOTS)):
        tree = _hang_at(graph, topology, best[1], root)
        if tree is not None:
            yield tree, best[1]


def _list_subsets(adders: list[str]) -> Iterable[tuple[str, ...]]:
    """Return the sets of adding switches to try: all subsets of a few, else all, none, and all but
    one.
    """
    if len(adders) <= _ALL_SUBSETS:
        return [chosen for size in range(len(adders) + 1) for chosen in combinations(adders, size)]
    return [tuple(adders), (), *(tuple(d for d in adders if d != out) for out in adders)]


def _find_steiner_tree(
    graph: PairGraph, topology: Topology, chosen: tuple[str, ...], prices: Floats
) -> tuple[float, list[int]] | None:
    """Return the price and the pairs of a spanning tree over the GPUs and chosen switches, without
    switches as leaves.
    """
    index = {name: i for i, name in enumerate(graph.names)}
    ends = np.r_[graph.gpus, np.array([index[d] for d in chosen], dtype=np.int64)]
    _, tree = graph.cheapest_tree(prices, ends)
    pairs = {graph.number[link] for route in tree.edges for link in pairwise(route)}
    while True:
        degree: dict[str, int] = {}
        for pair in pairs:
            for device in graph.pairs[pair]:
                degree[device] = degree.get(device, 0) + 1
        # A switch at the end of the tree adds nothing up; cutting it off may leave another one
        # there.
        loose = {
            p
            for p in pairs
            if any(degree[d] == 1 and topology.by_id[d].kind != "gpu" for d in graph.pairs[p])
        }
        if not loose:
            break
        pairs -= loose
    if len(pairs) >= len(degree):  # routes met in a device: not a tree, leave it
        return None
    return float(sum(prices[p] for p in pairs)), sorted(pairs)


def _hang_at(
    graph: PairGraph, topology: Topology, pairs: list[int], root: int
) -> RootedTree | None:
    """Return the tree rooted at rank `root`: every GPU's route to the nearest GPU above it, and
    back.
    """
    around: dict[str, list[str]] = {}
    for pair in pairs:
        a, b = graph.pairs[pair]
        around.setdefault(a, []).append(b)
        around.setdefault(b, []).append(a)
    start = topology.ranks[root]
    up: dict[str, Route] = {}
    stack: list[Route] = [(start,)]
    visited = {start}
    while stack:
        way = stack.pop()  # from `device` up to the nearest GPU above it, both included
        device = way[0]
        for neighbour in around.get(device, []):
            if neighbour in visited:
                continue
            visited.add(neighbour)
            if topology.by_id[neighbour].kind == "gpu":
                up[neighbour] = (neighbour, *way)
                stack.append((neighbour,))
            else:
                stack.append((neighbour, *way))
    if len(up) != len(topology.ranks) - 1:
        return None
    routes = tuple(up.get(gpu) for gpu in topology.ranks)
    return RootedTree(
        root, routes, tuple(None if route is None else route[::-1] for route in routes)
    )
