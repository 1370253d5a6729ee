"""Whole numbers of columns (rings, chains, trees) near the shares that a linear program gives them.

A row of `loads` is how long a column keeps each link busy; a choice is an array of column numbers,
in which one recurs as often as it is used. The busiest link decides what a choice is worth.
"""

import numpy as np

from .effort import Effort  # an allowance of work and time for searches
from .linear import Floats, Ints

# Weight, relative to the busiest link, and exponent of the power mean over all links: choices that
# leave fewer links nearly as busy are better.
_SECOND, _POWER = 1e-4, 16
# Smallest relative gain for which an exchange counts: above rounding errors.
BETTER = 1e-9
# Seconds of an idle core per load compared, and per comparison.
_ENTRY_S, _CALL_S = 2e-9, 5e-5


def round_down(shares: Floats, count: int) -> Ints:
    """Return a choice with each column as often as its share of `count` allows, rounded down.

    Shares sum up to 1, so the result has at most `count` items.
    """
    counts = np.floor(shares * count + 1e-9).astype(np.int64)
    return np.repeat(np.arange(len(counts)), counts)[:count]


def fill_up(loads: Floats, chosen: Ints, count: int, effort: Effort) -> Ints:
    """Return a choice of `count` columns: those chosen, and then always the best one more.

    The best is the one with which the busiest link is least busy. Work counts in `effort`.
    """
    while len(chosen) < count:
        total = loads[chosen].sum(axis=0)
        chosen = np.append(chosen, int(np.argmin(_judge(total + loads))))
        effort.spend(_CALL_S + _ENTRY_S * loads.size)
    return chosen


def exchange(loads: Floats, chosen: Ints, effort: Effort, search: str) -> Ints:
    """Return the choice, ascending, after exchanges of one column for another until none helps.

    An exchange helps if the busiest link is less busy then, or fewer links are nearly as busy. Work
    counts in `effort`, which may end the exchanges. `search` is the name to record in `effort` if
    the clock stops the exchanges.
    """
    chosen = chosen.copy()
    now = float(_judge(loads[chosen].sum(axis=0)))
    while not effort.is_over(search):
        total = loads[chosen].sum(axis=0)
        best, where = now * (1 - BETTER), None
        for number in np.unique(chosen).tolist():
            score = _judge(total - loads[number] + loads)
            effort.spend(_CALL_S + _ENTRY_S * loads.size)
            other = int(np.argmin(score))
            if score[other] < best:
                best, where = float(score[other]), (number, other)
        if where is None:
            break
        chosen[int(np.flatnonzero(chosen == where[0])[0])] = where[1]
        now = float(_judge(loads[chosen].sum(axis=0)))
    return np.sort(chosen)


def interleave(loads: Floats) -> list[int]:
    """Return the indices of channels in a sequence of which every prefix loads links evenly.

    A row of `loads` is the load of each link by one channel. The next channel is always the one
    that keeps the busiest links of the prefix, in descending order, least loaded.
    """
    left, total, out = list(range(len(loads))), np.zeros(loads.shape[1]), list[int]()
    while left:
        sums = -np.sort(-(total + loads[left]), axis=1)
        evenness = np.round(sums / max(float(sums.max()), 1e-300), 9)
        out.append(left.pop(int(np.lexsort(evenness.T[::-1])[0])))
        total = total + loads[out[-1]]
    return out


def _judge(load: Floats) -> Floats:
    """Return a score for each row of loads: the busiest link's load, plus a small tie-breaker.

    The tie-breaker grows with the number of links that are nearly as busy.
    """
    highest = load.max(axis=-1)
    ties = ((load / np.maximum(highest, 1e-300)[..., None]) ** _POWER).mean(axis=-1)
    return np.asarray(highest * (1 + _SECOND * ties))
