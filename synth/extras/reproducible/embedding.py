"""Embed a bracketing in a machine: at which ranks partial sums are made, and the paths to them.

A bracketing is the order in which the ranks' values of an element are added, such as ((0+1)+(2+3)).
Each embedding of it is a column of a linear program, which gives it a share of the data
(fitting.py). All columns have the same bracketing. They differ in the ranks at which they add, and
in the tree that takes the sum back to all ranks, which adds nothing and is unconstrained. The
cheapest column under link prices is found exactly among those of this form: a partial sum is made
at a rank that contributed to one of its two operands, and moves over ranks whose contributions are
in it. Such ranks have given their contributions away, so no rank ever holds two values of a chunk.
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...ir.transfers import Op
from ...machine.links import Floats
from ...machine.routes import OwnRoutes
from ...numeric.arborescence import cheapest_out_tree
from ...packing.trees import levels
from .bracket import Bracket

Ints = NDArray[np.int64]
# (step, source rank, destination rank, "reduce" or "copy").
Move = tuple[int, int, int, Op]


@dataclass(frozen=True)
class Column:
    """One embedding of the bracketing: its moves, and the rank `end` at which the sum is complete.

    A move is (step, source, destination, "reduce" or "copy"). For allreduce, the moves include
    those that spread the sum to all ranks.
    """

    end: int
    moves: tuple[Move, ...]

    @property
    def steps(self) -> int:
        """The number of steps."""
        return max(step for step, *_ in self.moves) + 1


@dataclass
class _Node:
    """A partial sum (or a rank's contribution), with its least cost at each rank.

    `ranks` are the ranks whose contributions are in it, and `operands` are the indices of the two
    nodes that it adds (None for a contribution). `cost` is the least cost, under the last prices,
    of having the sum at each rank. `made` is, for each rank that needs the sum, the rank at which
    it is made.

    For each rank at which the sum may be made, `kept` is the operand that is already there (0 or 1)
    and `other` is the rank that sends the other operand. `before` is the second result of `_close`.
    """

    ranks: Ints
    operands: tuple[int, int] | None
    cost: Floats = field(default_factory=lambda: np.zeros(0))
    made: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    kept: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    other: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    before: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))


class Embedding:
    """All embeddings of one bracketing in a machine whose ranks send to each other on `routes`.

    `price` finds the cheapest ones under prices, `find_column` returns one of them. `bracket` is
    the bracketing as nested pairs of ranks, `nodes` are its contributions and partial sums, the
    whole sum last.
    """

    def __init__(self, bracket: Bracket, routes: OwnRoutes) -> None:
        self.bracket, self.routes = bracket, routes
        self.nodes: list[_Node] = []
        self._add(bracket)

    def _add(self, bracket: Bracket) -> None:
        """Append the nodes of a bracketing, operands before their sums."""
        numbers: list[int] = []
        rest: list[tuple[Bracket, bool]] = [(bracket, False)]
        while rest:
            item, are_operands_done = rest.pop()
            if isinstance(item, int):
                self.nodes.append(_Node(np.array([item]), None))
            elif not are_operands_done:
                rest += [(item, True), (item[1], False), (item[0], False)]
                continue
            else:
                second, first = numbers.pop(), numbers.pop()
                self.nodes.append(
                    _Node(
                        np.concatenate([self.nodes[first].ranks, self.nodes[second].ranks]),
                        (first, second),
                    )
                )
            numbers.append(len(self.nodes) - 1)

    @cached_property
    def needs_relays(self) -> bool:
        """Whether the cheapest path between two ranks may lead through other ranks.

        True if some pair of ranks has no route, or if all routes are single links: a detour over
        other links can then be cheaper than the direct one.
        """
        lengths = np.asarray(self.routes.crossed.sum(axis=1)).reshape(-1)
        return bool((~self.routes.exists).sum() > self.routes.ranks or lengths.max(initial=0) <= 1)

    def price(self, distance: Floats) -> Floats:
        """Return the least cost of having the whole sum at each rank, under given prices.

        distance[u, v] is the price of sending from rank u to rank v, infinite without a route;
        costs are sums of such prices. The choices that lead to them are recorded in `nodes`, one
        per partial sum, so `find_column` returns columns that are cheapest under these prices.
        """
        n = len(distance)
        for node in self.nodes:
            node.cost = np.full(n, np.inf)
            if node.operands is None:
                rank = int(node.ranks[0])
                node.cost[rank] = 0.0
                node.made = np.full(n, rank)
                continue
            first, second = (self.nodes[i] for i in node.operands)
            near, node.before = self._close(distance, node.ranks)
            made_cost = np.full(n, np.inf)
            node.kept, node.other = np.full(n, -1), np.full(n, -1)
            for kept, (stays, comes) in enumerate(((first, second), (second, first))):
                moved = comes.cost[comes.ranks, None] + near[np.ix_(comes.ranks, stays.ranks)]
                best = moved.argmin(axis=0)
                made_cost[stays.ranks] = (
                    stays.cost[stays.ranks] + moved[best, np.arange(len(stays.ranks))]
                )
                node.kept[stays.ranks] = kept
                node.other[stays.ranks] = comes.ranks[best]
            moved = made_cost[node.ranks, None] + near[np.ix_(node.ranks, node.ranks)]
            best = moved.argmin(axis=0)
            node.cost[node.ranks] = moved[best, np.arange(len(node.ranks))]
            node.made = np.full(n, -1)
            node.made[node.ranks] = node.ranks[best]
        return self.nodes[-1].cost

    def _close(self, distance: Floats, ranks: Ints) -> tuple[Floats, Ints]:
        """Return the prices of the cheapest paths between `ranks` over each other.

        Also return the last rank before the end of each path: -1 if the path is direct.
        """
        n = len(distance)
        near = np.full((n, n), np.inf)
        near[np.ix_(ranks, ranks)] = distance[np.ix_(ranks, ranks)]
        near[ranks, ranks] = 0.0
        before = np.full((n, n), -1)
        if self.needs_relays:
            for over in ranks.tolist():
                through = near[:, over, None] + near[None, over, :]
                better = through < near - 1e-15
                before = np.where(
                    better,
                    np.where(before[None, over, :] >= 0, before[None, over, :], over),
                    before,
                )
                near = np.where(better, through, near)
        return near, before

    def find_column(self, end: int, spread: list[int] | None) -> Column:
        """Return the cheapest column that completes the sum at rank `end`; call `price` first.

        Prices are those of the last `price`. `spread` lists the parents in the tree that takes the
        sum from `end` to all ranks; None if the sum stays at `end`.
        """
        moves: list[Move] = []
        # The first step in which a rank may receive another value, or send its own.
        free, ready = [0] * self.routes.ranks, [0] * self.routes.ranks

        def send(path: list[int], op: Op) -> None:
            """Move a value along a path; at its end, add it (reduce) or store it (copy)."""
            for src, dst in pairwise(path):
                adds = op == "reduce" and dst == path[-1]
                step = max(ready[src], ready[dst] if adds else free[dst])
                moves.append((step, src, dst, "reduce" if adds else "copy"))
                free[src] = step
                ready[dst] = free[dst] = step + 1

        # List which node is needed at which rank, from the whole sum down; moves are made in the
        # reverse order, operands first.
        todo: list[tuple[int, int]] = [(len(self.nodes) - 1, end)]
        plan: list[tuple[int, int]] = []
        while todo:
            number, place = todo.pop()
            node = self.nodes[number]
            plan.append((number, place))
            if node.operands is not None:
                made = int(node.made[place])
                kept = int(node.kept[made])
                todo += [
                    (node.operands[kept], made),
                    (node.operands[1 - kept], int(node.other[made])),
                ]
        for number, place in reversed(plan):
            node = self.nodes[number]
            if node.operands is not None:
                made = int(node.made[place])
                send(self._path(node, int(node.other[made]), made), "reduce")
                send(self._path(node, made, place), "copy")
        if spread is not None:
            last = max(step for step, *_ in moves)
            depth, _ = levels(spread)
            edges = sorted((depth[rank], p, rank) for rank, p in enumerate(spread) if p >= 0)
            moves += [(last + hops, parent, rank, "copy") for hops, parent, rank in edges]
        return Column(end, tuple(moves))

    def _path(self, node: _Node, src: int, dst: int) -> list[int]:
        """Return the ranks on the cheapest path between two ranks over the ranks of a node."""
        out = [dst]
        while out[-1] != src:
            over = int(node.before[src, out[-1]])
            out.append(src if over < 0 else over)
        return out[::-1]


def find_spreads(distance: Floats) -> list[list[int]]:
    """Return the cheapest trees to spread a sum from one rank to all: one tree for each root.

    Item r has the parent of each rank in the tree whose root is rank r, -1 at the root.
    `distance[u, v]` is the price of sending from rank u to rank v, infinite without a route; such
    pairs are used only if a tree cannot do without them.
    """
    dense = np.where(np.isfinite(distance), distance, distance[np.isfinite(distance)].sum() + 1)
    return [cheapest_out_tree(dense, root) for root in range(len(distance))]


def count_sends(column: Column, size: int) -> Floats:
    """Return how many of a column's moves go from rank u (row) to rank v (column).

    `size` is the number of ranks.
    """
    out = np.zeros((size, size))
    for _, src, dst, _ in column.moves:
        out[src, dst] += 1
    return out
