"""Synthesis for a group: some GPUs of a machine, with helpers among the others.

A plan has two kinds of schedules. Those without help are made on the machine of the members alone,
by every strategy. Those with help are trees and paths packed into all links of members and helpers
(strategies/packing.py). Both are verified on the whole machine, and the plan has the fastest for
each size; the others are alternatives for the runtime to try.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...topo.errors import InfeasibleError, TimeLimitError
from ...topo.graph import Topology
from ...topo.routes import HARDWARE, Router
from ..bounds.group_bounds import GroupBounds, SubMachine, find_group_bounds
from ..bounds.multipath import check_connected
from ..bounds.single_path import Bounds
from ..demands.demands import Demands
from ..ir.collective import Collective, spell_ranks
from ..numeric.effort import USUAL_LIMIT_S, Effort
from ..request import Request, TreeLimits
from ..strategies import packing
from .demands import synthesize_demands
from .names import AUTO
from .synthesize import Costed, Synthesis, cost_all, plan_of, synthesize

# Work for packing, in seconds of an idle core.
_PACKING_WORK_S = 30.0
# Share of the time at which the clock stops the schedules without help.
_ALONE_CLOCK = 0.6


def synthesize_any(
    collective: Collective,
    helpers: Sequence[int],
    topology: Topology,
    *args: Any,
    **options: Any,
) -> Synthesis:
    """Return the plan of `synthesize`, or of `synthesize_group` if not all GPUs are members.

    The arguments are those of `synthesize_group`; demands are planned by `synthesize_demands`.
    """
    if isinstance(collective, Demands):
        return synthesize_demands(collective, helpers, topology, *args, **options)
    if collective.has_all_gpus:
        return synthesize(collective, topology, *args, **options)
    return synthesize_group(collective, helpers, topology, *args, **options)


def synthesize_group(
    collective: Collective,
    helpers: Sequence[int],
    topology: Topology,
    strategy_name: str = AUTO,
    time_limit_s: float = USUAL_LIMIT_S,
    progress: Callable[[str], None] | None = None,
    limits: TreeLimits | None = None,
    *,
    thorough: bool = False,
    reproducible: bool = False,
    router: Router = HARDWARE,
) -> Synthesis:
    """Return the verified plan for a group, which `helpers` may help.

    The collective has members, numbered as on the topology, as the helpers are. The other arguments
    and the errors are those of `synthesize`. Schedules of strategies other than packing, and
    reproducible ones, use no helpers.
    """
    started, effort = time.monotonic(), Effort(time_limit_s)
    router = router.on(topology)
    part = SubMachine.of(collective, router, (*collective.members, *helpers))
    _check_reach(part, collective, topology)
    own = SubMachine.of(collective, router, collective.members)
    alone: Synthesis | None = None
    failed: InfeasibleError | TimeLimitError | None = None
    try:
        alone = synthesize(
            own.collective, own.router.topology, strategy_name, time_limit_s * _ALONE_CLOCK,
            progress, limits, thorough=thorough, reproducible=reproducible, router=own.router,
        )  # fmt: skip
    except (InfeasibleError, TimeLimitError) as error:
        failed = error
    helped = bool(helpers) and strategy_name in (AUTO, "packing") and not reproducible
    if alone is None and not helped:
        assert failed is not None
        raise failed
    bounds = _complete_bounds(alone, collective, helpers, router, effort, progress)
    costed: Costed = []
    declined, table = dict[str, str](), list[dict[str, Any]]()
    if alone is not None:
        candidates = (schedule for schedule, _ in alone.candidates)
        costed += cost_all(router, own.lift(candidates, collective))
        declined, table = alone.declined, alone.table
    if helped:
        request = Request(
            part.collective, part.router.topology, effort.grant(_PACKING_WORK_S), progress,
            bounds.allowed.single_path, limits or TreeLimits(), router=part.router,
        )  # fmt: skip
        try:
            costed += cost_all(router, part.lift(packing.build(request), collective))
            table = request.table
        except (InfeasibleError, TimeLimitError) as error:
            if alone is None:
                raise
            declined = {**declined, "packing with helpers": str(error)}
    plan = replace(
        plan_of(
            collective, router, bounds.allowed, costed,
            alone.plan.bracketing if alone is not None else None,
        ),
        helpers=tuple(helpers),
        bound_alone=bounds.alone,
        bound_with_helpers=bounds.with_helpers,
    )  # fmt: skip
    cut_short = (*(alone.cut_short if alone is not None else ()), *effort.cut_short)
    seconds = time.monotonic() - started
    return Synthesis(plan, seconds, declined, tuple(costed), table, cut_short)


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


def _complete_bounds(
    alone: Synthesis | None,
    collective: Collective,
    helpers: Sequence[int],
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> GroupBounds:
    """Return the bounds of `find_group_bounds`; those of the plan without help are not repeated."""
    if alone is None:
        return find_group_bounds(collective, helpers, router, effort, progress)
    own = Bounds(alone.plan.bound, alone.plan.bound_one_way)
    everyone = range(len(router.topology.ranks))
    ranks = (*collective.members, *helpers) if helpers else everyone
    helped = SubMachine.of(collective, router, ranks).find_bounds(effort, progress)
    return GroupBounds(helped if helpers else own, own.single_path, helped.single_path)
