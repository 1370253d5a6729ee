"""A Pareto front as an SVG picture: steps to the right, rounds per chunk upwards, and the bound.

Chunks, steps and rounds are SCCL's: in one round a link carries one chunk for each unit of its
bandwidth, and a step lasts one round or more. Fewer steps mean less latency, fewer rounds per chunk
(R/C) more bandwidth.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from ....topo.grouping import group_by_key
from ....topo.printable import quote
from ...pictures.drawing import choose_step, draw_bound, draw_gridline, draw_text, start_svg
from .search import FEASIBLE, INFEASIBLE, ParetoRow

# Pixels: the picture and its margins.
_WIDTH, _HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 20, 48, 44


def draw_front(title: str, rows: Sequence[ParetoRow], least_ratio: Fraction) -> str:
    """Return the SVG file of a Pareto front of steps against rounds per chunk.

    Dots are rows with a schedule, filled and connected on the front; crosses are rows proved
    impossible, rings undecided ones; a dashed line is `least_ratio`, the least ratio of rounds to
    chunks that the bound allows.
    """
    least, steps_of = float(least_ratio), [row.steps for row in rows]
    first, last = min(steps_of, default=1) - 1, max(steps_of, default=1) + 1
    top = max([*(float(row.ratio) for row in rows), least]) * 1.12 or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(steps: float, ratio: float) -> tuple[float, float]:
        return _LEFT + width * (steps - first) / (last - first), _TOP + height * (1 - ratio / top)

    right, step = _WIDTH - _RIGHT, choose_step(top)
    axis = "rounds a chunk (R/C): the less, the more bandwidth"
    key = "dot: chunks,steps,rounds; circle: another is better; cross: proved impossible"
    lines = [
        *start_svg(_WIDTH, _HEIGHT, title, alone=True),
        draw_text(4, 16, title, 13),
        draw_text(4, _TOP - 10, axis, 12, look="f"),
        draw_text(right, _HEIGHT - 6, "steps (latency)", 12, anchor="end", look="f"),
        draw_text(4, _HEIGHT - 6, key, 11, look="f"),
    ]
    for i in range(math.floor(top / step) + 1):
        lines += draw_gridline(_LEFT, right, place(first, i * step)[1], f"{i * step:g}")
    for steps in range(first + 1, last):
        x, _ = place(steps, 0)
        lines.append(draw_text(x, _HEIGHT - 28, str(steps), 12, anchor="middle", look="f"))
    _, y = place(first, least)
    lines += [
        draw_bound(_LEFT, right, y),
        draw_text(_LEFT + 6, y - 6, f"the bound: {least_ratio}", 12, look="f"),
    ]
    front = sorted((row for row in rows if row.is_on_front), key=lambda row: row.steps)
    path = [place(row.steps, float(row.ratio)) for row in front]
    if len(path) > 1:
        corners = "L".join(f"{x:.1f} {y:.1f}" for x, y in path)
        lines.append(f'<path class="plan" stroke-width="2" d="M{corners}"/>')
    by_place = group_by_key(((row.steps, row.ratio), row) for row in rows)
    for (steps, ratio), alike in by_place.items():
        lines.append(_draw_rows(*place(steps, float(ratio)), alike))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _draw_rows(x: float, y: float, rows: list[ParetoRow]) -> str:
    title = "<title>" + quote("; ".join(map(_describe_row, rows))) + "</title>"
    label = next((row for row in rows if row.is_on_front), None)
    if label is not None:
        text = draw_text(x + 8, y - 7, f"{label.chunks},{label.steps},{label.rounds}", 11)
        return f'<circle class="fp" cx="{x:.1f}" cy="{y:.1f}" r="5">{title}</circle>{text}'
    if any(row.status == FEASIBLE for row in rows):
        circle = f'<circle class="plan" cx="{x:.1f}" cy="{y:.1f}" r="4" stroke-width="1.5">'
        return f"{circle}{title}</circle>"
    if all(row.status == INFEASIBLE for row in rows):
        cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        return f'<path class="stock" stroke-width="1.8" d="{cross}">{title}</path>'
    return f'<circle class="w" cx="{x:.1f}" cy="{y:.1f}" r="4" stroke-width="1.5">{title}</circle>'


def _describe_row(row: ParetoRow) -> str:
    fewest = ", fewest steps" if row.latency_optimal else ""
    return f"{row}{fewest}" + (", at the bound" if row.bandwidth_optimal else "")
