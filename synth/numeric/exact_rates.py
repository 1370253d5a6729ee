"""Round the floats of a linear program to exact rates.

The rates overload nothing and have a small common denominator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor, lcm

from ortools.sat.python import cp_model

from ...topo.errors import InfeasibleError
from ...topo.exact import fraction_gcd
from .cp_sat import solve
from .effort import Effort
from .linear import Floats

# Largest denominator of a rate in units of the least capacity, and of all rates together.
_SMALL_DENOMINATORS, _FINE = 1000, 1 << 40
# Integer rates are multiples of the capacities' common unit, divided by one of these.
_PARTS = (1, 2, 3, 4)
# With more units on a link, CP-SAT has too many counts to choose from.
_MAX_UNITS = 64
# Seconds of an idle core for each unit.
_WHOLE_WORK_S = 0.5


def exact_rates(
    weights: Floats, uses: Sequence[Mapping[int, int]], capacity: Sequence[Fraction], effort: Effort
) -> list[Fraction]:
    """Return exact rates near `weights` that overload no row.

    Column j uses row i `uses[j][i]` times, and row i can carry `capacity[i]`. Integer multiples of
    a coarse unit are tried first (few columns, even shares), by CP-SAT. If that fails: a basic
    solution is a vector of fractions with a common denominator, and if that is small the rates are
    these fractions exactly. Otherwise rates are rounded down to multiples of the least capacity /
    2^40.
    """
    unit = min(capacity)
    whole = _whole_rates(float(sum(weights)), uses, capacity, effort)
    if whole is not None:
        return whole
    scaled = [float(w) / float(unit) for w in weights]
    near = [Fraction(w).limit_denominator(_SMALL_DENOMINATORS) for w in scaled]
    if lcm(*(f.denominator for f in near)) <= _FINE:
        rates = [f * unit for f in near]
        if _fits(rates, uses, capacity):
            return rates
    # The floats may be slightly infeasible: HiGHS' own tolerance is 1e-7.
    for slack in (0.0, 1e-9, 1e-8, 1e-7, 1e-6):
        rates = [Fraction(floor(w * (1 - slack) * _FINE), _FINE) * unit for w in scaled]
        if _fits(rates, uses, capacity):
            return rates
    raise InfeasibleError(
        "the linear program's weights overload a link by more than rounding explains"
    )


def _whole_rates(
    total: float, uses: Sequence[Mapping[int, int]], capacity: Sequence[Fraction], effort: Effort
) -> list[Fraction] | None:
    """Return rates that sum up to `total` and are multiples of one coarse unit.

    The unit is the capacities' common unit, or a half, third or quarter of it. The rates with the
    fewest columns are preferred. None if there are none, or they are not found in time.
    """
    unit = fraction_gcd(list(set(capacity)))
    for parts in _PARTS:
        step = unit / parts
        wanted = round(total / float(step))
        if max(capacity) / step > _MAX_UNITS or abs(wanted * float(step) - total) > 1e-6 * total:
            continue
        model = cp_model.CpModel()
        count = [model.new_int_var(0, wanted, "") for _ in uses]
        used = [model.new_bool_var("") for _ in uses]
        load: list[list[cp_model.LinearExprT]] = [[] for _ in capacity]
        for k, on, column in zip(count, used, uses, strict=True):
            model.add(k <= wanted * on)
            for i, times in column.items():
                load[i].append(times * k)
        for i, terms in enumerate(load):
            model.add(sum(terms) <= int(capacity[i] / step))
        model.add(sum(count) == wanted)
        model.minimize(sum(used))
        solver, status = solve(model, effort.grant(_WHOLE_WORK_S), "whole rates")
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return [solver.value(k) * step for k in count]
    return None


def _fits(
    rates: Sequence[Fraction], uses: Sequence[Mapping[int, int]], capacity: Sequence[Fraction]
) -> bool:
    left = list(capacity)
    for rate, column in zip(rates, uses, strict=True):
        if rate:
            for i, count in column.items():
                left[i] -= rate * count
    return min(left) >= 0
