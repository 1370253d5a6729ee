"""The Pareto front of exact schedules with all that users read of it: rows, bounds and a plan.

Chunks, steps and rounds are SCCL's: in one round a link carries one chunk for each unit of its
bandwidth, and a step lasts one round or more. Fewer steps mean less latency, fewer rounds per chunk
(R/C) more bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ....topo.errors import InputError
from ....topo.graph import Topology
from ....topo.notebook import draw, show
from ....topo.routes import Router
from ...bounds.certificate import Bound
from ...bounds.single_path import Bounds, find_single_path_bound
from ...ir.collective import Collective
from ...numeric.effort import Effort
from ...plan import Plan
from ...planner.whole import cost_all, plan_of
from .search import Front, ParetoRow, decide, pareto
from .text import describe_front


@dataclass(frozen=True)
class ParetoFront:
    """The rows of a search over chunks, steps and rounds, with bounds and a plan.

    Made by `pareto`. `least_ratio` is the least ratio of rounds to chunks that `bound` allows;
    `bound_one_way` is for schedules on the hardware's routes. `complete` means that the search was
    exhaustive; `cut_short` lists the searches that the time limit stopped. `plan` uses at each size
    the fastest schedule of the front; it is None if no row has a schedule.
    """

    topology: Topology
    collective: Collective
    rows: tuple[ParetoRow, ...]
    least_ratio: Fraction
    bound: Bound
    bound_one_way: Bound
    complete: bool
    cut_short: tuple[str, ...]
    plan: Plan | None

    @property
    def front(self) -> tuple[ParetoRow, ...]:
        """The rows with a schedule that no other row beats, by ascending steps."""
        return tuple(row for row in self.rows if row.is_on_front)

    def plan_for(self, row: ParetoRow) -> Plan:
        """Return the plan that uses the schedule of a row at all sizes.

        Raise InputError if the row has no schedule.
        """
        if row.schedule is None or self.plan is None:
            raise InputError(f"{row}: it has no schedule; expected a row that is feasible")
        router = self.plan.router
        bounds = Bounds(self.bound, self.bound_one_way)
        return plan_of(self.collective, router, bounds, cost_all(router, [row.schedule]))

    def __repr__(self) -> str:
        rows = ", ".join(f"{x.chunks},{x.steps},{x.rounds}" for x in self.front) or "empty"
        return f"<ParetoFront {self.collective.name} on {self.topology.name}: {rows}>"

    def _repr_svg_(self) -> str | None:
        return draw(self)

    def _repr_html_(self) -> str | None:
        return show(self)

    def describe(self) -> str:
        """Format the rows as the table that topo-synth prints."""
        return describe_front(self)


def find_front(
    collective: Collective,
    router: Router,
    effort: Effort,
    max_steps: int | None = None,
    slack: int | None = None,
    instances: Sequence[tuple[int, int, int]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ParetoFront:
    """Return the front of a collective, or with `instances` only these (chunks, steps, rounds).

    `router` has the topology and its routes; `effort` limits the work and the time. `max_steps`
    ends the search, `slack` limits how many more rounds than steps there may be; `progress` is
    called with lines of text. Raise InfeasibleError if the topology is not connected.
    """
    search: Front = (
        decide(collective, router, list(instances), effort, progress)
        if instances
        else pareto(collective, router, effort, max_steps, slack, progress)
    )
    single_path = find_single_path_bound(collective, router, search.bound, effort, progress)
    schedules = [row.schedule for row in search.front if row.schedule is not None]
    plan = None
    if schedules:
        bounds = Bounds(search.bound, single_path)
        plan = plan_of(collective, router, bounds, cost_all(router, schedules))
    return ParetoFront(
        router.topology,
        collective,
        search.rows,
        search.least_ratio,
        search.bound,
        single_path,
        search.complete,
        tuple(effort.cut_short),
        plan,
    )
