"""Draw when a run noticed faults and when it went on, as an SVG picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....topo.printable import quote
from ...pictures.drawing import draw_text, show_us, start_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .recoveries import RecoveryRow

# Pixels: the picture, its margins, a fault's text and its track.
_WIDTH, _SIDE, _TOP, _BOTTOM = 650, 14, 34, 26
_ROW, _TEXT, _TRACK = 50, 16, 12
# Pixels: half the width of a mark, and the shortest pause that shows.
_MARK, _MIN_PAUSE = 5, 1.5
# Share of the picture's width up to which the run is drawn, so that the last mark is inside.
_USED = 0.97
# The most letters of a fault's text beside its times.
_MAX_LETTERS = 60


def draw_faults(title: str, recoveries: Sequence[RecoveryRow]) -> str:
    """Return an SVG picture with a row for each fault of a run, whose time runs to the right.

    `recoveries` are the faults, each with when it was noticed and how long calls waited. A mark
    above the row's line is the moment at which the fault was noticed, one below it the moment from
    which calls went on; a bar is the time between. After a fault from which calls never went on,
    the bar ends with the picture.
    """
    end_s = max((x.at_s + (x.seconds or 0.0) for x in recoveries), default=0.0) or 1.0
    width = _WIDTH - 2 * _SIDE
    bottom = _TOP + _ROW * len(recoveries)
    lines = start_svg(_WIDTH, bottom + _BOTTOM, title)
    for i in range(6):
        x = _SIDE + width * _USED * i / 5
        lines.append(f'<path class="g" d="M{x:.1f} {_TOP - 4}V{bottom}"/>')
        anchor = "middle" if i else "start"
        label = show_us(end_s * 1e6 * i / 5)
        lines.append(draw_text(x, bottom + 16, label, 11, anchor=anchor, look="f"))
    lines += _draw_key()
    for number, row in enumerate(recoveries):
        y = _TOP + _ROW * number + _TEXT + _TRACK
        begin = _SIDE + width * _USED * row.at_s / end_s
        if row.seconds is None:
            pause, on, how_long = _WIDTH - _SIDE - begin, "never on again", "to the end"
        else:
            pause = max(_MIN_PAUSE, width * _USED * row.seconds / end_s)
            on, how_long = f"on again at {row.at_s + row.seconds:.2f} s", f"{row.seconds:.2f} s"
        what = row.what if len(row.what) <= _MAX_LETTERS else f"{row.what[:_MAX_LETTERS]}\u2026"
        times = f"noticed at {row.at_s:.2f} s, {on}"
        lines += [
            draw_text(_SIDE, y - _TRACK - 4, f"{what}: {times}", 11),
            f'<path class="w" stroke-width="2" d="M{_SIDE} {y}H{_WIDTH - _SIDE}"/>',
            f'<rect class="add dim" x="{begin:.1f}" y="{y - 4}" width="{pause:.1f}" height="8">'
            f"<title>{quote(how_long)}</title></rect>",
            *_draw_cut(begin, y),
            *([] if row.seconds is None else _draw_resumption(begin + pause, y)),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _draw_key() -> list[str]:
    """Return the picture's legend: both marks and the bar between them."""
    y, lines, x = 14, [], float(_SIDE + _MARK)
    lines += [*_draw_cut(x, y), draw_text(x + 12, y + 4, "the fault is noticed", 11)]
    x += 150
    lines += [
        f'<rect class="add dim" x="{x}" y="{y - 4}" width="22" height="8"/>',
        draw_text(x + 28, y + 4, "the call waits", 11),
    ]
    x += 140
    return [*lines, *_draw_resumption(x, y), draw_text(x + 12, y + 4, "it goes on", 11)]


def _draw_cut(x: float, y: float) -> list[str]:
    """Return a line across the row and a head above it that points down."""
    top = y - _TRACK
    return [
        f'<path class="ae" stroke-width="1.6" d="M{x:.1f} {top}V{y + 6}"/>',
        f'<polygon class="add" points="{x - _MARK:.1f},{top} {x + _MARK:.1f},{top} '
        f'{x:.1f},{top + 7}"/>',
    ]


def _draw_resumption(x: float, y: float) -> list[str]:
    """Return a line across the row and a head below it that points up."""
    foot = y + _TRACK
    return [
        f'<path class="plan" stroke-width="1.6" d="M{x:.1f} {y - 6}V{foot}"/>',
        f'<polygon class="fp" points="{x - _MARK:.1f},{foot} {x + _MARK:.1f},{foot} '
        f'{x:.1f},{foot - 7}"/>',
    ]
