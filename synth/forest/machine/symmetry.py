"""Symmetries of a machine: colours of devices by refinement, and permutations of the ranks that
preserve all links.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....topo.graph import Topology

Ints = NDArray[np.int64]
_SEED = 20261121


def colours(topology: Topology, single: str | None = None) -> Ints:
    """Return a colour, a number, for every device; devices that play the same role have the same
    (Weisfeiler-Leman).

    Device `single` is unlike all others. Colours are refined by kind, abilities and bandwidths, not
    by latencies, and by hashing: very rarely different roles may share a colour, so no result may
    depend on colours for being correct.
    """
    index = {d.id: i for i, d in enumerate(topology.devices)}
    links = list(topology.capacity_GBps.items())
    src = np.array([index[a] for (a, _), _ in links], dtype=np.int64)
    dst = np.array([index[b] for (_, b), _ in links], dtype=np.int64)
    value = {c: i for i, c in enumerate(sorted({c for _, c in links}))}
    rate = np.array([value[c] for _, c in links], dtype=np.int64)
    kinds = [(d.kind, d.can_reduce, d.can_copy, d.id == single) for d in topology.devices]
    number = {k: i for i, k in enumerate(sorted(set(kinds)))}
    colour = np.array([number[k] for k in kinds], dtype=np.int64)
    count = len(number)
    # A device's new colour depends on its own and on the multiset of colours and rates around it,
    # hashed as a sum of random numbers; when the number of colours no longer grows, the refinement
    # is stable.
    salt = np.random.default_rng(_SEED)
    while True:
        noise = salt.integers(1 << 62, size=(2, count, len(value) or 1), dtype=np.int64).astype(
            np.uint64
        )
        around = np.zeros((2, len(kinds)), dtype=np.uint64)
        np.add.at(around[0], src, noise[0, colour[dst], rate])
        np.add.at(around[1], dst, noise[1, colour[src], rate])
        rows = np.stack([colour.astype(np.uint64), *around], axis=1)
        _, finer = np.unique(rows, axis=0, return_inverse=True)
        colour = np.asarray(finer, dtype=np.int64).reshape(-1)
        now = int(colour.max(initial=0)) + 1
        if now == count:
            return colour
        count = now


class _LinkTable:
    """A topology's links as arrays, to try permutations of its devices on."""

    def __init__(self, topology: Topology) -> None:
        names = [d.id for d in topology.devices]
        index = {name: i for i, name in enumerate(names)}
        self.size, self.ranks = len(names), len(topology.ranks)
        self.gpus = np.array([index[g] for g in topology.ranks], dtype=np.int64)
        self.others = np.setdiff1d(np.arange(self.size), self.gpus)
        capacity = topology.capacity_GBps
        value = {c: i for i, c in enumerate(sorted(set(capacity.values())))}
        self.values = len(value) or 1
        self.src = np.array([index[a] for a, _ in capacity], dtype=np.int64)
        self.dst = np.array([index[b] for _, b in capacity], dtype=np.int64)
        self.rate = np.array([value[c] for c in capacity.values()], dtype=np.int64)
        kinds = [(d.kind, d.can_reduce, d.can_copy) for d in topology.devices]
        number = {k: i for i, k in enumerate(sorted(set(kinds)))}
        self.kind = np.array([number[k] for k in kinds], dtype=np.int64)
        self.links = self._permute(np.arange(self.size))

    def _permute(self, image: Ints) -> Ints:
        """Return the links between the images of devices, each as one number, sorted."""
        return np.sort((image[self.src] * self.size + image[self.dst]) * self.values + self.rate)

    def extend(self, of_rank: Ints) -> Ints | None:
        """Return the symmetry of all devices that extends a permutation of the ranks, or None where
        there is none.

        The image of a device that is no GPU is the one that is linked to the images of its
        neighbours.
        """
        image = np.full(self.size, -1, dtype=np.int64)
        image[self.gpus] = self.gpus[of_rank]
        if len(self.others):
            before, after = (
                self._signatures(np.arange(self.ranks)),
                self._signatures(np.argsort(of_rank)),
            )
            a = self.others[np.argsort(before[self.others], kind="stable")]
            b = self.others[np.argsort(after[self.others], kind="stable")]
            if not np.array_equal(before[a], after[b]):
                return None
            image[a] = b
        same = np.array_equal(self._permute(image), self.links) and np.array_equal(
            self.kind[image], self.kind
        )
        return image if same else None

    def _signatures(self, labels: Ints) -> NDArray[np.uint64]:
        return _signatures(self.src, self.dst, self.rate, self.kind, self.gpus, labels)

    def digits(self) -> list[tuple[int, int]]:
        """Return all ways to read a digit off the rank numbers, as (place value, base)."""
        n = self.ranks
        lows = (x for x in range(1, n + 1) if n % x == 0)
        return [
            (low, base) for low in lows for base in range(2, n // low + 1) if (n // low) % base == 0
        ]


def mirrors(topology: Topology) -> list[Ints]:
    """Return the symmetries that reverse a digit of the rank numbers, or exchange two adjacent
    digits.
    """
    table = _LinkTable(topology)
    ranks = np.arange(table.ranks)
    out = []
    for low, base in table.digits():
        digit = ranks // low % base
        tried = [ranks + low * (base - 1 - 2 * digit)]
        if table.ranks % (low * base * base) == 0:
            above = ranks // (low * base) % base
            tried.append(ranks + (above - digit) * low + (digit - above) * low * base)
        out += [image for image in map(table.extend, tried) if image is not None]
    return out


def shifts(topology: Topology) -> list[Ints]:
    """Return generators of an abelian group of symmetries that shift the rank order, with all their
    powers.

    Rank numbers are read in mixed radix; a shift adds one to a digit, modulo its base. Shifts that
    preserve all links are generators, and of the sets of disjoint digits the one that gives most
    symmetries is taken (translations of a torus; boxes, and lanes in boxes). Each item of the
    result holds one digit's turns: a row of image devices for each power.
    """
    table = _LinkTable(topology)
    ranks = np.arange(table.ranks)
    # Digits, as (place value, base), whose shift is a symmetry.
    generators: dict[tuple[int, int], Ints] = {}
    for low, base in table.digits():
        digit = ranks // low % base
        image = table.extend(ranks + low * ((digit + 1) % base - digit))
        if image is not None:
            generators[low, base] = image
    # Dynamic programming over place values: the best set of digits below each, by the number of
    # symmetries it gives.
    best: dict[int, tuple[int, list[tuple[int, int]]]] = {1: (1, [])}
    for low in sorted(
        {low for low, _ in generators} | {low * base for low, base in generators} | {1}
    ):
        order, chosen = max(
            (entry for at, entry in best.items() if at <= low), key=_most_symmetries
        )
        if low not in best or order > best[low][0]:
            best[low] = order, chosen
        for at, base in generators:
            if at == low:
                grown = best[low][0] * base, [*best[low][1], (at, base)]
                best[low * base] = max(grown, best.get(low * base, grown), key=_most_symmetries)
    _, chosen = max(best.values(), key=_most_symmetries)
    out = []
    for key in chosen:
        turns = [np.arange(table.size)]
        for _ in range(key[1] - 1):
            turns.append(generators[key][turns[-1]])
        out.append(np.stack(turns))
    return out


def _most_symmetries(entry: tuple[int, list[tuple[int, int]]]) -> tuple[int, int]:
    """Return a key by which entries with more symmetries are greater, and with fewer digits among
    equals.
    """
    return entry[0], -len(entry[1])


def _signatures(
    src: Ints, dst: Ints, rate: Ints, kind: Ints, gpus: Ints, labels: Ints
) -> NDArray[np.uint64]:
    """Return a hash for every device of how it is linked, over up to four hops, to labelled
    GPUs.
    """
    mixer = np.uint64(0x9E3779B97F4A7C15)

    def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
        return mixed

    with np.errstate(over="ignore"):
        start = mix(kind.astype(np.uint64) + mixer)
        start[gpus] = mix(labels.astype(np.uint64) + np.uint64(1 << 40))
        now: NDArray[np.uint64] = start.copy()
        for _ in range(4):
            around = np.zeros((2, len(kind)), dtype=np.uint64)
            np.add.at(around[0], src, mix(now[dst] + rate.astype(np.uint64) * mixer))
            np.add.at(around[1], dst, mix(now[src] + rate.astype(np.uint64) * mixer + np.uint64(7)))
            now = mix(start + mixer * mix(around[0]) + mix(around[1]))
            now[gpus] = start[gpus]
    return now


def group(turns: list[Ints], most: int) -> Ints | None:
    """Return at most `most` products of the turns (see `shifts`), the identity first; None where
    only that is left.

    Where there are more, subgroups of the turns are used, those of the last digits first.
    """
    sizes = [len(t) for t in turns]
    while int(np.prod(sizes)) > most:
        i = max(i for i, size in enumerate(sizes) if size > 1)
        sizes[i] = max(x for x in range(1, sizes[i]) if len(turns[i]) % x == 0)
    images: list[Ints] = []
    for turn, size in zip(turns, sizes, strict=True):
        subgroup = turn[:: len(turn) // size]
        images = (
            [subgroup[i][image] for i in range(size) for image in images]
            if images
            else list(subgroup)
        )
    if len(images) < 2:
        return None
    return np.stack(images)
