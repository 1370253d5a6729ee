"""Make the plan to go on with after a fault, if the plan has no spare for it, in a thread.

A spare is a plan for the loss of some links, in the same file as the plan.
"""

from collections.abc import Sequence, Set
from concurrent.futures import Future
from functools import partial
from types import ModuleType

from ....synth.plan import Plan
from ....topo.derived.lost_links import Link, Pair
from ..replanning.aside import plan_aside

# Allowance of work for the new plan, in seconds, and more for each rank: all of them wait for it,
# but for what rank 0 has done meanwhile. In less time many plans stay far from their bound.
_PLAN_S, _PLAN_S_PER_RANK = 0.8, 0.02


class Replanner:
    """Makes plans without lost links for the collective of `plan`, in threads."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._begun: dict[tuple[tuple[Link, ...], tuple[Pair, ...]], Future[Plan | str]] = {}

    def begin(self, links: Sequence[Link], unreached: Sequence[Pair]) -> "Future[Plan | str]":
        """Begin to make a plan; return a future of the plan, or of a text why there is none.

        The plan uses none of `links`, and sends nothing between the pairs of ranks `unreached`. The
        same arguments return the same future.
        """
        new = Future[Plan | str]()
        # In one step: the thread that foresees a plan may get here at the same time.
        made = self._begun.setdefault((tuple(links), tuple(unreached)), new)
        if made is new:
            plan_aside(partial(_make_plan, self._plan, links, frozenset(unreached)), made)
        return made


def import_planner() -> ModuleType:
    """Import and return the module that plans without lost links.

    It is not imported with this one, since it takes a second of CPU time and only rank 0 needs it.
    """
    from ....synth.extras.spares import planning

    return planning


def _make_plan(plan: Plan, links: Sequence[Link], unreached: Set[Pair]) -> Plan:
    made: Plan = import_planner().plan_without(
        plan.collective,
        plan.topology,
        links,
        unreached,
        _PLAN_S + _PLAN_S_PER_RANK * plan.collective.ranks,
        reproducible=plan.bracketing is not None,
    )
    return made
