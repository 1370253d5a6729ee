"""Linear programs by HiGHS, with their duals, in floats.

HiGHS runs through SciPy, with its serial simplex. Callers round and check exactly. Column
generation solves a program with few of its variables (columns), and adds others while they help.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from .effort import Effort  # an allowance of work and time for searches

# Seconds of an idle core: to pass an entry of the matrix to HiGHS, and per entry in a simplex
# iteration.
_ENTRY_S, _ITERATION_ENTRY_S = 1e-6, 8e-9
# Weight of the best known prices relative to the duals, and the weight at which backing off ends.
SMOOTH, _MIN_SMOOTH = 0.5, 0.05
# SciPy's status if the iterations or the time ran out.
_STOPPED = 1
C = TypeVar("C")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Rows:
    """Constraints being collected: the rows of a sparse matrix, each with its right side."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, terms: Iterable[tuple[int, float]], right: float) -> int:
        """Append a row with its right side; return its number.

        The row is the sum of value * x[column] over the pairs (column, value) of `terms`.
        """
        for column, value in terms:
            self.rows.append(len(self.right))
            self.columns.append(column)
            self.values.append(value)
        self.right.append(right)
        return len(self.right) - 1

    def extend(self, rows: Ints, columns: Ints, values: Floats, right: Floats) -> None:
        """Append as many rows as `right` has items, their right sides.

        Entry k of the matrix is `values[k]` in row `rows[k]`, counted from the first new row, and
        column `columns[k]`.
        """
        self.rows.extend((rows + len(self.right)).tolist())
        self.columns.extend(columns.tolist())
        self.values.extend(values.tolist())
        self.right.extend(right.tolist())


@dataclass(frozen=True)
class Optimum:
    """The solution `x`, the optimal `value`, and the duals of a linear program.

    A dual is the change of the value per unit of a row's right side: `at_most_duals` are those of
    inequalities, `equal_duals` those of equations.
    """

    x: Floats
    value: float
    at_most_duals: Floats
    equal_duals: Floats


def minimise(
    objective: Floats,
    at_most: Rows,
    equal: Rows | None = None,
    effort: Effort | None = None,
    search: str | None = None,
) -> Optimum | None:
    """Minimise objective x subject to at_most x <= right, equal x = right, x >= 0.

    Return None if HiGHS finds no optimum. The work is counted in `effort`, and limited by it only
    if the `search` is named.
    """
    entries = len(at_most.values) + (len(equal.values) if equal is not None else 0)
    iteration_s = _ITERATION_ENTRY_S * max(1000, entries)
    options: dict[str, float] = {}
    if effort is not None and search is not None:
        options = {
            "maxiter": max(1, int(effort.left_s / iteration_s)),
            "time_limit": max(0.1, effort.clock_s),
        }
    matrices = [
        (
            csr_matrix((r.values, (r.rows, r.columns)), shape=(len(r.right), len(objective))),
            np.array(r.right),
        )
        if r is not None and r.right
        else (None, None)
        for r in (at_most, equal)
    ]
    result = linprog(
        objective, *matrices[0], *matrices[1], bounds=(0, None), method="highs", options=options
    )
    if effort is not None:
        effort.spend(_ENTRY_S * entries + iteration_s * result.nit)
        if search is not None and result.status == _STOPPED and result.nit < options["maxiter"]:
            effort.record_cut(search)
    if result.status != 0:
        return None
    return Optimum(
        np.maximum(result.x, 0.0),
        float(result.fun),
        result.ineqlin.marginals,
        result.eqlin.marginals,
    )


def pack(
    columns: Sequence[Mapping[int, int]], capacity: Floats, effort: Effort | None = None
) -> tuple[Floats, Floats] | None:
    """Maximise the sum of the columns' weights without exceeding any row's capacity.

    Return the weights and the rows' prices, which are the dual solution; None if HiGHS finds no
    optimum. A column uses row i `column[i]` times per unit of weight. The work is counted in
    `effort`.
    """
    users: list[list[tuple[int, float]]] = [[] for _ in capacity]
    for number, column in enumerate(columns):
        for i, times in column.items():
            users[i].append((number, float(times)))
    rows = Rows()
    for terms, most in zip(users, capacity, strict=True):
        rows.add(terms, float(most))
    optimum = minimise(-np.ones(len(columns)), rows, None, effort)
    return None if optimum is None else (optimum.x, np.maximum(-optimum.at_most_duals, 0.0))


class ColumnGeneration(Generic[C]):
    """A linear program whose columns are added only once their price shows that they improve it.

    Each turn prices columns between the program's duals and the prices of the best bound (Wentges
    1997): duals jump from one program to the next, smoothed prices settle sooner. If these give no
    column that improves the program, they move nearer to the duals; if the duals themselves give
    none either, the program is optimal.

    `columns` describes the program's columns. `prices` are those of the turn, `dual` those of the
    latest program, and `best` those that prove the best bound. `finished` means that no column is
    left to add, or that the columns are good enough.
    """

    # Whether prices are smoothed, and the work of pricing once, in seconds of an idle core.
    smooths = True
    pricing_s = 0.0

    def __init__(self, prices: Floats) -> None:
        self.columns: dict[Any, Any] = {}
        self.prices = self.dual = self.best = prices
        self.smoothing = 0.0
        self.finished = False

    def price_columns(self) -> list[C]:
        """Return columns that improve the program, if any; store the bound that `prices` prove.

        `generate` calls it in every turn, once `prices` are set. Subclasses implement it.
        """
        raise NotImplementedError

    def solve(self, fresh: Sequence[C], effort: Effort) -> bool:
        """Add the columns `fresh` and solve the program; return False if it has no optimum.

        `generate` calls it with what `price_columns` returned. Subclasses implement it, and set
        `dual`.
        """
        raise NotImplementedError

    def is_enough(self) -> bool:
        """Return whether the columns are known to be optimal, or as good as required."""
        return False

    def _describe(self) -> str:
        """Return a line of progress."""
        raise NotImplementedError

    def back_off(self) -> bool:
        """Move the next prices halfway to the duals; return False if they were the duals already.

        `generate` calls it when no column was found.
        """
        was_smooth = self.smoothing > 0.0
        self.smoothing = self.smoothing / 2 if self.smoothing > _MIN_SMOOTH else 0.0
        return was_smooth

    def generate(
        self, effort: Effort, search: str, say: Callable[[str], None] | None = None
    ) -> bool:
        """Generate columns until they are optimal or good enough, or the effort is spent.

        Return False if a linear program could not be solved. `search` names the search in
        `effort.cut_short`; `say` is called with a line of progress after each turn.
        """
        while not self.finished:
            self.prices = self.smoothing * self.best + (1 - self.smoothing) * self.dual
            fresh = self.price_columns()
            effort.spend(self.pricing_s)
            if self.is_enough() or not (fresh or self.back_off()):
                self.finished = True
            elif (self.columns or not fresh) and effort.is_over(search):
                break
            elif fresh:
                if not self.solve(fresh, effort):
                    return False
                self.smoothing = SMOOTH if self.smooths else 0.0
                if say is not None:
                    say(self._describe())
        return True
