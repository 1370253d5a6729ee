"""Out-trees of fewest hops on direct networks that together load the links evenly.

For machines too large for column generation. The parents in the trees are chosen to balance the
load. On vertex-transitive graphs one tree, balanced over the classes of links, represents all of
them; the time is then within about 1 % of the cut bound.

A root is a rank whose part of the data a tree spreads; an image is what a symmetry of the machine
maps a tree to.
"""

from collections.abc import Sequence
from fractions import Fraction

from ...topo.graph import Topology
from ..machine.links import Ints, LinkArrays, LinkRows
from ..machine.symmetry import find_transitive_group
from .trees import Forest, RootedTree


def balanced_trees(
    topology: Topology, roots: Sequence[int], turns: list[Ints], *, ordered: bool = False
) -> Forest | None:
    """Return one out-tree per root, or one for all with its images under the machine's symmetries.

    `turns` are symmetries, from shifts of machine/symmetry.py. If there are several roots and the
    symmetries map rank 0 to every rank, the forest is one tree with root 0, which stands for all
    its images. Each share is 1, a root's whole part. With `ordered`, each parent is the candidate
    nearest in rank instead of the least loaded, which on meshes is dimension-order routing. Return
    None if devices other than GPUs have links, or if some GPU cannot be reached.
    """
    if any(topology.by_id[d].kind != "gpu" for link in topology.capacity_GBps for d in link):
        return None
    # If the symmetries map any root to any other, one tree and its images are enough, and loads are
    # balanced by class.
    images = find_transitive_group(turns if len(roots) > 1 else [], LinkArrays(topology).gpus)
    links = LinkRows(topology, images)
    roots = list(roots) if images is None else [0]
    ranks = {gpu: r for r, gpu in enumerate(topology.ranks)}
    inward: list[list[tuple[int, int]]] = [[] for _ in ranks]
    outward: list[list[int]] = [[] for _ in ranks]
    for (a, b), row in zip(links.links, links.row.tolist(), strict=True):
        inward[ranks[b]].append((ranks[a], row))
        outward[ranks[a]].append(ranks[b])
    # The load that a tree adds to a class of links, relative to the total bandwidth of the class.
    step = [0.0 if ordered else 1 / capacity for capacity in links.row_capacity.tolist()]
    load, depth = [0.0] * len(step), 0
    trees = []
    for root in roots:
        parents = _tree(root, inward, outward, load, step)
        if parents is None:
            return None
        down = tuple(
            None if p < 0 else (topology.ranks[p], topology.ranks[v]) for v, p in enumerate(parents)
        )
        trees.append(RootedTree(root, (), down))
        depth = max(depth, *_count_hops(root, outward))
    return Forest(tuple(trees), (Fraction(1),) * len(trees), depth, images)


def _count_hops(root: int, outward: list[list[int]]) -> list[int]:
    """Return the number of hops from the root to every rank, -1 if there is no path."""
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

    Ranks with the fewest possible parents choose first, each the least loaded link. None if some
    rank cannot be reached.
    """
    level = _count_hops(root, outward)
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
