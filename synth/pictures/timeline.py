"""When each rank sends to whom, as an SVG picture: a row a rank, time to the right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..cost.transfer_times import TransferTime
from .drawing import draw_text, quote, show_us, start_svg

_WIDTH = 860
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 26, 30
_ROW = 24
MOST_ROWS = 16
"""Ranks that are drawn; they are the first ones."""
MOST_BARS = 2400
"""Messages that are drawn one by one; beyond, those of a row that follow each other are drawn as one bar."""


def draw_timeline(title: str, times: Sequence[TransferTime], ranks: int, *, alone: bool = False) -> str:
    """Return the picture of the first MOST_ROWS ranks: what each sends, copies and sums in different colours."""
    rows = min(ranks, MOST_ROWS)
    end_us = max((time.end_us for time in times), default=0.0) or 1.0
    height = _TOP + rows * _ROW + _BOTTOM
    width = _WIDTH - _LEFT - _RIGHT
    lines = start_svg(_WIDTH, height, title, alone=alone)
    for i in range(6):
        x = _LEFT + width * i / 5
        lines.append(f'<path class="g" d="M{x:.1f} {_TOP - 4}V{_TOP + rows * _ROW}"/>')
        anchor = "end" if i == 5 else "middle"
        lines.append(draw_text(x, _TOP + rows * _ROW + 16, show_us(end_us * i / 5), 11, anchor=anchor, look="f"))
    lines.append(
        '<rect class="add" x="62" y="4" width="22" height="10"/>' + draw_text(90, 13, "sends what is added", 11)
    )
    lines.append(
        '<rect class="copy" x="222" y="4" width="22" height="10"/>' + draw_text(250, 13, "sends what is kept", 11)
    )
    for rank in range(rows):
        y = _TOP + rank * _ROW
        lines.append(draw_text(_LEFT - 8, y + _ROW / 2 + 4, f"rank {rank}", 11, anchor="end", look="f"))
        lines.append(f'<path class="g" d="M{_LEFT} {y + _ROW - 1}H{_WIDTH - _RIGHT}"/>')
    bars = _list_bars(times, rows)
    if len(bars) > MOST_BARS:
        bars = _join_bars(bars, end_us / width)
    lanes = _count_lanes(bars)
    for rank, dst, op, tick, begin, end, label in bars:
        order = lanes[rank]
        thick = (_ROW - 5) / len(order)
        left, length = _LEFT + width * begin / end_us, max(0.6, width * (end - begin) / end_us)
        top = _TOP + rank * _ROW + 2 + thick * order[dst]
        look = ("add" if op == "reduce" else "copy") + (" dim" if tick % 2 else "")
        lines.append(
            f'<rect class="{look}" x="{left:.1f}" y="{top:.1f}" width="{length:.1f}" height="{max(1.0, thick - 0.6):.1f}">'
            + (f"<title>{quote(label)}</title>" if label else "")
            + "</rect>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


_Bar = tuple[int, int, str, int, float, float, str]
"""Sender, receiver, operation, tick, begin and end in microseconds, and what a reader is told who points at it."""


def _list_bars(times: Sequence[TransferTime], rows: int) -> list[_Bar]:
    """Return a bar for all that goes from one of the first ranks to another in a tick."""
    together: dict[tuple[int, int, str, int], list[TransferTime]] = defaultdict(list)
    for time in times:
        if time.src < rows:
            together[time.src, time.dst, time.op, time.tick].append(time)
    out = []
    for (src, dst, op, tick), members in sorted(together.items()):
        label = f"to rank {dst}, step {members[0].step}, {round(sum(m.bytes for m in members)):,} bytes"
        out.append((src, dst, op, tick, min(m.begin_us for m in members), max(m.end_us for m in members), label))
    return out


def _join_bars(bars: Sequence[_Bar], least_us: float) -> list[_Bar]:
    """Return the bars with those of a row and an operation that follow each other, or nearly, made one."""
    out: list[_Bar] = []
    for bar in sorted(bars, key=lambda b: (b[0], b[1], b[2], b[4])):
        if out and out[-1][:3] == bar[:3] and bar[4] - out[-1][5] <= 2 * least_us:
            out[-1] = (*out[-1][:5], max(out[-1][5], bar[5]), "")
        else:
            out.append((*bar[:3], 0, bar[4], bar[5], ""))
    return out


def _count_lanes(bars: Sequence[_Bar]) -> dict[int, dict[int, int]]:
    """Return, for each sender, in which of its lanes the messages to each receiver lie."""
    peers: dict[int, set[int]] = defaultdict(set)
    for bar in bars:
        peers[bar[0]].add(bar[1])
    return {rank: {dst: i for i, dst in enumerate(sorted(of))} for rank, of in peers.items()}
