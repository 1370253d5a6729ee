"""Symmetries of a machine: colours of devices, and permutations of ranks that preserve all links.

Colours are found by refinement (Weisfeiler, Leman 1968).
"""

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from .links import Ints, LinkArrays, number_values

# Fixed, so that equal machines get equal colours in every process; any other number would do.
_SEED = 20261121
# Number of hops over which links are hashed to tell devices apart; each is a pass over all links.
_SIGNATURE_HOPS = 4
# Maximum number of images of a tree or path that one column of a linear program represents.
MAX_IMAGES = 4096


def colours(topology: Topology, single: str | None = None) -> Ints:
    """Return the colour of every device as a number, equal for devices of the same role.

    Device `single`, if given, has a different role from all others. Colours are refined
    (Weisfeiler-Leman) by kind, abilities and bandwidths, not by latencies, and by hashing: very
    rarely different roles may share a colour, so the correctness of a result must not depend on
    colours.
    """
    links = LinkArrays(topology)
    rate = number_values(links.exact)
    rates = int(rate.max(initial=0)) + 1
    colour = number_values(
        [(d.kind, d.can_reduce, d.can_copy, d.id == single) for d in topology.devices]
    )
    count = int(colour.max()) + 1
    # A device's new colour depends on its own and on the multiset of colours and rates around it,
    # hashed as a sum of random numbers; when the number of colours no longer grows, the refinement
    # is stable.
    salt = np.random.default_rng(_SEED)
    while True:
        noise = salt.integers(1 << 62, size=(2, count, rates), dtype=np.int64).astype(np.uint64)
        around = np.zeros((2, len(colour)), dtype=np.uint64)
        np.add.at(around[0], links.src, noise[0, colour[links.dst], rate])
        np.add.at(around[1], links.dst, noise[1, colour[links.src], rate])
        rows = np.stack([colour.astype(np.uint64), *around], axis=1)
        _, finer = np.unique(rows, axis=0, return_inverse=True)
        colour = np.asarray(finer, dtype=np.int64).reshape(-1)
        before, count = count, int(colour.max(initial=0)) + 1
        if before == count:
            return colour


