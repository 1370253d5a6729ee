"""Find a plan that the user did not name: load it from the cache, or synthesize it now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...synth.numeric.effort import Effort
from ...synth.plan import Plan
from ...synth.request import Request
from ...synth.strategy_names import DECORATED
from ..cache import find_cache

if TYPE_CHECKING:
    from ...synth.planner.planner_process import FoundPlan
    from ...synth.planner.whole import Synthesis

log = logging.getLogger("topoplan")


def load_or_synthesize(
    request: Request, folder: Path | None, is_stopped: Callable[[], bool] | None = None
) -> Plan:
    """Return the plan for a request: from the cache in `folder`, or synthesized and cached there.

    The request says what is planned: a collective on a topology, the search's time limit, and
    options. Either plan is verified. With `is_stopped`, a separate process synthesizes, which is
    ended when that returns True. A plan whose search reached the time limit is not cached; nothing
    is if `folder` is None. Raises like `synthesize`: InputError, InfeasibleError or TimeLimitError.
    """
    collective, cache = request.collective, find_cache()
    what = f"{collective.name} over {collective.spelled_ranks}"
    loaded = cache.find_plan(folder, request)
    if loaded is not None:
        log.info("%s: plan %s from %s", what, loaded.hash[:16], folder)
        return loaded
    apart: FoundPlan | None = None
    # Strategies of the script's own are known in this process alone.
    if is_stopped is not None and not DECORATED:
        from ...synth.planner.planner_process import synthesize_in_process

        apart = synthesize_in_process(
            collective,
            request.topology,
            request.effort.limit_s,
            reproducible=request.reproducible,
            is_stopped=is_stopped,
            helpers=request.helpers,
        )
    result = apart or _synthesize_here(request)
    log.info("%s: plan %s synthesized in %.1f s", what, result.plan.hash[:16], result.seconds)
    if result.cut_short:
        log.warning(
            "%s: search cut short by the time limit of %g s (%s); plan %s is not cached, the next "
            "start searches again",
            what,
            request.effort.limit_s,
            ", ".join(result.cut_short),
            result.plan.hash[:16],
        )
    else:
        cache.keep_plan(folder, request, result.plan)
    return result.plan


def _synthesize_here(request: Request) -> Synthesis:
    # The planner's imports take more than a second of a core, and only the first rank of the first
    # start needs them.
    from ...synth.planner.synthesize import synthesize

    return synthesize(replace(request, effort=Effort(request.effort.limit_s)))
