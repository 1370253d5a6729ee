"""Orders made better step by step: two ranks swapped, a stretch of ranks turned round or moved, as long as that helps."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from .job import Ints
from .search import Search

_AT_ONCE = 64
_MOST_MOVES = 4096
_SEARCH = "placement of ranks"


def improve(search: Search, order: Ints, chance: np.random.Generator) -> None:
    """Offer what follows from an order by moves that help, until none does or the work is used up.

    Moves are looked at in an order drawn by chance, many at once; the best of those looked at is made where it helps.
    """
    now = order.copy()
    apart, values, uneven = search.judge(now[None, :])
    key = int(apart[0]), int(values[0]), float(uneven[0])
    at_once = max(1, min(_AT_ONCE, 4_000_000 // search.loads.entries))
    helped = True
    while helped and not search.effort.is_over(_SEARCH):
        helped = False
        moves = _list_moves(search, now, chance)
        for i in range(0, len(moves), at_once):
            tried = np.array([_move(now, move) for move in moves[i : i + at_once]])
            apart, values, uneven = search.judge(tried)
            at = int(np.lexsort((uneven, values, apart))[0])
            found = int(apart[at]), int(values[at]), float(uneven[at])
            if found[:2] < key[:2] or (found[:2] == key[:2] and found[2] < key[2] * (1 - 1e-9)):
                now, key, helped = tried[at], found, True
                break
            if search.effort.is_over(_SEARCH):
                break
    search.offer(now[None, :])


def _list_moves(search: Search, order: Ints, chance: np.random.Generator) -> list[tuple[int, int, int]]:
    """Return moves (kind, from, to), by chance: swaps, and for jobs of one group stretches turned round and moved."""
    n = len(order)
    kinds = 3 if len([size for _, size in search.job.dimensions if size > 1]) == 1 else 1
    if n * (n - 1) // 2 * kinds <= _MOST_MOVES:
        moves = [(kind, i, j) for kind in range(kinds) for i, j in combinations(range(n), 2)]
        return [moves[k] for k in chance.permutation(len(moves))]
    busy = _find_busy_ranks(search, order)
    drawn = chance.integers(0, n, (_MOST_MOVES // 8, 2))
    drawn[: len(drawn) // 2, 0] = chance.choice(busy, len(drawn) // 2)
    kind = chance.integers(0, kinds, len(drawn))
    return [(int(k), int(min(a, b)), int(max(a, b))) for k, (a, b) in zip(kind, drawn, strict=True) if a != b]


def _find_busy_ranks(search: Search, order: Ints) -> Ints:
    """Return the ranks whose messages cross the busiest link of some phase."""
    loads = search.loads
    weights = np.array([*(float(w) for w in loads.weights), 0.0])
    ranks: list[Ints] = []
    for phase in loads.phases:
        busiest = int((loads.count(phase, order[None, :])[0] * weights).argmax())
        crosses = (loads.crossed[order[phase.src], order[phase.dst]] == busiest).any(axis=1)
        ranks += [phase.src[crosses], phase.dst[crosses]]
    busy: Ints = np.unique(np.concatenate(ranks))
    return busy


def _move(order: Ints, move: tuple[int, int, int]) -> Ints:
    kind, i, j = move
    out: Ints = order.copy()
    if kind == 0:
        out[i], out[j] = order[j], order[i]
    elif kind == 1:
        out[i : j + 1] = order[i : j + 1][::-1]
    else:
        out[i : j + 1] = np.roll(order[i : j + 1], 1)
    return out
