"""What looks alike in a machine: colours of devices by refinement, and shifts of the rank order that change nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....topo.graph import Topology

Ints = NDArray[np.int64]
_SEED = 20261121


def colours(topology: Topology, single: str | None = None) -> Ints:
    """A number for every device; devices that play the same part in the machine have the same (Weisfeiler-Leman). Device
    `single` is unlike all others.

    Refined by kind, abilities and bandwidths, without latencies. By hashing: different parts may, very rarely, share a
    colour; nothing that uses colours may depend on that for being right.
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
    salt = np.random.default_rng(_SEED)
    while True:
        noise = salt.integers(1 << 62, size=(2, count, len(value) or 1), dtype=np.int64).astype(np.uint64)
        seen = np.zeros((2, len(kinds)), dtype=np.uint64)
        np.add.at(seen[0], src, noise[0, colour[dst], rate])
        np.add.at(seen[1], dst, noise[1, colour[src], rate])
        rows = np.stack([colour.astype(np.uint64), *seen], axis=1)
        _, finer = np.unique(rows, axis=0, return_inverse=True)
        colour = np.asarray(finer, dtype=np.int64).reshape(-1)
        now = int(colour.max(initial=0)) + 1
        if now == count:
            return colour
        count = now


class _Machine:
    """A topology as arrays, to try permutations on."""

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
        self.table = self._links(np.arange(self.size))

    def _links(self, image: Ints) -> Ints:
        return np.sort((image[self.src] * self.size + image[self.dst]) * self.values + self.rate)

    def extended(self, of_rank: Ints) -> Ints | None:
        """The permutation of all devices that a permutation of the ranks brings with it, if it changes nothing.

        The image of another device is the one that is linked to the images of what it is linked to.
        """
        image = np.full(self.size, -1, dtype=np.int64)
        image[self.gpus] = self.gpus[of_rank]
        if len(self.others):
            here, there = self._signatures(np.arange(self.ranks)), self._signatures(np.argsort(of_rank))
            a = self.others[np.argsort(here[self.others], kind="stable")]
            b = self.others[np.argsort(there[self.others], kind="stable")]
            if not np.array_equal(here[a], there[b]):
                return None
            image[a] = b
        same = np.array_equal(self._links(image), self.table) and np.array_equal(self.kind[image], self.kind)
        return image if same else None

    def _signatures(self, labels: Ints) -> NDArray[np.uint64]:
        return _signatures(self.src, self.dst, self.rate, self.kind, self.gpus, labels)

    def digits(self) -> list[tuple[int, int]]:
        """Ways to read a digit off the rank numbers: (what it counts in, its base)."""
        n = self.ranks
        lows = (x for x in range(1, n + 1) if n % x == 0)
        return [(low, base) for low in lows for base in range(2, n // low + 1) if (n // low) % base == 0]


def mirrors(topology: Topology) -> list[Ints]:
    """Symmetries that turn a digit of the rank numbers round, or exchange two that are next to each other."""
    machine = _Machine(topology)
    ranks = np.arange(machine.ranks)
    out = []
    for low, base in machine.digits():
        digit = ranks // low % base
        tried = [ranks + low * (base - 1 - 2 * digit)]
        if machine.ranks % (low * base * base) == 0:
            above = ranks // (low * base) % base
            tried.append(ranks + (above - digit) * low + (digit - above) * low * base)
        out += [image for image in map(machine.extended, tried) if image is not None]
    return out


def shifts(topology: Topology) -> list[Ints]:
    """A group of symmetries of the machine that moves ranks as a clock does: permutations of the devices, a row each.

    Ranks are counted in mixed digits; a symmetry turns one digit on by one. Those that leave all bandwidths as they are
    are generators, and of sets with different digits the one with most symmetries is taken (a torus' translations,
    boxes and the lanes in them). The result is the list of each digit's turns, a (turns, devices) array.
    """
    machine = _Machine(topology)
    ranks = np.arange(machine.ranks)
    found: dict[tuple[int, int], Ints] = {}
    for low, base in machine.digits():
        digit = ranks // low % base
        image = machine.extended(ranks + low * ((digit + 1) % base - digit))
        if image is not None:
            found[low, base] = image
    best: dict[int, tuple[int, list[tuple[int, int]]]] = {1: (1, [])}
    for low in sorted({low for low, _ in found} | {low * base for low, base in found} | {1}):
        order, chosen = max((entry for at, entry in best.items() if at <= low), key=_longest)
        if low not in best or order > best[low][0]:
            best[low] = order, chosen
        for at, base in found:
            if at == low:
                grown = best[low][0] * base, [*best[low][1], (at, base)]
                best[low * base] = max(grown, best.get(low * base, grown), key=_longest)
    _, chosen = max(best.values(), key=_longest)
    out = []
    for key in chosen:
        turns = [np.arange(machine.size)]
        for _ in range(key[1] - 1):
            turns.append(found[key][turns[-1]])
        out.append(np.stack(turns))
    return out


def _longest(entry: tuple[int, list[tuple[int, int]]]) -> tuple[int, int]:
    """Most symmetries, then fewest digits."""
    return entry[0], -len(entry[1])


def _signatures(src: Ints, dst: Ints, rate: Ints, kind: Ints, gpus: Ints, labels: Ints) -> NDArray[np.uint64]:
    """A hash for every device of how it is linked to labelled GPUs, near and far."""
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
            seen = np.zeros((2, len(kind)), dtype=np.uint64)
            np.add.at(seen[0], src, mix(now[dst] + rate.astype(np.uint64) * mixer))
            np.add.at(seen[1], dst, mix(now[src] + rate.astype(np.uint64) * mixer + np.uint64(7)))
            now = mix(start + mixer * mix(seen[0]) + mix(seen[1]))
            now[gpus] = start[gpus]
    return now


def group(turns: list[Ints], most: int) -> Ints | None:
    """All products of the turns, the identity first; turns are thinned out (the last digit first) to at most `most`
    products. None where only the identity is left.
    """
    sizes = [len(t) for t in turns]
    while int(np.prod(sizes)) > most:
        i = max(i for i, size in enumerate(sizes) if size > 1)
        sizes[i] = max(x for x in range(1, sizes[i]) if len(turns[i]) % x == 0)
    images: list[Ints] = []
    for turn, size in zip(turns, sizes, strict=True):
        kept = turn[:: len(turn) // size]
        images = [kept[i][image] for i in range(size) for image in images] if images else list(kept)
    if len(images) < 2:
        return None
    return np.stack(images)
