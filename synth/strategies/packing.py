"""Throughput-optimal allreduce: spanning trees packed into the links, each reduced up to its centre and broadcast back.

The trees and their rates come from synth/trees.py; a tree's share of the buffer is its share of the rates.
"""

from __future__ import annotations

from dataclasses import replace

from ..collective import Chunk
from ..cost import tighten
from ..schedule import Schedule, Transfer
from ..trees import Tree, pack_trees
from .base import SEGMENTS, Request, only_for
from .double_tree import tree_sends


def build(request: Request) -> list[Schedule]:
    """The schedule at several numbers of segments. InfeasibleError where two-way links do not join all GPUs."""
    only_for(request, "packing", ["allreduce"])
    packing = pack_trees(request.topology, request.seconds_left, request.progress)
    total = packing.rate_GBps
    transfers: list[Transfer] = []
    for number, tree in enumerate(packing.trees):
        transfers += tree_transfers(request.topology.ranks, tree, number)
    schedule = Schedule(
        collective=request.collective,
        strategy="packing",
        chunks=tuple(Chunk(rate / total) for rate in packing.rates_GBps),
        transfers=tuple(sorted(transfers)),
        step_s_per_GB=(),
        trees=len(packing.trees),
    )
    schedule = tighten(schedule, request.topology)
    return [replace(schedule, segments=m) for m in SEGMENTS]


def tree_transfers(ranks: tuple[str, ...], tree: Tree, chunk: int) -> list[Transfer]:
    """Reduce and broadcast of one chunk along a tree, rooted where it is shallowest."""
    number = {gpu: r for r, gpu in enumerate(ranks)}
    routes: dict[tuple[int, int], tuple[str, ...]] = {}
    around: dict[int, list[int]] = {r: [] for r in range(len(ranks))}
    for route in tree.edges:
        u, v = number[route[0]], number[route[-1]]
        routes[u, v], routes[v, u] = route[1:-1], route[-2:0:-1]
        around[u].append(v)
        around[v].append(u)
    root = _centre(around)
    parents: list[int | None] = [None] * len(ranks)
    order = [root]
    for node in order:
        for child in around[node]:
            if child != parents[node]:
                parents[child] = node
                order.append(child)
    return [Transfer(s, a, b, c, op, routes[a, b]) for s, a, b, c, op in tree_sends(parents, chunk)]


def _centre(around: dict[int, list[int]]) -> int:
    """The node (the lowest of two) from which the farthest node of a tree is nearest: strip leaves until one is left."""
    degree = {node: len(near) for node, near in around.items()}
    layer = [node for node, d in degree.items() if d <= 1]
    left = len(around)
    while left > 2:
        left -= len(layer)
        after = []
        for leaf in layer:
            degree[leaf] = 0
            for node in around[leaf]:
                if degree[node] > 1:
                    degree[node] -= 1
                    if degree[node] == 1:
                        after.append(node)
        layer = after
    return min(layer)
