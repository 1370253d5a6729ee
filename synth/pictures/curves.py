"""Bandwidth against size as an SVG picture: lines for predictions, dashed for the bound."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..sizes import show_size
from .drawing import choose_step, draw_bound, draw_gridline, draw_text, start_svg

# Pixels: the picture and its margins.
_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 44, 40
# Pixels: where a second row of the legend begins, beside the label of the axis.
_SECOND_ROW = 120
# Most points of a curve to mark by dots; with more, the line suffices.
_MAX_DOTS = 16


@dataclass(frozen=True)
class Curve:
    """A curve of algbw in GB/s: `points` are (size in bytes, algbw).

    `look` is a class of drawing.STYLE ("plan", "stock").
    """

    name: str
    look: str
    points: tuple[tuple[int, float], ...]
    dashed: bool = False


def draw_curves(
    title: str, curves: Sequence[Curve], limit: tuple[str, float] | None, *, alone: bool = False
) -> str:
    """Return the SVG picture of curves against size, with `alone` as a complete file.

    `limit` is the name of the bound and its algbw in GB/s, drawn as a horizontal line.
    """
    sizes = [size for curve in curves for size, _ in curve.points] or [1024]
    low, high = math.log2(min(sizes)), math.log2(max(sizes))
    highest = max(
        [value for curve in curves for _, value in curve.points] + ([limit[1]] if limit else [])
        or [1.0]
    )
    step = choose_step(highest)
    top = max(step, math.ceil(highest * 1.02 / step) * step)
    plot_width, plot_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(size: float, value: float) -> tuple[float, float]:
        x = _LEFT + plot_width * (math.log2(size) - low) / max(high - low, 1e-9)
        return x, _TOP + plot_height * (1 - value / top)

    lines = start_svg(_WIDTH, _HEIGHT, title, alone=alone)
    right = _WIDTH - _RIGHT
    for i in range(round(top / step) + 1):
        lines += draw_gridline(_LEFT, right, place(2**low, i * step)[1], f"{i * step:g}")
    # The labels of sizes must not touch each other.
    every = 4 if high - low > 10 else 2 if high - low > 5 else 1
    for bits in range(math.ceil(low), math.floor(high) + 1):
        x, _ = place(2**bits, 0)
        if bits % 2 == 0 or every == 1:
            lines.append(f'<path class="g" d="M{x:.1f} {_TOP}V{_TOP + plot_height}"/>')
        if (bits - 2) % every == 0:
            label = draw_text(x, _HEIGHT - 22, show_size(1 << bits), 12, anchor="middle", look="f")
            lines.append(label)
    lines += [
        draw_text(right, _HEIGHT - 6, "size of the buffer", 12, anchor="end", look="f"),
        draw_text(4, _TOP - 14, "algbw, GB/s", 12, look="f"),
    ]
    if limit is not None:
        lines.append(draw_bound(_LEFT, right, place(2**low, limit[1])[1]))
    for curve in reversed(curves):
        points = [place(*point) for point in curve.points]
        path = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if curve.dashed else ""
        lines.append(
            f'<polyline class="{curve.look}" stroke-width="2.4" stroke-linejoin="round"{dash} '
            f'points="{path}"/>'
        )
        if len(curve.points) <= _MAX_DOTS:
            fill = curve.look.replace("plan", "fp").replace("stock", "fs")
            lines += [
                f'<circle class="{fill}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>' for x, y in points
            ]
    lines += _draw_legend(curves, limit)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _draw_legend(curves: Sequence[Curve], limit: tuple[str, float] | None) -> list[str]:
    entries = [(curve.name, curve.look, "4 3" if curve.dashed else "") for curve in curves]
    if limit is not None:
        entries.append((f"{limit[0]}: {limit[1]:.4g}", "bound", "7 4"))
    lines, x, y = [], float(_LEFT), 14
    for name, look, dash in entries:
        length = 32 + 7.0 * len(name)
        if x + length > _WIDTH and y == 14:
            x, y = float(_SECOND_ROW), 30
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        lines += [
            f'<path class="{look}" stroke-width="2.4"{dashes} d="M{x:.0f} {y}h26"/>',
            draw_text(x + 32, y + 4, name, 12),
        ]
        x += length + 16
    return lines
