"""Draw the predicted rates of the stock collective beside a plan's.

The stock collective is what NCCL, RCCL or gloo does without a plan or a graph file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...pictures.curves import Curve
from .stock_ring import StockRing, stock_of

if TYPE_CHECKING:
    from ...plan import Plan


def draw_stock(plan: Plan, sizes: Sequence[int]) -> Curve | None:
    """Return the curve of the stock collective among a plan's members; None if it cannot run.

    `sizes` are the sizes of the buffer in bytes.
    """
    stock = stock_of(plan)
    return None if stock is None else make_curve(stock, sizes)


def make_curve(stock: StockRing, sizes: Sequence[int]) -> Curve:
    """Return the predicted algbw of a stock collective at these sizes in bytes, as a curve.

    It is dashed if it assumes switches that add, with which it may exceed the bound without them.
    """
    name = f"{stock.name}, by a model" if stock.is_modelled else f"{stock.name}, not NCCL's"
    if stock.needs_adding:
        name = f"{stock.name}, with switches that add"
    points = tuple((size, stock.algbw_GBps(size)) for size in sizes)
    return Curve(name, "stock", points, dashed=stock.needs_adding)
