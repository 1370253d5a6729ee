"""Orders to begin with: a mesh's dimensions divided over hosts, leaves and racks, and cheap rings
on machines of any shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from math import gcd, prod

import numpy as np

from ..numeric.near_circuits import near_circuits
from .job import Ints, Job
from .search import Search
from .tiers import Tier

_MOST_SPLITS = 1500
_MOST_NESTINGS = 24
_MOST_RING = 256
_RING_ROUNDS = 6
_BATCH = 16


def offer_starts(search: Search, tiers: Sequence[Tier]) -> list[Ints]:
    """Look at the orders that follow from how GPUs are near each other, and return the best few,
    the best one first.
    """
    listed = nest_gpus(tiers, search.job.ranks)
    batches = [listed[ranks_in_tiers] for ranks_in_tiers in list_splits(search.job, tiers)]
    batches += [listed[_invert(np.array(seats))] for seats in _list_nestings(search.job)]
    ranked: list[tuple[tuple[int, int, float], int]] = []
    for i in range(0, len(batches), _BATCH):
        orders = np.array(batches[i : i + _BATCH])
        apart, values, uneven = search.judge(orders)
        ranked += [
            ((int(a), int(v), float(u)), i + k)
            for k, (a, v, u) in enumerate(zip(apart, values, uneven, strict=True))
        ]
    ranked.sort()
    best = [batches[i] for _, i in ranked[:8]]
    for order in best[:1]:
        search.offer(order[None, :])
    return best


def nest_gpus(tiers: Sequence[Tier], gpus: int) -> Ints:
    """Return the GPUs in an order in which those of a part stand together, in all tiers as far as
    they agree.
    """
    keys = [np.arange(gpus)]
    for tier in tiers:  # from the finest, which sorts last, to the coarsest, which sorts first
        first = np.zeros(gpus, dtype=np.int64)
        for part in tier:
            first[list(part)] = min(part)
        keys.append(first)
    return np.lexsort(keys).astype(np.int64)


def list_splits(job: Job, tiers: Sequence[Tier]) -> Iterator[Ints]:
    """Return, for each way to divide the dimensions over the levels of tiers, the seat of each
    rank: its place among the GPUs as nest_gpus lists them. A level is how many parts of one tier
    are in one of the next.
    """
    sizes = [size for _, size in job.dimensions]
    levels = _count_levels(tiers, job.ranks)
    for number, split in enumerate(_divide_sizes(sizes, levels)):
        if number == _MOST_SPLITS:
            return
        yield _seat_ranks(sizes, split)


def _count_levels(tiers: Sequence[Tier], gpus: int) -> list[int]:
    """Return how many parts of each tier are in one of the next coarser one, from the finest, for
    tiers of equal parts.
    """
    levels, before = [], 1
    for size in [*(len(tier[0]) for tier in tiers if len({len(part) for part in tier}) == 1), gpus]:
        if size > before and size % before == 0:
            levels.append(size // before)
            before = size
    return levels


def _divide_sizes(
    sizes: Sequence[int], levels: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Return ways to write each size as a product over the levels, so that each level's factors
    give its own size.
    """
    if len(levels) == 1:
        if prod(sizes) == levels[0]:
            yield (tuple(sizes),)
        return
    for factors in _factor(levels[0], sizes):
        rest = [size // factor for size, factor in zip(sizes, factors, strict=True)]
        for others in _divide_sizes(rest, levels[1:]):
            yield (factors, *others)


def _factor(level: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Return ways to write `level` as a product of divisors of the sizes, one each."""
    if not sizes:
        if level == 1:
            yield ()
        return
    for factor in range(gcd(level, sizes[0]), 0, -1):
        if level % factor == 0 and sizes[0] % factor == 0:
            for others in _factor(level // factor, sizes[1:]):
                yield (factor, *others)


def _seat_ranks(sizes: Sequence[int], split: Sequence[Sequence[int]]) -> Ints:
    """Return each rank's seat when level by level, the innermost first, each dimension takes its
    factor of the seats.
    """
    coordinates = np.indices(tuple(sizes)).reshape(len(sizes), -1).astype(np.int64)
    seat = np.zeros(coordinates.shape[1], dtype=np.int64)
    stride = 1
    for factors in split:
        for dimension in reversed(range(len(sizes))):
            seat += coordinates[dimension] % factors[dimension] * stride
            coordinates[dimension] //= factors[dimension]
            stride *= factors[dimension]
    return seat


def _list_nestings(job: Job) -> Iterable[Ints]:
    """Return the ranks listed with each order of the dimensions, whichever changes fastest,
    whatever the machine's sizes.
    """
    sizes = tuple(size for _, size in job.dimensions)
    ranks = np.arange(job.ranks, dtype=np.int64).reshape(sizes)
    for number, axes in enumerate(permutations(range(len(sizes)))):
        if number == _MOST_NESTINGS:
            return
        yield ranks.transpose(axes).reshape(-1)


def _invert(listed: Ints) -> Ints:
    """Return the seat of each rank, from the ranks in the order of their seats."""
    seats = np.empty_like(listed)
    seats[listed] = np.arange(len(listed))
    return seats


def find_rings(search: Search) -> list[Ints]:
    """Return orders that are cheap rings through all GPUs, for jobs of one group; busy links get
    dearer each time.
    """
    loads, n = search.loads, search.job.ranks
    if (
        len([size for _, size in search.job.dimensions if size > 1]) != 1
        or not 3 <= n <= _MOST_RING
    ):
        return []
    weights = np.array([*(float(w) for w in loads.weights), 0.0])
    prices = weights / weights.max()
    orders: list[Ints] = []
    begun: list[tuple[int, ...]] = []
    for _ in range(_RING_ROUNDS):
        distances = prices[loads.crossed].sum(axis=2)
        np.fill_diagonal(distances, 0.0)
        circuits = near_circuits(distances, begun, 4 if not begun else 1, search.effort)
        begun = [circuit for _, circuit in circuits[:1]]
        orders += [np.array([0, *circuit], dtype=np.int64) for _, circuit in circuits]
        if not begun or search.effort.left_s <= 0:
            break
        counts = loads.count(loads.phases[0], orders[-len(circuits)][None, :])[0]
        busy = counts * weights
        prices = prices * (1.0 + (busy / busy.max()) ** 4)
        prices /= prices.max()
    return orders
