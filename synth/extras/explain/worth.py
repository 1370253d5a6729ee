"""Compute what helpers (ranks that forward for others) gain, and from which size they are used.

The single-path bound holds for plans in which two GPUs use one route, the hardware's; algbw is the
bytes of the buffer over the time of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ....topo.errors import InfeasibleError
from ...bounds.group_bounds import SubMachine
from ...bounds.single_path import find_bounds
from ...cost.affine import Cost, affine_s
from ...ir.schedule import Schedule
from ...numeric.effort import Effort
from ...plan import Plan

# Most helpers whose loss is computed: a bound each, and about a screenful.
_MAX_HELPERS = 16
# Work allowed for each bound, in seconds of an idle core.
_BOUND_WORK_S = 10.0


@dataclass(frozen=True)
class HelpersWorth:
    """What a plan gains by helpers: ranks outside the group that forward bytes for it.

    `alone_GBps` and `helped_GBps` are the single-path bounds on algbw without and with them (with
    all other GPUs if the plan may use no helpers); the former is None if the members reach each
    other only through others. `without` maps each helper to the bound without it: None if the
    others then do not connect the members; helpers are left out whose bound was not searched to the
    end. `is_cut_short` says that one of the other two was not, and then there is no ratio.
    `from_bytes` is the least size at which the plan uses helpers, None if it never does; `time_s`
    and `time_alone_s` are the predicted times at `size_bytes` with the plan, and with its fastest
    schedule without helpers (None if it has none).
    """

    alone_GBps: Fraction | None
    helped_GBps: Fraction
    without: dict[int, Fraction | None]
    from_bytes: int | None
    size_bytes: int
    time_s: float
    time_alone_s: float | None
    is_cut_short: bool = False

    @property
    def ratio(self) -> Fraction | None:
        """The bound with helpers divided by the one without; None if one is not known."""
        if self.alone_GBps is None or self.is_cut_short:
            return None
        return self.helped_GBps / self.alone_GBps

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        alone, helped = self.alone_GBps, self.helped_GBps
        return {
            "bound_alone_GBps": None if alone is None else float(alone),
            "bound_with_helpers_GBps": float(helped),
            "bound_ratio": None if self.ratio is None else float(self.ratio),
            "without": [
                {"rank": rank, "bound_GBps": None if bound is None else float(bound)}
                for rank, bound in self.without.items()
            ],
            "from_bytes": self.from_bytes,
            "size_bytes": self.size_bytes,
            "predicted_time_s": self.time_s,
            "predicted_time_alone_s": self.time_alone_s,
        }


def find_worth(
    plan: Plan,
    candidates: Sequence[tuple[Schedule, Cost]],
    size_bytes: int,
    effort: Effort,
    progress: Callable[[str], None] | None = None,
) -> HelpersWorth:
    """Return what helpers gain in a plan, for a buffer of `size_bytes`.

    `candidates` are the schedules that the plan was chosen from, with their costs. If there are few
    helpers, the bounds without each are searched within `effort`; `progress` is given lines.
    """
    members, helpers = plan.collective.members, plan.helpers or ()
    helped = plan.bound_with_helpers or plan.bound_one_way
    without: dict[int, Fraction | None] = {}
    for number, helper in enumerate(helpers if len(helpers) <= _MAX_HELPERS else ()):
        if effort.is_over("bounds without a helper"):
            break
        left = (*members, *(other for other in helpers if other != helper))
        machine = SubMachine.of(plan.collective, plan.router, left)
        granted = effort.grant(_BOUND_WORK_S, 1 / (len(helpers) - number))
        try:
            limit = find_bounds(machine.collective, machine.router, granted, progress)
            if not limit.single_path.is_cut_short:
                without[helper] = limit.single_path.algbw_GBps
        except InfeasibleError:
            without[helper] = None
    with_help = (e.min_bytes for e in plan.entries if e.schedule.helpers)
    alone = (cost for schedule, cost in candidates if not schedule.helpers)
    best_alone = min(alone, key=lambda cost: affine_s(cost, size_bytes), default=None)
    return HelpersWorth(
        None if plan.bound_alone is None else plan.bound_alone.algbw_GBps,
        helped.algbw_GBps,
        without,
        min(with_help, default=None),
        size_bytes,
        plan.time_s(plan.entry_for(size_bytes), size_bytes),
        None if best_alone is None else best_alone.time_s(size_bytes),
        helped.is_cut_short or (plan.bound_alone is not None and plan.bound_alone.is_cut_short),
    )
