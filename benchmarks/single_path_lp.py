"""The single-path bound as one linear program: the judge of random_machines.py, group_bounds.py and
joint.py.

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

Of a group, only members have data and must be reached; all GPUs relay, copy and add. The flows of
trees then hold for network coding too (Ahlswede et al. 2000), so their optimum may be faster than
any trees: `find_tree_s_per_GB` lists all trees of small machines instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, product

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


def find_least_s_per_GB(
    name: str, topology: Topology, root: int | None, members: Sequence[int] | None = None
) -> float | None:
    """Return the optimum of a collective's linear program, or None if some GPU is out of reach.

    `members` are the ranks of a group that all GPUs help; None: all are members.
    """
    n = len(topology.ranks)
    program = _Program(topology, range(n) if members is None else members)
    program.add_collective(name, root, listed=False)
    return program.solve()


def find_joint_s(
    calls: Sequence[tuple[str, int | None, Sequence[int], float]],
    topology: Topology,
    *,
    helped: bool,
    listed: bool,
) -> float | None:
    """Return the least time in seconds of several groups' calls that share the links.

    A call is a collective, its root, its members, and its GB. All other GPUs help each group if
    `helped`, else none. Trees are all `listed`, which is for up to 6 GPUs, or replaced by flows.
    """
    program = _Program(topology, ())
    for name, root, members, size_GB in calls:
        gpus = range(program.n) if helped else members
        program.members, program.size_GB = members, size_GB
        program.edges = [(u, v) for u, v in program.links if u in gpus and v in gpus]
        program.add_collective(name, root, listed=listed)
    return program.solve()


def find_tree_s_per_GB(
    name: str, topology: Topology, root: int | None, members: Sequence[int]
) -> float | None:
    """Return the least time of a group's trees, of which all are listed: for up to 6 GPUs.

    The collective has trees: it is none of alltoall, gather and scatter.
    """
    program = _Program(topology, members)
    program.add_collective(name, root, listed=True)
    return program.solve()


def _list_routes(topology: Topology) -> dict[Edge, list[tuple[str, str]]]:
    """Return the links of the hardware's route between each pair of ranks that has one."""
    router, ranks = Router(topology), range(len(topology.ranks))
    routes = {(u, v): router.route(u, v) for u in ranks for v in ranks if u != v}
    return {pair: list(pairwise(route)) for pair, route in routes.items() if route is not None}


class _Program:
    """A linear program that minimises x[0], the time of the busiest link in seconds.

    `members`, `edges` (the pairs of GPUs that may send) and `size_GB` are those of the collective
    that is added next.
    """

    def __init__(self, topology: Topology, members: Sequence[int]) -> None:
        self.n, self.links = len(topology.ranks), _list_routes(topology)
        self.members, self.edges, self.size_GB = members, list(self.links), 1.0
        capacity = topology.capacity_GBps
        # The unit of bandwidth: with it, times are near 1, as HiGHS's tolerances are absolute.
        self.unit_GBps = float(
            np.exp(np.mean([np.log(float(c)) for c in capacity.values()] or [0.0]))
        )
        self.load: dict[tuple[str, str], Terms] = {
            link: [(0, -float(c) / self.unit_GBps)] for link, c in capacity.items()
        }
        self.width = 1
        self.at_most: list[tuple[Terms, float]] = []
        self.equal: list[tuple[Terms, float]] = []

    def add_collective(self, name: str, root: int | None, *, listed: bool) -> None:
        """Add a collective; its trees are all `listed`, or replaced by flows."""
        members = self.members
        even = [1 / len(members) if v in members else 0.0 for v in range(self.n)]
        alone = [float(v == root) for v in range(self.n)]
        add_trees = self.add_listed_trees if listed else self.add_trees
        if name in ("alltoall", "scatter", "gather"):
            for source in members if root is None else [root]:
                self.add_paths(source, is_reversed=name == "gather")
        elif name == "allreduce":
            shares = self.add_shares(None)
            add_trees(shares, is_reversed=True)
            add_trees(shares, is_reversed=False)
        else:
            shares = self.add_shares(even if root is None else alone)
            add_trees(shares, is_reversed=name in ("reduce", "reduce-scatter"))

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
        for v in self.members:
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
                part = 1 / len(self.members) if u in self.members else 0.0
                self.equal.append((terms, -part))

    def add_listed_trees(self, shares: range, *, is_reversed: bool) -> None:
        """Add a variable per tree that reaches the members from a root, with these root shares."""
        used = self._add_loads()
        carried: dict[Edge, Terms] = {
            edge: [(b, -1.0)] for edge, b in zip(self.edges, used, strict=True)
        }
        known = {edge[::-1] if is_reversed else edge for edge in self.edges}
        for root, share in zip(range(self.n), shares, strict=True):
            trees = _list_trees(root, frozenset(self.members) - {root}, known, self.n)
            weights = self._take(len(trees))
            self.equal.append(([(share, -1.0), *((w, 1.0) for w in weights)], 0.0))
            for tree, weight in zip(trees, weights, strict=True):
                for edge in tree:
                    carried[edge[::-1] if is_reversed else edge].append((weight, 1.0))
        self.equal += [(terms, 0.0) for terms in carried.values()]

    def solve(self) -> float | None:
        """Return the optimum in seconds, or None if there is no solution."""
        if not self.links:
            return None
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
                self.load[link].append((b, self.size_GB))
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


def _list_trees(
    root: int, targets: frozenset[int], known: set[Edge], n: int
) -> list[tuple[Edge, ...]]:
    """Return the edges of all out-trees from a root whose leaves are among the targets."""
    out = []
    others = [v for v in range(n) if v != root and v not in targets]
    for count in range(len(others) + 1):
        for more in combinations(others, count):
            inside = sorted({*targets, *more})
            choices = [[u for u in (root, *inside) if (u, v) in known] for v in inside]
            for parents in product(*choices):
                parent = dict(zip(inside, parents, strict=True))
                is_lean = set(more) <= set(parents)  # a helper that is a leaf is of no use
                if is_lean and all(_leads_to(root, v, parent) for v in inside):
                    out.append(tuple((parent[v], v) for v in inside))
    return out


def _leads_to(root: int, node: int, parent: dict[int, int]) -> bool:
    """Return whether the parents of a node lead to the root, and not around in a circle."""
    for _ in range(len(parent) + 1):
        if node == root:
            return True
        node = parent[node]
    return False
