"""Groups of devices that hang together when some links are taken away: boxes, sockets, what is
behind a leaf switch.

The cuts around them often are what bounds alltoall. They are found by taking away links of one
medium, of one class, up to one bandwidth, or from one distance to the GPUs on; what then still
hangs together is a group.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ....topo.graph import Topology
from ..machine.symmetry import colours

Ints = NDArray[np.int64]
_THRESHOLDS, _CLASSES = 32, 64
# The bandwidths, and classes of links, that are tried as borders of groups; and the cuts that are
# returned.
_KEPT = 8


def find_narrow_groups(topology: Topology) -> list[list[str]]:
    """Return the sides, as device ids, of the few cuts around groups that take alltoall longest;
    the narrowest first.
    """
    names = [d.id for d in topology.devices]
    index = {name: i for i, name in enumerate(names)}
    capacity = topology.capacity_GBps
    a = np.array([index[x] for x, _ in capacity], dtype=np.int64)
    b = np.array([index[x] for _, x in capacity], dtype=np.int64)
    rate = np.array([float(c) for c in capacity.values()])
    gpus = np.array([index[g] for g in topology.ranks], dtype=np.int64)
    total = len(gpus)
    found: dict[bytes, tuple[float, NDArray[np.bool_]]] = {}
    for kept in _list_kept_links(topology, a, b, rate, gpus):
        if kept.all():
            continue
        part = _find_parts(len(names), a[kept], b[kept])
        within = np.bincount(part[gpus], minlength=int(part.max()) + 1)
        leaves = part[a] != part[b]
        for ends, into in ((a, False), (b, True)):
            width = np.bincount(part[ends[leaves]], weights=rate[leaves], minlength=len(within))
            crossing = within * (total - within)
            narrow = np.where(
                (crossing > 0) & (width > 0), crossing / np.maximum(width, 1e-300), 0.0
            )
            for number in np.argsort(-narrow, kind="stable")[:2].tolist():
                if narrow[number] > 0:
                    inside = (part == number) != into
                    found[inside.tobytes()] = float(narrow[number]), inside
    best = sorted(found.values(), key=lambda item: -item[0])[:_KEPT]
    return [[names[i] for i in np.flatnonzero(inside)] for _, inside in best]


def _find_parts(size: int, a: Ints, b: Ints) -> Ints:
    """Return the number of the connected part that each device is in."""
    _, part = connected_components(
        coo_matrix((np.ones(len(a)), (a, b)), shape=(size, size)), directed=False
    )
    return np.asarray(part, dtype=np.int64)


def _list_kept_links(
    topology: Topology, a: Ints, b: Ints, rate: NDArray[np.float64], gpus: Ints
) -> Iterator[NDArray[np.bool_]]:
    """Yield masks of the links that are left when some are taken away."""
    number = {link: i for i, link in enumerate(topology.capacity_GBps)}
    network = np.array([d.family == "network" for d in topology.devices])
    yield ~(network[a] | network[b])
    medium: dict[str, NDArray[np.bool_]] = {}
    for link in topology.links:
        medium.setdefault(link.kind, np.zeros(len(a), dtype=np.bool_))[
            number[link.src, link.dst]
        ] = True
    for mask in medium.values():
        yield ~mask
    for least in np.unique(rate)[:_THRESHOLDS]:
        yield rate > least
    # Distances from the GPUs: leaf switches are nearer than those that join them.
    far = len(topology.devices)
    distance = np.full(far, far, dtype=np.int64)
    distance[gpus] = 0
    for hops in range(1, far):
        fresh = np.r_[
            b[(distance[a] == hops - 1) & (distance[b] == far)],
            a[(distance[b] == hops - 1) & (distance[a] == far)],
        ]
        if not len(fresh):
            break
        distance[fresh] = hops
    for hops in range(1, int(distance[distance < far].max()) + 1):
        yield np.maximum(distance[a], distance[b]) < hops
    colour = colours(topology)
    ends = np.stack([np.minimum(colour[a], colour[b]), np.maximum(colour[a], colour[b])])
    _, kind = np.unique(ends, axis=1, return_inverse=True)
    if int(kind.max(initial=-1)) < _CLASSES:
        for number_of_class in range(int(kind.max(initial=-1)) + 1):
            yield kind.reshape(-1) != number_of_class
