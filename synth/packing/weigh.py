"""Shares of a set of trees that load no link more than they must, as small fractions.

A linear program that minimises the time of the busiest link gives floats. They are rounded to a
common denominator by largest remainders, and only the exact loads decide whether the result is good
enough.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import lcm
from typing import TypeVar

import numpy as np

from ...topo.graph import Topology
from ...topo.grouping import group_by_key
from ..cost.loads import DirectedLink, computes_in_network, stream_loads
from ..ir.collective import Chunk
from ..ir.transfers import Transfers
from ..machine.links import Ints, LinkRows
from ..numeric.effort import Effort
from ..numeric.linear import ColumnGeneration, Floats, Rows, minimise
from .trees import RootedTree, list_moves

C = TypeVar("C", bound=Hashable)
# Relative gap between the time of a packing and its bound at which it counts as optimal, and by
# which a column must cost less than its group's dual: above the rounding errors of the duals.
TOLERANCE = 1e-9
# Shares are rounded to the smallest denominator at which the busiest link's load exceeds that of
# the floats by at most this fraction.
GOOD = Fraction(1, 10**7)
# Denominators in the order of trial: small ones make schedules of few chunks, and those with many
# divisors suit links of different widths.
_DENOMINATORS = (
    *range(1, 65),
    *(72, 84, 90, 96, 120, 128, 144, 168, 180, 240, 256, 360, 420, 504, 512, 720, 840, 1000, 1024),
)
# Denominators that approximate any float, if the small ones do not.
_FINE = (5040, 10_000, 65_536, 10**6, 10**8, 10**10)
# Above this number of trees only fine denominators suffice, and each trial takes long.
_ROUNDED_TREES = 4096
# Largest denominator of a single share for which a common one of all shares is suggested.
_SUGGESTED = 1000


def count_uses(
    topology: Topology, trees: Sequence[RootedTree], images: Ints | None = None
) -> tuple[list[Counter[int]], list[Fraction]]:
    """Return how often each tree uses each row of links, and the rows' capacities in GB/s.

    A row is one link, and its number is the index of its capacity. With `images` (as in Forest),
    the links that symmetries map to each other form one row, and a tree's uses are spread evenly
    over it. Where switches add or copy, streams are counted instead of routes.
    """
    rows = LinkRows(topology, images)
    if not computes_in_network(topology):
        uses = [rows.count_rows((*tree.up, *tree.down)) for tree in trees]
        return uses, rows.exact_capacity()
    # A switch that adds sends on one sum of all messages that arrive in a step, so count streams,
    # not routes.
    ranks, uses = {gpu: r for r, gpu in enumerate(topology.ranks)}, []
    for tree in trees:
        step, src, dst, op, route = list_moves(tree, ranks, together=True)
        moves = Transfers(step, src, dst, np.zeros(len(step)), op, range(len(step)), route)
        out: Counter[int] = Counter()
        for now in sorted(set(step)):
            sent = moves.taken(np.array(step) == now)
            for link, share in stream_loads([Chunk(Fraction(1))], sent, topology).items():
                out[int(rows.row[rows.number[link]])] += int(share)
        uses.append(out)
    return uses, rows.exact_capacity()


def find_max_load(
    uses: Sequence[Mapping[int, int]], counts: Sequence[int], capacity: Sequence[Fraction]
) -> Fraction:
    """Return the greatest load over capacity of any row, exactly.

    Tree (or path) j uses row i `uses[j][i]` times and is counted `counts[j]` times.
    """
    load: dict[int, int] = defaultdict(int)
    for column, count in zip(uses, counts, strict=True):
        if count:
            for row, times in column.items():
                load[row] += times * count
    # Comparing integers first leaves one division of fractions per distinct capacity.
    highest: dict[tuple[int, int], int] = {}
    for row, total in load.items():
        ratio = capacity[row].as_integer_ratio()
        highest[ratio] = max(total, highest.get(ratio, 0))
    return max(
        (Fraction(total * below, above) for (above, below), total in highest.items()),
        default=Fraction(0),
    )


def find_share_load(
    uses: Sequence[Mapping[int, int]], shares: Sequence[Fraction], capacity: Sequence[Fraction]
) -> Fraction:
    """Return the greatest load over capacity of any row, exactly, if tree j carries `shares[j]`.

    Tree (or path) j uses row i `uses[j][i]` times.
    """
    # Integers over a common denominator are exact, and faster than fractions.
    whole = lcm(*(share.denominator for share in shares))
    return find_max_load(uses, [int(share * whole) for share in shares], capacity) / whole


@dataclass(frozen=True)
class Division:
    """The solution of `divide`, in floats.

    `shares` sum up to 1 in each group, and `time` is that of the busiest row. `prices` are the
    costs of a unit of use of each row; a new column helps if it costs less than its group's entry
    in `duals`.
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
    """Return the shares of each group's columns that minimise the time of the busiest row.

    Column j uses row i `uses[j][i]` times, belongs to `group[j]`, and has the depth `depths[j]`;
    among equally good shares, those of least depth are chosen. The program is: min t, such that
    shares sum up to 1 in each group and no row carries more than t times its capacity. None if
    HiGHS finds no optimum. The work is counted in `effort`.
    """
    sizes = [len(column) for column in uses]
    columns = np.repeat(np.arange(len(uses)), sizes)
    rows = np.fromiter(chain.from_iterable(uses), dtype=np.int64, count=len(columns))
    times = np.fromiter(
        chain.from_iterable(c.values() for c in uses), dtype=np.float64, count=len(columns)
    )
    # Groups are numbered in the order in which they first occur.
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


