"""Draw the lab's report as SVG: for each network a bar per system, as long as an epoch took."""

from __future__ import annotations

from collections.abc import Sequence

from ....synth.pictures.drawing import choose_step, draw_text, quote, start_svg
from .results import RunResult

# Sizes in pixels.
_WIDTH = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 190, 150, 34, 34
_BAR, _ROW, _HEAD = 14, 22, 30


def draw_bars(title: str, rows: Sequence[RunResult], *, alone: bool = False) -> str:
    """Draw seconds per epoch, stock in its own colour, and each system's speed relative to
    stock.

    Runs without figures are listed with the reason in place of a bar.
    """
    sites = list(dict.fromkeys(row.site for row in rows))
    longest = max((row.epoch_s for row in rows if row.epoch_s is not None), default=1.0)
    height = _TOP + _BOTTOM + _HEAD * len(sites) + _ROW * len(rows)
    width = _WIDTH - _LEFT - _RIGHT
    lines = start_svg(_WIDTH, height, title, alone=alone)
    lines.append(draw_text(8, 20, title, 14))
    step, bottom = choose_step(longest), height - _BOTTOM
    for i in range(int(longest / step) + 1):
        x = _LEFT + width * i * step / longest
        lines.append(f'<path class="g" d="M{x:.1f} {_TOP + 4}V{bottom}"/>')
        lines.append(draw_text(x, bottom + 14, f"{i * step:g}", 11, anchor="middle", look="f"))
    lines.append(draw_text(_WIDTH - 8, bottom + 14, "seconds an epoch", 11, anchor="end", look="f"))
    y = float(_TOP)
    for network, ranks in sites:
        lines.append(draw_text(8, y + 20, f"{network}, {ranks} rank{'s' if ranks > 1 else ''}", 13))
        y += _HEAD
        site_rows = [row for row in rows if row.site == (network, ranks)]
        stock_s = next((row.epoch_s for row in site_rows if row.system == "stock"), None)
        for row in site_rows:
            lines += _draw_row(row, stock_s, y, width / longest)
            y += _ROW
    return "\n".join([*lines, "</svg>"]) + "\n"


def _draw_row(row: RunResult, stock_s: float | None, y: float, pixels_a_second: float) -> list[str]:
    middle = y + _BAR - 3
    lines = [draw_text(_LEFT - 8, middle, row.system, 12, anchor="end")]
    if row.epoch_s is None:
        reason = row.reason or "no figures"
        return [
            *lines,
            draw_text(
                _LEFT + 4,
                middle,
                ("failed: " if row.failed else "not run: ") + reason,
                11,
                look="f",
            ),
        ]
    length = max(1.0, row.epoch_s * pixels_a_second)
    look = "fs" if row.system == "stock" else "fp"
    title = f"{row.system}: {row.epoch_s:.3f} s, {row.schedule or 'no schedule'}"
    lines.append(
        f'<rect class="{look}" x="{_LEFT}" y="{y:.1f}" width="{length:.1f}" height="{_BAR}">'
        f"<title>{quote(title)}</title></rect>"
    )
    compared = (
        f", {stock_s / row.epoch_s:.2f}x stock"
        if stock_s and row.epoch_s and row.system != "stock"
        else ""
    )
    lines.append(
        draw_text(_LEFT + length + 6, middle, f"{row.epoch_s:.3f} s{compared}", 11, look="f")
    )
    return lines
