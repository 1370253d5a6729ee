"""The Pareto front of k-synchronous schedules over steps S and R/C, its ends proved.

For each S from the least possible on: the row with R = S and the most chunks, and the row with the
least R/C, down to what the linear program of ratio_bound proves; it stops where R/C meets the
topology's bandwidth bound. Where the best R/C of an S is above that bound, the (C, R) just below it
are listed too, as proved infeasible. Reduce-scatter and reduce are allgather and broadcast on the
reversed topology; allreduce is composed of two, and solved directly for few steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor

from ...topo.errors import TimeLimitError
from ...topo.routes import Router
from ..bounds.certificate import Bound
from ..bounds.multipath import bound
from ..effort import Effort
from ..ir.collective import Collective
from ..ir.schedule import Schedule
from ..ir.transform import compose, reverse
from .combining import solve_combining
from .copying import Instance, solve_copying
from .fabric import Fabric, fabric_of
from .ratio_bound import RatioProof, prove_least_ratio

FEASIBLE, INFEASIBLE, UNKNOWN = "feasible", "infeasible", "unknown"
_MOST_CHUNKS = {"broadcast": 24, "alltoall": 4}
_MOST_CHUNKS_OF_EQUAL_STEPS = 32
_MOST_VARIABLES = 300_000
_ROUND_SLACK = 8
_TRIES = 12
_DIRECT_EDGES = 72
_DIRECT_SLACK = 1
_INSTANCE_WORK_S = 3.0
_OPEN_AT_MOST = 2
_PROOF_WORK_S, _BOUND_WORK_S = 10.0, 20.0
# Time limit where the caller gives no effort.
_PATIENCE_S = 300.0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One (chunks, steps, rounds) in SCCL's units, its status with the `proof` of it, and its
    schedule if one was found.

    `form` is "direct" or "composed" (allreduce only). `dominated`: another feasible row has no more
    steps and no greater R/C. `latency_optimal`: it is proved that no schedule has fewer steps;
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
        """R/C."""
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class Front:
    """The rows that were examined, the least R/C that the bound allows, and whether the front is
    complete (no row unknown).
    """

    rows: tuple[Row, ...]
    least_ratio: Fraction
    bound: Bound
    complete: bool

    @property
    def front(self) -> tuple[Row, ...]:
        """The feasible rows that no other dominates."""
        return tuple(row for row in self.rows if row.status == FEASIBLE and not row.dominated)


def pareto(
    collective: Collective,
    router: Router,
    effort: Effort | None = None,
    max_steps: int | None = None,
    slack: int | None = None,
    progress: Progress | None = None,
) -> Front:
    """Return the Pareto front of a collective on a topology.

    `max_steps` ends the search where R/C cannot meet the bound (default: three more than the least
    number of steps, or with `slack` the number of ranks). `slack` is SCCL's k: only k-synchronous
    schedules, with R <= S + k, are examined. Raises InfeasibleError where the topology is not
    connected.
    """
    effort = effort if effort is not None else Effort(_PATIENCE_S, _PATIENCE_S)
    limit = bound(collective, router.topology, effort.grant(_BOUND_WORK_S, 0.5), progress)
    scope = _Scope(effort, max_steps, slack, progress)
    if collective.name == "allreduce":
        rows, complete = _search_allreduce(router, scope)
    elif collective.reduces:
        rows, complete = _Search(collective.reversed(), router.reversed(), scope).run()
        rows = [
            replace(row, schedule=reverse(row.schedule) if row.schedule else None) for row in rows
        ]
    else:
        rows, complete = _Search(collective, router, scope).run()
    share = collective.even_chunks(1)[0].share
    fabric = fabric_of(router)
    least = limit.s_per_GB * fabric.unit_GBps / share
    complete = complete and all(row.status != UNKNOWN for row in rows)
    return Front(
        tuple(_set_flags(rows, least, _count_needed_steps(collective, fabric))),
        least,
        limit,
        complete,
    )


def _count_needed_steps(collective: Collective, fabric: Fabric) -> int:
    """Return the least number of steps of any schedule: the most edges from a holder of data to one
    of its receivers.
    """
    needed = 0
    for chunk in collective.even_chunks(1):
        for holder in collective.holders(chunk):
            hops = fabric.hops_from((holder,))
            needed = max(needed, *(hops.get(rank, 0) for rank in collective.receivers(chunk)))
    return needed


def _set_flags(rows: list[Row], least: Fraction, fewest: int) -> list[Row]:
    """Return the rows with their flags set, by steps up and then R/C down; no schedule has less
    than `fewest` steps.
    """
    feasible = [row for row in rows if row.status == FEASIBLE]

    def beats(a: Row, b: Row) -> bool:
        better = (a.steps, a.ratio) != (b.steps, b.ratio) or (a.chunks, a.form) < (b.chunks, b.form)
        return a is not b and a.steps <= b.steps and a.ratio <= b.ratio and better

    out = [
        replace(
            row,
            latency_optimal=row.status == FEASIBLE and row.steps == fewest,
            bandwidth_optimal=row.status == FEASIBLE and row.ratio == least,
            dominated=row.status == FEASIBLE and any(beats(other, row) for other in feasible),
        )
        for row in rows
    ]
    return sorted(out, key=lambda r: (r.steps, -r.ratio, r.chunks))


@dataclass(frozen=True)
class _Scope:
    """Limits of a search: see `pareto`."""

    effort: Effort
    max_steps: int | None = None
    slack: int | None = None
    progress: Progress | None = None


class _Search:
    """The search for the rows of a collective that only copies."""

    def __init__(
        self,
        collective: Collective,
        router: Router,
        scope: _Scope,
    ) -> None:
        self.collective, self.effort, self.progress = collective, scope.effort, scope.progress
        self.fabric: Fabric = fabric_of(router)
        share = collective.even_chunks(1)[0].share
        limit = bound(collective, router.topology, scope.effort.grant(_BOUND_WORK_S, 0.5))
        self.least = limit.s_per_GB * self.fabric.unit_GBps / share
        self.scope = scope
        self.rows: dict[tuple[int, int, int], Row] = {}
        self.complete = True

    def run(self) -> tuple[list[Row], bool]:
        """Return all rows, and whether the search ended with none unknown."""
        best: Fraction | None = None
        steps, proof = self._find_fewest_steps()
        last = self.scope.max_steps or (
            steps + 3 if self.scope.slack is None else self.fabric.ranks
        )
        while (
            proof is not None
            and (best is None or steps <= last)
            and not self.effort.is_over("exact")
        ):
            # Steps whose proved R/C is no better than what fewer steps reach cannot add to the
            # front.
            if best is None or max(proof.value, self.least) < best:
                self._search_most_chunks(steps)
                ratio = self._search_least_ratio(steps, max(proof.value, self.least), best)
                if ratio is not None:
                    best = ratio if best is None else min(best, ratio)
                    if self.scope.slack is None:
                        self._add_proved_infeasible(steps, best, proof)
            if best == self.least:
                return list(self.rows.values()), self.complete
            steps += 1
            proof = self._prove(steps)
        self.complete = False
        return list(self.rows.values()), False

    def _prove(self, steps: int, *, equal_steps: bool = False) -> RatioProof | None:
        """Return a proved lower bound on R/C, or None where some receiver cannot be reached in that
        many steps.
        """
        effort = self.effort.grant(_PROOF_WORK_S)
        return prove_least_ratio(
            self.fabric, self.collective, steps, equal_steps=equal_steps, effort=effort
        )

    def _find_fewest_steps(self) -> tuple[int, RatioProof | None]:
        """Return the least number of steps in which all receivers can be reached, with the proof
        for it; (0, None) if none.
        """
        for steps in range(1, self.fabric.ranks + 1):
            proof = self._prove(steps)
            if proof is not None:
                return steps, proof
        return 0, None

    def _search_most_chunks(self, steps: int) -> None:
        """Find the row with R = S that has the most chunks.

        The search begins at a number of chunks that spreads evenly over a source's edges, which is
        likely to be feasible.
        """
        started = time.monotonic()
        proof = self._prove(steps, equal_steps=True)
        least = max(proof.value, self.least) if proof is not None else self.least
        most = min(floor(steps / least), _MOST_CHUNKS_OF_EQUAL_STEPS)
        if most == 0:
            self._add(1, steps, steps, INFEASIBLE, "LP dual", time.monotonic() - started)
        # From the start up while rows are feasible; if the start itself is not, down to the first
        # that is.
        even = min(
            sum(self._find_width(e) for e, (u, _) in enumerate(self.fabric.edges) if u == r)
            for r in self._list_sources()
        )
        start = most // even * even if most >= even else most
        chunks = start
        while 1 <= chunks <= most:
            status = self._try(chunks, steps, steps).status
            if status != FEASIBLE and chunks > start:
                return
            chunks += 1 if status == FEASIBLE else -1
            if status != FEASIBLE:
                start = chunks

    def _list_sources(self) -> set[int]:
        """Return the ranks that hold data at first."""
        return {
            rank
            for chunk in self.collective.even_chunks(1)
            for rank in self.collective.holders(chunk)
        }

    def _find_width(self, edge: int) -> int:
        """Return how many chunks a round an edge carries on its own."""
        return min(self.fabric.capacity[link] for link in self.fabric.links_of(edge))

    def _search_least_ratio(
        self, steps: int, least: Fraction, best: Fraction | None
    ) -> Fraction | None:
        """Return the least R/C found feasible in `steps` steps, trying those below `best` from the
        least up.
        """
        most = _MOST_CHUNKS.get(self.collective.name, 8)
        feasible_ratios = [
            r.ratio for r in self.rows.values() if r.status == FEASIBLE and r.steps == steps
        ]
        ceiling = min([x for x in (best, *feasible_ratios) if x is not None], default=None)
        if self.scope.slack == 0:
            return min(feasible_ratios, default=None)
        slack = _ROUND_SLACK if self.scope.slack is None else self.scope.slack
        candidates = sorted(
            (Fraction(rounds, chunks), chunks, rounds)
            for chunks in range(1, most + 1)
            for rounds in range(
                max(steps, ceil(least * chunks)),
                self._find_last_round(steps, least, chunks, slack) + 1,
            )
            if ceiling is None or Fraction(rounds, chunks) < ceiling
        )
        # A row that the solver cannot decide takes all its work, and the next are mostly as hard.
        left_open = 0
        for ratio, chunks, rounds in candidates[:_TRIES]:
            status = self._try(chunks, steps, rounds).status
            if status == FEASIBLE:
                return ratio
            left_open += status == UNKNOWN
            if left_open >= _OPEN_AT_MOST:
                break
        self.complete = self.complete and not left_open and len(candidates) <= _TRIES
        return min(feasible_ratios, default=None)

    def _find_last_round(self, steps: int, least: Fraction, chunks: int, slack: int) -> int:
        """Return the most rounds to try; without k, at least the fewest that the bound allows."""
        return (
            steps + slack
            if self.scope.slack is not None
            else max(steps + slack, ceil(least * chunks))
        )

    def _add_proved_infeasible(self, steps: int, best: Fraction, proof: RatioProof) -> None:
        """Add, as proved infeasible, rows just below the best R/C of this number of steps, where it
        is not at the bound.
        """
        for chunks in range(2, 9):
            rounds = ceil(best * chunks) - 1
            if (
                rounds < steps
                or Fraction(rounds, chunks) < self.least
                or (chunks, steps, rounds) in self.rows
            ):
                continue
            if Fraction(rounds, chunks) < proof.value:
                self._add(chunks, steps, rounds, INFEASIBLE, "LP dual", 0.0)

    def _try(self, chunks: int, steps: int, rounds: int) -> Row:
        """Solve for one row, unless it is known already, and return it."""
        key = chunks, steps, rounds
        if key not in self.rows:
            size = len(self.collective.even_chunks(chunks)) * len(self.fabric.edges) * steps
            if size > _MOST_VARIABLES or self.effort.is_over("exact"):
                self.complete = False
                return Row(
                    *key, UNKNOWN, "too large" if size > _MOST_VARIABLES else "time limit", 0.0
                )
            if self.progress is not None:
                self.progress(
                    f"{self.collective.name}: {chunks} chunks, {steps} steps, {rounds} rounds"
                )
            started = time.monotonic()
            try:
                effort = self.effort.grant(_INSTANCE_WORK_S)
                schedule = solve_copying(self.fabric, Instance(self.collective, *key), effort)
            except TimeLimitError:
                self.complete = False
                return self._add(*key, UNKNOWN, "time limit", time.monotonic() - started)
            seconds = time.monotonic() - started
            status, proof = (FEASIBLE, "schedule") if schedule else (INFEASIBLE, "solver")
            self._add(*key, status, proof, seconds, schedule)
        return self.rows[key]

    def _add(
        self,
        chunks: int,
        steps: int,
        rounds: int,
        status: str,
        proof: str,
        seconds: float,
        schedule: Schedule | None = None,
    ) -> Row:
        row = Row(chunks, steps, rounds, status, proof, seconds, schedule=schedule)
        return self.rows.setdefault((chunks, steps, rounds), row)


def _search_allreduce(router: Router, scope: _Scope) -> tuple[list[Row], bool]:
    """Return rows of allreduce, composed and direct, and whether none was left unknown."""
    n = len(router.topology.ranks)
    # A reduce-scatter is an allgather on the reversed topology, turned round; on symmetric ones the
    # same search serves.
    gather = Collective("allgather", n)
    gathers, complete = _Search(gather, router, scope).run()
    scatters = gathers
    if not router.topology.is_symmetric:
        scatters, whole = _Search(gather, router.reversed(), scope).run()
        complete = complete and whole
    rows = []
    back = {(r.chunks, r.steps, r.rounds): r for r in scatters if r.schedule}
    for row in gathers:
        other = back.get((row.chunks, row.steps, row.rounds))
        if row.schedule is None or other is None or other.schedule is None:
            continue
        rows.append(
            Row(
                row.chunks * n, 2 * row.steps, 2 * row.rounds, FEASIBLE, "schedule", row.synthesis_s, "composed",
                schedule=compose(reverse(other.schedule), row.schedule),
            )
        )  # fmt: skip
    fewest = min((row.steps for row in gathers if row.status == FEASIBLE), default=0)
    if not fewest or len(fabric_of(router).edges) > _DIRECT_EDGES:
        return rows, False
    return rows + _search_direct(router, fewest, scope), complete


def _search_direct(router: Router, fewest: int, scope: _Scope) -> list[Row]:
    """Return rows of allreduce in fewer steps than any composed form has, with more chunks while
    the solver succeeds.
    """
    fabric = fabric_of(router)
    collective = Collective("allreduce", fabric.ranks)
    rows: list[Row] = []
    best: Fraction | None = None
    for steps in range(fewest, 2 * fewest):
        for rounds in range(
            steps, steps + (_DIRECT_SLACK if scope.slack is None else scope.slack) + 1
        ):
            # Only more chunks than the best R/C has in this number of rounds would be better.
            chunks = 1 if best is None else floor(rounds / best) + 1
            while not scope.effort.is_over("exact"):
                if scope.progress is not None:
                    scope.progress(
                        f"allreduce, direct: {chunks} chunks, {steps} steps, {rounds} rounds"
                    )
                started = time.monotonic()
                instance = Instance(collective, chunks, steps, rounds)
                try:
                    schedule = solve_combining(
                        fabric, instance, scope.effort.grant(_INSTANCE_WORK_S)
                    )
                    status, proof = (
                        (FEASIBLE, "schedule")
                        if schedule
                        else (INFEASIBLE, "solver, one partial sum a rank")
                    )
                except TimeLimitError:
                    schedule, status, proof = None, UNKNOWN, "time limit"
                rows.append(
                    Row(
                        chunks,
                        steps,
                        rounds,
                        status,
                        proof,
                        time.monotonic() - started,
                        schedule=schedule,
                    )
                )
                if schedule is None:
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
    """Return a front of the given (chunks, steps, rounds) alone. Allreduce is solved directly, not
    composed.
    """
    effort = effort if effort is not None else Effort(_PATIENCE_S, _PATIENCE_S)
    limit = bound(collective, router.topology, effort.grant(_BOUND_WORK_S, 0.5), progress)
    reversing = collective.reduces and collective.name != "allreduce"
    fabric = fabric_of(router.reversed() if reversing else router)
    target = collective.reversed() if reversing else collective
    solve = solve_combining if collective.name == "allreduce" else solve_copying
    rows = []
    for chunks, steps, rounds in instances:
        if progress is not None:
            progress(f"{collective.name}: {chunks} chunks, {steps} steps, {rounds} rounds")
        started = time.monotonic()
        try:
            schedule = solve(fabric, Instance(target, chunks, steps, rounds), effort)
            status, proof = (FEASIBLE, "schedule") if schedule else (INFEASIBLE, "solver")
        except TimeLimitError:
            schedule, status, proof = None, UNKNOWN, "time limit"
        if schedule is not None and reversing:
            schedule = reverse(schedule)
        rows.append(
            Row(chunks, steps, rounds, status, proof, time.monotonic() - started, schedule=schedule)
        )
    least = limit.s_per_GB * fabric.unit_GBps / collective.even_chunks(1)[0].share
    needed = _count_needed_steps(target, fabric)
    return Front(
        tuple(_set_flags(rows, least, needed)),
        least,
        limit,
        all(row.status != UNKNOWN for row in rows),
    )
