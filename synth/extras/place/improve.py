"""Improve rank orders by local moves, as long as a move helps.

An order is the GPU of each rank. Moves swap ranks, reverse or rotate stretches of ranks, swap hosts
or leaves, and swap the same two GPUs on every host.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np

from .job import SPREAD, Ints, Job
from .loads import TIME, OrderLoads, Search
from .tiers import Tier, stack_equal

# Orders to evaluate at once: few enough that a move that helps is made soon, and that no more than
# this many numbers are in memory.
_BATCH, _MAX_ENTRIES = 64, 4_000_000
# Most moves to try all of them, and the number of moves to draw if there are more.
_MAX_MOVES, _DRAWN = 4096, 512
# An order is shaken by fewer moves than this.
_MAX_SHAKES = 8
# Most rotations of a ring to try.
_MAX_ROTATIONS = 256
# Most GPUs of a part to search its order separately, and the work in seconds of an idle core.
_MAX_INSIDE, _INSIDE_S = 64, 0.5
# Unevenness is a float sum, so a smaller gain may be rounding.
_MIN_GAIN = 1e-9
_SEARCH = "placement of ranks"
_SWAP, _REVERSE, _ROTATE, _SWAP_PARTS, _SWAP_POSITIONS = range(5)
# A kind, a tier's number (for the last two kinds), and two ranks, parts, or positions in each part.
Move = tuple[int, int, int, int]


class Improver:
    """A local search that improves orders by moves, such as a swap of two ranks.

    It offers its results to `search`, which evaluates orders, keeps the best one, and limits the
    work. `tiers` are divisions of the GPUs into parts, such as hosts; GPUs are numbered among those
    that take part. `chance` draws the moves.
    """

    def __init__(self, search: Search, tiers: Sequence[Tier], chance: np.random.Generator) -> None:
        self.search, self.chance = search, chance
        self.ranks = search.job.ranks
        self.batch = max(1, min(_BATCH, _MAX_ENTRIES // search.loads.entries))
        self.kinds = (_SWAP, _REVERSE, _ROTATE) if search.job.is_one_group else (_SWAP,)
        self.tiers = [parts for parts in stack_equal(tiers) if parts.shape[1] > 1]

    def improve(self, order: Ints) -> None:
        """Make moves from an order until none helps or the work is used up, and offer the result.

        Moves are tried in random order, a batch at a time; the best of a batch is made if it helps.
        """
        search, now = self.search, order.copy()
        _, key = search.find_best(now[None, :])
        while not search.effort.is_over(_SEARCH):
            moves = self._list_moves(now)
            for i in range(0, len(moves), self.batch):
                tried = np.array([self._move(now, move) for move in moves[i : i + self.batch]])
                row, best = search.find_best(tried)
                if best < (*key[:2], key[2] * (1 - _MIN_GAIN)):
                    now, key = tried[row], best
                    break
                if search.effort.is_over(_SEARCH):
                    break
            else:
                break
        search.offer(now[None, :])

    def search_on(self, least: Fraction | int) -> None:
        """Shake the best order by a few moves and improve it, until it meets the bound `least`.

        `least` is in the unit of values, `search.loads.seconds_each` seconds. The search also ends
        when the work is used up.
        """
        while self.search.best[1] > least and not self.search.effort.is_over(_SEARCH):
            shaken = self.search.order
            moves = self._list_moves(shaken)
            for k in self.chance.integers(0, len(moves), self.chance.integers(2, _MAX_SHAKES)):
                shaken = self._move(shaken, moves[int(k)])
            self.improve(shaken)

    def _list_moves(self, order: Ints) -> list[Move]:
        """Return moves in random order: all or, if there are too many, a random selection."""
        listed = [
            (kind, number, i, j)
            for number, parts in enumerate(self.tiers)
            # Swaps of whole hosts, or of two positions on all hosts, keep the structure of an
            # order.
            for kind, count in ((_SWAP_PARTS, parts.shape[0]), (_SWAP_POSITIONS, parts.shape[1]))
            for i, j in combinations(range(count), 2)
        ]
        if self.ranks * (self.ranks - 1) // 2 * len(self.kinds) <= _MAX_MOVES:
            listed += [
                (kind, 0, i, j)
                for kind in self.kinds
                for i, j in combinations(range(self.ranks), 2)
            ]
        else:
            drawn = self.chance.integers(0, self.ranks, (_DRAWN, 2))
            # Half of the pairs begin with a rank at the bottleneck, where moves help most.
            drawn[: _DRAWN // 2, 0] = self.chance.choice(self._find_busy_ranks(order), _DRAWN // 2)
            pairs = [
                (int(k), 0, int(min(a, b)), int(max(a, b)))
                for k, (a, b) in zip(self.chance.choice(self.kinds, _DRAWN), drawn, strict=True)
                if a != b
            ]
            listed = [listed[k] for k in self.chance.permutation(len(listed))[:_DRAWN]] + pairs
        return [listed[k] for k in self.chance.permutation(len(listed))]

    def _find_busy_ranks(self, order: Ints) -> Ints:
        """Return the ranks at the bottleneck of any phase.

        Their messages cross the busiest link of the phase, or leave its busiest part.
        """
        loads = self.search.loads
        ranks: list[Ints] = []
        for phase in loads.phases:
            busiest = int((loads.count(phase, order[None, :])[0] * loads.relative_weights).argmax())
            if phase.pattern.shape == SPREAD:
                ranks.append(
                    np.flatnonzero((loads.routes.part_of[:, order] == busiest).any(axis=0))
                )
                continue
            crosses = (loads.crossed[order[phase.src], order[phase.dst]] == busiest).any(axis=1)
            ranks += [phase.src[crosses], phase.dst[crosses]]
        busy: Ints = np.unique(np.concatenate(ranks))
        return busy if len(busy) else np.arange(self.ranks)

    def _move(self, order: Ints, move: Move) -> Ints:
        kind, number, i, j = move
        out: Ints = order.copy()
        if kind == _SWAP:
            out[i], out[j] = order[j], order[i]
        elif kind == _REVERSE:
            out[i : j + 1] = order[i : j + 1][::-1]
        elif kind == _ROTATE:
            out[i : j + 1] = np.roll(order[i : j + 1], 1)
        else:
            parts = self.tiers[number] if kind == _SWAP_PARTS else self.tiers[number].T
            other = np.arange(self.ranks)
            other[parts[i]], other[parts[j]] = parts[j], parts[i]
            out = other[order]
        return out


def keep_hosts_together(search: Search, order: Ints) -> Ints:
    """Return an order in which each host's ranks are consecutive, if one is as good as the best.

    Many launchers number ranks this way. A ring may begin anywhere, and often can pass all GPUs of
    a host at once. `order` is returned unchanged if the job has several groups, or if no such order
    is found.
    """
    hosts = search.host_of[order]
    begins = np.flatnonzero(hosts != np.roll(hosts, 1))
    if (
        not search.job.is_one_group
        or len(begins) <= 1
        or (hosts[1:] != hosts[:-1]).sum() == len(np.unique(hosts)) - 1
    ):
        return order
    tried = []
    for begin in begins[:_MAX_ROTATIONS].tolist():
        rotated = np.roll(order, -begin)
        # Hosts in the order of their first ranks, and the ranks of each in the order of the ring.
        _, first, host = np.unique(search.host_of[rotated], return_index=True, return_inverse=True)
        tried.append(rotated[np.argsort(first[host], kind="stable")])
    orders = np.array(tried)
    apart, values, _ = search.evaluate(orders)
    is_direct = search.count_forwarded(orders) <= search.count_forwarded(order[None, :])[0]
    as_good = np.flatnonzero((apart <= search.best[0]) & (values <= search.best[1]) & is_direct)
    return tried[int(as_good[0])] if len(as_good) else order


def arrange_inside(
    search: Search, tiers: Sequence[Tier], order: Ints, chance: np.random.Generator
) -> list[Ints]:
    """Return orders in which ranks are rearranged inside the parts of a tier, one order per tier.

    A tier divides the GPUs into parts; only those with equal parts are used. A separate search
    rearranges the ranks of the first part among its GPUs; all other parts follow the same
    arrangement. Tiers with large parts, or without messages inside the first one, are left out.
    `chance` draws its moves.
    """
    orders = []
    for parts in stack_equal(tiers):
        if 2 < parts.shape[1] <= _MAX_INSIDE:
            positions = _arrange(search, parts[0], order, chance)
            if positions is not None:
                other = np.arange(search.job.ranks)
                other[parts] = parts[:, positions]
                orders.append(other[order])
    return orders


def _arrange(search: Search, part: Ints, order: Ints, chance: np.random.Generator) -> Ints | None:
    """Return the new position of each rank in one part; None if its ranks exchange no messages."""
    loads, size, phases = search.loads, len(part), []
    position_of_gpu = np.full(search.job.ranks, -1, dtype=np.int64)
    position_of_gpu[part] = np.arange(size)
    position = position_of_gpu[order]
    for phase in loads.phases:
        src, dst = position[phase.src], position[phase.dst]
        within = (src >= 0) & (dst >= 0)
        if within.any() and phase.pattern.shape != SPREAD:
            parts = None if phase.parts is None else phase.parts[within]
            phases.append(replace(phase, src=src[within], dst=dst[within], parts=parts))
    if not phases:
        return None
    # A group may be cut off here, so its latency is left out.
    routes = replace(loads.routes, crossed=loads.crossed[np.ix_(part, part)], latencies=None)
    inner = Search(
        OrderLoads(routes, phases, TIME),
        Job((("positions", size),), ()),
        (),
        np.zeros(size, dtype=np.int64),
        search.effort.grant(_INSIDE_S),
    )
    improver = Improver(inner, (), chance)
    improver.improve(np.arange(size))
    improver.search_on(0)
    return inner.order
