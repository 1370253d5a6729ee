"""Allreduce as a CP-SAT model, solved directly instead of composed of two collectives.

Each rank holds one partial sum of each chunk. has[v,c,j,s]: rank v's partial sum of chunk c
includes the contribution of rank j when step s begins. In a step a rank may send its partial sum
over any edge; the receiver adds it (its contributions must be disjoint from those that it holds and
from those of other arrivals) or takes it over in place of its own. At the end every rank holds
every contribution. Ranks do not keep several partial sums of a chunk apart: "infeasible" means
infeasible in that form.
"""

from __future__ import annotations

from itertools import pairwise

from ortools.sat.python import cp_model

from ..ir.schedule import Schedule
from ..numeric.effort import Effort
from .copying import (
    EdgeSend,
    SyncFabric,
    SyncInstance,
    add_capacities,
    add_rounds,
    build_schedule,
    run_solver,
)


def solve_combining(fabric: SyncFabric, instance: SyncInstance, effort: Effort) -> Schedule | None:
    """Return an allreduce schedule with exactly the chunks, steps and rounds of `instance`.

    None if it is proved that none exists with one partial sum per rank. Raise TimeLimitError if the
    effort was too small to decide.
    """
    model = cp_model.CpModel()
    n, steps, count = fabric.ranks, instance.steps, instance.chunks
    # At first each rank has its own contribution alone; at the end every rank has all.
    has: dict[tuple[int, int, int, int], cp_model.IntVar] = {}
    for c in range(count):
        for v in range(n):
            for j in range(n):
                for s in range(steps + 1):
                    has[v, c, j, s] = model.new_bool_var("")
                model.add(has[v, c, j, 0] == int(v == j))
                model.add(has[v, c, j, steps] == 1)
    # A copy in the first step would destroy the only copy of the receiver's contribution, so there
    # is no variable for it.
    sends: dict[EdgeSend, cp_model.IntVar] = {}
    for c in range(count):
        for e in range(len(fabric.edges)):
            for s in range(steps):
                sends[c, e, s, "reduce"] = model.new_bool_var("")
                if s:
                    sends[c, e, s, "copy"] = model.new_bool_var("")
    for c in range(count):
        for v in range(n):
            for s in range(steps):
                _add_step(model, fabric, has, sends, (v, c, s))
    # Copies and additions share the links.
    rounds = add_rounds(model, instance)
    add_capacities(model, fabric, sends, rounds)
    # A schedule with chunks swapped is equally good, and refuting each one separately would waste
    # work: chunks are ordered by their number of sends in the first step.
    first_sends = [
        sum(sends[c, e, 0, "reduce"] for e in range(len(fabric.edges))) for c in range(count)
    ]
    for fewer, more in pairwise(first_sends):
        model.add(fewer <= more)
    solver = run_solver(model, effort, instance)
    if solver is None:
        return None
    chosen = [key for key, var in sends.items() if solver.boolean_value(var)]
    return build_schedule(fabric, instance, chosen, [solver.value(r) for r in rounds])


def _add_step(
    model: cp_model.CpModel,
    fabric: SyncFabric,
    has: dict[tuple[int, int, int, int], cp_model.IntVar],
    sends: dict[EdgeSend, cp_model.IntVar],
    where: tuple[int, int, int],
) -> None:
    """Add the constraints on the partial sum of one rank and chunk after one step.

    `where` is (rank, chunk, step).
    """
    v, c, s = where
    inward = fabric.into(v)
    copies = [sends[c, e, s, "copy"] for e in inward if s]
    adds = [sends[c, e, s, "reduce"] for e in inward]
    # A rank either takes one partial sum over, or adds any number of them to its own.
    copied = model.new_bool_var("")
    model.add(sum(copies) == copied)
    for add in adds:
        model.add_implication(add, ~copied)
    for j in range(fabric.ranks):
        before, after = has[v, c, j, s], has[v, c, j, s + 1]
        # `after` is 0 or 1, so a contribution that arrives twice makes the model infeasible: sets
        # must be disjoint.
        arriving = []
        for e, add in zip(inward, adds, strict=True):
            sender_has = has[fabric.edges[e][0], c, j, s]
            added = model.new_bool_var("")
            model.add_bool_or([~add, ~sender_has, added])
            model.add_implication(added, add)
            model.add_implication(added, sender_has)
            arriving.append(added)
        model.add(after == before + sum(arriving)).only_enforce_if(~copied)
        if s:
            for e, copy in zip(inward, copies, strict=True):
                model.add(after == has[fabric.edges[e][0], c, j, s]).only_enforce_if(copy)
