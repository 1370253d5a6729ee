"""The entrance of planning: passes a request of any kind to its planner.

Requests for demands (pieces of data that some ranks hold and others need, ir/demands.py) go to the
planner that an extra, an optional feature, adds to the group `planners` of extras.py at the root.
"""

from collections.abc import Callable

from ...extras import PLANNERS, Names
from ..ir.demands import Demands
from ..request import Request
from .groups import synthesize_group
from .whole import Synthesis, synthesize_whole


def synthesize(request: Request) -> Synthesis:
    """Return the verified plan for a request, and how the search went.

    Demands, groups of a machine's GPUs and collectives of all GPUs have planners of their own.
    Raise InputError for options that do not fit or a planner that is not installed, InfeasibleError
    if there is no plan, TimeLimitError if none was found in time.
    """
    if isinstance(request.collective, Demands):
        plan_demands: Callable[[Request], Synthesis] = Names(PLANNERS).find("demands")
        return plan_demands(request)
    if request.collective.has_all_gpus:
        return synthesize_whole(request)
    return synthesize_group(request)
