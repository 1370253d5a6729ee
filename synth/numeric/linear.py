"""Linear programmes by HiGHS (through SciPy), with their duals, in floats: callers round and check exactly."""

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
    """Constraints as they are collected: the rows of a sparse matrix, each with its right side."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, terms: Iterable[tuple[int, float]], right: float) -> int:
        """Append a row, the sum of value * x[column] over (column, value), with its right side; return its number."""
        for column, value in terms:
            self.rows.append(len(self.right))
            self.columns.append(column)
            self.values.append(value)
        self.right.append(right)
        return len(self.right) - 1


@dataclass(frozen=True)
class Optimum:
    """`x`, the optimal `value`, and the duals: how much the value changes for each unit of a row's right side."""

    x: Floats
    value: float
    at_most_duals: Floats
    equal_duals: Floats


def minimise(objective: Floats, at_most: Rows, equal: Rows | None = None, time_limit_s: float = 60.0) -> Optimum | None:
    """Minimise objective x subject to at_most x <= right, equal x = right, x >= 0; None where no optimum is found in time."""
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
    """Maximise the sum of the columns' weights, no row being used beyond its capacity; return weights and the rows' prices.

    A column uses row i `column[i]` times. The prices are the dual solution. None where HiGHS finds no optimum in time.
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
