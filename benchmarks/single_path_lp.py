"""The single-path bound as one linear program: the judge of benchmarks/random_machines.py.

It shares no code with synth/. It takes a topology and the hardware's route of each ordered pair of
GPUs (topo/routes.py, which defines them), and finds the least time per GB of schedules in which
GPUs relay, add and copy, and each message loads the links of its pair's route.

- Alltoall, scatter, gather: flows from each source over pairs of GPUs.
- Broadcast, allgather: out-trees. Edmonds' disjoint branchings (1973): pairs of GPUs with
  capacities b hold out-trees with root shares x if and only if for each GPU v there is a flow
  within b that brings v everything, of which each root u injects at most x_u. One b serves all
  roots; a flow per GPU.
- Reduce, reduce-scatter: the same, with all pairs reversed.
- Allreduce: in-trees and out-trees with the same free root shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from topoplan.topo.graph import Topology
from topoplan.topo.routes import Router

Edge = tuple[int, int]
Terms = list[tuple[int, float]]
# HiGHS's own tolerance is 1e-7, too near the 1e-6 to which bounds are compared. Where links differ
# by a million, it may find no optimum, or no solution, to 1e-9. Its simplex takes minutes for 22
# GPUs at three NVSwitches, the interior point 4 s.
_ATTEMPTS = (("highs-ipm", 1e-9), ("highs-ds", 1e-9), ("highs-ds", 1e-7))
_INFEASIBLE = 2


def find_least_s_per_GB(name: str, topology: Topology, root: int | None) -> float | None:
    """Return the optimum of a collective's linear program, or None if some GPU is out of reach."""
    n, router = len(topology.ranks), Router(topology)
    links: dict[Edge, list[tuple[str, str]]] = {}
    for u in range(n):
        for v in range(n):
            route = router.route(u, v) if u != v else None
            if route is not None:
                links[u, v] = list(pairwise(route))
    program = _Program(n, links, topology)
    even = [1 / n] * n
    alone = [float(v == root) for v in range(n)]
    if name in ("alltoall", "scatter", "gather"):
        sources = range(n) if root is None else [root]
        for source in sources:
            program.add_paths(source, is_reversed=name == "gather")
    elif name in ("broadcast", "allgather", "reduce", "reduce-scatter"):
        parts = even if root is None else alone
        is_reversed = name in ("reduce", "reduce-scatter")
        program.add_trees(program.add_shares(parts), is_reversed=is_reversed)
    else:
        shares = program.add_shares(None)
        program.add_trees(shares, is_reversed=True)
        program.add_trees(shares, is_reversed=False)
    return program.solve()


class _Program:
    """A linear program that minimises x[0], the time of the busiest link in seconds per GB."""

    def __init__(
        self, n: int, links: dict[Edge, list[tuple[str, str]]], topology: Topology
    ) -> None:
        self.n, self.links, self.edges = n, links, list(links)
        capacity = topology.capacity_GBps
        # The unit of bandwidth: with it, times are near 1, as HiGHS's tolerances are absolute.
        self.unit_GBps = float(np.exp(np.mean([np.log(float(c)) for c in capacity.values()])))
        self.load: dict[tuple[str, str], Terms] = {
            link: [(0, -float(c) / self.unit_GBps)] for link, c in capacity.items()
        }
        self.width = 1
        self.at_most: list[tuple[Terms, float]] = []
        self.equal: list[tuple[Terms, float]] = []

    def add_shares(self, parts: Sequence[float] | None) -> range:
        """Return variables of root shares: the given ones, or free ones with a sum of 1."""
        shares = self._take(self.n)
        if parts is None:
            self.equal.append(([(x, 1.0) for x in shares], 1.0))
        else:
            self.equal += [([(x, 1.0)], part) for x, part in zip(shares, parts, strict=True)]
        return shares

    def add_trees(self, shares: range, *, is_reversed: bool) -> None:
        """Add out-trees with these root shares to the loads; in-trees if `is_reversed`."""
        used = self._add_loads()
        for v in range(self.n):
            flow = self._take(len(self.edges))
            for f, b in zip(flow, used, strict=True):
                self.at_most.append(([(f, 1.0), (b, -1.0)], 0.0))
            for u, terms in enumerate(self._find_surplus(flow, is_reversed=is_reversed)):
                # v lacks what the other roots have; no other GPU injects more than its share.
                if u == v:
                    terms = [*terms, *((x, 1.0) for x in shares if x != shares[v])]
                    self.at_most.append((terms, 0.0))
                else:
                    self.at_most.append(([*terms, (shares[u], -1.0)], 0.0))

    def add_paths(self, source: int, *, is_reversed: bool) -> None:
        """Add flows from one GPU to each other, of an n-th each; to it if `is_reversed`."""
        flow = self._add_loads()
        for u, terms in enumerate(self._find_surplus(flow, is_reversed=is_reversed)):
            if u != source:
                self.equal.append((terms, -1 / self.n))

    def solve(self) -> float | None:
        """Return the optimum in seconds per GB, or None if there is no solution."""
        objective = np.zeros(self.width)
        objective[0] = 1.0
        self.at_most += [(terms, 0.0) for terms in self.load.values() if len(terms) > 1]
        matrices = *self._matrix(self.at_most), *self._matrix(self.equal)
        for method, tolerance in _ATTEMPTS:
            options = dict.fromkeys(
                ("primal_feasibility_tolerance", "dual_feasibility_tolerance"), tolerance
            )
            solved = linprog(objective, *matrices, method=method, options=options)
            if solved.status == 0:
                break
        if solved.status == _INFEASIBLE:
            return None
        if solved.status != 0:
            raise SystemExit(f"HiGHS cannot solve the judge's own program: {solved.message}")
        return float(solved.fun) / self.unit_GBps

    def _take(self, count: int) -> range:
        self.width += count
        return range(self.width - count, self.width)

    def _add_loads(self) -> range:
        """Return a variable per pair of GPUs, which loads the links of the pair's route."""
        used = self._take(len(self.edges))
        for edge, b in zip(self.edges, used, strict=True):
            for link in self.links[edge]:
                self.load[link].append((b, 1.0))
        return used

    def _find_surplus(self, flow: range, *, is_reversed: bool) -> list[Terms]:
        """Return, for each GPU, the terms of what it sends minus what it receives."""
        surplus: list[Terms] = [[] for _ in range(self.n)]
        for (u, v), f in zip(self.edges, flow, strict=True):
            src, dst = (v, u) if is_reversed else (u, v)
            surplus[src].append((f, 1.0))
            surplus[dst].append((f, -1.0))
        return surplus

    def _matrix(
        self, rows: list[tuple[Terms, float]]
    ) -> tuple[csr_matrix | None, list[float] | None]:
        if not rows:
            return None, None
        entries = [(i, j, a) for i, (terms, _) in enumerate(rows) for j, a in terms]
        at, columns, values = zip(*entries, strict=True)
        shape = len(rows), self.width
        return csr_matrix((values, (at, columns)), shape=shape), [right for _, right in rows]
