"""The function `topoplan.pareto`, which takes names as well as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike

from ....topo.errors import InputError
from ....topo.graph import Topology
from ....topo.loader.resolve import load_for_planning
from ...ir.collective import Collective, CollectiveName
from ...numeric.effort import USUAL_LIMIT_S, Effort
from ...planner.api import check_time_limit, find_collective, warn_if_cut_short
from .front import ParetoFront, find_front


def pareto(
    collective: CollectiveName | Collective,
    topology: str | PathLike[str] | Topology,
    *,
    root: int | None = None,
    max_steps: int | None = None,
    slack: int | None = None,
    instances: Sequence[tuple[int, int, int]] | None = None,
    time_limit_s: float = USUAL_LIMIT_S,
    progress: Callable[[str], None] | None = None,
) -> ParetoFront:
    """Return the Pareto front of exact schedules, over steps and rounds per chunk, as SCCL has it.

    In one round a link carries one chunk for each unit of its bandwidth, and a step lasts one round
    or more. It is the front that topo-synth prints. `collective`, `topology`, `root`,
    `time_limit_s` and `progress` are as for `synthesize`. `max_steps` ends the search, which
    otherwise ends three steps after the least possible, or where the bound is met. `slack` is
    SCCL's k: only schedules with at most that many more rounds than steps. With `instances`, no
    front is searched: each (chunks, steps, rounds) is decided.

    Raise InputError if names or options are wrong, InfeasibleError if the topology is not
    connected. Rows that were not decided in time have the status "unknown", and a warning is
    logged.
    """
    check_time_limit(time_limit_s)
    for name, value, least in (("max_steps", max_steps, 1), ("slack", slack, 0)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise InputError(f"{name} is {value!r}; expected a whole number of at least {least}")
    for instance in instances or ():
        match instance:
            case (int(chunks), int(steps), int(rounds)) if chunks >= 1 <= steps <= rounds:
                continue
        raise InputError(
            f"instances: {instance!r:.60}; expected (chunks, steps, rounds) with chunks and steps "
            "of at least 1, and no fewer rounds than steps"
        )
    machine, router = load_for_planning(topology)
    wanted = find_collective(collective, machine, root)
    effort = Effort(time_limit_s)
    result = find_front(wanted, router, effort, max_steps, slack, instances, progress)
    warn_if_cut_short(wanted, machine, time_limit_s, result.cut_short)
    return result
