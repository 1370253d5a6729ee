"""Trees for switches that add and copy: such a switch may be an inner node of a tree.

A tree over the GPUs and some of those switches is found as a spanning tree. Every GPU then sends to
the nearest GPU above it; messages that meet in a switch are sent in the same step, so that the
switch adds them up (see synth/cost/loads.py for the cost). The set of switches is searched for: all
subsets are tried if there are few, otherwise all switches, none, and all but one. This is Steiner's
problem, so unlike elsewhere nothing is proved; the bound is a cut's.

A request is a collective on a topology, with the bound to reach and an allowance of work. A forest
is a set of trees, each with a share of the buffer.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np

from ...topo.grouping import group_by_key
from ...topo.routes import Route
from ..machine.links import Floats
from ..machine.pairs import PairGraph
from ..packing.trees import RootedTree
from ..request import Request
from .candidates import CandidateForest, ForestBuilder

# Maximum number of switches for trying all subsets, of which there are 2 to this power.
_ALL_SUBSETS = 6
# Maximum number of sets of prices for which trees are searched for.
_TURNS = 40
# Maximum number of roots per tree.
_ROOTS = 16
# Seconds of an idle core per spanning tree over GPUs and switches, and per pair of devices in it.
_TREE_S, _TREE_PAIR_S = 1e-3, 4e-6


def in_network_forests(request: Request) -> list[CandidateForest]:
    """Return candidate forests whose trees may have switches that add as inner nodes.

    They are single trees, and all trees tried with the best shares. If these do not reach the
    bound, trees among GPUs alone are added.
    """
    builder = ForestBuilder(request)
    graph, effort = builder.survey.graph, request.effort
    # If all subsets would be too many, leave out single switches, or none, or all of them.
    adders = [d.id for d in request.topology.devices if d.kind != "gpu" and d.can_reduce]
    subsets: list[tuple[str, ...]] = [
        tuple(adders), (), *(tuple(d for d in adders if d != out) for out in adders)
    ]  # fmt: skip
    if len(adders) <= _ALL_SUBSETS:
        sizes = range(len(adders) + 1)
        subsets = [chosen for size in sizes for chosen in combinations(adders, size)]
    trees: dict[RootedTree, None] = {}
    load = np.zeros(len(graph.links))
    turn_s = (_TREE_S + _TREE_PAIR_S * len(load)) * (len(subsets) + _ROOTS)
    for turn in range(_TURNS):
        if trees and effort.is_over("trees through switches"):
            break
        # Links that earlier trees load cost more, so that the next tree avoids them.
        prices = (1 + load * len(load) / max(float(load.sum()), 1.0)) / graph.capacity
        effort.spend(turn_s)
        before = len(trees)
        for tree, pairs in _find_cheapest(graph, subsets, prices):
            trees[tree] = None
            for pair in pairs:
                load[pair] += 1 / graph.capacity[pair]
        if turn and len(trees) == before:
            break
    # Single trees first: fewest messages, and often enough to reach the bound.
    listed = list(trees)
    for tree in listed[:_ROOTS]:
        builder.add_weighed([tree], "one tree through switches")
    if len(listed) > 1 and not builder.has_within():
        builder.add_weighed(listed, "trees through switches")
    # Trees among GPUs alone may use links that trees through switches leave idle.
    if not builder.has_within():
        forests = [c.forest for c in builder.build_all() if c.forest.images is None]
        plain = max(forests, key=lambda forest: forest.count)
        builder.add_weighed([*listed, *plain.trees], "trees of both kinds")
    return builder.candidates


def _find_cheapest(
    graph: PairGraph, subsets: list[tuple[str, ...]], prices: Floats
) -> Iterator[tuple[RootedTree, list[int]]]:
    """Yield the cheapest tree over GPUs and any of the sets of switches, with its pairs.

    The tree is yielded once per root, for a few GPUs as roots.
    """
    offers = (_find_steiner_tree(graph, chosen, prices) for chosen in subsets)
    for _, pairs in sorted(filter(None, offers), key=lambda offer: offer[0])[:1]:
        hung = (_hang_at(graph, pairs, root) for root in range(min(len(graph.gpus), _ROOTS)))
        yield from ((tree, pairs) for tree in hung if tree is not None)


def _find_steiner_tree(
    graph: PairGraph, chosen: tuple[str, ...], prices: Floats
) -> tuple[float, list[int]] | None:
    """Return the price and the pairs of a tree over the GPUs and the chosen switches.

    Switches are never leaves. None if the routes meet in a device and so do not form a tree.
    """
    by_id = graph.topology.by_id
    _, tree = graph.cheapest_tree(prices, np.r_[graph.gpus, graph.find_devices(chosen)])
    pairs = {graph.number[link] for route in tree.edges for link in pairwise(route)}
    while True:
        degree = Counter(device for pair in pairs for device in graph.links[pair])
        # A switch that is a leaf adds nothing up; removing it may turn another one into a leaf.
        ends = {d for d, count in degree.items() if count == 1 and by_id[d].kind != "gpu"}
        loose = {pair for pair in pairs if ends & set(graph.links[pair])}
        if not loose:
            break
        pairs -= loose
    if len(pairs) >= len(degree):  # routes met in a device: not a tree, leave it
        return None
    return float(sum(prices[p] for p in pairs)), sorted(pairs)


def _hang_at(graph: PairGraph, pairs: list[int], root: int) -> RootedTree | None:
    """Return the tree rooted at rank `root`: each GPU's route to the nearest GPU above it and back.

    None if the pairs do not connect all GPUs.
    """
    topology = graph.topology
    ends = (graph.links[pair] for pair in pairs)
    around = group_by_key(hop for a, b in ends for hop in ((a, b), (b, a)))
    start = topology.ranks[root]
    # From each visited device up to the nearest GPU above it, both included.
    up: dict[str, Route] = {start: (start,)}
    stack = [start]
    while stack:
        device = stack.pop()
        above = (device,) if topology.by_id[device].kind == "gpu" else up[device]
        fresh = [neighbour for neighbour in around[device] if neighbour not in up]
        up |= {neighbour: (neighbour, *above) for neighbour in fresh}
        stack += fresh
    if not up.keys() >= set(topology.ranks):
        return None
    routes = tuple(None if gpu == start else up[gpu] for gpu in topology.ranks)
    return RootedTree(root, routes, tuple(route and route[::-1] for route in routes))
