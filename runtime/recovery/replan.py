"""The plan to go on with after a fault, where the plan has no spare for it."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from ...synth.plan import Plan
from ...synth.spares import plan_without
from ...topo.derived.lost_links import Link, Pair
from ...topo.errors import TopoplanError

# Allowance of work for the new plan, in seconds, and more for each rank: all of them wait for it,
# but for what rank 0 has done meanwhile. In less time many plans stay far from their bound.
_PLAN_S, _PLAN_S_PER_RANK = 0.8, 0.02


class Replanner:
    """Plans for what is left of the topology of `plan`, in threads of their own."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._begun: dict[tuple[tuple[Link, ...], tuple[Pair, ...]], Future[Plan | str]] = {}

    def begin(self, links: Sequence[Link], unreached: Sequence[Pair]) -> "Future[Plan | str]":
        """Return the plan without some links and pairs of ranks, or why there is none.

        Does not wait for it. One that was begun before is the same.
        """
        key = tuple(links), tuple(unreached)
        if key not in self._begun:
            self._begun[key] = Future()
            threading.Thread(
                target=self._make, args=key, name="topoplan-replan", daemon=True
            ).start()
        return self._begun[key]

    def _make(self, links: Sequence[Link], unreached: Sequence[Pair]) -> None:
        plan, made = self._plan, self._begun[tuple(links), tuple(unreached)]
        try:
            seconds = _PLAN_S + _PLAN_S_PER_RANK * plan.collective.ranks
            made.set_result(
                plan_without(
                    plan.collective,
                    plan.topology,
                    links,
                    frozenset(unreached),
                    seconds,
                    reproducible=plan.bracketing is not None,
                )
            )
        except TopoplanError as error:
            made.set_result(str(error))
        except Exception as error:
            made.set_exception(error)
