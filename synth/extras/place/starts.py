"""Make the rank orders with which a search begins.

An order is the GPU of each rank; GPUs are numbered among those that have one. Orders to begin with
divide a mesh's dimensions over hosts, leaves and racks, or are cheap rings on machines of any
shape.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, permutations
from math import gcd, prod

import numpy as np

from ...numeric.circuits import near_circuits
from .job import Ints, Job
from .loads import Search
from .tiers import Tier, stack_equal

# Most orders to begin with, which bounds the work for jobs of many dimensions.
_MAX_SPLITS, _MAX_NESTINGS = 1500, 24
# Orders to evaluate at once, and most orders that a search begins with.
_BATCH, _MAX_STARTS = 16, 8
# Most ranks for a search of rings, and the number of times that prices of busy links rise.
_MAX_RING, _RING_ROUNDS = 256, 6
# Circuits of the first round, before prices differ.
_FIRST_CIRCUITS = 4


def offer_starts(search: Search, tiers: Sequence[Tier]) -> list[Ints]:
    """Evaluate the orders that divide the job's dimensions over tiers, and offer the best one.

    A tier divides the GPUs into parts, such as hosts. Return the best few, the best one first. All
    that keep together the groups which must be are added to `search.starts`, with their values.
    """
    gpus = nest_gpus(tiers, search.job.ranks)
    orders = [gpus[positions] for positions in list_splits(search.job, tiers)]
    # The inverse of a permutation is its argsort.
    lists = [*_list_nestings(search.job), *_follow_traffic(search, tiers)]
    orders += [gpus[np.argsort(ranks)] for ranks in lists]
    keys: list[tuple[int, int, float]] = []
    for i in range(0, len(orders), _BATCH):
        batch = np.array(orders[i : i + _BATCH])
        evaluated = search.evaluate(batch)
        is_allowed = evaluated[0] == 0
        search.starts.append((batch[is_allowed], evaluated[1][is_allowed]))
        rows = zip(*evaluated, strict=True)
        keys += [(int(apart), int(value), float(uneven)) for apart, value, uneven in rows]
    best = [orders[i] for i in sorted(range(len(orders)), key=keys.__getitem__)[:_MAX_STARTS]]
    search.offer(np.array(best[:1]))
    return best


def nest_gpus(tiers: Sequence[Tier], gpus: int) -> Ints:
    """Return GPUs 0 to `gpus` - 1 in an order that keeps each part of a tier together.

    This holds for all tiers if they nest.
    """
    keys = [np.arange(gpus)]
    # Tiers are listed from the finest to the coarsest; lexsort sorts by the last key first.
    for tier in tiers:
        first = np.zeros(gpus, dtype=np.int64)
        for part in tier:
            first[list(part)] = min(part)
        keys.append(first)
    return np.lexsort(keys).astype(np.int64)


def list_splits(job: Job, tiers: Sequence[Tier]) -> Iterator[Ints]:
    """Yield the position of each rank, for each division of the job's dimensions over the tiers.

    A position is an index into the result of nest_gpus. Dimensions are factored over levels: for
    tiers of equal parts, the number of parts of a tier in a part of the next coarser one.
    """
    sizes, levels, before = [size for _, size in job.dimensions], [], 1
    for size in (*(parts.shape[1] for parts in stack_equal(tiers)), job.ranks):
        if size > before and size % before == 0:
            levels.append(size // before)
            before = size
    for split in islice(_divide_sizes(sizes, levels), _MAX_SPLITS):
        yield _find_positions(sizes, split)


def _divide_sizes(
    sizes: Sequence[int], levels: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the factorizations of each size over the levels.

    In each level the factors of all sizes multiply to the level's number.
    """
    if len(levels) == 1:
        if prod(sizes) == levels[0]:
            yield (tuple(sizes),)
        return
    for factors in _factor(levels[0], sizes):
        rest = [size // factor for size, factor in zip(sizes, factors, strict=True)]
        yield from ((factors, *others) for others in _divide_sizes(rest, levels[1:]))


def _factor(level: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the factorizations of `level` into one divisor per size."""
    if not sizes:
        if level == 1:
            yield ()
        return
    for factor in range(gcd(level, sizes[0]), 0, -1):
        if level % factor == 0 and sizes[0] % factor == 0:
            yield from ((factor, *others) for others in _factor(level // factor, sizes[1:]))


def _find_positions(sizes: Sequence[int], split: Sequence[Sequence[int]]) -> Ints:
    """Return each rank's position for a division of the dimensions over levels.

    Level by level from the innermost, each dimension takes its factor of the positions.
    """
    coordinates = np.indices(tuple(sizes)).reshape(len(sizes), -1).astype(np.int64)
    position, stride = np.zeros(coordinates.shape[1], dtype=np.int64), 1
    for factors in split:
        for dimension in reversed(range(len(sizes))):
            position += coordinates[dimension] % factors[dimension] * stride
            coordinates[dimension] //= factors[dimension]
            stride *= factors[dimension]
    return position


def _list_nestings(job: Job) -> Iterator[Ints]:
    """Yield the ranks listed with each order of the dimensions, whatever the machine's sizes."""
    ranks = np.arange(job.ranks, dtype=np.int64).reshape([size for _, size in job.dimensions])
    for axes in islice(permutations(range(ranks.ndim)), _MAX_NESTINGS):
        yield ranks.transpose(axes).reshape(-1)


def _follow_traffic(search: Search, tiers: Sequence[Tier]) -> Iterator[Ints]:
    """Yield the ranks of a matrix of bytes, listed so that those who exchange much are neighbours.

    Each next rank is the one that exchanges the most with the ranks of the part being filled (once
    for each tier), and then with all listed before.
    """
    n = search.job.ranks
    for phase in search.loads.phases:
        if phase.parts is None:
            continue
        bytes_between = np.zeros((n, n))
        bytes_between[phase.src, phase.dst] = phase.parts
        bytes_between += bytes_between.T
        for size in sorted({len(parts[0]) for parts in tiers} - {1}):
            listed = [int(bytes_between.sum(axis=1).argmax())]
            free = np.full(n, True)
            free[listed] = False
            while len(listed) < n:
                inside = listed[len(listed) // size * size :]
                pull = bytes_between[inside].sum(axis=0) * n + bytes_between[listed].sum(axis=0)
                listed.append(int(np.where(free, pull, -1.0).argmax()))
                free[listed[-1]] = False
            yield np.array(listed, dtype=np.int64)


def find_rings(search: Search) -> list[Ints]:
    """Return orders that are fast rings through all GPUs, for jobs of one group.

    Each round finds rings whose links cost little in all; then the prices of busy links rise. For
    other jobs, and for too few or too many ranks, the result is empty.
    """
    loads, n = search.loads, search.job.ranks
    if not search.job.is_one_group or not 3 <= n <= _MAX_RING:
        return []
    prices = weights = loads.relative_weights
    orders: list[Ints] = []
    begun: list[tuple[int, ...]] = []
    for _ in range(_RING_ROUNDS):
        distances = prices[loads.crossed].sum(axis=2)
        np.fill_diagonal(distances, 0.0)
        circuits = near_circuits(distances, begun, 1 if begun else _FIRST_CIRCUITS, search.effort)
        begun = [circuit for _, circuit in circuits[:1]]
        # Circuits are listed without GPU 0, where they begin.
        orders += [np.array([0, *circuit], dtype=np.int64) for _, circuit in circuits]
        if not begun or search.effort.left_s <= 0:
            break
        busy = loads.count(loads.phases[0], orders[-len(circuits)][None, :])[0] * weights
        # The fourth power raises hardly any prices but those of the busiest links.
        prices = prices * (1.0 + (busy / busy.max()) ** 4)
        prices /= prices.max()
    return orders
