"""Plans under which all ranks end with the same bits."""

from __future__ import annotations

from ..synth.ir.addition_order import is_uniform
from ..synth.plan import Plan
from ..topo.errors import InputError


def check_uniform(plan: Plan) -> None:
    """InputError where a schedule of the plan adds in different orders on different ranks."""
    for schedule in plan.schedules:
        if not is_uniform(schedule):
            raise InputError(
                f"the plan's {schedule.label} schedule adds in different orders on different ranks, so replicas would drift "
                "apart; synthesize without it"
            )
