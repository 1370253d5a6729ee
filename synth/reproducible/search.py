"""Local search for a bracketing under which a machine is fast.

Several bracketings are fitted; then the best one is varied until the allowed work is done.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ...topo.errors import InfeasibleError
from ..cost.loads import computes_in_network
from ..forest.machine.routes import OwnRoutes
from ..ir.schedule import Schedule
from ..request import Request, build_schedule, segment_counts, whole
from .bracket import Bracket, grow_bracket, match_brackets, measure_closeness, vary_bracket
from .embedding import Embedding, find_spreads
from .fitting import NAME, Fitting

# Above this, bracketings are not searched for, and only levels remain.
_RANKS = 64
# Number of bracketings that are matched, and grown at random, before the best is varied.
_SEEDS, _GROWN = 4, 8
# Turns of column generation per bracketing, and for the best one at the end.
_TURNS, _LAST_TURNS = 60, 200
# A bracketing that takes at most this many times the bound ends the search.
_NEAR = 1.002
# A bracketing is better if it takes less than this fraction of the best time.
_BETTER = 0.999


def search_brackets(request: Request, given: Sequence[Bracket]) -> list[Schedule]:
    """Return schedules in the best bracketing found: for large messages, and a tree for small ones.

    `given` are bracketings to try too. Raise InfeasibleError if there are too many ranks, or if
    switches compute.
    """
    n = request.collective.ranks
    if n > _RANKS:
        raise InfeasibleError(
            f"{NAME}: bracketings of {n} ranks are not searched for; at most {_RANKS}"
        )
    if computes_in_network(request.topology):
        raise InfeasibleError(f"{NAME}: switches that add have an order of their own")
    routes = OwnRoutes(request.router)
    best = _search(request, given, routes)
    best.add_low_columns()
    schedules = [best.build(request, fit) for fit in best.list_cuts()]
    return [
        *(cut for schedule in schedules for cut in _cut(schedule)),
        *_build_small(request, best.embedding),
    ]


def _search(request: Request, given: Sequence[Bracket], routes: OwnRoutes) -> Fitting:
    close = measure_closeness(routes)
    chance = random.Random(0)
    enough_s = 0.0 if request.bound is None else float(request.bound.s_per_GB) * _NEAR
    best: Fitting | None = None
    reason: InfeasibleError | None = None
    seen: set[str] = set()
    tries = [*given, *(match_brackets(close, seed) for seed in range(_SEEDS))]
    tries += [grow_bracket(close, chance) for _ in range(_GROWN)]
    while best is None or best.seconds > enough_s:
        if tries:
            bracket = tries.pop(0)
        elif best is not None:
            bracket = vary_bracket(best.embedding.bracket, close, chance)
        else:
            break
        if repr(bracket) in seen:
            if len(seen) > 1 and len(seen) >= _count_small(routes.ranks):
                break
            request.effort.spend(1e-3)
            if request.effort.is_over(NAME):
                break
            continue
        seen.add(repr(bracket))
        fitting = Fitting(bracket, request.collective, routes)
        try:
            fitting.run(request.effort, _TURNS, np.inf if best is None else best.seconds * _BETTER)
        except InfeasibleError as error:
            reason = error
        else:
            if best is None or fitting.seconds < best.seconds * _BETTER:
                best = fitting
                request.say(f"{NAME}: {1 / best.seconds:.4g} GB/s with {len(seen)} bracketings")
        if request.effort.is_over(NAME):
            break
    if best is None:
        raise reason or InfeasibleError(f"{NAME}: no bracketing was found in time")
    best.run(request.effort.grant(4.0), _LAST_TURNS)
    return best


def _count_small(n: int) -> int:
    """Return the number of bracketings of n ranks; above 7 ranks, a number never reached."""
    return prod(2 * k - 3 for k in range(3, min(n, 7) + 1))


def _cut(schedule: Schedule) -> list[Schedule]:
    return [replace(schedule, segments=m) for m in segment_counts(schedule.trees or 1)]


def _build_small(request: Request, embedding: Embedding) -> list[Schedule]:
    """Return the schedules of a single chunk in the fewest steps found, for small messages.

    The result is empty for reduce-scatter.
    """
    name, n = request.collective.name, request.collective.ranks
    if name == "reduce-scatter":
        return []
    distance = np.where(embedding.routes.exists, 1.0, np.inf)
    np.fill_diagonal(distance, 0.0)
    adding = embedding.price(distance)
    spreads = find_spreads(distance) if name == "allreduce" else None
    ends = range(n) if name == "allreduce" else [request.collective.root or 0]
    columns = [
        embedding.find_column(end, None if spreads is None else spreads[end])
        for end in ends
        if np.isfinite(adding[end])
    ]
    column = min(columns, key=lambda column: column.steps)
    sends = [(step, src, dst, 0, op) for step, src, dst, op in column.moves]
    return _cut(build_schedule(request, NAME, whole(request.collective), sends, trees=1))
