"""The linear program that divides data among columns, such as trees and paths, in floats.

A row is a link, or a set of links that count together; a column uses rows.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

import numpy as np

from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.linear import Floats, Rows, minimise

# Relative gap between the time of a packing and its bound at which it counts as optimal, and by
# which a column must cost less than its part's dual: above the rounding errors of the duals.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Division:
    """The solution of `divide`, in floats.

    `shares` has one per column; they sum up to 1 in each group. `time` is that of the busiest row.
    `prices` are the costs of a unit of use of each row; a new column helps if it costs less than
    its group's entry in `duals`.
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


def find_best_shares(
    uses: Sequence[Mapping[int, int]],
    capacity: Sequence[Fraction],
    group: Sequence[int],
    depths: Sequence[int] = (),
) -> Floats:
    """Return the columns' shares that minimise the time of the busiest row, as floats.

    They are even shares in each group if HiGHS finds no optimum. Arguments are those of `divide`,
    with exact capacities.
    """
    solution = divide(uses, np.array([float(c) for c in capacity]), group, depths)
    size = Counter(group)
    return np.array([1.0 / size[g] for g in group]) if solution is None else solution.shares
