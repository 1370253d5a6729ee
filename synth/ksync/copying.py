"""SCCL's formulation as a CP-SAT model, for collectives that only copy: allgather, broadcast,
gather, scatter, alltoall.

A Boolean per (chunk, edge, step): the chunk crosses that edge in that step. Every required rank
gets every chunk over exactly one edge in one step, from a rank that had it in an earlier step; a
link of bandwidth b carries at most b r_s chunks in step s; the r_s >= 1 add up to R (SCCL, section
4). A send is a variable only where its source can have the chunk by then and its destination can
still be of use, by hop distances.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

from ortools.sat.python import cp_model

from ...topo.errors import TimeLimitError
from ..effort import Effort
from ..ir.collective import Chunk, Collective
from ..ir.schedule import Schedule, Transfer, Transfers
from ..numeric.cp_sat import solve
from .fabric import Fabric

# (chunk, edge, step)
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Instance:
    """One question: is there a schedule of `chunks` (in SCCL's units), `steps` and `rounds`?"""

    collective: Collective
    chunks: int
    steps: int
    rounds: int

    @property
    def ratio(self) -> Fraction:
        """R/C, which multiplies L beta in SCCL's cost."""
        return Fraction(self.rounds, self.chunks)


def run_solver(model: cp_model.CpModel, effort: Effort, what: Instance) -> cp_model.CpSolver | None:
    """Return the solver with its solution, or None if the model is proved infeasible.

    Raises TimeLimitError where neither is known after the work that is allowed.
    """
    solver, status = solve(model, effort, "exact", varied=True)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return solver
    if status == cp_model.INFEASIBLE:
        return None
    raise TimeLimitError(
        f"no answer in time for {what.collective.name} with {what.chunks} chunks, {what.steps} "
        f"steps, {what.rounds} rounds"
    )


def solve_copying(fabric: Fabric, instance: Instance, effort: Effort) -> Schedule | None:
    """Return a schedule of exactly that form, or None where it is proved that there is none."""
    chunks = instance.collective.even_chunks(instance.chunks)
    sends = list_possible_sends(fabric, instance.collective, chunks, instance.steps)
    model = cp_model.CpModel()
    variable = {key: model.new_bool_var("") for key in sends}
    # A chunk that arrives twice at a rank is of no more use than once, so a relay receives it at
    # most once.
    arrivals: dict[tuple[int, int], list[Key]] = defaultdict(list)
    for key in sends:
        arrivals[key[0], fabric.edges[key[1]][1]].append(key)
    for c, chunk in enumerate(chunks):
        sources = set(instance.collective.holders(chunk))
        wanted = set(instance.collective.receivers(chunk))
        for rank in set(range(fabric.ranks)) - sources:
            inward = [variable[key] for key in arrivals[c, rank]]
            if rank in wanted:
                if not inward:
                    return None
                model.add_exactly_one(inward)
            elif inward:
                model.add_at_most_one(inward)
        # A rank that does not hold the chunk at first sends it only after it has arrived.
        for c_, e, s in (key for rank in range(fabric.ranks) for key in arrivals[c, rank]):
            u = fabric.edges[e][0]
            if u not in sources:
                earlier = [variable[key] for key in arrivals[c, u] if key[2] < s]
                model.add_bool_or([*earlier, ~variable[c_, e, s]])
    rounds = add_rounds(model, instance)
    _add_capacities(model, fabric, variable, rounds)
    # A schedule with equal chunks swapped is as good: the solver must not refute each of them on
    # its own.
    _break_symmetry(model, instance, chunks, arrivals, variable)
    solver = run_solver(model, effort, instance)
    if solver is None:
        return None
    chosen = {key for key, var in variable.items() if solver.boolean_value(var)}
    lengths = [r if isinstance(r, int) else solver.value(r) for r in rounds]
    return _build_schedule(fabric, instance, chunks, chosen, lengths)


def list_possible_sends(
    fabric: Fabric, collective: Collective, chunks: tuple[Chunk, ...], steps: int
) -> list[Key]:
    """Return the (chunk, edge, step) that can be part of a schedule.

    The source must be able to have the chunk by then, and the destination to pass it on in time, by
    hop distances; the only receiver of a chunk never sends it on.
    """
    out: list[Key] = []
    hops_from_sources: dict[tuple[int, ...], dict[int, int]] = {}
    hops_to_receivers: dict[tuple[int, ...], dict[int, int]] = {}
    for c, chunk in enumerate(chunks):
        sources, wanted = tuple(collective.holders(chunk)), tuple(collective.receivers(chunk))
        if sources not in hops_from_sources:
            hops_from_sources[sources] = fabric.hops_from(sources)
        if wanted not in hops_to_receivers:
            hops_to_receivers[wanted] = fabric.hops_from(wanted, backwards=True)
        for e, (u, v) in enumerate(fabric.edges):
            if (
                v in sources
                or wanted == (u,)
                or u not in hops_from_sources[sources]
                or v not in hops_to_receivers[wanted]
            ):
                continue
            first, last = hops_from_sources[sources][u], steps - 1 - hops_to_receivers[wanted][v]
            out.extend((c, e, s) for s in range(first, last + 1))
    return out


def add_rounds(model: cp_model.CpModel, instance: Instance) -> list[cp_model.IntVar] | list[int]:
    """Add the length of each step in rounds, at least 1 each and R in all, to the model; return the
    lengths.
    """
    slack = instance.rounds - instance.steps
    if slack == 0:
        return [1] * instance.steps
    rounds = [model.new_int_var(1, slack + 1, f"r{s}") for s in range(instance.steps)]
    model.add(sum(rounds) == instance.rounds)
    return rounds


def _add_capacities(
    model: cp_model.CpModel,
    fabric: Fabric,
    variable: dict[Key, cp_model.IntVar],
    rounds: list[cp_model.IntVar] | list[int],
) -> None:
    """Limit the chunks on each link in each step to its capacity times the step's rounds."""
    load: dict[tuple[tuple[str, str], int], list[cp_model.IntVar]] = defaultdict(list)
    for (_, e, s), var in variable.items():
        for link in fabric.links_of(e):
            load[link, s].append(var)
    for (link, s), variables in load.items():
        model.add(sum(variables) <= fabric.capacity[link] * rounds[s])


def _break_symmetry(
    model: cp_model.CpModel,
    instance: Instance,
    chunks: tuple[Chunk, ...],
    arrivals: dict[tuple[int, int], list[Key]],
    variable: dict[Key, cp_model.IntVar],
) -> None:
    """Order the arrivals of interchangeable chunks (same source and target) at the first rank that
    needs them.
    """
    for c in range(len(chunks) - 1):
        if chunks[c] != chunks[c + 1]:
            continue
        sources = set(instance.collective.holders(chunks[c]))
        rank = next((r for r in instance.collective.receivers(chunks[c]) if r not in sources), None)
        if rank is None:
            continue
        before, after = (sum(k[2] * variable[k] for k in arrivals[d, rank]) for d in (c, c + 1))
        model.add(before <= after)


def _build_schedule(
    fabric: Fabric,
    instance: Instance,
    chunks: tuple[Chunk, ...],
    chosen: set[Key],
    rounds: list[int],
) -> Schedule:
    used = _drop_idle_sends(fabric, instance.collective, chunks, chosen)
    transfers = Transfers.of(
        sorted(Transfer(s, *fabric.edges[e], c, "copy", fabric.routes[e][1:-1]) for c, e, s in used)
    )
    durations = tuple(r * chunks[0].share / fabric.unit_GBps for r in rounds)
    return Schedule(instance.collective, "exact", chunks, transfers, durations)


def _drop_idle_sends(
    fabric: Fabric, collective: Collective, chunks: tuple[Chunk, ...], chosen: set[Key]
) -> set[Key]:
    """Return the chosen sends without those that lead to no receiver."""
    by_end = {(c, fabric.edges[e][1]): (c, e, s) for c, e, s in chosen}
    useful: set[Key] = set()
    for c, chunk in enumerate(chunks):
        for rank in collective.receivers(chunk):
            # Backwards from the receiver along the sends that brought the chunk, until a part that
            # is known already.
            holder = rank
            while (c, holder) in by_end and by_end[c, holder] not in useful:
                useful.add(by_end[c, holder])
                holder = fabric.edges[by_end[c, holder][1]][0]
    return useful
