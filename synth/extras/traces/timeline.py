"""Timelines of ranks' messages and of links' loads as SVG pictures.

Each rank or link has a row; time runs to the right. Times are those of the segments of transfers,
as `predict_times` returns them (synth/cost/transfer_times.py).
"""

from collections.abc import Sequence
from itertools import pairwise

from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ....topo.printable import quote
from ...cost.host_costs import host_of
from ...cost.segmentation import reroute_unless_in_network
from ...cost.transfer_times import TransferTime, predict_times
from ...pictures.drawing import draw_text, show_us, start_svg
from ...plan import Plan
from ...sizes import show_size

# Pixels: the picture, its margins, a row.
_WIDTH, _ROW = 860, 24
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 26, 30
# Least pixels for the time axis, however long the names of rows are.
_MIN_WIDTH = 480
# Most ranks (the first ones) and most links (the busiest) to draw.
MAX_ROWS = 16
# Most messages to draw singly; beyond, messages of a row that follow each other share a bar.
MAX_BARS = 2400

# What the colours of messages mean.
_LEGEND = (("add", "sends data to add"), ("copy", "sends data to copy"))

# Row (a sender, a link), track in it (a receiver, an operation), operation, tick, start and end in
# microseconds, and the tooltip.
_Bar = tuple[int, int, str, int, float, float, str]


def draw_timeline(
    title: str,
    times: Sequence[TransferTime],
    ranks: int,
    *,
    alone: bool = False,
    width: int = _WIDTH,
) -> str:
    """Draw the messages that each of the first MAX_ROWS of `ranks` ranks sends, as SVG.

    Copies and sums have different colours. With `alone` it is a complete file. It is `width` pixels
    wide, or more if the names of rows leave too little room.
    """
    rows = min(ranks, MAX_ROWS)
    groups = group_by_key(
        ((time.src, time.dst, time.op, time.tick), time) for time in times if time.src < rows
    )
    bars = [_join_times(key, of, f"to rank {key[1]}, ") for key, of in sorted(groups.items())]
    names = [f"rank {rank}" for rank in range(rows)]
    return _draw(title, names, bars, _find_end_us(times), alone, width)


def draw_plan_timeline(plan: Plan, size_bytes: int) -> str:
    """Draw what each rank sends in a plan's schedule for a size, as predicted: a complete file.

    Raise InputError if the schedule has too many transfers to list.
    """
    topology, schedule = plan.topology, plan.entry_for(size_bytes).schedule
    sent = reroute_unless_in_network(schedule, plan.router)
    times = predict_times(sent, topology, size_bytes, host_of(topology))
    title = f"{schedule.label}: {show_size(size_bytes)} on {topology.name}, predicted"
    return draw_timeline(title, times, len(topology.ranks), alone=True)


def draw_links(
    title: str, times: Sequence[TransferTime], topology: Topology, *, width: int = _WIDTH
) -> str:
    """Draw when each of the MAX_ROWS busiest links carries sums and copies.

    The share of the time for which it would be busy at full bandwidth is next to each row. `width`
    is in pixels, as for `draw_timeline`.
    """
    crossing = group_by_key(
        (link, time)
        for time in times
        for link in pairwise((topology.ranks[time.src], *time.route, topology.ranks[time.dst]))
    )
    end_us = _find_end_us(times)
    busy_us = {
        link: sum(time.bytes for time in of) / float(topology.capacity_GBps[link]) / 1e3
        for link, of in crossing.items()
    }
    number = {device.id: i for i, device in enumerate(topology.devices)}
    shares = {link: round(us / end_us, 3) for link, us in busy_us.items()}
    busiest = sorted(shares, key=lambda x: (-shares[x], number[x[0]], number[x[1]]))[:MAX_ROWS]
    groups = group_by_key(
        ((row, 0 if time.op == "reduce" else 1, time.op, time.tick), time)
        for row, link in enumerate(busiest)
        for time in crossing[link]
    )
    bars = [_join_times(key, of, f"{len(of)} at once, ") for key, of in sorted(groups.items())]
    names = [f"{a} > {b}  {busy_us[a, b] / end_us:.0%}" for a, b in busiest]
    return _draw(title, names, bars, end_us, alone=False, whole_width=width)


def _find_end_us(times: Sequence[TransferTime]) -> float:
    return max((time.end_us for time in times), default=0.0) or 1.0


def _draw(
    title: str,
    names: Sequence[str],
    bars: Sequence[_Bar],
    end_us: float,
    alone: bool,
    whole_width: int,
) -> str:
    left_edge = max(_LEFT, 16 + round(6.4 * max(map(len, names), default=0)))
    bottom, width = _TOP + len(names) * _ROW, max(_MIN_WIDTH, whole_width - left_edge - _RIGHT)
    right = left_edge + width
    lines = start_svg(right + _RIGHT, bottom + _BOTTOM, title, alone=alone)
    for i in range(6):
        x, anchor = left_edge + width * i / 5, "end" if i == 5 else "middle"
        lines += [
            f'<path class="g" d="M{x:.1f} {_TOP - 4}V{bottom}"/>',
            draw_text(x, bottom + 16, show_us(end_us * i / 5), 11, anchor=anchor, look="f"),
        ]
    for number, (look, text) in enumerate(_LEGEND):
        x = left_edge + 160 * number
        lines.append(
            f'<rect class="{look}" x="{x}" y="4" width="22" height="10"/>'
            + draw_text(x + 28, 13, text, 11)
        )
    for row, name in enumerate(names):
        y = _TOP + row * _ROW
        lines += [
            draw_text(left_edge - 8, y + _ROW / 2 + 4, name, 11, anchor="end", look="f"),
            f'<path class="g" d="M{left_edge} {y + _ROW - 1}H{right}"/>',
        ]
    if len(bars) > MAX_BARS:
        bars = _join_bars(bars, end_us / width)
    tracks = group_by_key(sorted({bar[:2] for bar in bars}))
    for row, track, op, tick, begin, end, label in bars:
        thick = (_ROW - 5) / len(tracks[row])
        left, length = left_edge + width * begin / end_us, max(0.6, width * (end - begin) / end_us)
        top = _TOP + row * _ROW + 2 + thick * tracks[row].index(track)
        # Every other tick is drawn weaker, so that ticks of a pipeline can be distinguished.
        look = ("add" if op == "reduce" else "copy") + (" dim" if tick % 2 else "")
        lines.append(
            f'<rect class="{look}" x="{left:.1f}" y="{top:.1f}" width="{length:.1f}" '
            f'height="{max(1.0, thick - 0.6):.1f}">'
            + (f"<title>{quote(label)}</title>" if label else "")
            + "</rect>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _join_times(key: tuple[int, int, str, int], times: Sequence[TransferTime], what: str) -> _Bar:
    return (
        *key,
        min(t.begin_us for t in times),
        max(t.end_us for t in times),
        f"{what}step {times[0].step}, {round(sum(t.bytes for t in times)):,} bytes",
    )


def _join_bars(bars: Sequence[_Bar], least_us: float) -> list[_Bar]:
    """Return the bars, joined if they (almost) follow each other on a track."""
    out: list[_Bar] = []
    for bar in sorted(bars, key=lambda b: (b[0], b[1], b[2], b[4])):
        if out and out[-1][:3] == bar[:3] and bar[4] - out[-1][5] <= 2 * least_us:
            out[-1] = (*out[-1][:5], max(out[-1][5], bar[5]), "")
        else:
            out.append((*bar[:3], 0, bar[4], bar[5], ""))
    return out
