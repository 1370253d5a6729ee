"""The curve of a plan against size, with those that extras draw beside it, and the bound.

Extras, the optional features that extras.py at the root lists, add such curves to its group
`curves`: for example what stock NCCL is predicted to reach.
"""

from collections.abc import Sequence

from ...extras import CURVES, Names
from ..bounds.certificate import Bound
from ..cost.host_costs import host_of
from ..ir.collective import Collective
from ..plan import Plan
from .curves import Curve, draw_curves

# Sizes from 1 KiB to 4 GiB.
_BITS = (10, 33)


def list_sizes(plan: Plan | None) -> list[int]:
    """Return the sizes in bytes at which curves have points; `plan` is what is drawn, if any."""
    # With calibrated host costs each point is a simulation, so every other size is left out.
    calibrated = plan is not None and host_of(plan.topology) is not None
    return [1 << bits for bits in range(*_BITS, 2 if calibrated else 1)]


def draw_plan_curves(
    collective: Collective,
    plan: Plan | None,
    beside: Sequence[Curve],
    limit: Bound | None,
    *,
    alone: bool = False,
) -> str:
    """Return the SVG picture of predicted curves: a plan's, if any, those beside it, and the bound.

    With `alone` it is a complete file, else a part of a page that has the style.
    """
    curves = [*beside]
    if plan is not None:
        points = tuple((size, predict_algbw_GBps(plan, size)) for size in list_sizes(plan))
        curves.insert(0, Curve("plan", "plan", points))
    return draw_curves(
        f"{collective.name}: algbw against size, predicted",
        curves,
        None if limit is None else (_name_bound(limit), float(limit.algbw_GBps)),
        alone=alone,
    )


def draw_plan_alone(plan: Plan) -> str:
    """Return the curves of a plan, those of extras and the single-path bound as an SVG file."""
    added = Names(CURVES)
    drawn = [added.find(name)(plan, list_sizes(plan)) for name in added.describe()]
    beside = [curve for curve in drawn if curve is not None]
    return draw_plan_curves(plan.collective, plan, beside, plan.bound_one_way, alone=True)


def predict_algbw_GBps(plan: Plan, size: int) -> float:
    """Return the predicted algbw in GB/s of a plan at a size in bytes; 0 if it takes no time."""
    time_s = plan.time_s(plan.entry_for(size), size)
    return size / time_s / 1e9 if time_s else 0.0


def _name_bound(limit: Bound) -> str:
    return "bound (search cut short)" if limit.is_cut_short else "bound"
