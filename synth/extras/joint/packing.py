"""Trees and paths of several calls at once, packed into the links by column generation.

A call is one group's collective with its bytes and weight (joint_calls.py); the groups run at the
same time. A column carries one part of one call: an allreduce and a broadcast are one part, an
allgather has one for each member, an alltoall one for each pair. The linear program divides each
part among its columns so that the busiest link takes the least time, all calls counted with their
bytes and weights. Its duals price the links; the cheapest trees and paths at these prices are the
next columns, and prove the bound.

Helpers of a group are ranks outside it that relay, copy and add for it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path

from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ....topo.routes import Route, Router
from ...bounds.multipath import round_prices
from ...machine.links import Floats
from ...machine.routes import Metric, OwnRoutes, RoutedMetric
from ...numeric.arborescence import cheapest_out_tree
from ...numeric.effort import Effort
from ...numeric.linear import Rows, minimise
from ...numeric.steiner import SteinerTrees
from ...packing.division import TOLERANCE
from ...packing.packing import SharePacking
from ...packing.trees import levels
from .bound import MULTIPATH_KIND, SINGLE_PATH_KIND, JointBound, joint_bound_of
from .joint_calls import JointCall, helpers_of

# Work in seconds of an idle core: for all distances, and per tree that is priced.
_METRIC_S, _TREE_S = 1e-3, 5e-4
# Roots whose trees are added for one allreduce in a turn.
_FRESH_ROOTS = 4
# Steps that are worth avoiding one more send, since a send takes bandwidth that others may need.
_SEND_STEPS = 4
# From this relative error of floats on, rounding has weakened a bound.
_CLOSE = 1e-9
# Collectives whose data goes over paths; that of the others goes over trees.
BY_PATHS = ("alltoall", "gather", "scatter")


@dataclass(frozen=True)
class Branches:
    """A column: the routes on which one part of a call is reduced, and then copied.

    `call` is the number of the call; `source` and `target` are those of the part's chunks (see
    `Chunk`). `up` are routes on which data is added on to `root`, from a rank to its parent; `down`
    those on which it is copied from there. Either may be empty.
    """

    call: int
    source: int | None
    target: int | None
    root: int
    up: tuple[Route, ...]
    down: tuple[Route, ...]

    def list_parents(self, ranks: Mapping[str, int], direction: str) -> list[int]:
        """Return the parent of every rank in the tree of a direction, "up" or "down"; -1 for none.

        `ranks` maps the ids of GPUs to ranks.
        """
        out = [-1] * len(ranks)
        for first, *_, last in getattr(self, direction):
            child, parent = (first, last) if direction == "up" else (last, first)
            out[ranks[child]] = ranks[parent]
        return out

    def compute_tie_cost(self, ranks: Mapping[str, int]) -> int:
        """Return the cost by which equally fast columns are chosen; lower is better.

        It is the number of steps, plus four for each send. `ranks` maps the ids of GPUs to ranks.
        """
        steps = sum(max(levels(self.list_parents(ranks, d))[0]) for d in ("up", "down"))
        return _SEND_STEPS * (len(self.up) + len(self.down)) + steps


# Columns of one call, each with its share of the part that it carries.
Columns = list[tuple[Branches, Fraction]]


class JointPacking(SharePacking[Branches]):
    """A column generation for several calls: a linear program over trees and paths.

    `run` does it, and `list_columns` returns the outcome. A part of call k is `demand[k]` units, of
    `unit_GB` GB times weight each; times are those of a unit over 1 GB/s. `participants[k]` are the
    ranks that may take part in call k, ascending. With `routes`, ranks send to each other on the
    hardware's routes only; else on any path that avoids other GPUs. `helpers` are the ranks that
    may relay, copy and add for groups of which they are not members.
    """

    smooths = True

    def __init__(
        self,
        calls: Sequence[JointCall],
        topology: Topology,
        helpers: Iterable[int],
        routes: OwnRoutes | None,
    ) -> None:
        super().__init__(topology, None)
        self.calls, self.routes, self.start = list(calls), routes, list[Branches]()
        helping = set(helpers)
        # The ranks that take part in each call, ascending.
        self.participants = [
            sorted({*c.collective.members, *helpers_of(c, helping)}) for c in self.calls
        ]
        needed = [call.demand_GB * call.collective.even_chunks(1)[0].share for call in self.calls]
        scale = lcm(*(x.denominator for x in needed))
        whole = [int(x * scale) for x in needed]
        shared = int(np.gcd.reduce(np.array(whole, dtype=object)))
        # A part of call k is `demand[k]` units.
        self.demand = [x // shared for x in whole]
        self.unit_GB = Fraction(shared, scale)
        self.dual = self.prices = self.best = self.dual / len(self.dual)
        self.pricing_s = _METRIC_S + _TREE_S * sum(2 * c.collective.ranks for c in self.calls)
        self._rank = {gpu: rank for rank, gpu in enumerate(topology.ranks)}

    def group_of(self, column: Branches) -> Hashable:
        """Return the part of a call that a column carries, as (call, source, target)."""
        return column.call, column.source, column.target

    def count_uses(self, column: Branches) -> Counter[int]:
        """Return how many units a column sends over each link (row) to carry its whole part."""
        return self.count_rows((*column.up, *column.down), self.demand[column.call])

    def run(
        self,
        effort: Effort,
        say: Callable[[str], None] | None = None,
        start: Iterable[Branches] = (),
    ) -> None:
        """Generate columns until they are optimal or the effort is spent; begin with `start`.

        If several divisions are equally fast, prefer one in which each kind of groups is fast by
        itself, then one whose columns have few sends and steps. `say` is given lines about the
        progress. Raise InfeasibleError if a group's ranks cannot reach each other.
        """
        self.start = list(start)
        if not self.generate(effort, "sharing links among groups", say):
            raise InfeasibleError(
                "the packing of several groups has no optimum; are the bandwidths of very "
                "different sizes?"
            )
        self._choose_shares(effort)

    def _choose_shares(self, effort: Effort) -> None:
        """Divide the parts anew, as fast as before.

        Groups that start together do not keep to their shares of a link exactly. If one kind of
        groups is ahead, the other ends in time only if what is left does not crowd another link: so
        the kinds' own busiest links come first, then few sends and steps.
        """
        kinds = list(dict.fromkeys(call.kind for call in self.calls))
        count = len(self.columns)
        users: list[list[tuple[int, float]]] = [[] for _ in self.row_capacity]
        whole, place = Rows(), dict[Hashable, list[tuple[int, float]]]()
        kind_of = list[int]()
        for j, (column, uses) in enumerate(self.columns.items()):
            place.setdefault(self.group_of(column), []).append((j, 1.0))
            kind_of.append(kinds.index(self.calls[column.call].kind))
            for row, times in uses.items():
                users[row].append((j, times / self.reached / float(self.row_capacity[row])))
        for terms in place.values():
            whole.add(terms, 1.0)
        limits = [1.0] * len(kinds)
        if len(kinds) > 1:
            together = Rows()
            for terms in users:
                together.add(terms, 1.0 + TOLERANCE)
                for kind in range(len(kinds)):
                    own = [term for term in terms if kind_of[term[0]] == kind]
                    together.add([*own, (count + kind, -1.0)], 0.0)
            costs = np.r_[np.zeros(count), np.ones(len(kinds))]
            solved = minimise(costs, together, whole, effort)
            if solved is not None:
                limits = solved.x[count:].tolist()
        loads = Rows()
        for terms in users:
            loads.add(terms, 1.0 + TOLERANCE)
            for kind, limit in enumerate(limits):
                own = [term for term in terms if kind_of[term[0]] == kind]
                loads.add(own, limit + TOLERANCE)
        costs = np.array([float(column.compute_tie_cost(self._rank)) for column in self.columns])
        solved = minimise(costs, loads, whole, effort)
        if solved is not None:
            self.shares = solved.x

    @property
    def is_helped(self) -> bool:
        """Whether any group may have helpers."""
        return any(
            len(own) > call.collective.ranks
            for own, call in zip(self.participants, self.calls, strict=True)
        )

    def list_columns(self) -> list[Columns]:
        """Return the columns of each call that carry data, with their exact shares of the parts."""
        out: list[Columns] = [[] for _ in self.calls]
        for column, share in zip(self.columns, self.round(), strict=True):
            if share:
                out[column.call].append((column, share))
        return out

    def price_columns(self) -> list[Branches]:
        """Return new columns that cost less than the dual of their part, and record the bound.

        Raise InfeasibleError if a group's ranks cannot reach each other.
        """
        metric, total = self._price_routes(), 0.0
        # Trees of few steps come first, so that they carry what they can.
        fresh = [] if self.columns else [*self.start, *self._list_hub_trees(metric)]
        for number in range(len(self.calls)):
            least: dict[Hashable, float] = defaultdict(lambda: np.inf)
            for column in self._offer(number, metric):
                part = self.group_of(column)
                least[part] = min(least[part], self.cost_of(column))
                if self.improves(column):
                    fresh.append(column)
            total += sum(least.values())
        self.raise_bound(total)
        return fresh

    def _price_routes(self) -> Metric:
        by_link = self.prices[self.row]
        return Metric(self, by_link) if not self.routes else RoutedMetric(self.routes, by_link)

    def _list_hub_trees(self, metric: Metric) -> list[Branches]:
        """Return the trees of calls in which all data goes to or from one rank in one hop.

        For an allreduce it is any rank, else the root of a part.
        """
        out: list[Branches] = []
        for number, call in enumerate(self.calls):
            one, exists = call.collective, np.isfinite(metric.distance)
            roots = one.members if one.root is None else [one.root]
            for hub in self.participants[number] if one.name == "allreduce" else roots:
                others = [v for v in one.members if v != hub]
                joined = (not one.reduces or exists[others, hub].all()) and (
                    not one.spreads or exists[hub, others].all()
                )
                if one.name not in BY_PATHS and joined:
                    up = [metric.route(v, hub) for v in others] if one.reduces else []
                    down = [metric.route(hub, v) for v in others] if one.spreads else []
                    ends = self._name_ends(number, hub)
                    out.append(Branches(number, *ends, hub, tuple(up), tuple(down)))
        return out

    def _name_ends(self, number: int, root: int) -> tuple[int | None, int | None]:
        """Return the source and the target of the part that a tree with this root carries."""
        one = self.calls[number].collective
        if one.name not in ("allgather", "reduce-scatter"):
            return None, None
        return (None, root) if one.reduces else (root, None)

    def _offer(self, number: int, metric: Metric) -> list[Branches]:
        """Return the cheapest columns of each part of a call; of an allreduce, from several roots.

        Raise InfeasibleError if no routes join the group's ranks.
        """
        own, collective = self.participants[number], self.calls[number].collective
        distance = metric.distance[np.ix_(own, own)]
        finite = np.isfinite(distance)
        far = float(distance[finite].sum()) * 2 + 1
        full = np.where(finite, distance, far)
        place = {rank: i for i, rank in enumerate(own)}
        members = [place[rank] for rank in collective.members]
        roots = members if collective.root is None else [place[collective.root]]
        name = collective.name

        def route_pairs(pairs: Iterable[tuple[int, int]]) -> tuple[Route, ...]:
            return tuple(metric.route(own[u], own[v]) for u, v in pairs)

        def spread(trees: _OutTrees, node: int) -> tuple[Route, ...]:
            return route_pairs((p, v) for v, p in enumerate(trees.find(node)) if p >= 0)

        def collect(trees: _OutTrees, node: int) -> tuple[Route, ...]:
            return route_pairs((v, p) for v, p in enumerate(trees.find(node)) if p >= 0)

        if name in BY_PATHS:
            # A sparse matrix: of a dense one, SciPy drops all prices below 1e-8.
            ends = np.nonzero(finite)
            graph = csr_matrix((distance[ends], ends), shape=full.shape)
            closed, before = shortest_path(graph, return_predecessors=True)
            sources = roots if name == "scatter" else members
            targets = roots if name == "gather" else members
            pairs = [(u, v) for u in sources for v in targets if u != v]
            self._check_joined(number, max(float(closed[pair]) for pair in pairs), far)
            return [
                Branches(
                    number,
                    None if name == "scatter" else own[u],
                    None if name == "gather" else own[v],
                    own[u],
                    (),
                    route_pairs(pairwise(_trace(before, u, v))),
                )
                for u, v in pairs
            ]
        if name == "allreduce":
            there, back = _OutTrees(full, members), _OutTrees(full.T, members)
            prices = np.array([there.price(v) + back.price(v) for v in range(len(own))])
            self._check_joined(number, float(prices.min()), far)
            best = np.argsort(prices, kind="stable")[:_FRESH_ROOTS].tolist()
            return [
                Branches(number, None, None, own[v], collect(back, v), spread(there, v))
                for v in best
                if prices[v] < far
            ]
        trees = _OutTrees(full.T if collective.reduces else full, members)
        self._check_joined(number, max(trees.price(v) for v in roots), far)
        return [
            Branches(
                number,
                *self._name_ends(number, own[v]),
                own[v],
                collect(trees, v) if collective.reduces else (),
                () if collective.reduces else spread(trees, v),
            )
            for v in roots
        ]

    def _check_joined(self, number: int, price: float, far: float) -> None:
        if price >= far:
            call, topology = self.calls[number], self.topology
            helped = len(self.participants[number]) > call.collective.ranks
            raise InfeasibleError(
                f"{call.name}: no routes on {topology.name!r} join its ranks"
                + ("" if helped else " without helpers; let other GPUs help")
            )


class _OutTrees:
    """Cheapest out-trees to all members: of all nodes, or of those that they need."""

    def __init__(self, price: Floats, members: Sequence[int]) -> None:
        self._price = price
        self._steiner = None if len(members) == len(price) else SteinerTrees(price, members)
        self._found: dict[int, list[int]] = {}

    def find(self, root: int) -> list[int]:
        """Return the parent of each node in the tree from `root`, -1 for none."""
        if root not in self._found:
            steiner = self._steiner
            self._found[root] = (
                cheapest_out_tree(self._price, root) if steiner is None else steiner.find(root)
            )
        return self._found[root]

    def price(self, root: int) -> float:
        """Return the price of the cheapest tree from `root`."""
        if self._steiner is not None:
            return float(self._steiner.price(root))
        parents = self.find(root)
        return sum(float(self._price[p, v]) for v, p in enumerate(parents) if p >= 0)


def _trace(before: NDArray[Any], u: int, v: int) -> list[int]:
    """Return the nodes of the cheapest path from u to v, given the node before each end."""
    nodes = [v]
    while nodes[-1] != u:
        nodes.append(int(before[u, nodes[-1]]))
    return nodes[::-1]


def prove(
    packing: JointPacking, helpers: Iterable[int], router: Router, joined: Sequence[Sequence[str]]
) -> JointBound:
    """Return the best bound (the longest time) that a packing's prices prove.

    Prices are rounded to fractions, with a greater denominator for each next try, until rounding
    loses nothing. `helpers` are the ranks that may help groups; `router` has the topology and the
    routes. `joined` are the pairs of switches that compute and their GPUs, if the packing is for
    the machine in which they are one.
    """
    wanted = packing.value * float(packing.unit_GB)
    kind = SINGLE_PATH_KIND if packing.routes else MULTIPATH_KIND
    out: list[JointBound] = []
    for rows in round_prices(packing.link_prices):
        certificate: dict[str, Any] = {"prices": rows}
        if joined:
            certificate["joined"] = [list(pair) for pair in joined]
        out.append(joint_bound_of(kind, certificate, packing.calls, helpers, router))
        if float(out[-1].time_s) >= wanted * (1 - _CLOSE):
            break
    return max(out, key=lambda bound: bound.time_s)
