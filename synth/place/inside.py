"""The places inside hosts: what one host's ranks send each other is arranged for itself, and all
hosts follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .improve import Improver
from .job import Ints, Job
from .loads import TIME, Loads
from .patterns import SPREAD
from .search import Search
from .tiers import Tier

_MOST_SEATS = 64
# Work for one host's arrangement, in seconds of a quiet core.
_WORK_S = 0.5


def arrange_inside(
    search: Search, tiers: Sequence[Tier], order: Ints, chance: np.random.Generator
) -> list[Ints]:
    """Return what follows from an order when, in each tier of equal parts, the ranks of the first
    part are arranged anew among its GPUs, and those of all others alike.
    """
    found = []
    for tier in tiers:
        parts = (
            np.array(tier)
            if len({len(part) for part in tier}) == 1
            else np.zeros((0, 0), dtype=np.int64)
        )
        if 2 < parts.shape[-1] <= _MOST_SEATS:
            seats = _arrange(search, parts[0], order, chance)
            if seats is not None:
                other = np.arange(search.job.ranks)
                other[parts] = parts[:, seats]
                found.append(other[order])
    return found


def _arrange(search: Search, part: Ints, order: Ints, chance: np.random.Generator) -> Ints | None:
    """Return the new seat of each seat's rank in one part, None where its ranks send each other
    nothing.
    """
    loads, size = search.loads, len(part)
    seat_of_gpu = np.full(search.job.ranks, -1, dtype=np.int64)
    seat_of_gpu[part] = np.arange(size)
    seat = seat_of_gpu[order]
    phases = []
    for phase in loads.phases:
        within = (seat[phase.src] >= 0) & (seat[phase.dst] >= 0)
        if within.any() and phase.pattern.shape != SPREAD:
            phases.append(replace(phase, src=seat[phase.src[within]], dst=seat[phase.dst[within]]))
    if not phases:
        return None
    ways = replace(loads.ways, crossed=loads.crossed[np.ix_(part, part)])
    here = Search(
        Loads(ways, phases, TIME),
        Job((("seats", size),), ()),
        (),
        np.zeros(size, dtype=np.int64),
        search.effort.grant(_WORK_S),
    )
    improver = Improver(here, (), chance)
    improver.improve(np.arange(size))
    improver.search_on(0)
    return here.order
