"""The rows of topo-run as curves of the bandwidth against the size.

A row has the times of a plan and of the stock collective, the backend's own, for one size of
buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...synth.pictures.curves import Curve, draw_curves

if TYPE_CHECKING:
    from ...runtime.measuring.bench import BenchRow

# A bound this many times above every measurement is not drawn: it is another machine's.
_FAR = 4.0


def draw_rows(collective: str, rows: Sequence[BenchRow]) -> str:
    """Return the curves of plan, stock and prediction, and the bound, as the text of an SVG file.

    `collective` is for the title. Bandwidths are algbw, the size by the time, in GB/s. The bound is
    left out if it is more than four times the highest of the curves. If rows are both in place and
    out of place, only rows like the first one are drawn.
    """
    rows = [row for row in rows if row.place == rows[0].place]

    def find_points(time_us: Callable[[BenchRow], float | None]) -> tuple[tuple[int, float], ...]:
        return tuple(
            (row.size_bytes, row.size_bytes / us * 1e-3)
            for row in rows
            if row.size_bytes and (us := time_us(row))
        )

    curves = [
        curve
        for curve in (
            Curve("plan", "plan", find_points(lambda row: row.plan_us)),
            Curve("stock", "stock", find_points(lambda row: row.stock_us)),
            Curve("predicted", "bound", find_points(lambda row: row.predicted_us), dashed=True),
        )
        if curve.points
    ]
    bounds = [row.algbw_GBps / row.bound_fraction for row in rows if row.bound_fraction]
    highest = max((value for curve in curves for _, value in curve.points), default=0.0)
    return draw_curves(
        f"{collective}: measured algbw against size",
        curves,
        ("bound", bounds[-1]) if bounds and bounds[-1] <= _FAR * highest else None,
        alone=True,
    )