class SharePacking(LinkRows, ColumnGeneration[C]):
    """Column generation that divides each group's part among columns (trees or paths).

    It minimises the time of the busiest link. A subclass prices columns and assigns each column to
    a group. With `images`, permutations of the devices, each column represents all its images.

    `shares` are those of `columns`, as floats relative to the part of the column's group. Times are
    in units of one part over 1 GB/s: `value` is the lower bound that the prices `best` prove,
    `reached` the time that the shares take. Columns are fast enough once their time is at most
    `enough`.
    """

    smooths = False

    def __init__(self, topology: Topology, images: Ints | None) -> None:
        LinkRows.__init__(self, topology, images)
        # Before any column has a share, wide links are cheap.
        ColumnGeneration.__init__(self, 1 / self.row_capacity)
        self.images = images
        self.shares: Floats = np.zeros(0)
        self.value, self.reached, self.enough = 0.0, np.inf, 0.0
        self.duals: Mapping[Hashable, float] = {}

    def group_of(self, column: C) -> Hashable:
        """Return the group whose part a column carries, a key of `duals`.

        Subclasses implement it.
        """
        raise NotImplementedError

    def count_uses(self, column: C) -> Counter[int]:
        """Return how often a column and all its images together use each row, by row number.

        Subclasses implement it.
        """
        raise NotImplementedError

    def cost_of(self, column: C) -> float:
        """Return the price of a column with all its images."""
        uses = self.count_uses(column).items()
        return sum(float(self.prices[row]) * times for row, times in uses)

    def raise_bound(self, value: float) -> None:
        """Store `value`, a lower bound on time that `prices` prove, if it is the best so far."""
        if value > self.value:
            self.value, self.best = value, self.prices

    @property
    def link_prices(self) -> dict[DirectedLink, float]:
        """The prices of directed links that prove the bound; none before there is a bound."""
        prices = self.best[self.row].tolist()
        return dict(zip(self.links, prices, strict=True)) if self.value else {}

    def solve(self, fresh: Sequence[C], effort: Effort) -> bool:
        """Add columns and divide each group's part; return False if the program has no optimum."""
        self.columns.update((column, self.count_uses(column)) for column in fresh)
        groups = [self.group_of(column) for column in self.columns]
        solved = divide(list(self.columns.values()), self.row_capacity, groups, effort=effort)
        if solved is not None:
            self.shares, self.reached = solved.shares, solved.time
            self.dual, self.duals = solved.prices, solved.duals
            self.finished = self.reached <= max(self.value, self.enough) * (1 + TOLERANCE)
        return solved is not None

    def round(self) -> list[Fraction]:
        """Return the shares of the columns as exact fractions; see `round_shares`."""
        groups, uses = map(self.group_of, self.columns), list(self.columns.values())
        return round_shares(self.shares, uses, self.exact_capacity(), list(groups))

    def _describe(self) -> str:
        return f"packing: {len(self.columns)} columns, {1 / self.reached:.4g} GB/s a part"


def find_best_shares(
    uses: Sequence[Mapping[int, int]],
    capacity: Sequence[Fraction],
    group: Sequence[int],
    depths: Sequence[int] = (),
) -> Floats:
    """Return the shares of `divide`, or even shares in each group if HiGHS finds no optimum.

    Arguments are those of `divide`, with exact capacities.
    """
    solution = divide(uses, np.array([float(c) for c in capacity]), group, depths)
    size = Counter(group)
    return np.array([1.0 / size[g] for g in group]) if solution is None else solution.shares


def round_shares(
    shares: Floats,
    uses: Sequence[Mapping[int, int]],
    capacity: Sequence[Fraction],
    group: Sequence[Hashable],
    good: Fraction = GOOD,
) -> list[Fraction]:
    """Return fractions near the floats `shares`, with a sum of exactly 1 in each group.

    The other arguments are those of `divide`. The fractions have a common denominator, the first of
    those tried at which the busiest row's load exceeds that of the floats by at most the fraction
    `good`, or else the best one tried.
    """
    busiest: dict[int, float] = defaultdict(float)
    for column, x in zip(uses, shares.tolist(), strict=True):
        for row, times in column.items():
            busiest[row] += times * x
    reached = max((total / float(capacity[row]) for row, total in busiest.items()), default=0.0)
    target = Fraction(max(reached, 1e-300)) * (1 + good)
    members = group_by_key((g, j) for j, g in enumerate(group))
    tries: Iterable[int] = _FINE
    if len(shares) <= _ROUNDED_TREES:
        near = (Fraction(float(x)).limit_denominator(_SUGGESTED).denominator for x in shares)
        common = lcm(*near)
        tries = (*_DENOMINATORS, *([common] if common <= _FINE[-1] else []), *_FINE)
    best: tuple[Fraction, list[int], int] | None = None
    for denominator in tries:
        # Round down, then give the remainder to the shares that lost most (largest remainders):
        # sums stay exact.
        counts = [0] * len(shares)
        for columns in members.values():
            total = max(float(shares[columns].sum()), 1e-300)
            wanted = np.maximum(shares[columns], 0) * denominator / total
            low = np.floor(wanted + 1e-9).astype(np.int64)
            rest = denominator - int(low.sum())
            low[np.argsort(low - wanted, kind="stable")[: max(rest, 0)]] += 1
            for j, k in zip(columns, low.tolist(), strict=True):
                counts[j] = k
        load = find_max_load(uses, counts, capacity) / denominator
        if best is None or load < best[0] or load <= target:
            best = load, counts, denominator
        if load <= target:
            break
    assert best is not None
    return [Fraction(k, best[2]) for k in best[1]]
