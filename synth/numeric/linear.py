"""Linear programmes by HiGHS (through SciPy), with their duals. Floats: callers round and check exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

Floats = NDArray[np.float64]


@dataclass
class Rows:
    """A sparse matrix and its right side, in the making: a row a constraint."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, terms: Iterable[tuple[int, float]], right: float) -> int:
        """Append the row sum of value * x[column] against `right`; return its number."""
        for column, value in terms:
            self.rows.append(len(self.right))
            self.columns.append(column)
            self.values.append(value)
        self.right.append(right)
        return len(self.right) - 1


@dataclass(frozen=True)
class Optimum:
    """`x`, the optimal `value`, and how much the value changes for each unit of a row's right side."""

    x: Floats
    value: float
    at_most_duals: Floats
    equal_duals: Floats


def minimise(objective: Floats, at_most: Rows, equal: Rows | None = None, time_limit_s: float = 60.0) -> Optimum | None:
    """min objective x with at_most x <= right, equal x = right, x >= 0; None where HiGHS finds no optimum in time."""
    width = len(objective)
    matrices = [
        (csr_matrix((r.values, (r.rows, r.columns)), shape=(len(r.right), width)), np.array(r.right))
        if r is not None and r.right
        else (None, None)
        for r in (at_most, equal)
    ]
    result = linprog(
        objective, *matrices[0], *matrices[1], bounds=(0, None), method="highs", options={"time_limit": time_limit_s}
    )
    if result.status != 0:
        return None
    return Optimum(np.maximum(result.x, 0.0), float(result.fun), result.ineqlin.marginals, result.eqlin.marginals)


def pack(columns: Sequence[Mapping[int, int]], capacity: Floats) -> tuple[Floats, Floats] | None:
    """Weights of columns that use row i `column[i]` times, and prices of the rows: max sum of weights, no row over its
    capacity. None where HiGHS finds no optimum in time.
    """
    users: list[list[tuple[int, float]]] = [[] for _ in capacity]
    for number, column in enumerate(columns):
        for i, times in column.items():
            users[i].append((number, float(times)))
    rows = Rows()
    for terms, most in zip(users, capacity, strict=True):
        rows.add(terms, float(most))
    optimum = minimise(-np.ones(len(columns)), rows)
    return None if optimum is None else (optimum.x, np.maximum(-optimum.at_most_duals, 0.0))
