"""The bound of demands on many GPUs, without a linear program: the narrowest cut around devices.

Demands say which ranks hold and need which pieces of data; a class is all pieces with the same
holders and the same receivers that lack them. The groups of devices that are cut off are single
GPUs, boxes (such as hosts), and all behind a leaf switch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....topo.graph import Topology
from ...bounds.certificate import Bound
from ...bounds.cuts import bound_of_cut
from ...ir.demands import Demands
from ...machine.links import Ints, LinkArrays
from ...machine.partitions import list_partitions

# With more GPUs, or more classes, no linear program is solved: it takes a minute.
_MAX_RANKS, _MAX_CLASSES = 128, 6000


def is_large(demands: Demands, topology: Topology) -> bool:
    """Return whether there are too many GPUs or classes of pieces for a linear program."""
    return len(topology.ranks) > _MAX_RANKS or len(demands.classes) > _MAX_CLASSES


def find_cut_bound(demands: Demands, topology: Topology) -> Bound:
    """Return the bound of the narrowest cut around a group of devices, or around all others.

    The narrowest one takes longest to carry the data that must cross it.
    """
    links = LinkArrays(topology)
    sizes = np.array(list(demands.classes.values()), dtype=np.float64)
    ends = [_list_ends([key[side] for key in demands.classes]) for side in (0, 1)]
    best, inside = 0.0, np.ones(links.size, dtype=np.bool_)
    for part in (np.arange(links.size), *list_partitions(links)):
        count, of_rank = int(part.max()) + 1, part[links.gpus]
        # The groups that hold a class, and those that need it, as one number per class and group.
        held, needed = (_sort_once(number * count + of_rank[rank]) for number, rank in ends)
        place = np.minimum(np.searchsorted(held, needed), len(held) - 1)
        arriving = needed[held[place] != needed]
        into = np.bincount(arriving % count, sizes[arriving // count], count)
        # A class leaves a group for sure if no other group holds it, and some other one needs it.
        leaves = np.bincount(held // count, minlength=len(sizes)) == 1
        leaves &= np.bincount(arriving // count, minlength=len(sizes)) > 0
        only = held[leaves[held // count]]
        out = np.bincount(only % count, sizes[only // count], count)
        across = part[links.src] != part[links.dst]
        for crossing, end, turned in ((out, links.src, False), (into, links.dst, True)):
            width = np.bincount(part[end[across]], links.capacity[across], count)
            needed_s = np.divide(crossing, width, out=np.zeros(count), where=width > 0)
            if needed_s.max() > best:
                best, inside = float(needed_s.max()), (part == needed_s.argmax()) != turned
    return bound_of_cut((links.names[i] for i in np.flatnonzero(inside)), demands, topology)


def _sort_once(numbers: Ints) -> Ints:
    """Return the distinct numbers, ascending; np.unique takes 20 times as long for a million."""
    ordered = np.sort(numbers)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]]


def _list_ends(ranks: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return the number of a class for each of its ranks, and the ranks, of all classes."""
    lengths = [len(row) for row in ranks]
    return np.repeat(np.arange(len(ranks)), lengths), np.concatenate([*map(np.array, ranks)])
