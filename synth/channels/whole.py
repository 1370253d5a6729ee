"""Equal channels under integer limits: how often K channels of a given rate may cross each link.

A linear program with these integer capacities bounds the rate that K channels can reach. CP-SAT
then looks for the channels, as counts of known orders or, for few ranks and channels, as K circuits
at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from ..forest.machine.links import Ints
from ..numeric.cp_sat import solve
from ..numeric.effort import Effort
from ..numeric.linear import Floats, Rows, minimise
from .channels import CHAIN, Order
from .orders import Orders, hops

# Tolerance of times and counts of crossings, in crossings: above their rounding errors.
_SLACK, _CLOSE = 1e-9, 1e-6
# Maximum number of arcs of all channels together in a search for circuits: models grow with them.
_CIRCUIT_ARCS = 460
# Seconds of an idle core per model.
_WORK_S = 0.4


def list_times(units: Floats, shortest: float, longest: float) -> Floats:
    """Return the times at which some link may be crossed once more than just before.

    They range from `shortest` (included) to `longest` (excluded). `units` is how long one crossing
    keeps each link busy, in the same unit of time.
    """
    out = [shortest]
    for unit in np.unique(np.round(units, 12)).tolist():
        out += (
            np.arange(np.ceil(shortest / unit - _SLACK), np.ceil(longest / unit)) * unit
        ).tolist()
    times = np.unique(np.round(out, 12))
    return times[(times >= shortest * (1 - _SLACK)) & (times < longest * (1 - _CLOSE))]


def _count_crossings(loads: Floats, units: Floats, time: float) -> tuple[Ints, Ints]:
    """Return the crossings of each link by each order, and the crossings allowed per link.

    Rows are links and columns are orders. Links with identical crossings share one row.
    """
    crossings, kind = np.unique(
        np.rint(loads / units).astype(np.int64).T, axis=0, return_inverse=True
    )
    allowed = np.full(len(crossings), np.iinfo(np.int64).max)
    np.minimum.at(allowed, kind.reshape(-1), np.floor(time / units + _CLOSE).astype(np.int64))
    return crossings, allowed


def may_fit(loads: Floats, units: Floats, count: int, time: float, effort: Effort) -> bool:
    """Return whether fractions of the orders that add up to `count` keep within integer limits.

    The limits are the numbers of crossings that each link allows within `time`.
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
    """Return the indices of `count` orders that keep no link busy for longer than `time`.

    An order may be repeated. None if no such orders were found.
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
    """Return `count` orders that keep no link busy for longer than `time`.

    The result is empty if none were found, or if there are too many ranks and channels to search.
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
    """Return the ranks in the order in which they follow each other.

    Start at the rank that follows none or, in a ring, at rank 0.
    """
    start = next((rank for rank in range(ranks) if rank not in after.values()), 0)
    out = [start]
    while len(out) < ranks:
        out.append(after[out[-1]])
    return tuple(out)


def name_order(shape: str, order: Sequence[int]) -> Order:
    """Return an order in its canonical form.

    Rings begin at rank 0, chains at the end with the lower number.
    """
    if shape == CHAIN:
        return tuple(order if order[0] < order[-1] else order[::-1])
    start = order.index(0)
    return (*order[start:], *order[:start])
