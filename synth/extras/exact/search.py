"""The Pareto front of k-synchronous schedules over steps S and R/C, with its ends proved.

C is the number of chunks, R that of rounds, in SCCL's units: in a round a link carries a chunk for
each unit of its bandwidth, and a step lasts one round or more. k-synchronous means R <= S + k.

For each S from the least possible on, the front has the row with R = S and the most chunks, and the
row with the least R/C, down to the lower bound proved by the linear program of ratio_bound. The
search stops once R/C meets the topology's bandwidth bound. If the best R/C of an S is above that
bound, the (C, R) just below it are listed too, as proved infeasible. Reduce-scatter and reduce are
allgather and broadcast on the reversed topology; allreduce is composed of two, and solved directly
for few steps.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor

from ....topo.errors import TimeLimitError
from ....topo.routes import Router, route_links
from ...bounds.certificate import Bound
from ...bounds.multipath import bound
from ...ir.collective import Collective
from ...ir.schedule import Schedule, compose, reverse
from ...numeric.effort import Effort
from .models import SyncFabric, SyncInstance, fabric_of, solve_combining, solve_copying
from .ratio_bound import RatioProof, prove_least_ratio

FEASIBLE, INFEASIBLE, UNKNOWN = "feasible", "infeasible", "unknown"
# Maximum number of chunks tried: larger instances are rarely decided within _INSTANCE_WORK_S.
_MAX_CHUNKS = {"broadcast": 24, "alltoall": 4}
# The same for other collectives, and for instances with equal steps.
_MAX_CHUNKS_OTHERS, _MAX_CHUNKS_EQUAL_STEPS = 8, 32
# Maximum number of Booleans (chunk, edge, step) in a model.
_MAX_VARIABLES = 300_000
# Rounds beyond the steps that are tried if the caller sets no slack, and for direct allreduce.
_ROUND_SLACK, _DIRECT_SLACK = 8, 1
# Maximum number of candidates tried per number of steps, and of those that may stay undecided.
_TRIES, _MAX_OPEN = 12, 2
# Maximum number of edges for solving allreduce directly: a model has more variables by a factor of
# the number of ranks.
_DIRECT_EDGES = 72
# Seconds of an idle core for an instance, a proof of the least R/C, and the bound.
_INSTANCE_WORK_S, _PROOF_WORK_S, _BOUND_WORK_S = 3.0, 10.0, 20.0
# Time limit in seconds if the caller gives no effort.
_PATIENCE_S = 300.0
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ParetoRow:
    """One (chunks, steps, rounds) in SCCL's units, with its status and, if found, its schedule.

    `status` is "feasible", "infeasible" or "unknown", and `proof` names the reason for it.
    `synthesis_s` is the time spent on it in seconds. `form` is "direct" or, for an allreduce made
    of two collectives, "composed". `dominated`: another feasible row has no more steps and no
    greater R/C. `latency_optimal`: it is proved that no schedule has fewer steps.
    `bandwidth_optimal`: R/C meets the topology's bound.
    """

    chunks: int
    steps: int
    rounds: int
    status: str
    proof: str
    synthesis_s: float
    form: str = "direct"
    latency_optimal: bool = False
    bandwidth_optimal: bool = False
    dominated: bool = False
    schedule: Schedule | None = None

    @property
    def ratio(self) -> Fraction:
        """The ratio R/C of rounds to chunks: the bandwidth cost, of which less is better."""
        return Fraction(self.rounds, self.chunks)

    @property
    def is_on_front(self) -> bool:
        """Whether it has a schedule, and no other row dominates it."""
        return self.status == FEASIBLE and not self.dominated

    def __str__(self) -> str:
        return f"{self.chunks} chunks, {self.steps} steps, {self.rounds} rounds: {self.status}"


@dataclass(frozen=True)
class Front:
    """The rows that were examined, and the bound on R/C.

    `least_ratio` is the least R/C that `bound` allows. `complete` means that the search was
    exhaustive and no row is unknown.
    """

    rows: tuple[ParetoRow, ...]
    least_ratio: Fraction
    bound: Bound
    complete: bool

    @property
    def front(self) -> tuple[ParetoRow, ...]:
        """The feasible rows that no other row dominates."""
        return tuple(row for row in self.rows if row.is_on_front)


def pareto(
    collective: Collective,
    router: Router,
    effort: Effort | None = None,
    max_steps: int | None = None,
    slack: int | None = None,
    progress: Progress | None = None,
) -> Front:
    """Return the Pareto front of a collective on a topology, over steps and R/C.

    `effort` defaults to a limit of 300 s. `max_steps` ends the search if R/C cannot meet the bound
    (default: three more than the least number of steps, or with `slack` the number of ranks).
    `slack` is SCCL's k: only k-synchronous schedules, with R <= S + k, are examined (S: steps).
    `progress` is called with lines of text. Raise InfeasibleError if the topology is not connected.
    """
    effort = effort if effort is not None else Effort(_PATIENCE_S, _PATIENCE_S)
    limit = bound(collective, router.topology, effort.grant(_BOUND_WORK_S, 0.5), progress)
    scope = _Scope(effort, max_steps, slack, progress)
    if collective.name == "allreduce":
        rows, complete = _search_allreduce(router, scope)
    elif collective.reduces:
        rows, complete = _FrontSearch(collective.reversed(), router.reversed(), scope).run()
        rows = _reverse(rows)
    else:
        rows, complete = _FrontSearch(collective, router, scope).run()
    return _make_front(rows, collective, fabric_of(router), limit, complete)


def _make_front(
    rows: list[ParetoRow],
    collective: Collective,
    fabric: SyncFabric,
    limit: Bound,
    complete: bool = True,
) -> Front:
    """Return the front of rows with their flags set, by ascending steps, then descending R/C."""
    least = limit.s_per_GB * fabric.unit_GBps / collective.even_chunks(1)[0].share
    fewest = _count_needed_steps(collective, fabric)
    feasible = [row for row in rows if row.status == FEASIBLE]

    def beats(a: ParetoRow, b: ParetoRow) -> bool:
        if (a.steps, a.ratio) == (b.steps, b.ratio):
            return (a.chunks, a.form) < (b.chunks, b.form)
        return a.steps <= b.steps and a.ratio <= b.ratio

    flagged = [
        row
        if row.status != FEASIBLE
        else replace(
            row,
            latency_optimal=row.steps == fewest,
            bandwidth_optimal=row.ratio == least,
            dominated=any(beats(other, row) for other in feasible),
        )
        for row in rows
    ]
    flagged.sort(key=lambda r: (r.steps, -r.ratio, r.chunks))
    complete = complete and all(row.status != UNKNOWN for row in rows)
    return Front(tuple(flagged), least, limit, complete)


def _count_needed_steps(collective: Collective, fabric: SyncFabric) -> int:
    """Return the least number of steps of any schedule.

    It is the largest number of edges from a holder of data to one of its receivers.
    """
    reach = (
        (fabric.hops_from((holder,)), collective.receivers(chunk))
        for chunk in collective.even_chunks(1)
        for holder in collective.holders(chunk)
    )
    return max((hops.get(r, 0) for hops, receivers in reach for r in receivers), default=0)


def _solve_row(
    solve: Callable[[SyncFabric, SyncInstance, Effort], Schedule | None],
    fabric: SyncFabric,
    instance: SyncInstance,
    effort: Effort,
    progress: Progress | None,
) -> ParetoRow:
    key = instance.chunks, instance.steps, instance.rounds
    if progress is not None:
        progress("{}: {} chunks, {} steps, {} rounds".format(instance.collective.name, *key))
    started, schedule = time.monotonic(), None
    try:
        schedule = solve(fabric, instance, effort)
        verdict = (FEASIBLE, "schedule") if schedule is not None else (INFEASIBLE, "solver")
    except TimeLimitError:
        verdict = UNKNOWN, "time limit"
    return ParetoRow(*key, *verdict, time.monotonic() - started, schedule=schedule)


@dataclass(frozen=True)
class _Scope:
    effort: Effort
    max_steps: int | None = None
    slack: int | None = None
    progress: Progress | None = None


class _FrontSearch:
    """The search for the rows of a collective that only copies."""

    def __init__(self, collective: Collective, router: Router, scope: _Scope) -> None:
        self.collective, self.scope, self.effort = collective, scope, scope.effort
        self.fabric = fabric_of(router)
        share = collective.even_chunks(1)[0].share
        limit = bound(collective, router.topology, scope.effort.grant(_BOUND_WORK_S, 0.5))
        self.least = limit.s_per_GB * self.fabric.unit_GBps / share
        self.rows: dict[tuple[int, int, int], ParetoRow] = {}
        self.complete = True

    def run(self) -> tuple[list[ParetoRow], bool]:
        """Return all rows, and whether the search was complete with no row unknown."""
        best: Fraction | None = None
        slack, proof = self.scope.slack, None
        # The least number of steps in which all receivers can be reached.
        for steps in range(1, self.fabric.ranks + 1):
            proof = self._prove(steps)
            if proof is not None:
                break
        last = self.scope.max_steps or (steps + 3 if slack is None else self.fabric.ranks)
        while proof is not None and (best is None or steps <= last):
            if self.effort.is_over("exact"):
                break
            # If the proved R/C of this many steps is no better than that of fewer steps, they add
            # nothing to the front.
            least = max(proof.value, self.least)
            if best is None or least < best:
                self._search_most_chunks(steps)
                ratio = self._search_least_ratio(steps, least, best)
                if ratio is not None:
                    best = ratio if best is None else min(best, ratio)
                    if slack is None:
                        self._add_proved_infeasible(steps, best, proof)
            if best == self.least:
                return list(self.rows.values()), self.complete
            steps += 1
            proof = self._prove(steps)
        return list(self.rows.values()), False

    def _prove(self, steps: int, equal_steps: bool = False) -> RatioProof | None:
        """Return a proved lower bound on R/C in `steps` steps.

        None if some receiver cannot be reached in that many steps.
        """
        return prove_least_ratio(
            self.fabric, self.collective, steps, self.effort.grant(_PROOF_WORK_S), equal_steps
        )

    def _search_most_chunks(self, steps: int) -> None:
        """Find the row with R = S that has the most chunks.

        The search begins at a number of chunks that spreads evenly over a source's edges, which is
        likely to be feasible.
        """
        started = time.monotonic()
        proof = self._prove(steps, equal_steps=True)
        least = max(proof.value, self.least) if proof is not None else self.least
        limit = min(floor(steps / least), _MAX_CHUNKS_EQUAL_STEPS)
        if limit == 0:
            self._add_infeasible(1, steps, steps, time.monotonic() - started)
        # Go up from the start while rows are feasible; if the start itself is infeasible, go down
        # to the first feasible row.
        fabric, data = self.fabric, self.collective.even_chunks(1)
        width: Counter[int] = Counter()
        for (u, _), route in zip(fabric.edges, fabric.routes, strict=True):
            width[u] += min(fabric.capacity[link] for link in route_links(route))
        # A root's own part of a gather stays where it is: that rank may have no edge out.
        even = min(
            width[rank]
            for chunk in data
            for rank in self.collective.holders(chunk)
            if {rank} != set(self.collective.receivers(chunk))
        )
        start = limit // even * even if limit >= even else limit
        chunks = start
        while 1 <= chunks <= limit:
            status = self._try(chunks, steps, steps).status
            if status != FEASIBLE and chunks > start:
                return
            chunks += 1 if status == FEASIBLE else -1
            if status != FEASIBLE:
                start = chunks

    def _search_least_ratio(
        self, steps: int, least: Fraction, best: Fraction | None
    ) -> Fraction | None:
        """Return the least R/C found feasible in `steps` steps, or None.

        Ratios below `best` are tried from `least` up.
        """
        feasible = (row for row in self.rows.values() if row.status == FEASIBLE)
        reached = min((row.ratio for row in feasible if row.steps == steps), default=None)
        if self.scope.slack == 0:
            return reached
        ceiling = min((x for x in (best, reached) if x is not None), default=None)
        candidates, slack = [], self.scope.slack
        for chunks in range(1, _MAX_CHUNKS.get(self.collective.name, _MAX_CHUNKS_OTHERS) + 1):
            fewest = ceil(least * chunks)
            # Without slack, try at least the fewest rounds that the bound allows.
            last = max(steps + _ROUND_SLACK, fewest) if slack is None else steps + slack
            tried = range(max(steps, fewest), last + 1)
            candidates += [(Fraction(rounds, chunks), chunks, rounds) for rounds in tried]
        candidates = sorted(x for x in candidates if ceiling is None or x[0] < ceiling)
        # An undecided row uses up all its effort, and the following rows are mostly as hard.
        left_open = 0
        for ratio, chunks, rounds in candidates[:_TRIES]:
            status = self._try(chunks, steps, rounds).status
            if status == FEASIBLE:
                return ratio
            left_open += status == UNKNOWN
            if left_open >= _MAX_OPEN:
                break
        self.complete = self.complete and not left_open and len(candidates) <= _TRIES
        return reached

    def _add_proved_infeasible(self, steps: int, best: Fraction, proof: RatioProof) -> None:
        """Add rows just below the best R/C of this number of steps as proved infeasible.

        There are none if the best R/C is at the bound.
        """
        for chunks in range(2, _MAX_CHUNKS_OTHERS + 1):
            rounds = ceil(best * chunks) - 1
            if rounds >= steps and self.least <= Fraction(rounds, chunks) < proof.value:
                self._add_infeasible(chunks, steps, rounds, 0.0)

    def _add_infeasible(self, chunks: int, steps: int, rounds: int, seconds: float) -> None:
        key = chunks, steps, rounds
        self.rows.setdefault(key, ParetoRow(*key, INFEASIBLE, "LP dual", seconds))

    def _try(self, chunks: int, steps: int, rounds: int) -> ParetoRow:
        key = chunks, steps, rounds
        if key in self.rows:
            return self.rows[key]
        size = len(self.collective.even_chunks(chunks)) * len(self.fabric.edges) * steps
        if size > _MAX_VARIABLES or self.effort.is_over("exact"):
            row = ParetoRow(
                *key, UNKNOWN, "too large" if size > _MAX_VARIABLES else "time limit", 0.0
            )
        else:
            row = self.rows[key] = _solve_row(
                solve_copying,
                self.fabric,
                SyncInstance(self.collective, *key),
                self.effort.grant(_INSTANCE_WORK_S),
                self.scope.progress,
            )
        self.complete = self.complete and row.status != UNKNOWN
        return row


def _search_allreduce(router: Router, scope: _Scope) -> tuple[list[ParetoRow], bool]:
    """Return rows of allreduce, composed and direct, and whether the search was complete."""
    n = len(router.topology.ranks)
    # A reduce-scatter is an allgather on the reversed topology, reversed; on symmetric topologies
    # one search serves both.
    gather = Collective("allgather", n)
    gathers, complete = _FrontSearch(gather, router, scope).run()
    scatters = gathers
    if not router.topology.is_symmetric:
        scatters, whole = _FrontSearch(gather, router.reversed(), scope).run()
        complete = complete and whole
    rows = []
    back = {(r.chunks, r.steps, r.rounds): r.schedule for r in scatters}
    for row in gathers:
        scatter = back.get((row.chunks, row.steps, row.rounds))
        if row.schedule is not None and scatter is not None:
            key = row.chunks * n, 2 * row.steps, 2 * row.rounds
            both = compose(reverse(scatter), row.schedule)
            rows.append(
                ParetoRow(*key, FEASIBLE, "schedule", row.synthesis_s, "composed", schedule=both)
            )
    fewest = min((row.steps for row in gathers if row.status == FEASIBLE), default=0)
    if not fewest or len(fabric_of(router).edges) > _DIRECT_EDGES:
        return rows, False
    return rows + _search_direct(router, fewest, scope), complete


def _search_direct(router: Router, fewest: int, scope: _Scope) -> list[ParetoRow]:
    """Return rows of allreduce in fewer steps than any composed form has.

    The number of chunks grows as long as the solver succeeds.
    """
    fabric = fabric_of(router)
    collective = Collective("allreduce", fabric.ranks)
    rows: list[ParetoRow] = []
    best: Fraction | None = None
    slack = _DIRECT_SLACK if scope.slack is None else scope.slack
    for steps in range(fewest, 2 * fewest):
        for rounds in range(steps, steps + slack + 1):
            # To improve on the best R/C, this number of rounds needs more chunks than it implies.
            chunks = 1 if best is None else floor(rounds / best) + 1
            while not scope.effort.is_over("exact"):
                row = _solve_row(
                    solve_combining,
                    fabric,
                    SyncInstance(collective, chunks, steps, rounds),
                    scope.effort.grant(_INSTANCE_WORK_S),
                    scope.progress,
                )
                if row.status == INFEASIBLE:
                    row = replace(row, proof="solver, one partial sum a rank")
                rows.append(row)
                if row.schedule is None:
                    break
                best = Fraction(rounds, chunks)
                chunks += 1
    return rows


def decide(
    collective: Collective,
    router: Router,
    instances: list[tuple[int, int, int]],
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Front:
    """Return the rows of the given (chunks, steps, rounds) only, as a Front.

    Each is decided as in `pareto`, but allreduce always directly, not composed of two collectives.
    `effort` defaults to a limit of 300 s.
    """
    effort = effort if effort is not None else Effort(_PATIENCE_S, _PATIENCE_S)
    limit = bound(collective, router.topology, effort.grant(_BOUND_WORK_S, 0.5), progress)
    reversing = collective.reduces and collective.name != "allreduce"
    fabric = fabric_of(router.reversed() if reversing else router)
    target = collective.reversed() if reversing else collective
    solve = solve_combining if collective.name == "allreduce" else solve_copying
    rows = [
        _solve_row(solve, fabric, SyncInstance(target, *key), effort, progress) for key in instances
    ]
    return _make_front(_reverse(rows) if reversing else rows, target, fabric, limit)


def _reverse(rows: list[ParetoRow]) -> list[ParetoRow]:
    return [replace(row, schedule=row.schedule and reverse(row.schedule)) for row in rows]
