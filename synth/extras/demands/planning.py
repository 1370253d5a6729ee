"""Synthesis of plans for demands: the trees of one packing, verified, with its bounds.

Demands say which ranks hold and need which pieces of data; a packing divides each among trees. With
many GPUs the sends are chosen without one (box_deliveries.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ....topo.errors import InfeasibleError, InputError
from ...bounds.certificate import Bound, Bounds
from ...bounds.group_bounds import SubMachine
from ...ir.demands import Demands
from ...ir.schedule import Schedule
from ...machine.routes import OwnRoutes
from ...numeric.effort import Effort
from ...planner.whole import Synthesis, cost_all, plan_of
from ...request import Request, TreeLimits, segment_counts
from ...strategy_names import AUTO
from .bounds import find_demand_bounds
from .box_deliveries import BoxDeliveries
from .cuts import is_large
from .packing import DemandPacking
from .rounds import divide_into_rounds
from .schedules import NAME, draw_schedule

# Share of the work and of the time for the plan's own packing, and for that without help before.
_MAIN, _ALONE = 0.5, 0.25


def synthesize_demands(request: Request) -> Synthesis:
    """Return the verified plan for demands, in which the request's helpers may relay.

    `request.collective` must be Demands. `thorough` has no effect. Raise InputError for another
    strategy than packing, limits on trees or a promise (what all schedules of a plan keep, such as
    one order of additions), InfeasibleError if a piece cannot reach its receivers.
    """
    started = time.monotonic()
    demands, helpers, effort = request.collective, request.helpers, request.effort
    router, progress = request.router, request.progress
    assert isinstance(demands, Demands)
    if request.strategy not in (AUTO, NAME):
        raise InputError(
            f"strategy {request.strategy} has no {demands.name}; expected auto or {NAME}",
            parameter="strategy",
        )
    if request.reproducible or request.promises or request.limits != TreeLimits():
        raise InputError(
            f"{demands.name}: its plans keep no promises and take no limits on trees; leave them "
            "out"
        )
    part = SubMachine.of(demands, router, (*demands.members, *helpers))
    alone: Bound | None = None
    start: list[Schedule] = []
    if helpers:
        # What members carry by themselves is a plan too; some only reach each other with help.
        own = SubMachine.of(demands, router, demands.members)
        with suppress(InfeasibleError):
            unhelped, bounds = _plan_part(own, effort, _ALONE, progress)
            start, alone = own.lift([unhelped], demands), bounds.single_path
    schedule, bounds = _plan_part(part, effort, _MAIN, progress)
    rounds = divide_into_rounds(schedule, part.router.topology)
    drawn = [*start, *part.lift([schedule, *([rounds] if rounds else [])], demands)]
    costed = cost_all(
        router,
        (replace(base, segments=m) for base in drawn for m in segment_counts(base.trees or 1)),
    )
    plan = plan_of(demands, router, bounds, costed)
    if not demands.has_all_gpus:
        everyone = range(len(request.topology.ranks))
        plan = replace(
            plan,
            helpers=helpers,
            bound_alone=alone,
            bound_with_helpers=bounds.single_path
            if helpers
            else SubMachine.of(demands, router, everyone).find_bounds(effort, progress).single_path,
        )
    return Synthesis(
        plan, time.monotonic() - started, {}, tuple(costed), [], tuple(effort.cut_short)
    )


def _plan_part(
    part: SubMachine, effort: Effort, share: float, progress: Callable[[str], None] | None
) -> tuple[Schedule, Bounds]:
    """Return a schedule of demands on a part of the machine, and its bounds."""
    demands, router = part.collective, part.router
    assert isinstance(demands, Demands)
    if is_large(demands, router.topology):
        bounds = find_demand_bounds(demands, router, effort, progress)
        columns = BoxDeliveries(demands, router, bounds.single_path.s_per_GB * demands.size).columns
    else:
        packing = DemandPacking(demands, router.topology, OwnRoutes(router))
        granted = effort.watch().grant(effort.left_s / effort.scale * share, share)
        packing.run(granted, progress)
        bounds = find_demand_bounds(demands, router, effort, progress, packing)
        if granted.cut_short:  # the packing's prices are those of the bound
            bounds = replace(bounds, single_path=replace(bounds.single_path, is_cut_short=True))
        columns = packing.list_columns()
    return draw_schedule(demands, columns, router), bounds
