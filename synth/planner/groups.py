"""Synthesis for a group: some GPUs of a machine, with helpers among the others.

A plan has two kinds of schedules. Those without help are made on the machine of the members alone,
by every strategy. Those with help are trees and paths packed into all links of members and helpers
(strategies/packing.py). Both are verified on the whole machine, and the plan has the fastest for
each size; the others are alternatives for the runtime to try.

A promise is what all schedules of a plan keep, such as one order of additions. A `Synthesis` is a
plan, and how the search for it went.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ...topo.errors import InfeasibleError, TimeLimitError
from ...topo.graph import Topology
from ..bounds.group_bounds import GroupBounds, SubMachine, find_group_bounds
from ..bounds.multipath import check_connected
from ..bounds.single_path import Bounds
from ..ir.collective import Collective, spell_ranks
from ..request import Costed, Request
from ..strategies import packing
from ..strategy_names import AUTO
from .whole import Synthesis, cost_all, keep_promises, plan_of, synthesize_whole

# Work for packing, in seconds of an idle core.
_PACKING_WORK_S = 30.0
# Share of the time at which the clock stops the schedules without help.
_ALONE_CLOCK = 0.6


def synthesize_group(request: Request) -> Synthesis:
    """Return the verified plan for a group, which the request's helpers may help.

    Members and helpers are numbered as on the topology. Schedules of strategies other than packing,
    and those that keep a promise, use no helpers. Raise InfeasibleError if there is no plan,
    TimeLimitError if the time ended before one was found.
    """
    started = time.monotonic()
    collective, helpers, effort = request.collective, request.helpers, request.effort
    router = request.router
    part = SubMachine.of(collective, router, (*collective.members, *helpers))
    _check_reach(part, collective, request.topology)
    own = SubMachine.of(collective, router, collective.members)
    alone: Synthesis | None = None
    failed: InfeasibleError | TimeLimitError | None = None
    try:
        alone = synthesize_whole(
            replace(_on_part(request, own), effort=effort.begin_anew(_ALONE_CLOCK))
        )
    except (InfeasibleError, TimeLimitError) as error:
        failed = error
    promises = request.reproducible or request.promises
    helped = bool(helpers) and request.strategy in (AUTO, "packing") and not promises
    if alone is None and not helped:
        assert failed is not None
        raise failed
    bounds = _complete_bounds(alone, request)
    costed: Costed = []
    declined, table = dict[str, str](), list[dict[str, Any]]()
    if alone is not None:
        candidates = (schedule for schedule, _ in alone.candidates)
        costed += cost_all(router, own.lift(candidates, collective))
        declined, table = alone.declined, alone.table
    if helped:
        wanted = replace(
            _on_part(request, part),
            effort=effort.grant(_PACKING_WORK_S),
            bound=bounds.allowed.single_path,
            table=[],
        )
        try:
            costed += cost_all(router, part.lift(packing.build(wanted), collective))
            table = wanted.table
        except (InfeasibleError, TimeLimitError) as error:
            if alone is None:
                raise
            declined = {**declined, "packing with helpers": str(error)}
    # What a plan promises names ranks of the whole machine, as its schedules do.
    sections, costed = keep_promises(request, costed)
    plan = replace(
        plan_of(collective, router, bounds.allowed, costed, sections),
        helpers=helpers,
        bound_alone=bounds.alone,
        bound_with_helpers=bounds.with_helpers,
    )
    cut_short = (*(alone.cut_short if alone is not None else ()), *effort.cut_short)
    seconds = time.monotonic() - started
    return Synthesis(plan, seconds, declined, tuple(costed), table, cut_short)


def _on_part(request: Request, part: SubMachine) -> Request:
    """Return the request for the collective on a part of the machine, all of whose GPUs use it."""
    router = part.router
    return replace(
        request, collective=part.collective, topology=router.topology, router=router, helpers=()
    )


def _check_reach(part: SubMachine, collective: Collective, topology: Topology) -> None:
    """Raise InfeasibleError unless the GPUs of a part, helpers included, connect the members."""
    try:
        check_connected(part.collective, part.router.topology)
    except InfeasibleError:
        check_connected(collective, topology)
        others = [rank for rank in range(len(topology.ranks)) if rank not in part.ranks]
        raise InfeasibleError(
            f"{collective} on {topology.name!r}: they reach each other only through other GPUs; "
            f"let more of ranks {spell_ranks(others)} help"
        ) from None


def _complete_bounds(alone: Synthesis | None, request: Request) -> GroupBounds:
    """Return the bounds of `find_group_bounds`; those of the plan without help are not repeated."""
    collective, helpers, router = request.collective, request.helpers, request.router
    if alone is None:
        return find_group_bounds(collective, helpers, router, request.effort, request.progress)
    own = Bounds(alone.plan.bound, alone.plan.bound_one_way)
    everyone = range(len(router.topology.ranks))
    ranks = (*collective.members, *helpers) if helpers else everyone
    part = SubMachine.of(collective, router, ranks)
    helped = part.find_bounds(request.effort, request.progress)
    return GroupBounds(helped if helpers else own, own.single_path, helped.single_path)
