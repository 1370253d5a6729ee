"""Groups of devices that stay connected without some links: boxes, sockets, leaf switches.

The cuts around them often bound alltoall. They are found by removing links of one medium, of one
class, up to one bandwidth, or from one distance to the GPUs on; each part that is then still
connected is a group.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra

from ...topo.graph import Topology
from ...topo.grouping import group_by_key
from .links import Ints, LinkArrays, find_parts
from .symmetry import colours  # a number for the role of each device

# Maximum numbers of bandwidths and of classes of links that are tried as borders of groups: enough
# for machines with tens of kinds of links.
_THRESHOLDS, _CLASSES = 32, 64
# Maximum number of cuts returned.
_MAX_CUTS = 8


def find_narrow_groups(topology: Topology) -> list[list[str]]:
    """Return the cuts that limit alltoall most, each as the device ids on one side of it.

    The narrowest cut, relative to the pairs of ranks across it, comes first.
    """
    links = LinkArrays(topology)
    a, b, rate, total = links.src, links.dst, links.capacity, len(links.gpus)
    sides: dict[bytes, tuple[float, NDArray[np.bool_]]] = {}
    for part in list_partitions(links):
        within = np.bincount(part[links.gpus], minlength=int(part.max()) + 1)
        leaves = part[a] != part[b]
        for ends, into in ((a, False), (b, True)):
            width = np.bincount(part[ends[leaves]], weights=rate[leaves], minlength=len(within))
            crossing = within * (total - within)
            narrow = np.where(width > 0, crossing / np.maximum(width, 1e-300), 0.0)
            for number in np.argsort(-narrow, kind="stable")[:2].tolist():
                if narrow[number] > 0:
                    inside = (part == number) != into
                    sides[inside.tobytes()] = float(narrow[number]), inside
    best = sorted(sides.values(), key=lambda side: -side[0])[:_MAX_CUTS]
    return [[links.names[i] for i in np.flatnonzero(inside)] for _, inside in best]


def list_partitions(links: LinkArrays) -> Iterator[Ints]:
    """Yield, for each rule by which links are removed, the number of each device's group."""
    for mask in _list_masks(links):
        if not mask.all():
            yield find_parts(links.size, links.src[mask], links.dst[mask])


def _list_masks(links: LinkArrays) -> Iterator[NDArray[np.bool_]]:
    topology, a, b = links.topology, links.src, links.dst
    network = np.array([d.family == "network" for d in topology.devices])
    yield ~(network[a] | network[b])
    medium = group_by_key((link.kind, links.number[link.src, link.dst]) for link in topology.links)
    for members in medium.values():
        yield ~np.isin(np.arange(len(a)), members)
    for border in np.unique(links.capacity)[:_THRESHOLDS]:
        yield links.capacity > border
    # Distances from the GPUs: leaf switches are nearer than the switches that connect them.
    graph = links.make_matrix(np.ones(len(a)))
    distance = dijkstra(graph, directed=False, indices=links.gpus, min_only=True)
    for hops in range(1, int(distance[np.isfinite(distance)].max()) + 1):
        yield np.maximum(distance[a], distance[b]) < hops
    colour = colours(topology)
    ends = np.stack([np.minimum(colour[a], colour[b]), np.maximum(colour[a], colour[b])])
    _, kind = np.unique(ends, axis=1, return_inverse=True)
    classes = int(kind.max(initial=-1)) + 1
    for number in range(classes) if classes <= _CLASSES else ():
        yield kind.reshape(-1) != number
