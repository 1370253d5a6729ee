"""SCCL's exact synthesis: the schedules that no other beats in both steps and rounds per chunk.

These are the Pareto front; a round is the time of one chunk over one unit of bandwidth. The search
is in `search.py`.
"""

from ....topo.errors import InfeasibleError, TimeLimitError
from ...ir.schedule import Schedule
from ...request import Request, Strategy
from .models import fabric_of
from .search import pareto

# With more ranks it takes long and wins little, so auto leaves it out if there is a schedule.
_MAX_RANKS_BESIDE = 8
# Chunks times edges, for one chunk in SCCL's units, above which the exact models are not tried.
_MAX_VARIABLES = 60_000


def build(request: Request) -> list[Schedule]:
    """Return the schedules of the Pareto front for a request.

    Raise InfeasibleError if the machine is too large, TimeLimitError if the effort was too small to
    find any.
    """
    collective = request.collective
    edges = len(fabric_of(request.router).edges)
    if edges * max(len(collective.even_chunks(1)), collective.ranks) > _MAX_VARIABLES:
        raise InfeasibleError(
            f"exact is for small machines: {collective.ranks} ranks with {edges} routes "
            "between them are too many"
        )
    front = pareto(collective, request.router, request.effort, progress=request.progress)
    schedules = [row.schedule for row in front.front if row.schedule is not None]
    if not schedules:
        raise TimeLimitError(f"exact found no schedule for {collective.name} in time; give it more")
    return schedules


EXACT = Strategy("exact", build, quick_work_s=3.0, max_ranks_beside=_MAX_RANKS_BESIDE)
