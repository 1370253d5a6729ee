"""The curve of a plan against size, with the stock ring and the bound."""

from ..bounds.certificate import Bound
from ..cost.host_costs import host_of
from ..ir.collective import Collective
from ..pictures.curves import Curve, draw_curves
from ..plan import Plan
from .stock import StockRing, stock_of

# Sizes from 1 KiB to 4 GiB.
_BITS = (10, 33)


def draw_plan_curves(
    collective: Collective,
    plan: Plan | None,
    stock: StockRing | None,
    limit: Bound | None,
    *,
    alone: bool = False,
) -> str:
    """Return the SVG picture of predicted curves: a plan, the stock ring or both, and the bound.

    With `alone` it is a complete file, else a part of a page that has the style.
    """
    # With calibrated host costs each point is a simulation, so every other size is left out.
    calibrated = plan is not None and host_of(plan.topology) is not None
    sizes = [1 << bits for bits in range(*_BITS, 2 if calibrated else 1)]
    curves = []
    if plan is not None:
        points = tuple((size, predict_algbw_GBps(plan, size)) for size in sizes)
        curves.append(Curve("plan", "plan", points))
    if stock is not None:
        name = f"{stock.name}, by a model" if stock.is_modelled else f"{stock.name}, not NCCL's"
        curves.append(Curve(name, "stock", tuple((size, stock.algbw_GBps(size)) for size in sizes)))
    return draw_curves(
        f"{collective.name}: algbw against size, predicted",
        curves,
        None if limit is None else (_name_bound(limit), float(limit.algbw_GBps)),
        alone=alone,
    )


def draw_plan_alone(plan: Plan) -> str:
    """Return the curves of a plan, the stock ring (if any) and the bound as an SVG file."""
    return draw_plan_curves(plan.collective, plan, stock_of(plan), plan.bound_one_way, alone=True)


def predict_algbw_GBps(plan: Plan, size: int) -> float:
    """Return the predicted algbw in GB/s of a plan at a size in bytes; 0 if it takes no time."""
    time_s = plan.time_s(plan.entry_for(size), size)
    return size / time_s / 1e9 if time_s else 0.0


def _name_bound(limit: Bound) -> str:
    return "bound (search cut short)" if limit.is_cut_short else "bound"
