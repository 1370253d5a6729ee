"""Find the best order of few ranks with proof: by trying all orders, or by the solver CP-SAT.

An order is the GPU of each rank. A Search evaluates orders and keeps the best one that it is
offered; its value is the order's time, as an integer.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations
from math import ceil

import numpy as np
from ortools.sat.python import cp_model

from ...numeric.cp_sat import solve
from ...numeric.effort import Effort
from .job import AROUND, SPREAD, UNEVEN, Ints, Phase
from .loads import TIME, Search

# Most ranks for trying all orders: 40,320 orders.
MAX_LISTED = 8
# Most ranks for a proof by CP-SAT: clauses grow with messages times pairs of GPUs.
MAX_PROVED = 16
# Orders to evaluate at once, which bounds memory.
_BATCH = 20_000
# Upper bound on values of the model: CP-SAT returns bounds as floats, of 53 bits.
_MAX_VALUE = 1 << 50
# Largest relative rounding error of such a bound.
_ROUNDING = 1e-12

# A variable for each pair of GPUs: whether the first sends to the second.
_Arcs = dict[tuple[int, int], cp_model.IntVar]


def list_all(search: Search) -> None:
    """Offer the search every order of its ranks, which must be few.

    For symmetric jobs, offer those with rank 0 on the first GPU only.
    """
    for orders in list_orders(search):
        search.offer(orders)


def list_orders(search: Search) -> Iterator[Ints]:
    """Yield all orders of a search's ranks in arrays whose rows have the GPU of each rank.

    In symmetric jobs, which look the same from every rank, only those with rank 0 on GPU 0.
    """
    n = search.job.ranks
    first = [0] if search.is_symmetric and n > 1 else []
    rows = np.array([[*first, *order] for order in permutations(range(len(first), n))])
    for i in range(0, len(rows), _BATCH):
        yield rows[i : i + _BATCH]


class ProofModel:
    """A CP-SAT model whose solutions are the orders with a lower value than the search's best one.

    If it has no solution, the best order is proved optimal. It has no terms for traffic of plans or
    of a matrix.
    """

    def __init__(self, search: Search) -> None:
        self.search, self.model = search, cp_model.CpModel()
        self.ranks = search.job.ranks
        self.pairs = [(g, h) for g in range(self.ranks) for h in range(self.ranks) if g != h]
        self.on: dict[tuple[int, int], cp_model.IntVar] = {}
        patterns = [phase.pattern for phase in search.loads.phases]
        # A single ring needs no ranks: it is a circuit through all GPUs.
        self.is_ring = (
            search.job.is_one_group
            and {pattern.shape for pattern in patterns} == {AROUND}
            and len({pattern.sends for pattern in patterns}) == 1
            and not search.together
        )
        if not self.is_ring:
            self._add_ranks()
        arcs: dict[tuple[bytes, bytes], _Arcs] = {}
        self.of_phase = []
        for phase in search.loads.phases:
            key = phase.src.tobytes(), phase.dst.tobytes()
            if key not in arcs:
                arcs[key] = self._add_arcs(phase.src, phase.dst)
            self.of_phase.append(arcs[key])
        self._add_objective()

    def _add_ranks(self) -> None:
        """Require that every rank has one GPU, and that no two ranks share one."""
        n, model = self.ranks, self.model
        self.on = {(r, g): model.new_bool_var("") for r in range(n) for g in range(n)}
        for i in range(n):
            model.add_exactly_one(self.on[i, g] for g in range(n))
            model.add_exactly_one(self.on[r, i] for r in range(n))
        if self.search.is_symmetric:
            model.add(self.on[0, 0] == 1)
        for groups, part_of in self.search.together:
            hosts = part_of.tolist()
            for group in groups.tolist():
                for host in set(hosts):
                    inside = [
                        sum(self.on[r, g] for g in range(n) if hosts[g] == host) for r in group
                    ]
                    for count in inside[1:]:
                        model.add(count == inside[0])

    def _add_arcs(self, src: Ints, dst: Ints) -> _Arcs:
        """Return the arcs of the messages between ranks, for any order of the ranks."""
        n, model = self.ranks, self.model
        arcs = {pair: model.new_bool_var("") for pair in self.pairs}
        if self.is_ring:
            model.add_circuit([(g, h, arc) for (g, h), arc in arcs.items()])
            return arcs
        for u, v in zip(src.tolist(), dst.tolist(), strict=True):
            for g, h in self.pairs:
                model.add_bool_or(self.on[u, g].negated(), self.on[v, h].negated(), arcs[g, h])
        # The number of arcs out of (into) a GPU is that of the messages that its rank sends
        # (receives).
        for i in range(n):
            for ends, end in ((src, 0), (dst, 1)):
                count = np.bincount(ends, minlength=n).tolist()
                model.add(
                    sum(arc for pair, arc in arcs.items() if pair[end] == i)
                    == sum(count[r] * self.on[r, i] for r in range(n))
                )
        return arcs

    def _add_objective(self) -> None:
        loads, model, best = self.search.loads, self.model, self.search.best[1]
        users: dict[int, tuple[tuple[int, int], ...]] = defaultdict(tuple)
        for pair in self.pairs:
            for link in loads.crossed[pair].tolist():
                if link < len(loads.links):
                    users[link] += (pair,)
        # If several links are on the same routes, only the slowest counts.
        heaviest: dict[tuple[tuple[int, int], ...], int] = defaultdict(int)
        for link, crossing in users.items():
            heaviest[crossing] = max(heaviest[crossing], loads.weights[link])
        phases = list(zip(loads.sizes, self.of_phase, strict=True))
        if loads.objective == TIME:
            total: cp_model.LinearExprT = sum(loads.call_prices)
            for size, arcs in phases:
                most = (best - 1) // size
                busiest = model.new_int_var(0, most, "")
                for shared, weight in heaviest.items():
                    count = sum(arcs[pair] for pair in shared)
                    model.add(count <= most // weight)
                    model.add(weight * count <= busiest)
                total += size * busiest
            for phase, price, arcs in zip(
                loads.phases, loads.latency_prices, self.of_phase, strict=True
            ):
                if price:
                    total += price * self._add_latency(phase, arcs)
            model.add(total <= best - 1)
        else:
            total = model.new_int_var(0, best - 1, "")
            for shared, weight in heaviest.items():
                model.add(
                    sum(size * weight * sum(arcs[pair] for pair in shared) for size, arcs in phases)
                    <= total
                )
        model.minimize(total)

    def _add_latency(self, phase: Phase, arcs: _Arcs) -> cp_model.LinearExprT:
        """Return the latency of one round of a phase, as measure_latencies does."""
        latencies, model = self.search.loads.latencies, self.model
        if latencies is None:
            return 0
        if self.is_ring:
            return sum(int(latencies.routes[pair]) * arc for pair, arc in arcs.items())
        least = int(latencies.routes[~np.eye(self.ranks, dtype=bool)].min())
        slowest = int(latencies.routes.max())
        around = phase.pattern.shape == AROUND
        each = []
        for u, v in zip(phase.src.tolist(), phase.dst.tolist(), strict=True):
            route = model.new_int_var(least, slowest, "")
            for g, h in self.pairs:
                if latencies.routes[g, h] > least:
                    model.add(route >= int(latencies.routes[g, h])).only_enforce_if(
                        self.on[u, g], self.on[v, h]
                    )
            each.append(route)
        size = len(phase.pattern.sends) if around else 1
        latency = model.new_int_var(0, slowest * size, "")
        for i in range(0, len(each), size):
            model.add(latency >= sum(each[i : i + size]))
        return latency

    def read_order(self, solver: cp_model.CpSolver) -> Ints:
        """Return the GPU of each rank in the solution that the solver found."""
        n = self.ranks
        if not self.is_ring:
            where = {r: g for (r, g), var in self.on.items() if solver.boolean_value(var)}
            return np.array([where[r] for r in range(n)], dtype=np.int64)
        after = {g: h for (g, h), arc in self.of_phase[0].items() if solver.boolean_value(arc)}
        follows = dict(self.search.loads.phases[0].pattern.sends)
        order, rank, gpu = np.zeros(n, dtype=np.int64), 0, 0
        for _ in range(n):
            order[rank] = gpu
            rank, gpu = follows[rank], after[gpu]
        return order


def prove_best(search: Search, effort: Effort) -> int:
    """Search by CP-SAT for an order better than the best known one, and offer it if found.

    Return a proven lower bound on the values of all orders, in units of `search.loads.seconds_each`
    seconds; 0 if nothing is proved, as for plans, for traffic given as a matrix, and if the best
    known order does not keep together the groups that must be. `effort` limits the search.
    """
    if (
        search.best[0]
        or search.best[1] >= _MAX_VALUE
        or any(phase.pattern.shape in (SPREAD, UNEVEN) for phase in search.loads.phases)
    ):
        return 0
    model = ProofModel(search)
    solver, status = solve(model.model, effort, "placement of ranks", varied=True)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        search.offer(model.read_order(solver)[None, :])
    if status in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
        return search.best[1]
    return max(
        0, min(search.best[1], ceil(solver.best_objective_bound - _ROUNDING * search.best[1]))
    )
