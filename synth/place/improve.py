"""Orders made better step by step, as long as that helps: ranks swapped, stretches of ranks turned
round or moved, hosts or leaves swapped, GPUs swapped on all hosts alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from .job import Ints
from .patterns import SPREAD
from .search import Search
from .tiers import Tier

_AT_ONCE = 64
_MOST_MOVES = 4096
_DRAWN = 512
_MOST_SHAKES = 8
_MOST_TURNED = 256
_SEARCH = "placement of ranks"
_SWAP, _TURN, _SHIFT, _SWAP_PARTS, _SWAP_SEATS = range(5)
# A kind, the number of a tier (for the last two), and two ranks, parts, or places in every part.
Move = tuple[int, int, int, int]


class Improver:
    """Makes orders better. `tiers` say which GPUs (by their place among those that take part) are
    near each other.
    """

    def __init__(self, search: Search, tiers: Sequence[Tier], chance: np.random.Generator) -> None:
        self.search, self.chance = search, chance
        self.ranks = search.job.ranks
        self.at_once = max(1, min(_AT_ONCE, 4_000_000 // search.loads.entries))
        one_group = len([size for _, size in search.job.dimensions if size > 1]) == 1
        self.kinds = (_SWAP, _TURN, _SHIFT) if one_group else (_SWAP,)
        self.tiers = [
            np.array(tier, dtype=np.int64)
            for tier in tiers
            if len({len(part) for part in tier}) == 1 and len(tier[0]) > 1
        ]

    def improve(self, order: Ints) -> None:
        """Offer what follows from an order by moves that help, until none does or the work is used
        up.

        Moves are looked at in an order drawn by chance, many at once; the best of those looked at
        is made where it helps.
        """
        search = self.search
        now = order.copy()
        apart, values, uneven = search.judge(now[None, :])
        key = int(apart[0]), int(values[0]), float(uneven[0])
        helped = True
        while helped and not search.effort.is_over(_SEARCH):
            helped = False
            moves = self._list_moves(now)
            for i in range(0, len(moves), self.at_once):
                tried = np.array([self._move(now, move) for move in moves[i : i + self.at_once]])
                apart, values, uneven = search.judge(tried)
                at = int(np.lexsort((uneven, values, apart))[0])
                found = int(apart[at]), int(values[at]), float(uneven[at])
                if found[:2] < key[:2] or (found[:2] == key[:2] and found[2] < key[2] * (1 - 1e-9)):
                    now, key, helped = tried[at], found, True
                    break
                if search.effort.is_over(_SEARCH):
                    break
        search.offer(now[None, :])

    def search_on(self, least: Fraction | int) -> None:
        """Shake the best order by a few moves and improve it, again and again, until it is not
        above a bound (in the units of values) or the work is used up.
        """
        while self.search.best[1] > least and not self.search.effort.is_over(_SEARCH):
            shaken = self.search.order
            moves = self._list_moves(shaken)
            for k in self.chance.integers(
                0, len(moves), int(self.chance.integers(2, _MOST_SHAKES))
            ):
                shaken = self._move(shaken, moves[int(k)])
            self.improve(shaken)

    def _list_moves(self, order: Ints) -> list[Move]:
        """Return moves in an order drawn by chance: all of them, or those drawn, where they are
        many.
        """
        whole = [
            (kind, number, i, j)
            for number, parts in enumerate(self.tiers)
            for kind, count in ((_SWAP_PARTS, parts.shape[0]), (_SWAP_SEATS, parts.shape[1]))
            for i, j in combinations(range(count), 2)
        ]
        if self.ranks * (self.ranks - 1) // 2 * len(self.kinds) <= _MOST_MOVES:
            whole += [
                (kind, 0, i, j)
                for kind in self.kinds
                for i, j in combinations(range(self.ranks), 2)
            ]
        else:
            drawn = self.chance.integers(0, self.ranks, (_DRAWN, 2))
            drawn[: _DRAWN // 2, 0] = self.chance.choice(self._find_busy_ranks(order), _DRAWN // 2)
            kinds = self.chance.choice(self.kinds, _DRAWN)
            pairs = [
                (int(k), 0, int(min(a, b)), int(max(a, b)))
                for k, (a, b) in zip(kinds, drawn, strict=True)
                if a != b
            ]
            whole = [whole[k] for k in self.chance.permutation(len(whole))[:_DRAWN]] + pairs
        return [whole[k] for k in self.chance.permutation(len(whole))]

    def _find_busy_ranks(self, order: Ints) -> Ints:
        """Return the ranks whose messages cross the busiest link of some phase, or that send out of
        the busiest part.
        """
        loads = self.search.loads
        weights = np.array([*(float(w) for w in loads.weights), 0.0])
        ranks: list[Ints] = []
        for phase in loads.phases:
            busiest = int((loads.count(phase, order[None, :])[0] * weights).argmax())
            if phase.pattern.shape == SPREAD:
                ranks.append(np.flatnonzero((loads.ways.part_of[:, order] == busiest).any(axis=0)))
                continue
            crosses = (loads.crossed[order[phase.src], order[phase.dst]] == busiest).any(axis=1)
            ranks += [phase.src[crosses], phase.dst[crosses]]
        busy: Ints = np.unique(np.concatenate(ranks))
        return busy if len(busy) else np.arange(self.ranks)

    def _move(self, order: Ints, move: Move) -> Ints:
        """Return the order after a move."""
        kind, number, i, j = move
        out: Ints = order.copy()
        if kind == _SWAP:
            out[i], out[j] = order[j], order[i]
        elif kind == _TURN:
            out[i : j + 1] = order[i : j + 1][::-1]
        elif kind == _SHIFT:
            out[i : j + 1] = np.roll(order[i : j + 1], 1)
        else:
            parts = self.tiers[number] if kind == _SWAP_PARTS else self.tiers[number].T
            other = np.arange(self.ranks)
            other[parts[i]], other[parts[j]] = parts[j], parts[i]
            out = other[order]
        return out


def keep_hosts_together(search: Search, order: Ints) -> Ints:
    """Return a best order, or for one group one that is as good and in which each host's ranks
    follow each other, as many launchers number them: a ring may begin anywhere, and often pass all
    GPUs of a host at once.
    """
    hosts = search.host_of[order]
    begins = np.flatnonzero(hosts != np.roll(hosts, 1))
    together = len(begins) <= 1 or int((hosts[1:] != hosts[:-1]).sum()) == len(np.unique(hosts)) - 1
    if together or len([size for _, size in search.job.dimensions if size > 1]) != 1:
        return order
    tried = []
    for begin in begins[:_MOST_TURNED].tolist():
        turned = np.roll(order, -begin)
        _, first, host = np.unique(search.host_of[turned], return_index=True, return_inverse=True)
        tried.append(turned[np.argsort(first[host], kind="stable")])
    orders = np.array(tried)
    apart, values, _ = search.judge(orders)
    is_direct = search.count_forwarded(orders) <= search.count_forwarded(order[None, :])[0]
    as_good = np.flatnonzero((apart <= search.best[0]) & (values <= search.best[1]) & is_direct)
    return tried[int(as_good[0])] if len(as_good) else order
