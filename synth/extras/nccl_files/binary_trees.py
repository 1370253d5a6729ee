"""Search for equal trees through all ranks with at most two children per rank.

RCCL's kernels run such trees for allreduce. The search is a column generation over the hardware's
routes: a linear program weighs trees, its duals price the links, and cheap trees under these
prices, grown rank by rank, come next; the chains of `channels.rounding` are among the first ones.
Then the weights are rounded to equal trees.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import chain, pairwise

import numpy as np

from ....topo.errors import InfeasibleError, InputError
from ...channels.channels import CHAIN
from ...channels.rounding import find_channels
from ...ir.schedule import Schedule
from ...machine.routes import OwnRoutes
from ...numeric.effort import Effort
from ...numeric.linear import Floats, pack
from ...numeric.whole_counts import exchange, fill_up, interleave, round_down
from ...packing.trees import Forest, RootedTree, levels, schedule_of
from ...packing.weigh import find_max_load
from ...request import Request
from ..stock.constants import RCCL_CHILDREN

# Rounds of column generation: a safeguard.
_ROUNDS = 60
# Seconds of an idle core for rounding, beyond the effort of column generation.
_ROUNDING_WORK_S = 6.0
# Most chains to begin the search with.
_MAX_CHAINS = 8
# Cost of a hop from the root besides its links: only enough to prefer flat trees.
_DEPTH_SHARE = 1e-6
# Share of the best rate that may be lost for fewer trees.
_LOSS = Fraction(5, 1000)

# The parent of every rank, -1 at the root.
Parents = tuple[int, ...]


def find_depth(trees: Iterable[Parents]) -> int:
    """Return the largest number of hops from a root in any tree; 0 without trees."""
    return max((max(levels(parents)[0]) for parents in trees), default=0)


def check_tree(parents: Sequence[int], where: str) -> None:
    """Raise InputError unless parents form one tree through all ranks, with at most two children.

    `parents` has the parent of each rank, -1 for the root; `where` begins the message.
    """
    depth, _ = levels(parents)
    roots = [rank for rank, parent in enumerate(parents) if parent < 0]
    unreached = [rank for rank, parent in enumerate(parents) if parent >= 0 and not depth[rank]]
    if len(roots) != 1 or unreached:
        raise InputError(f"{where}: not one tree: roots {roots}, not connected to one {unreached}")
    for parent, children in Counter(parent for parent in parents if parent >= 0).items():
        if children > RCCL_CHILDREN:
            raise InputError(
                f"{where}: rank {parent} has {children} children; RCCL's kernels read "
                f"{RCCL_CHILDREN}"
            )


def schedule_trees(request: Request, trees: Sequence[Parents], name: str) -> Schedule:
    """Return the allreduce over trees with equal shares as a schedule called `name`.

    Each edge takes the hardware's route. Raise InfeasibleError if it has none.
    """
    topology, route, rooted = request.topology, request.router.route, []
    for parents in trees:
        edges = list(enumerate(parents))
        up = tuple(None if parent < 0 else route(rank, parent) for rank, parent in edges)
        down = tuple(None if parent < 0 else route(parent, rank) for rank, parent in edges)
        # Only the root has no route up and down.
        if up.count(None) > 1 or down.count(None) > 1:
            raise InfeasibleError(
                f"{name}: a tree of {topology.name!r} has an edge that only other GPUs could "
                "forward"
            )
        rooted.append(RootedTree(parents.index(-1), up, down))
    forest = Forest(tuple(rooted), (Fraction(1, len(rooted)),) * len(rooted), find_depth(trees))
    return schedule_of(forest, request.collective, topology, name)


def find_binary_trees(request: Request, most: int) -> tuple[Parents, ...]:
    """Return trees that together give the best allreduce found, with equal shares.

    There are at most `most`, and a tree may occur several times. Raise InfeasibleError if the GPUs
    are not connected.
    """
    search = _TreeSearch(request)
    search.generate()
    return search.round(most)


class _TreeSearch:
    """Trees and their weights, with the number of times that each tree crosses each link.

    Edges take the hardware's routes.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.n = request, request.collective.ranks
        self.routes = OwnRoutes(request.router)
        if not (self.routes.exists & self.routes.exists.T).any(axis=1).all():
            raise InfeasibleError(
                f"topology {request.topology.name!r}: not every GPU has a route to another and back"
            )
        self.trees: list[Parents] = []
        self.uses: list[Counter[int]] = []
        self.weights: Floats = np.zeros(0)
        with suppress(InfeasibleError):
            for order in find_channels(request, CHAIN, _MAX_CHAINS).orders:
                self._add(_root_chain(order))

    def _add(self, parents: Parents) -> bool:
        if parents in self.trees:
            return False
        uses: Counter[int] = Counter()
        crossed = self.routes.crossed
        for rank, parent in enumerate(parents):
            for u, v in ((rank, parent), (parent, rank)) if parent >= 0 else ():
                pair = u * self.n + v
                uses.update(
                    crossed.indices[crossed.indptr[pair] : crossed.indptr[pair + 1]].tolist()
                )
        self.trees.append(parents)
        self.uses.append(uses)
        return True

    def generate(self) -> None:
        """Add trees until no cheap one is new, and weigh them."""
        # At first every link costs the time of a byte on it.
        prices = 1.0 / self.routes.capacity
        for _ in range(_ROUNDS):
            grown = [self._grow(prices, root) for root in range(self.n)]
            is_new = [tree is not None and self._add(tree) for tree in grown]
            if not any(is_new) or self.request.effort.is_over("trees"):
                break
            solved = pack(self.uses, self.routes.capacity, self.request.effort)
            if solved is None:
                break
            self.weights, prices = solved
        if not self.trees:
            raise InfeasibleError(
                f"topology {self.request.topology.name!r}: no tree with two children a GPU was "
                "found"
            )
        # Trees of the last round have no weight yet.
        self.weights = np.append(self.weights, np.zeros(len(self.trees) - len(self.weights)))

    def _grow(self, prices: Floats, root: int) -> Parents | None:
        """Return a tree grown from a root, always attaching the cheapest rank; None if impossible.

        Ranks are preferably attached near the root.
        """
        distance = self.routes.distances(prices)
        distance = distance + distance.T
        np.fill_diagonal(distance, np.inf)
        finite = distance[np.isfinite(distance)]
        scale = float(finite.mean()) if len(finite) else 1.0
        parents, depth, children = [-1] * self.n, [0] * self.n, [0] * self.n
        left = set(range(self.n)) - {root}
        reached = [root]
        while left:
            cost, parent, child = min(
                (distance[u, v] + _DEPTH_SHARE * scale * (depth[u] + 1), u, v)
                for u in reached
                if children[u] < RCCL_CHILDREN
                for v in left
            )
            if not np.isfinite(cost):
                return None
            parents[child], depth[child] = parent, depth[parent] + 1
            children[parent] += 1
            reached.append(child)
            left.remove(child)
        return tuple(parents)

    def round(self, most: int) -> tuple[Parents, ...]:
        """Return the fewest equal trees that lose almost nothing against the best number."""
        loads = np.zeros((len(self.trees), len(self.routes.links)))
        for row, uses in enumerate(self.uses):
            loads[row, list(uses)] = list(uses.values())
        loads /= self.routes.capacity
        shares = self.weights / max(float(self.weights.sum()), 1e-300)
        effort = self.request.effort.extend(_ROUNDING_WORK_S)
        sets = [_round_to(loads, shares, count, effort) for count in range(1, most + 1)]
        rates = [
            count / find_max_load([self.uses[i] for i in chosen], [1] * count, self.routes.exact)
            for count, chosen in enumerate(sets, 1)
        ]
        best = next(
            s for s, rate in zip(sets, rates, strict=True) if rate >= max(rates) * (1 - _LOSS)
        )
        return tuple(self.trees[best[i]] for i in interleave(loads[best]))


def _root_chain(order: Sequence[int]) -> Parents:
    """Return a chain as a tree whose root is the middle of the chain."""
    parents, middle = [-1] * len(order), len(order) // 2
    for above, rank in chain(pairwise(order[middle:]), pairwise(order[middle::-1])):
        parents[rank] = above
    return tuple(parents)


def _round_to(loads: Floats, shares: Floats, count: int, effort: Effort) -> list[int]:
    """Return `count` trees near these shares, as numbers of rows of `loads`."""
    filled = fill_up(loads, round_down(shares, count), count, effort)
    chosen: list[int] = exchange(loads, filled, effort, "equal trees").tolist()
    return chosen
