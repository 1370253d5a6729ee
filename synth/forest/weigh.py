"""How much each tree of a set should carry: shares that load no link more than they must, as small
fractions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from ..cost.loads import DirectedLink, computes_in_network, stream_loads
from ..effort import Effort
from ..ir.collective import Chunk
from ..ir.transfers import Transfers
from ..numeric.linear import Floats, Rows, minimise
from .trees import RootedTree, tree_columns

Ints = NDArray[np.int64]
# Shares are rounded to the smallest denominator at which the busiest link is within this of what
# the floats reach.
GOOD = Fraction(1, 10**7)
_DENOMINATORS = (
    *range(1, 65),
    72,
    84,
    90,
    96,
    120,
    128,
    144,
    168,
    180,
    240,
    256,
    360,
    420,
    504,
    512,
    720,
    840,
    1000,
    1024,
)
_FINE = (5040, 10_000, 65_536, 10**6, 10**8, 10**10)
_ROUNDED_TREES = 4096
_SUGGESTED = 1000


class Usage:
    """How often each tree uses each link (or class of links), and what the link can carry.

    With `images` of a group of symmetries, links of an orbit are one row, and a tree's uses are
    spread over it evenly.
    """

    def __init__(
        self, topology: Topology, trees: Sequence[RootedTree], images: Ints | None = None
    ) -> None:
        links = list(topology.capacity_GBps)
        orbit = np.arange(len(links)) if images is None else orbits(topology, links, images)
        _, row = np.unique(orbit, return_inverse=True)
        self.row = {link: int(r) for link, r in zip(links, row.reshape(-1), strict=True)}
        self.capacity = [Fraction(0)] * (int(row.max(initial=-1)) + 1)
        for link, r in self.row.items():
            self.capacity[r] += topology.capacity_GBps[link]
        self.uses = [self._count_uses(tree, topology) for tree in trees]

    def _count_uses(self, tree: RootedTree, topology: Topology) -> Counter[int]:
        """Return how often a tree uses the links of each row."""
        out: Counter[int] = Counter()
        for link, times in count_link_uses(tree, topology).items():
            out[self.row[link]] += times
        return out


def count_link_uses(tree: RootedTree, topology: Topology) -> Mapping[DirectedLink, int]:
    """Return how often a tree sends its chunk over each directed link."""
    # A switch that adds sends one sum on for all that arrive in a step, so streams count there, not
    # routes.
    if computes_in_network(topology):
        ranks = {gpu: r for r, gpu in enumerate(topology.ranks)}
        c = tree_columns(tree, ranks, together=True)
        out: dict[DirectedLink, int] = defaultdict(int)
        steps = np.array(c.step)
        rows = Transfers(
            c.step, c.src, c.dst, np.zeros(len(c.step)), c.op, range(len(c.step)), c.route
        )
        for step in sorted(set(c.step)):
            for link, share in stream_loads(
                [Chunk(Fraction(1))], rows.taken(steps == step), topology
            ).items():
                out[link] += int(share)
        return out
    routes = [route for route in (*tree.up, *tree.down) if route is not None]
    return Counter(link for route in routes for link in pairwise(route))


def orbits(topology: Topology, links: Sequence[DirectedLink], images: Ints) -> Ints:
    """Return, for each link, the lowest number among its images: the same for all links of an
    orbit.
    """
    index = {d.id: i for i, d in enumerate(topology.devices)}
    size = len(index)
    a = np.array([index[x] for x, _ in links])
    b = np.array([index[y] for _, y in links])
    # Links are looked up by a number made of both ends, in sorted order.
    key = a * size + b
    order = np.argsort(key)
    least = np.arange(len(links))
    for image in images:
        image_links = order[np.searchsorted(key[order], image[a] * size + image[b])]
        least = np.minimum(least, image_links)
    return least


def find_max_load(
    uses: Sequence[Mapping[int, int]], counts: Sequence[int], capacity: Sequence[Fraction]
) -> Fraction:
    """Return the greatest load over capacity of any row when column j carries counts[j]; exact."""
    load: dict[int, int] = defaultdict(int)
    for column, count in zip(uses, counts, strict=True):
        if count:
            for row, times in column.items():
                load[row] += times * count
    # Comparing whole numbers first leaves one division of fractions for each different capacity.
    most: dict[tuple[int, int], int] = {}
    for row, total in load.items():
        ratio = capacity[row].as_integer_ratio()
        if total > most.get(ratio, -1):
            most[ratio] = total
    return max(
        (Fraction(total * below, above) for (above, below), total in most.items()),
        default=Fraction(0),
    )


@dataclass(frozen=True)
class Division:
    """The solution of `divide`, in floats: `shares` that sum up to 1 in each group, and the `time`
    that the busiest row takes.

    `prices` are what a unit of use of each row costs; a new column helps if it costs less than its
    group's entry in `duals`.
    """

    shares: Floats
    time: float
    prices: Floats
    duals: dict[Hashable, float]


def divide(
    uses: Sequence[Mapping[int, int]],
    capacity: Floats,
    group: Sequence[Hashable],
    depths: Sequence[int] = (),
    effort: Effort | None = None,
) -> Division | None:
    """Return the shares of each group's columns under which the busiest row takes least time; of
    equal ones, the least depth.

    min t: shares sum up to 1 in each group, no row carries more than t times its capacity. None
    where HiGHS finds no optimum. The work is counted in `effort`.
    """
    sizes = [len(column) for column in uses]
    columns = np.repeat(np.arange(len(uses)), sizes)
    rows = np.fromiter(chain.from_iterable(uses), dtype=np.int64, count=len(columns))
    times = np.fromiter(
        chain.from_iterable(c.values() for c in uses), dtype=np.float64, count=len(columns)
    )
    number: dict[Hashable, int] = {}
    of_group = np.array([number.setdefault(g, len(number)) for g in group], dtype=np.int64)
    # HiGHS has absolute tolerances: `scale` brings the optimum t near 1, whatever the bandwidths.
    scale = len(number) * max(1.0, float(times.sum()) / len(uses)) / float(capacity.sum())
    # Rows in a fixed order: the same request must give the same program, and so the same plan.
    order, place = np.unique(rows, return_inverse=True)
    loads, whole = Rows(), Rows()
    loads.extend(
        np.concatenate([place.reshape(-1), np.arange(len(order))]),
        np.concatenate([columns, np.full(len(order), len(uses))]),
        np.concatenate([times / capacity[rows] / scale, np.full(len(order), -1.0)]),
        np.zeros(len(order)),
    )
    whole.extend(of_group, np.arange(len(uses)), np.ones(len(uses)), np.ones(len(number)))
    objective = np.zeros(len(uses) + 1)
    objective[-1] = 1.0
    # Too small a cost to change t, but enough to choose among optimal shares.
    if depths:
        objective[:-1] = 1e-6 * np.array(depths) / (max(depths) * len(number))
    solution = minimise(objective, loads, whole, effort)
    if solution is None:
        return None
    prices = np.zeros(len(capacity))
    prices[order] = np.maximum(-solution.at_most_duals, 0.0) / capacity[order]
    duals = {g: float(y) * scale for g, y in zip(number, solution.equal_duals, strict=True)}
    return Division(solution.x[:-1], float(solution.x[-1]) * scale, prices, duals)


def find_best_shares(
    uses: Sequence[Mapping[int, int]],
    capacity: Sequence[Fraction],
    group: Sequence[int],
    depths: Sequence[int] = (),
) -> Floats:
    """Return the shares of `divide`, or even shares where HiGHS finds no optimum."""
    solution = divide(uses, np.array([float(c) for c in capacity]), group, depths)
    if solution is not None:
        return solution.shares
    size = Counter(group)
    return np.array([1.0 / size[g] for g in group])


def round_shares(
    shares: Floats,
    uses: Sequence[Mapping[int, int]],
    capacity: Sequence[Fraction],
    group: Sequence[int],
) -> list[Fraction]:
    """Return fractions near `shares`, exactly 1 in each group's sum, with the smallest common
    denominator that loads the busiest row next to no more than the floats do (GOOD), or else the
    best of those tried.
    """
    target = Fraction(float(max(_find_max_float_load(shares, uses, capacity), 1e-300)))
    members: dict[int, list[int]] = defaultdict(list)
    for j, g in enumerate(group):
        members[g].append(j)
    # Small denominators make schedules of few chunks. With very many trees only fine ones can do,
    # and trying takes long.
    best: tuple[Fraction, list[int], int] | None = None
    tries: Iterable[int] = (
        (*_DENOMINATORS, *_suggest_denominators(shares), *_FINE)
        if len(shares) <= _ROUNDED_TREES
        else _FINE
    )
    for denominator in tries:
        # Round down, then give what is missing to the shares that lost most (largest remainders):
        # sums stay exact.
        counts = [0] * len(shares)
        for columns in members.values():
            wanted = (
                np.maximum(shares[columns], 0)
                * denominator
                / max(float(shares[columns].sum()), 1e-300)
            )
            low = np.floor(wanted + 1e-9).astype(np.int64)
            rest = denominator - int(low.sum())
            for j in np.argsort(low - wanted, kind="stable")[: max(rest, 0)]:
                low[j] += 1
            for j, k in zip(columns, low.tolist(), strict=True):
                counts[j] = k
        load = find_max_load(uses, counts, capacity) / denominator
        if best is None or load < best[0]:
            best = load, counts, denominator
        if load <= target * (1 + GOOD):
            best = load, counts, denominator
            break
    assert best is not None
    return [Fraction(k, best[2]) for k in best[1]]


def _suggest_denominators(shares: Floats) -> list[int]:
    """Return the common denominator of the fractions next to the shares, in a list; empty if it is
    too large.
    """
    common = lcm(*(Fraction(float(x)).limit_denominator(_SUGGESTED).denominator for x in shares))
    return [common] if common <= _FINE[-1] else []


def _find_max_float_load(
    shares: Floats, uses: Sequence[Mapping[int, int]], capacity: Sequence[Fraction]
) -> float:
    """Return the greatest load over capacity of any row, in floats."""
    load: dict[int, float] = defaultdict(float)
    for column, share in zip(uses, shares.tolist(), strict=True):
        for row, times in column.items():
            load[row] += times * share
    return max((total / float(capacity[row]) for row, total in load.items()), default=0.0)
