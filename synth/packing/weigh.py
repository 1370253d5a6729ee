"""Shares of a set of trees that load no link more than they must, as small fractions.

A linear program that minimises the time of the busiest link gives floats. They are rounded to a
common denominator by largest remainders, and only the exact loads decide whether the result is good
enough.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from ...topo.graph import Topology
from ...topo.grouping import group_by_key
from ..cost.loads import computes_in_network, stream_loads
from ..ir.collective import Chunk
from ..ir.transfers import Transfers
from ..machine.links import Ints, LinkRows
from ..numeric.linear import Floats
from .trees import RootedTree, list_moves

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
    over it. Where switches add or copy, messages that go over a link as one stream
    (cost/loads.py) count once there.
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


def round_shares(
    shares: Floats,
    uses: Sequence[Mapping[int, int]],
    capacity: Sequence[Fraction],
    group: Sequence[Hashable],
    good: Fraction = GOOD,
) -> list[Fraction]:
    """Return fractions near the floats `shares`, with a sum of exactly 1 in each group.

    Column j, a tree or path, uses row i `uses[j][i]` times and belongs to `group[j]`; `capacity` is
    that of rows.
    The fractions have a common denominator, the first of those tried at which the busiest row's
    load exceeds that of the floats by at most the fraction `good`, or else the best one tried.
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