class _Permutations(LinkArrays):
    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self.ranks = len(topology.ranks)
        self.others = np.setdiff1d(np.arange(self.size), self.gpus)
        self.rate = number_values(self.exact)
        self.kind = number_values([(d.kind, d.can_reduce, d.can_copy) for d in topology.devices])
        self.sorted_links = self._permute(np.arange(self.size))

    def _permute(self, image: Ints) -> Ints:
        """Return the links between the images of devices, each as one number, sorted."""
        key = self.make_key(image[self.src], image[self.dst])
        return np.sort(key * (self.rate.max(initial=0) + 1) + self.rate)

    def extend(self, of_rank: Ints) -> Ints | None:
        """Return the symmetry of all devices that extends a permutation of the ranks.

        The image of a device other than a GPU is the device that is linked to the images of its
        neighbours. None if there is no such symmetry.
        """
        image = np.full(self.size, -1, dtype=np.int64)
        image[self.gpus] = self.gpus[of_rank]
        if len(self.others):
            before = self._hash_links(np.arange(self.ranks))
            after = self._hash_links(np.argsort(of_rank))
            a = self.others[np.argsort(before[self.others], kind="stable")]
            b = self.others[np.argsort(after[self.others], kind="stable")]
            if not np.array_equal(before[a], after[b]):
                return None
            image[a] = b
        same = np.array_equal(self._permute(image), self.sorted_links)
        return image if same and np.array_equal(self.kind[image], self.kind) else None

    def digits(self) -> list[tuple[int, int]]:
        """Return all possible digits of the rank numbers, as (place value, base)."""
        n = self.ranks
        pairs = ((low, base) for low in range(1, n + 1) for base in range(2, n // low + 1))
        return [(low, base) for low, base in pairs if n % (low * base) == 0]

    def _hash_links(self, labels: Ints) -> NDArray[np.uint64]:
        """Return a hash for every device of its links, over a few hops, to labelled GPUs."""
        # The mixer and the constants of `mix` are splitmix64's (Steele, Lea, Flood 2014).
        mixer = np.uint64(0x9E3779B97F4A7C15)

        def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return np.asarray(x ^ (x >> np.uint64(31)))

        src, dst, gpus = self.src, self.dst, self.gpus
        with np.errstate(over="ignore"):
            start = mix(self.kind.astype(np.uint64) + mixer)
            start[gpus] = mix(labels.astype(np.uint64) + np.uint64(1 << 40))
            now: NDArray[np.uint64] = start.copy()
            rate = self.rate.astype(np.uint64) * mixer
            for _ in range(_SIGNATURE_HOPS):
                around = np.zeros((2, self.size), dtype=np.uint64)
                np.add.at(around[0], src, mix(now[dst] + rate))
                np.add.at(around[1], dst, mix(now[src] + rate + np.uint64(7)))
                now = mix(start + mixer * mix(around[0]) + mix(around[1]))
                now[gpus] = start[gpus]
        return now


def mirrors(topology: Topology) -> list[Ints]:
    """Return symmetries of the machine that reverse a digit of the rank numbers or swap digits.

    Rank numbers are read in mixed radix, and adjacent digits of one base are swapped. Each symmetry
    is an array with the number of each device's image.
    """
    links = _Permutations(topology)
    ranks = np.arange(links.ranks)
    out = []
    for low, base in links.digits():
        digit = ranks // low % base
        tried = [ranks + low * (base - 1 - 2 * digit)]
        if links.ranks % (low * base * base) == 0:
            above = ranks // (low * base) % base
            tried.append(ranks + (above - digit) * low + (digit - above) * low * base)
        out += [image for image in map(links.extend, tried) if image is not None]
    return out


def shifts(topology: Topology) -> list[Ints]:
    """Return the powers of commuting symmetries that shift the rank order.

    Rank numbers are read in mixed radix; a shift adds one to a digit, modulo its base. Shifts that
    preserve all links are generators, and among the sets of disjoint digits the one with the most
    symmetries is taken (translations of a torus; boxes, and places in boxes). There is one item per
    digit, called its turns: row k holds the number of each device's image after k shifts.
    """
    links = _Permutations(topology)
    ranks = np.arange(links.ranks)
    # Symmetries that shift a digit, by the digit's (place value, base).
    generators: dict[tuple[int, int], Ints] = {}
    for low, base in links.digits():
        digit = ranks // low % base
        image = links.extend(ranks + low * ((digit + 1) % base - digit))
        if image is not None:
            generators[low, base] = image

    def count_symmetries(entry: tuple[int, list[tuple[int, int]]]) -> tuple[int, int]:
        return entry[0], -len(entry[1])  # among equals, those of fewer digits

    # Dynamic programming over place values: the best set of digits below each, by the number of
    # symmetries it gives.
    best: dict[int, tuple[int, list[tuple[int, int]]]] = {1: (1, [])}
    places = {1, *(low for low, _ in generators), *(low * base for low, base in generators)}
    for low in sorted(places):
        below = max((entry for at, entry in best.items() if at <= low), key=count_symmetries)
        if low not in best or below[0] > best[low][0]:
            best[low] = below
        for at, base in generators:
            if at == low:
                grown = best[low][0] * base, [*best[low][1], (at, base)]
                best[low * base] = max(grown, best.get(low * base, grown), key=count_symmetries)
    out = []
    for key in max(best.values(), key=count_symmetries)[1]:
        turns = [np.arange(links.size)]
        for _ in range(key[1] - 1):
            turns.append(generators[key][turns[-1]])
        out.append(np.stack(turns))
    return out


def group(turns: list[Ints], count: int) -> Ints | None:
    """Return at most `count` products of the turns, the identity first.

    Turns are powers of symmetries, as `shifts` returns them. A row of the result holds the number
    of each device's image. If there are more, subgroups of the turns are used, reducing the last
    digits first. None if only the identity is left.
    """
    sizes = [len(t) for t in turns]
    while int(np.prod(sizes)) > count:
        i = max(i for i, size in enumerate(sizes) if size > 1)
        sizes[i] = max(x for x in range(1, sizes[i]) if len(turns[i]) % x == 0)
    images = [turn[0] for turn in turns[:1]]  # the identity
    for turn, size in zip(turns, sizes, strict=True):
        images = [power[image] for power in turn[:: len(turn) // size] for image in images]
    return np.stack(images) if len(images) > 1 else None


def find_transitive_group(
    turns: list[Ints] | None, gpus: Ints, *, once: bool = True
) -> Ints | None:
    """Return the products of the turns if they map the first GPU to every GPU, else None.

    Turns are powers of symmetries (see `shifts`); a row of the result has the number of each
    device's image; `gpus[r]` is the device number of rank r. One root or source can then represent
    all. With `once`, exactly one product must map to each GPU.
    """
    images = group(turns, MAX_IMAGES) if turns else None
    if images is None or (once and len(images) != len(gpus)):
        return None
    return images if len(set(images[:, gpus[0]].tolist())) == len(gpus) else None
