"""Equal channels by whole numbers: a link that K channels of a given rate may cross so many times,
and no part of one more.

What K channels can reach at best follows from a linear program with these whole capacities; CP-SAT
then looks for channels, as counts of known orders, or, where there are few ranks and channels, as
so many circuits at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from ..effort import Effort
from ..forest.machine.links import Ints
from ..numeric.cp_sat import solve
from ..numeric.linear import Floats, Rows, minimise
from .channels import CHAIN, Order
from .orders import Orders, hops

# Tolerance of times and counts of crossings, in crossings: above their rounding errors.
_SLACK, _CLOSE = 1e-9, 1e-6
# Arcs of all channels together up to which circuits are sought: models grow with them.
_CIRCUIT_ARCS = 460
# Seconds of a quiet core for each model.
_WORK_S = 0.4


def list_times(units: Floats, shortest: float, longest: float) -> Floats:
    """Return the times, from `shortest` to below `longest`, at which links may be crossed once more
    than just before.

    `units` is how long one crossing keeps each link busy.
    """
    out = [shortest]
    for unit in np.unique(np.round(units, 12)).tolist():
        out += (
            np.arange(np.ceil(shortest / unit - _SLACK), np.ceil(longest / unit)) * unit
        ).tolist()
    times = np.unique(np.round(out, 12))
    return times[(times >= shortest * (1 - _SLACK)) & (times < longest * (1 - _CLOSE))]


def _count_crossings(loads: Floats, units: Floats, time: float) -> tuple[Ints, Ints]:
    """Return how often each order (a column) crosses each link (a row), links alike in that only
    once, and how often each link may be crossed.
    """
    crossings, kind = np.unique(
        np.rint(loads / units).astype(np.int64).T, axis=0, return_inverse=True
    )
    allowed = np.full(len(crossings), np.iinfo(np.int64).max)
    np.minimum.at(allowed, kind.reshape(-1), np.floor(time / units + _CLOSE).astype(np.int64))
    return crossings, allowed


def may_fit(loads: Floats, units: Floats, count: int, time: float, effort: Effort) -> bool:
    """Return whether fractions of the orders that add up to `count` keep within the links' whole
    capacities.
    """
    crossings, allowed = _count_crossings(loads, units, time)
    link, order = np.nonzero(crossings)
    entries = crossings[link, order].astype(float).tolist()
    rows = Rows(link.tolist(), order.tolist(), entries, allowed.tolist())
    optimum = minimise(-np.ones(len(loads)), rows, None, effort)
    return optimum is not None and -optimum.value >= count - _CLOSE


def count_orders(
    loads: Floats, units: Floats, count: int, time: float, effort: Effort
) -> Ints | None:
    """Return the numbers of `count` orders, some perhaps repeated, that keep no link busy for
    longer than `time`; None where none were found.
    """
    model = cp_model.CpModel()
    times = [model.new_int_var(0, count, "") for _ in loads]
    model.add(sum(times) == count)
    for crossing, most in zip(*_count_crossings(loads, units, time), strict=True):
        users = np.flatnonzero(crossing).tolist()
        model.add(
            cp_model.LinearExpr.weighted_sum([times[j] for j in users], crossing[users].tolist())
            <= int(most)
        )
    solver, status = solve(model, effort.grant(_WORK_S), "equal channels")
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return np.repeat(np.arange(len(loads)), [solver.value(x) for x in times])


def find_circuits(
    orders: Orders, shape: str, units: Floats, count: int, time: float, effort: Effort
) -> list[Order]:
    """Return `count` orders that keep no link busy for longer than `time`; none where none were
    found, or there are too many ranks and channels to look.
    """
    n, routes = orders.ranks, orders.routes
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v and routes.exists[u, v]]
    if shape == CHAIN:
        pairs = [(u, v) for u, v in pairs if routes.exists[v, u]]
    if len(pairs) * count > _CIRCUIT_ARCS:
        return []
    model = cp_model.CpModel()
    load: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    taken: list[dict[tuple[int, int], cp_model.IntVar]] = []
    for _ in range(count):
        hop = {pair: model.new_bool_var("") for pair in pairs}
        first = 1 if shape == CHAIN else 0  # a chain is a circuit through a node of its own
        arcs = [(u + first, v + first, arc) for (u, v), arc in hop.items()]
        for end in range(1, n + 1) if first else ():
            arcs += [(0, end, model.new_bool_var("")), (end, 0, model.new_bool_var(""))]
        model.add_circuit(arcs)
        for (u, v), arc in hop.items():
            for row in (
                (row for a, b in hops(CHAIN, (u, v)) for row in orders.rows(a, b))
                if first
                else orders.rows(u, v)
            ):
                load[row].append(arc)
        taken.append(hop)
    for row, crossing in load.items():
        model.add(sum(crossing) <= int(np.floor(time / units[row] + _CLOSE)))
    solver, status = solve(model, effort.grant(_WORK_S), "equal channels")
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    return [
        _follow({u: v for (u, v), arc in hop.items() if solver.boolean_value(arc)}, n)
        for hop in taken
    ]


def _follow(after: dict[int, int], ranks: int) -> Order:
    """Return the ranks in the order in which they follow each other: from the one that follows
    none, or rank 0.
    """
    start = next((rank for rank in range(ranks) if rank not in after.values()), 0)
    out = [start]
    while len(out) < ranks:
        out.append(after[out[-1]])
    return tuple(out)


def name_order(shape: str, order: Sequence[int]) -> Order:
    """Return a ring from rank 0, or a chain from the end that has the lower number."""
    if shape == CHAIN:
        return tuple(order if order[0] < order[-1] else order[::-1])
    start = order.index(0)
    return (*order[start:], *order[:start])
