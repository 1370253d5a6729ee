"""When each rank sends to whom, and when each link carries what: SVG pictures with a row a rank or
link, time to the right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from ...topo.graph import Topology
from ..cost.transfer_times import TransferTime
from .drawing import draw_text, quote, show_us, start_svg

_WIDTH = 860
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 26, 30
_ROW = 24
# Pixels for the time, however long the names of rows are.
_LEAST_WIDTH = 480
# Ranks that are drawn (the first ones), and links (the busiest).
MOST_ROWS = 16
# Messages that are drawn one by one; beyond, those of a row that follow each other are drawn as one
# bar.
MOST_BARS = 2400


def draw_timeline(
    title: str, times: Sequence[TransferTime], ranks: int, *, alone: bool = False
) -> str:
    """Return the picture of the first MOST_ROWS ranks: what each sends, copies and sums in
    different colours.
    """
    rows = min(ranks, MOST_ROWS)
    return _draw(
        title,
        [f"rank {rank}" for rank in range(rows)],
        _list_bars(times, rows),
        _find_end_us(times),
        alone,
    )


def draw_links(
    title: str, times: Sequence[TransferTime], topology: Topology, *, alone: bool = False
) -> str:
    """Return the picture of the MOST_ROWS links that are busy longest: when each carries sums and
    copies, and for what share of the time it would be busy at its whole bandwidth.
    """
    crossing: dict[tuple[str, str], list[TransferTime]] = defaultdict(list)
    for time in times:
        for link in pairwise((topology.ranks[time.src], *time.route, topology.ranks[time.dst])):
            crossing[link].append(time)
    end_us = _find_end_us(times)
    busy_us = {
        link: sum(time.bytes for time in of) / float(topology.capacity_GBps[link]) / 1e3
        for link, of in crossing.items()
    }
    place = {device.id: i for i, device in enumerate(topology.devices)}
    busiest = sorted(
        busy_us,
        key=lambda link: (-round(busy_us[link] / end_us, 3), place[link[0]], place[link[1]]),
    )
    busiest = busiest[:MOST_ROWS]
    bars = [bar for row, link in enumerate(busiest) for bar in _list_link_bars(row, crossing[link])]
    names = [f"{a} > {b}  {busy_us[a, b] / end_us:.0%}" for a, b in busiest]
    return _draw(title, names, bars, end_us, alone)


def _find_end_us(times: Sequence[TransferTime]) -> float:
    return max((time.end_us for time in times), default=0.0) or 1.0


def _draw(
    title: str, names: Sequence[str], bars: Sequence[_Bar], end_us: float, alone: bool
) -> str:
    """Return the picture of rows with these names, and the bars in them."""
    left_edge = max(_LEFT, 16 + round(6.4 * max(map(len, names), default=0)))
    height = _TOP + len(names) * _ROW + _BOTTOM
    width = max(_LEAST_WIDTH, _WIDTH - left_edge - _RIGHT)
    whole = left_edge + width + _RIGHT
    lines = start_svg(whole, height, title, alone=alone)
    for i in range(6):
        x = left_edge + width * i / 5
        lines.append(f'<path class="g" d="M{x:.1f} {_TOP - 4}V{_TOP + len(names) * _ROW}"/>')
        anchor = "end" if i == 5 else "middle"
        lines.append(
            draw_text(
                x,
                _TOP + len(names) * _ROW + 16,
                show_us(end_us * i / 5),
                11,
                anchor=anchor,
                look="f",
            )
        )
    for look, x, said in (
        ("add", left_edge, "sends what is added"),
        ("copy", left_edge + 160, "sends what is kept"),
    ):
        lines.append(
            f'<rect class="{look}" x="{x}" y="4" width="22" height="10"/>'
            + draw_text(x + 28, 13, said, 11)
        )
    for row, name in enumerate(names):
        y = _TOP + row * _ROW
        lines.append(draw_text(left_edge - 8, y + _ROW / 2 + 4, name, 11, anchor="end", look="f"))
        lines.append(f'<path class="g" d="M{left_edge} {y + _ROW - 1}H{whole - _RIGHT}"/>')
    if len(bars) > MOST_BARS:
        bars = _join_bars(bars, end_us / width)
    lanes = _count_lanes(bars)
    for row, lane, op, tick, begin, end, label in bars:
        order = lanes[row]
        thick = (_ROW - 5) / len(order)
        left, length = left_edge + width * begin / end_us, max(0.6, width * (end - begin) / end_us)
        top = _TOP + row * _ROW + 2 + thick * order[lane]
        look = ("add" if op == "reduce" else "copy") + (" dim" if tick % 2 else "")
        lines.append(
            f'<rect class="{look}" x="{left:.1f}" y="{top:.1f}" width="{length:.1f}" '
            f'height="{max(1.0, thick - 0.6):.1f}">'
            + (f"<title>{quote(label)}</title>" if label else "")
            + "</rect>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


# Row (a sender, a link), lane in it (a receiver), operation, tick, begin and end in microseconds,
# and what a reader is told who points at it.
_Bar = tuple[int, int, str, int, float, float, str]


def _list_bars(times: Sequence[TransferTime], rows: int) -> list[_Bar]:
    """Return a bar for all that goes from one of the first ranks to another in a tick."""
    together: dict[tuple[int, int, str, int], list[TransferTime]] = defaultdict(list)
    for time in times:
        if time.src < rows:
            together[time.src, time.dst, time.op, time.tick].append(time)
    out = []
    for (src, dst, op, tick), members in sorted(together.items()):
        label = (
            f"to rank {dst}, step {members[0].step}, {round(sum(m.bytes for m in members)):,} bytes"
        )
        out.append(
            (
                src,
                dst,
                op,
                tick,
                min(m.begin_us for m in members),
                max(m.end_us for m in members),
                label,
            )
        )
    return out


def _list_link_bars(row: int, times: Sequence[TransferTime]) -> list[_Bar]:
    """Return a bar for all of an operation that crosses a link in a tick; what is added and what is
    kept lie side by side.
    """
    together: dict[tuple[str, int], list[TransferTime]] = defaultdict(list)
    for time in times:
        together[time.op, time.tick].append(time)
    out = []
    for (op, tick), members in sorted(together.items()):
        label = f"step {members[0].step}, {len(members)} at once, {round(sum(m.bytes for m in members)):,} bytes"
        lane = 0 if op == "reduce" else 1
        out.append(
            (
                row,
                lane,
                op,
                tick,
                min(m.begin_us for m in members),
                max(m.end_us for m in members),
                label,
            )
        )
    return out


def _join_bars(bars: Sequence[_Bar], least_us: float) -> list[_Bar]:
    """Return the bars with those of a row and an operation that follow each other, or nearly, made
    one.
    """
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
