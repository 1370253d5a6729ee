"""The best order of few ranks, proved: all of them one after the other, or by CP-SAT."""

from __future__ import annotations

from itertools import permutations
from math import ceil, factorial

import numpy as np
from ortools.sat.python import cp_model

from ..effort import Effort
from ..numeric.cp_sat import solve
from .job import Ints
from .loads import TIME
from .patterns import AROUND, SPREAD
from .search import Search

# Ranks up to which all orders are looked at.
MOST_LISTED = 8
# Ranks up to which CP-SAT is asked for a proof.
MOST_PROVED = 16
_AT_ONCE = 20_000
_SEARCH = "placement of ranks"
# Values are below this: CP-SAT says its bounds as floats.
_TOP = 1 << 50
_ROUNDING = 1e-12


def list_all(search: Search) -> None:
    """Look at all orders of few ranks; where the job can be turned, at those that have rank 0 on
    the first GPU.
    """
    n = search.job.ranks
    first = [0] if search.is_turnable and n > 1 else []
    rest = [gpu for gpu in range(n) if gpu not in first]
    rows = np.array([[*first, *order] for order in permutations(rest)], dtype=np.int64).reshape(
        factorial(len(rest)), n
    )
    for i in range(0, len(rows), _AT_ONCE):
        search.offer(rows[i : i + _AT_ONCE])


class ProofModel:
    """A placement as a CP-SAT model: is there an order better than the best that is known?"""

    def __init__(self, search: Search) -> None:
        self.search, self.model = search, cp_model.CpModel()
        self.ranks = search.job.ranks
        self.pairs = [(g, h) for g in range(self.ranks) for h in range(self.ranks) if g != h]
        self.on: dict[tuple[int, int], cp_model.IntVar] = {}
        self.is_ring = (
            len(search.loads.phases) > 0
            and len([size for _, size in search.job.dimensions if size > 1]) == 1
            and all(phase.pattern.shape == AROUND for phase in search.loads.phases)
            and len({phase.pattern.sends for phase in search.loads.phases}) == 1
            and not search.together
        )
        hops: dict[tuple[bytes, bytes], dict[tuple[int, int], cp_model.IntVar]] = {}
        self.of_phase = []
        if not self.is_ring:
            self._put_ranks()
        for phase in search.loads.phases:
            key = phase.src.tobytes(), phase.dst.tobytes()
            if key not in hops:
                hops[key] = (
                    self._add_ring() if self.is_ring else self._add_messages(phase.src, phase.dst)
                )
            self.of_phase.append(hops[key])
        self.is_exact = self._add_objective()

    def _put_ranks(self) -> None:
        """Give every rank one GPU, and no GPU to two ranks."""
        n, model = self.ranks, self.model
        self.on = {(r, g): model.new_bool_var("") for r in range(n) for g in range(n)}
        for i in range(n):
            model.add_exactly_one(self.on[i, g] for g in range(n))
            model.add_exactly_one(self.on[r, i] for r in range(n))
        if self.search.is_turnable:
            model.add(self.on[0, 0] == 1)
        hosts = self.search.host_of.tolist()
        for groups in self.search.together:
            for group in groups.tolist():
                for host in set(hosts):
                    inside = [
                        sum(self.on[r, g] for g in range(n) if hosts[g] == host) for r in group
                    ]
                    for count in inside[1:]:
                        model.add(count == inside[0])

    def _add_ring(self) -> dict[tuple[int, int], cp_model.IntVar]:
        """Return variables for the hops of one circuit through all GPUs."""
        arcs = {pair: self.model.new_bool_var("") for pair in self.pairs}
        self.model.add_circuit([(g, h, arc) for (g, h), arc in arcs.items()])
        return arcs

    def _add_messages(self, src: Ints, dst: Ints) -> dict[tuple[int, int], cp_model.IntVar]:
        """Return variables that say from which GPU to which messages go, one rank's to another's
        wherever the two are.
        """
        n, model = self.ranks, self.model
        arcs = {pair: model.new_bool_var("") for pair in self.pairs}
        for u, v in zip(src.tolist(), dst.tolist(), strict=True):
            for g, h in self.pairs:
                model.add_bool_or(self.on[u, g].negated(), self.on[v, h].negated(), arcs[g, h])
        sent, got = np.bincount(src, minlength=n).tolist(), np.bincount(dst, minlength=n).tolist()
        for i in range(n):
            model.add(
                sum(arcs[i, h] for h in range(n) if h != i)
                == sum(sent[r] * self.on[r, i] for r in range(n))
            )
            model.add(
                sum(arcs[g, i] for g in range(n) if g != i)
                == sum(got[r] * self.on[r, i] for r in range(n))
            )
        return arcs

    def _add_objective(self) -> bool:
        """Ask for less than the best value; return whether the model's arithmetic is exact."""
        loads, model = self.search.loads, self.model
        best = self.search.best[1]
        if best >= _TOP:
            return False
        users: dict[int, list[tuple[int, int]]] = {}
        for g, h in self.pairs:
            for link in loads.crossed[g, h].tolist():
                if link < len(loads.links):
                    users.setdefault(link, []).append((g, h))
        # of links that the same routes cross only the slowest counts
        heaviest: dict[tuple[tuple[int, int], ...], int] = {}
        for link, crossing in users.items():
            key = tuple(crossing)
            heaviest[key] = max(heaviest.get(key, 0), loads.weights[link])
        total: cp_model.LinearExprT = 0
        for size, arcs in zip(loads.sizes, self.of_phase, strict=True):
            if loads.objective != TIME:
                break
            most = (best - 1) // size
            busiest = model.new_int_var(0, most, "")
            for shared, weight in heaviest.items():
                count = sum(arcs[pair] for pair in shared)
                model.add(count <= most // weight)
                model.add(weight * count <= busiest)
            total += size * busiest
        if loads.objective == TIME:
            model.add(total <= best - 1)
            model.minimize(total)
            return True
        most_busy = model.new_int_var(0, best - 1, "")
        for shared, weight in heaviest.items():
            model.add(
                sum(
                    size * weight * sum(arcs[pair] for pair in shared)
                    for size, arcs in zip(loads.sizes, self.of_phase, strict=True)
                )
                <= most_busy
            )
        model.minimize(most_busy)
        return True

    def read_order(self, solver: cp_model.CpSolver) -> Ints:
        """Return the order that was found."""
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
    """Look by CP-SAT for orders better than the best known, and return a value below which there is
    provably none.
    """
    if search.best[0] or any(phase.pattern.shape == SPREAD for phase in search.loads.phases):
        return 0
    model = ProofModel(search)
    if not model.is_exact:
        return 0
    solver, status = solve(model.model, effort, _SEARCH, varied=True)
    if status == cp_model.INFEASIBLE:
        return search.best[1]
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        search.offer(model.read_order(solver)[None, :])
    if status == cp_model.OPTIMAL:
        return search.best[1]
    return max(
        0, min(search.best[1], ceil(solver.best_objective_bound - _ROUNDING * search.best[1]))
    )
