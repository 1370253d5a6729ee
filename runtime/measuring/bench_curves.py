"""Draw the rows of a benchmark: measured bandwidth against size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...synth.pictures.curves import Curve, draw_curves
from .bench import BenchRow

# A bound this many times above every measurement is not drawn: it is another machine's.
_FAR = 4.0


def draw_rows(collective: str, rows: Sequence[BenchRow]) -> str:
    """Return the curves of plan, stock and prediction, and the bound, as an SVG file.

    If rows are both in place and out of place, only rows like the first one are drawn.
    """
    rows = [row for row in rows if row.place == rows[0].place]

    def find_points(time_us: Callable[[BenchRow], float | None]) -> tuple[tuple[int, float], ...]:
        timed = ((row.size_bytes, time_us(row)) for row in rows if row.size_bytes)
        return tuple((size, size / us * 1e-3) for size, us in timed if us)

    curves = [
        Curve("plan", "plan", find_points(lambda row: row.plan_us)),
        Curve("stock", "stock", find_points(lambda row: row.stock_us)),
        Curve("predicted", "bound", find_points(lambda row: row.predicted_us), dashed=True),
    ]
    curves = [curve for curve in curves if curve.points]
    bounds = [row.algbw_GBps / row.bound_fraction for row in rows if row.bound_fraction]
    highest = max((value for curve in curves for _, value in curve.points), default=0.0)
    limit = ("bound", bounds[-1]) if bounds and bounds[-1] <= _FAR * highest else None
    return draw_curves(f"{collective}: measured algbw against size", curves, limit, alone=True)
