"""Out-trees of fewest hops on direct networks, whose parents are chosen so that all trees together
load the links evenly.

For machines too large for column generation. On vertex-transitive graphs one tree, balanced over
the classes of links, stands for all; the time is then within about a hundredth of the cut bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from .machine.symmetry import group
from .trees import Forest, RootedTree
from .weigh import orbits

Link = tuple[str, str]


def balanced_trees(
    topology: Topology,
    roots: Sequence[int],
    turns: list[NDArray[np.int64]],
    *,
    ordered: bool = False,
) -> Forest | None:
    """Return one tree for each root; None where devices other than GPUs have links, or some GPU
    cannot be reached.

    `ordered`: each parent is the one nearest in rank instead, which on meshes is dimension-order
    routing.
    """
    if any(topology.by_id[d].kind != "gpu" for link in topology.capacity_GBps for d in link):
        return None
    links = list(topology.capacity_GBps)
    ranks = {gpu: r for r, gpu in enumerate(topology.ranks)}
    # If the symmetries take any root to any other, one tree and its images are enough, and loads
    # are balanced by class.
    images = group(turns, 4096) if len(roots) > 1 else None
    row = np.arange(len(links))
    if images is not None:
        index = {d.id: i for i, d in enumerate(topology.devices)}
        start = index[topology.ranks[0]]
        if len(set(images[:, start].tolist())) == len(ranks) == len(images):
            roots = [0]
            _, row = np.unique(orbits(topology, links, images), return_inverse=True)
            row = row.reshape(-1)
        else:
            images = None
    inward: list[list[tuple[int, int]]] = [[] for _ in ranks]
    outward: list[list[int]] = [[] for _ in ranks]
    for i, (a, b) in enumerate(links):
        inward[ranks[b]].append((ranks[a], int(row[i])))
        outward[ranks[a]].append(ranks[b])
    # What a tree adds to a class of links, relative to the bandwidth of all links of the class
    # together.
    weight = np.zeros(int(row.max()) + 1)
    for i, link in enumerate(links):
        weight[row[i]] += float(topology.capacity_GBps[link])
    load = [0.0] * len(weight)
    step = (1 / weight).tolist()
    trees = []
    for root in roots:
        parents = _tree(root, inward, outward, load, [0.0] * len(step) if ordered else step)
        if parents is None:
            return None
        down = tuple(
            None if p < 0 else (topology.ranks[p], topology.ranks[v]) for v, p in enumerate(parents)
        )
        trees.append(RootedTree(root, (), down))
    depth = max(max(_hop_levels(root, outward)) for root in roots)
    return Forest(tuple(trees), (Fraction(1),) * len(trees), depth, images)


def _hop_levels(root: int, outward: list[list[int]]) -> list[int]:
    """Return the hops from the root to every rank, -1 where there is no path."""
    level = [-1] * len(outward)
    level[root] = 0
    order = [root]
    for node in order:
        for neighbour in outward[node]:
            if level[neighbour] < 0:
                level[neighbour] = level[node] + 1
                order.append(neighbour)
    return level


def _tree(
    root: int,
    inward: list[list[tuple[int, int]]],
    outward: list[list[int]],
    load: list[float],
    step: list[float],
) -> list[int] | None:
    """Return every rank's parent, one hop nearer to the root, and add the tree to `load`.

    Ranks with the fewest possible parents choose first, each the least loaded link.
    """
    level = _hop_levels(root, outward)
    if min(level) < 0:
        return None
    parents = [-1] * len(level)
    choices = {
        node: sorted(
            ((parent, row) for parent, row in inward[node] if level[parent] == level[node] - 1),
            key=lambda choice: abs(choice[0] - node),
        )
        for node in range(len(level))
        if node != root
    }
    for node, options in sorted(choices.items(), key=lambda item: (len(item[1]), level[item[0]])):
        parent, row = min(options, key=lambda option: load[option[1]])
        load[row] += step[row]
        parents[node] = parent
    return parents
