"""Trees of equal share, laid out so that no link carries more of them than it has room for.

For machines with too many links, or too little symmetry, for column generation. Trees are grown one
after the other at prices that rise with load, and then negotiate for the links that too many of
them want, as the wires of a chip do (McMurchie, Ebeling 1995): a tree gives up an edge over a full
link, and the branch below it is joined again on the route that is cheapest at that moment. A link
that stays full gets dearer with every turn, so in the end only the trees that need it most use it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log2

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra, shortest_path

from ...topo.errors import InfeasibleError
from ...topo.exact import parse_fraction
from ...topo.graph import Topology
from ...topo.routes import Route
from ..bounds.certificate import Bound
from ..machine.links import Floats, Ints, LinkArrays
from ..machine.routes import Metric, OwnRoutes
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..packing.trees import Forest, RootedTree
from .growth import Growth

# How steeply prices rise with load while trees are grown. This and the prices below were chosen by
# trial on damaged machines of 144 to 1,024 GPUs.
_BUSY = 8.0
# Price of a hop between a device and the root while trees are grown, in prices of an idle link:
# without it, every GPU is appended to the last one, and trees get as deep as there are GPUs.
_HOP = 2.0
# By how much a link gets dearer in each turn that finds it too full, and how much dearer it is per
# tree above its room.
_HISTORY, _PRESENT = 0.1, 3.0
# Share of a link's price that does not depend on its load, so that short routes are preferred.
_IDLE = 0.2
# Gaps to the bound, the loosest first; each layout begins with that of the gap before.
GAPS = (0.1, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01, 0.0075, 0.005, 0.0025, 0.001, 0.0004)
# Gap that is not worth reducing further by more trees.
_FEW = 0.0075
# Shares of the room that are left over so that negotiations end soon, in the order of trial. A mesh
# of 1,024 GPUs with three faults is 7.0 % under the bound with the first, 1.4 % with the second.
SLACKS = 0.004, 0.012
# Seconds of an idle core per move, per link in its search, and per rank.
_MOVE_S, _LINK_S, _RANK_S = 2e-4, 2e-7, 1e-6
# Moves without a new least excess after which a layout is given up: some, and more per link that is
# too full if the layout leaves slack.
_PATIENCE = 1500, 30
# Ranks of a branch, from its top on, that may receive in place of the top: all would take longer
# than the search for a route.
_NEAR_TOP = 24
# With more pairs of GPUs that are joined directly, searching paths from every GPU takes minutes.
_CENTRE_PAIRS = 2_000_000
# A rank is in the middle if the farthest one is at most this many times as far, and a hop more, as
# from the best rank.
_MIDDLE = 1.25
# Numbers of links on a route.
Links = tuple[int, ...]


@dataclass
class _Tree:
    """An out-tree: the parent of each rank (-1 for the root), and the links to it from there."""

    root: int
    parent: list[int]
    links: list[Links]

    def list_children(self) -> list[list[int]]:
        """Return the ranks below each rank."""
        children: list[list[int]] = [[] for _ in self.parent]
        for rank, parent in enumerate(self.parent):
            if parent >= 0:
                children[parent].append(rank)
        return children

    def copy(self) -> _Tree:
        return _Tree(self.root, list(self.parent), list(self.links))


def _walk(top: int, children: Sequence[Sequence[int]]) -> list[int]:
    """Return `top` and all ranks below it, each after its parent."""
    out = [top]
    for rank in out:
        out += children[rank]
    return out


class LevelTrees(LinkArrays):
    """Out-trees of equal share, one for each item of `roots` (ranks, which may recur).

    With `both`, data is also reduced on each tree, so a route counts in both directions. `load[l]`
    is the number of trees' edges on link l. If `routes` are given, edges keep to them; `max_depth`
    limits hops. There are no trees before `take` or `grow`.
    """

    def __init__(
        self,
        topology: Topology,
        roots: Sequence[int],
        *,
        both: bool = False,
        routes: OwnRoutes | None = None,
        max_depth: int | None = None,
    ) -> None:
        super().__init__(topology)
        self.roots, self.both, self.ranks = list(roots), both, len(self.gpus)
        self.routes = routes
        # The link back of each link, -1 if there is none: a tree of both directions cannot use it.
        self.back: Ints = np.array([self.number.get((b, a), -1) for a, b in self.links])
        usable = self.back >= 0 if both else np.ones(len(self.links), dtype=np.bool_)
        if routes is not None:  # no route crosses the narrower one of two switches side by side
            usable &= np.asarray(routes.crossed.sum(axis=0)).ravel() > 0
        self._usable = np.flatnonzero(usable)
        # Each GPU has a second node at which routes end and from which no edge leads on, so no
        # route passes through a GPU.
        receiver = np.arange(self.size)
        receiver[self.gpus] = self.size + np.arange(self.ranks)
        shape = self.size + self.ranks, self.size + self.ranks
        order = np.arange(1, len(self._usable) + 1)
        ends = self.src[self._usable], receiver[self.dst[self._usable]]
        self._matrix = csr_matrix((order.astype(np.float64), ends), shape=shape)
        # Entry i of the matrix is the price of link `_entries[i]`.
        self._entries = self._usable[self._matrix.data.astype(np.int64) - 1]
        self._link_between = {
            (int(self.src[i]), int(receiver[self.dst[i]])): int(i) for i in self._usable
        }
        self.max_depth = self.ranks if max_depth is None else max_depth
        self.load: Ints = np.zeros(len(self.links), dtype=np.int64)
        # How many edges of each tree cross each link.
        self._users: list[Counter[int]] = [Counter() for _ in self.links]
        self.trees: list[_Tree] = []
        self._random = random.Random(1)

    @property
    def reached(self) -> float:
        """The rate in GB/s at which the trees together carry data, if each carries the same."""
        return len(self.trees) / float((self.load / self.capacity).max())

    def _count(self, number: int, links: Links, sign: int) -> None:
        """Add a route to the loads of its links, or take it away."""
        for i in self._list_counted(links):
            self.load[i] += sign
            users = self._users[i]
            users[number] += sign
            if not users[number]:
                del users[number]

    def _list_counted(self, links: Sequence[int]) -> list[int]:
        """Return the links of a route, and those back if a route counts in both directions."""
        return [*links, *(self.back[list(links)].tolist() if self.both else ())]

    def _add(self, tree: _Tree) -> None:
        self.trees.append(tree)
        for links in tree.links:
            self._count(len(self.trees) - 1, links, 1)

    def take(self, seeds: Forest) -> None:
        """Add the trees of a forest instead of growing trees (`grow`).

        Each is added as often as its share of the trees of its root asks for. The forest must have
        trees for each of `roots`.
        """
        images = np.arange(self.size)[None] if seeds.images is None else seeds.images
        ranks = {gpu: r for r, gpu in enumerate(self.topology.ranks)}
        # Per root, the trees with their shares.
        listed: dict[int, list[tuple[Fraction, _Tree]]] = defaultdict(list)
        for tree, share in zip(seeds.trees, seeds.shares, strict=True):
            parent = tree.parents(ranks, "down")
            down = [self.find_devices(route or ()) for route in tree.down]
            for image in images:
                moved = self.rank_of[image[self.gpus]].tolist()
                new = _Tree(moved[tree.root], [-1] * self.ranks, [()] * self.ranks)
                for rank, stops in enumerate(down):
                    new.parent[moved[rank]] = -1 if parent[rank] < 0 else moved[parent[rank]]
                    if len(stops):
                        links = self.find_links(image[stops[:-1]], image[stops[1:]])
                        new.links[moved[rank]] = tuple(links.tolist())
                        if self.routes is not None:
                            own = new.parent[moved[rank]], moved[rank]
                            new.links[moved[rank]] = self.routes.list_links(*own)
                listed[new.root].append((share, new))
        for root, times in Counter(self.roots).items():
            total = sum((share for share, _ in listed[root]), Fraction(0))
            left = Fraction(0)
            laid = 0
            # Shares are rounded so that the first trees of a root together have their part.
            for share, seed in sorted(listed[root], key=lambda item: -item[0]):
                left += share * times / total
                while laid < round(left):
                    self._add(seed.copy())
                    laid += 1

    def grow(self, rate_GBps: float, effort: Effort) -> bool:
        """Add a tree from every root in turn, at prices that rise with the load of earlier ones.

        Links have room for trees that together carry `rate_GBps`; beyond that, prices are high.
        Return False if the time limit ended before every root had its tree: `roots` is then cut to
        those that have one, at least the first. Raise InfeasibleError if a root cannot reach all
        ranks.
        """
        around: list[list[int]] = [[] for _ in range(self.size)]
        for i in self._usable.tolist():
            around[int(self.src[i])].append(i)
        room = self.capacity * (len(self.roots) / rate_GBps)
        for root in self.roots:
            # The clock alone stops it: even where all work is used up, trees are worth their time.
            if self.trees and effort.clock_s <= 0:
                effort.record_cut("growing trees")
                self.roots = self.roots[: len(self.trees)]
                return False
            if self.routes is None:
                self._add(self._grow_tree(root, around, room))
            else:
                self._add(self._grow_on_routes(self.routes, root, room))
            effort.spend(_LINK_S * 20 * len(self.links))
        return True

    def _grow_tree(self, root: int, around: Sequence[Sequence[int]], room: Floats) -> _Tree:
        """Return a cheap out-tree, grown by repeatedly adding the GPU nearest to the tree."""
        prices = (np.exp(_BUSY * self.load / room) / room).tolist()
        steps = np.exp(_BUSY / room).tolist()
        hop, start = _HOP / float(room.max()), int(self.gpus[root])
        tree = _Tree(root, [-1] * self.ranks, [()] * self.ranks)
        growth = Growth(self, around, prices, hop, start, self.max_depth)
        while len(growth.depth) < self.ranks:
            links = growth.next_route()
            if links is not None:
                device = int(self.dst[links[-1]])
                rank = int(self.rank_of[device])
                tree.links[rank] = tuple(links)
                tree.parent[rank] = int(self.rank_of[self.src[links[0]]])
                for link in self._list_counted(links):
                    prices[link] *= steps[link]
                growth.open(device)
            elif growth.limit == self.ranks:
                raise InfeasibleError(self._explain_apart(root))
            else:  # some GPUs cannot be reached within the limit from this tree
                growth.raise_limit(self.ranks)
        return tree

    def _explain_apart(self, root: int) -> str:
        return (
            f"topology {self.topology.name!r}: the routes that trees may use do not join all GPUs "
            f"to {self.topology.ranks[root]}; add links in both directions"
        )

    def _grow_on_routes(self, routes: OwnRoutes, root: int, room: Floats) -> _Tree:
        """Return a cheap out-tree whose edges are the hardware's routes."""
        prices, steps = np.exp(_BUSY * self.load / room) / room, np.exp(_BUSY / room)
        if self.both:  # a route may cross links that have no link back
            prices[self.back < 0] = np.inf
        hop = _HOP / float(room.max())
        tree = _Tree(root, [-1] * self.ranks, [()] * self.ranks)
        depth: Ints = np.zeros(self.ranks, dtype=np.int64)
        inside = np.zeros(self.ranks, dtype=np.bool_)
        inside[root] = True
        # The rank from which the tree reaches each rank outside most cheaply, as far as known.
        start: Ints = np.full(self.ranks, root)
        limit = self.max_depth
        while not inside.all():
            # Prices rise while the tree grows, so they are summed again for each rank.
            cost = routes.distances_of(start, prices) + hop * depth[start]
            cost[inside | (depth[start] >= limit)] = np.inf
            rank = int(np.argmin(cost))
            if not np.isfinite(cost[rank]):
                # Some ranks cannot be reached within the limit from this tree, or only from others.
                every = routes.distances_to(np.arange(self.ranks), prices) + hop * depth
                every[:, ~inside] = np.inf
                start = every.argmin(axis=1)
                if limit == self.ranks and not np.isfinite(every[~inside].min()):
                    raise InfeasibleError(self._explain_apart(root))
                limit = self.ranks
                continue
            offers = routes.distances_to(np.array([rank]), prices)[0] + hop * depth
            offers[~inside | (depth >= limit)] = np.inf
            parent = int(np.argmin(offers))
            tree.parent[rank], tree.links[rank] = parent, routes.list_links(parent, rank)
            links = self._list_counted(tree.links[rank])
            prices[links] *= steps[links]
            inside[rank] = True
            depth[rank] = depth[parent] + 1
            if depth[rank] < limit:
                now = routes.distances_of(start, prices) + hop * depth[start]
                now[depth[start] >= limit] = np.inf
                fresh = routes.distances_from(rank, prices) + hop * depth[rank]
                start[fresh < now] = rank
        return tree

    def even_out(
        self,
        bound_GBps: float,
        least_gap: float,
        effort: Effort,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Move branches off full links until the gap to the bound is as small as can be found.

        Call it after `take` or `grow`. Gaps are fractions of `bound_GBps`. For gaps below
        `least_gap` links may not have enough room, so the search for a layout is short.
        """
        best = [tree.copy() for tree in self.trees]
        for gap in GAPS:
            rate = bound_GBps * (1 - gap)
            if self.reached >= rate:
                continue
            if not self._negotiate(rate, _PATIENCE[1] if gap >= least_gap else 0, effort):
                break
            best = [tree.copy() for tree in self.trees]
            if say is not None:
                say(f"packing: {len(best)} trees, within {gap:.2%} of the bound")
        self.trees.clear()
        self.load[:] = 0
        for users in self._users:
            users.clear()
        for tree in best:
            self._add(tree)

    def _negotiate(self, rate_GBps: float, tries_per_link: int, effort: Effort) -> bool:
        """Move branches until the trees carry `rate_GBps` together; return whether they do."""
        wanted = self.capacity * (len(self.trees) / rate_GBps)
        room = np.floor(wanted * (1 + 1e-9))
        history = np.ones(len(self.links))
        least, patience = np.inf, 0
        work_s = _MOVE_S + _LINK_S * len(self.links) + _RANK_S * self.ranks
        while True:
            excess = np.maximum(self.load - room, 0)
            full = np.flatnonzero(excess)
            if not len(full):
                return True
            total = float(excess.sum())
            patience = patience - 1 if total >= least else _PATIENCE[0] + tries_per_link * len(full)
            least = min(least, total)
            if patience < 0 or effort.is_over("negotiating trees"):
                return False
            effort.spend(work_s)
            history[full] += _HISTORY
            link = int(self._random.choice(full))
            self._move(self._random.choice(sorted(self._users[link])), link, history, room, wanted)

    def _price(self, history: Floats, room: Floats, wanted: Floats) -> Floats:
        """Return what one more tree would pay on each link."""
        above = np.maximum(self.load + 1 - room, 0)
        prices = history * (1 + _PRESENT * above) * (_IDLE + self.load / wanted) / wanted
        if self.both:
            prices = np.where(self.back >= 0, prices + prices[self.back], np.inf)
        return np.asarray(prices)

    def _move(self, number: int, link: int, history: Floats, room: Floats, wanted: Floats) -> None:
        """Cut a tree's edge over a link, and join the branch again on the cheapest route."""
        tree = self.trees[number]
        other = int(self.back[link]) if self.both else link
        tops = [r for r, links in enumerate(tree.links) if link in links or other in links]
        top = self._random.choice(tops)
        self._count(number, tree.links[top], -1)
        prices = self._price(history, room, wanted)
        children = tree.list_children()
        branch = _walk(top, children)
        entry, links = self._find_route(tree, branch, children, prices) or (top, tree.links[top])
        # The rank that receives in place of the top forwards to it: the edges between are reversed.
        path = [entry]
        while path[-1] != top:
            path.append(tree.parent[path[-1]])
        for rank in path[:-1]:
            self._count(number, tree.links[rank], -1)
        below = [
            (tree.parent[rank], rank, tuple(int(self.back[i]) for i in reversed(tree.links[rank])))
            for rank in path[:-1]
        ]
        tree.parent[entry], tree.links[entry] = int(self.rank_of[self.src[links[0]]]), links
        self._count(number, links, 1)
        for rank, parent, back in below:
            tree.parent[rank], tree.links[rank] = parent, back
            self._count(number, back, 1)

    def _price_turned(self, tree: _Tree, branch: list[int], prices: Floats) -> Floats:
        """Return what it costs to make each rank the first of a branch, in place of the top."""
        out = np.full(self.ranks, np.inf)
        if self.both:  # both directions are used already
            out[branch] = 0.0
            return out
        out[branch[0]] = 0.0
        for rank in branch[1:_NEAR_TOP]:
            links = list(tree.links[rank])
            back = self.back[links]
            if np.isfinite(out[tree.parent[rank]]) and (back >= 0).all():
                change = float(prices[back].sum() - prices[links].sum())
                out[rank] = out[tree.parent[rank]] + change
        return out

    def _find_route(
        self,
        tree: _Tree,
        branch: list[int],
        children: Sequence[Sequence[int]],
        prices: Floats,
    ) -> tuple[int, Links] | None:
        """Return the rank of a branch that is cheapest to reach, and the links to it.

        None if no route leads to the branch, or none that leaves the tree shallow enough.
        """
        turned = self._price_turned(tree, branch, prices)
        depth = np.zeros(self.ranks, dtype=np.int64)
        inside = set(branch)
        for rank in _walk(tree.root, children)[1:]:
            if rank not in inside:
                depth[rank] = depth[tree.parent[rank]] + 1
        height = _find_heights(branch, children, tree.parent)
        # The greatest depth of a rank that the branch may be joined to, by the rank that receives.
        top = branch[0]
        limit = max(self.max_depth, depth[tree.parent[top]] + 1 + height[top])
        highest = limit - 1 - np.array([height.get(r, 0) for r in range(self.ranks)])
        first = depth <= highest[branch].max()
        first[branch] = False
        if not first.any():
            return None
        if self.routes is not None:
            entries, starts = np.flatnonzero(np.isfinite(turned)), np.flatnonzero(first)
            distance = self.routes.distances_to(entries, prices)[:, starts]
            distance += turned[entries, None]
            distance[depth[starts] > highest[entries, None]] = np.inf
            place, start = divmod(int(np.argmin(distance)), len(starts))
            if not np.isfinite(distance[place, start]):
                return None
            entry = int(entries[place])
            return entry, self.routes.list_links(int(starts[start]), entry)
        self._matrix.data = prices[self._entries]
        distance, before, source = dijkstra(
            self._matrix, indices=self.gpus[first], min_only=True, return_predecessors=True
        )
        total = distance[self.size :] + turned
        # SciPy's number for a node that no source reaches is negative; its distance is infinite.
        total[depth[self.rank_of[np.maximum(source[self.size :], 0)]] > highest] = np.inf
        entry = int(np.argmin(total))
        if not np.isfinite(total[entry]):
            return None
        node, links = self.size + entry, []
        while before[node] >= 0:
            links.append(self._link_between[int(before[node]), node])
            node = int(before[node])
        return entry, tuple(reversed(links))

    def count_trees(self) -> list[tuple[RootedTree, int]]:
        """Return the different trees, each with the number of times that it is used."""
        out = []
        for (root, links), count in Counter(
            (tree.root, tuple(tree.links)) for tree in self.trees
        ).items():
            down = tuple(self._list_stops(route) for route in links)
            up = tuple(r and r[::-1] for r in down) if self.both else ()
            out.append((RootedTree(root, up, down), count))
        return out

    def list_forest(self) -> tuple[list[RootedTree], list[Fraction]]:
        """Return the different trees, and the share of its root's part that each carries."""
        total = Counter(self.roots)
        counted = self.count_trees()
        return (
            [tree for tree, _ in counted],
            [Fraction(count, total[tree.root]) for tree, count in counted],
        )

    def _list_stops(self, links: Links) -> Route | None:
        stops: Iterable[int] = (*self.src[list(links[:1])], *self.dst[list(links)])
        return tuple(self.names[i] for i in stops) or None


def _find_heights(
    branch: Sequence[int], children: Sequence[Sequence[int]], parent: Sequence[int]
) -> dict[int, int]:
    """Return how deep a branch is from each of its ranks, if that rank is made its top."""
    below = dict.fromkeys(branch, 0)
    for rank in reversed(branch[1:]):
        below[parent[rank]] = max(below[parent[rank]], below[rank] + 1)
    above = {branch[0]: 0}
    for rank in branch:
        # The deepest child's own depth does not count for what is beside it.
        steps = sorted((below[child] + 1 for child in children[rank]), reverse=True)[:2]
        for child in children[rank]:
            others = steps[1:] if steps[0] == below[child] + 1 else steps[:1]
            above[child] = 1 + max([above[rank], *others])
    return {rank: max(below[rank], above[rank]) for rank in branch}


def choose_count(
    links: LinkArrays, bound: Bound, counts: Iterable[int], *, slack: float | None = None
) -> tuple[int, float]:
    """Return the best of the numbers of trees in `counts`, and the gap to the bound to aim for.

    The gap is a fraction of the bound, 1 if no gap of GAPS is within reach. A link carries a whole
    number of trees, so some of its bandwidth is lost; what is lost on the links that the bound's
    certificate prices, or cuts, makes the gap. `slack` is the share of those links' room to leave
    free, so that trees can be moved. None is for trees from every root: it leaves none free, since
    the links that are not full give enough choice.
    """
    weight = _weigh(links, bound)
    weight, rate = weight / weight.sum(), float(bound.algbw_GBps)
    # Every tree reaches every GPU, but for trees of all roots their own.
    reached = 1.0 if slack is not None else 1 - 1 / len(links.gpus)

    def find_gap(trees: int) -> float:
        """Return the least gap that leaves the slack that negotiations need."""
        for gap in reversed(GAPS):
            wanted = links.capacity * (trees / (rate * (1 - gap)))
            room = np.floor(wanted * (1 + 1e-9))
            lost = float(weight @ (1 - room / wanted))
            received = np.bincount(links.dst, weights=room, minlength=links.size)[links.gpus]
            if gap - lost >= (slack or 0.0) and received.min() >= trees * reached:
                return gap
        return 1.0

    # Each tree costs messages, so a gap below _FEW is not worth more trees.
    gap_of = {trees: find_gap(trees) for trees in counts}
    count = min(gap_of, key=lambda trees: (max(gap_of[trees], _FEW), trees))
    return count, gap_of[count]


def _weigh(links: LinkArrays, bound: Bound) -> Floats:
    """Return how much the bandwidth of each link counts in a bound, in either direction."""
    certificate = bound.certificate
    if "inside" in certificate:
        inside = set(certificate["inside"])
        return links.capacity * [(a in inside) != (b in inside) for a, b in links.links]
    price = {(a, b): float(parse_fraction(text)) for a, b, text in certificate["prices"]}
    either = (max(price.get((a, b), 0), price.get((b, a), 0)) for a, b in links.links)
    return links.capacity * list(either)


def choose_depth(topology: Topology, *, both: bool) -> tuple[list[int], int]:
    """Return the ranks in the middle of a machine, and a limit on depth that costs little rate.

    Depths are in hops; with `both`, for trees that reduce and broadcast. Pipelines of deep trees
    are slow to fill. Trees of half as many hops again as shortest paths, or of the depth of binary
    trees, reach the bound on all machines that were tried.
    """
    metric = Metric(LinkArrays(topology), np.ones(len(topology.capacity_GBps)))
    joined = np.isfinite(metric.distance)
    hops = np.ones(len(joined))
    if np.count_nonzero(joined) < len(joined) * (len(joined) - 1):
        # Where that takes long, the GPUs that reach most others stand for the middle.
        reach = joined.sum(axis=1)
        many = reach.sum() > _CENTRE_PAIRS
        starts = reach.argmax(keepdims=True) if many else np.arange(len(joined))
        far = shortest_path(csr_matrix(joined), unweighted=True, indices=starts).max(axis=1)
        hops = np.where(reach == reach.max(), far[0], np.inf) if many else far
    middle = np.flatnonzero(hops <= _MIDDLE * hops.min() + 1).tolist()
    # Trees of one direction leave less choice: a rank receives once from each. With twice as many
    # hops, chains of boxes ended in stars, which fill the NICs: 256 GPUs with two faults were 5.5 %
    # under the bound, 512 with four 22 %; with three times as many it is .2 and .02 %.
    farthest = max(1.5 * float(hops.min()), log2(len(joined)) + 1)
    return middle, ceil(farthest) * (1 if both else 3)
