"""Draw a topology as SVG, without any dependency.

A wire is the line that is drawn for a cable, the links of one kind between two devices. Its colour
shows the kind, its width the bandwidth. The legend explains both, so that wires need no labels.
"""

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import cycle, groupby

from ...graph import Topology
from ...pictures.cables import Cable, count_sockets, find_cables, format_rate
from ...pictures.collapse import ShownPart, show_hosts_once
from ...printable import quote
from .collapse import MAX_CABLES, collapse, count_hosts, list_boxes
from .layout import lay_out
from .shapes import LETTER, SMALL_GPU_WIDTH, TIMES, Frame, Picture, Shape

# Pixels: around the picture, for title and summary, and of a legend entry.
_MARGIN, _HEAD, _LEGEND_ROW, _LEGEND_COLUMN = 28, 66, 24, 290
# Pixels: title and summary with the margins that a page which says both can cut off, and the left
# and right margins.
TITLE_HEIGHT, SIDE = 78, 24
# Pixels: of several hosts that are alike one is drawn if the picture were wider.
MAX_WIDTH = 2_400
_MIN_WIDTH = 420  # pixels: room for the summary of the smallest machine
_MAX_LEGEND_ROWS = 12  # classes of links; more are combined by kind
_KIND_COLOURS = {
    "nvlink": "#5a9e00",
    "c2c": "#2f6b1f",
    "xgmi": "#d9480f",
    "pcie": "#4475b5",
    "smp": "#8057b0",
    "network": "#0d8f92",
    "link": "#55606e",
}
_OTHER_COLOURS = ("#b5852b", "#b03a78", "#7a6a58", "#3b7f5c")  # kinds that only files define
_LOOKS = {  # fill and outline of each kind of device
    "gpu": ("#eef7dd", "#6aa61c"),
    "cpu": ("#efe9f8", "#8057b0"),
    "pcie": ("#e6eefa", "#4475b5"),
    "nic": ("#e2f4f4", "#0d8f92"),
    "nvswitch": ("#dcefbb", "#5a9e00"),
    "network": ("#cfeceb", "#0d8f92"),
}
_INK, _FAINT, _PAPER, _FRAME, _FRAME_FILL = "#1f2933", "#667380", "#ffffff", "#aab4bf", "#fafbfc"
_FONT = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"
_THINNEST, _THICKEST = 1.6, 6.5  # pixels


def write(topology: Topology) -> str:
    """Return the topology as an SVG document; if hosts are too wide, equal ones appear once.

    The summary in the picture then says what was left out.
    """
    shown, picture = _choose_part(topology)
    classes = Counter[Cable]()  # how many cables look like one without ends
    for wire in picture.wires:
        classes[wire.cable.without_ends()] += wire.cables
    # Colours and widths depend on all wires, the height on the legend: both precede the first line.
    style = _Style(classes)
    legend = list(_build_legend(style, classes))
    title, summary = _shorten(topology.name, 60), _summarize(topology)
    summary += f"; {_shorten(shown.left_out, 100)}" if shown.left_out is not None else ""
    width = max(picture.width, _MIN_WIDTH, 13 * len(title), 7.2 * len(summary))
    columns = max(1, min(len(legend), int(width // _LEGEND_COLUMN)))
    legend_rows = math.ceil(len(legend) / columns)
    height = _HEAD + picture.height + 34 + _LEGEND_ROW * legend_rows
    shifted = picture.shift((width - picture.width) / 2 + _MARGIN, _HEAD + _MARGIN)
    full_width, full_height = width + 2 * _MARGIN, height + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full_width:.0f}" '
        f'height="{full_height:.0f}" '
        f'viewBox="0 0 {full_width:.0f} {full_height:.0f}" font-family="{_FONT}" role="img">',
        f"<title>{quote(topology.name)}: {quote(summary)}</title>",
        *style.define_arrow_heads(),
        f'<rect width="100%" height="100%" rx="10" fill="{_PAPER}"/>',
        _draw_text(_MARGIN, _MARGIN + 20, title, 20, anchor="start", weight="bold"),
        _draw_text(_MARGIN, _MARGIN + 42, summary, 13, anchor="start", colour=_FAINT),
        # Later elements cover earlier ones: wires are above frames, labels and shapes above wires.
        # Frames inside others come after these.
        *map(_draw_frame, sorted(shifted.frames, key=lambda frame: -frame.width * frame.height)),
        *_draw_wires(shifted, style),
        *(_draw_frame_label(frame) for frame in shifted.frames),
        *(line for shape in shifted.shapes for line in _draw_shape(shape)),
        *_draw_legend(
            legend, columns, full_height - _MARGIN - _LEGEND_ROW * legend_rows + 10, width / columns
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _choose_part(topology: Topology) -> tuple[ShownPart, Picture]:
    """Return the part to draw and its layout: all of it, a box of each kind, or a host of each."""
    folded = show_hosts_once(topology)
    parts = [folded]
    if folded.left_out is not None:
        if len(list_boxes(topology)) < count_hosts(topology):
            parts.insert(0, collapse(topology, max_boxes=1))
        parts.insert(0, ShownPart(topology, None))
    for part in parts[:-1]:
        if len(find_cables(part.topology)) <= MAX_CABLES:
            picture = lay_out(part.topology)
            if picture.width <= MAX_WIDTH:
                return part, picture
    return folded, lay_out(folded.topology)


class _Style:
    """A colour for each link kind and a width, on a logarithmic scale, for each rate."""

    def __init__(self, classes: Counter[Cable]) -> None:
        others = sorted({c.kind for c in classes} - _KIND_COLOURS.keys())
        self.colours = _KIND_COLOURS | dict(zip(others, cycle(_OTHER_COLOURS)))
        self.directed = sorted({c.kind for c in classes if c.directed})
        rates = [float(c.GBps) for c in classes] or [1.0]
        self.low, self.high = min(rates), max(rates)

    def get_width(self, GBps: Fraction) -> float:
        """Return the width of a wire in pixels."""
        if self.high <= self.low * 1.001:
            return 2.6
        part = math.log(float(GBps) / self.low) / math.log(max(self.high / self.low, 4.0))
        return round(_THINNEST + part * (_THICKEST - _THINNEST), 2)

    def format_stroke(self, kind: str, GBps: Fraction) -> str:
        """Format the attributes of a line."""
        return f'stroke="{self.colours[kind]}" stroke-width="{self.get_width(GBps):g}"'

    def define_arrow_heads(self) -> Iterator[str]:
        """Yield arrow heads for the kinds with links in one direction."""
        for kind in self.directed:
            yield (
                f'<defs><marker id="arrow-{list(self.colours).index(kind)}" viewBox="0 0 8 8" '
                'refX="4" refY="4" '
                f'markerWidth="12" markerHeight="12" markerUnits="userSpaceOnUse" orient="auto">'
                f'<path d="M0 0 L8 4 L0 8 z" fill="{self.colours[kind]}"/></marker></defs>'
            )

    def format_marker(self, kind: str) -> str:
        """Format the attribute that puts an arrow head in the middle of a curve of two halves."""
        return f' marker-mid="url(#arrow-{list(self.colours).index(kind)})"'


def _draw_wires(picture: Picture, style: _Style) -> Iterator[str]:
    """Yield the wires, thin ones above thick ones."""
    for wire in sorted(picture.wires, key=lambda w: -w.cable.GBps):
        (ax, ay), (bx, by), cable = wire.start, wire.end, wire.cable
        attributes = (
            f'fill="none" stroke-linecap="round" {style.format_stroke(cable.kind, cable.GBps)}'
            + (style.format_marker(cable.kind) if cable.directed else "")
        )
        if wire.bend is None:
            yield f'<path d="M{ax:.1f} {ay:.1f} L{bx:.1f} {by:.1f}" {attributes}/>'
            continue
        cx, cy = wire.bend
        mx, my = (ax + bx + 2 * cx) / 4, (ay + by + 2 * cy) / 4
        first = f"Q{(ax + cx) / 2:.1f} {(ay + cy) / 2:.1f} {mx:.1f} {my:.1f}"
        second = f"Q{(bx + cx) / 2:.1f} {(by + cy) / 2:.1f} {bx:.1f} {by:.1f}"
        yield f'<path d="M{ax:.1f} {ay:.1f} {first} {second}" {attributes}/>'


def _draw_frame(frame: Frame) -> str:
    return (
        f'<rect x="{frame.left:.1f}" y="{frame.top:.1f}" width="{frame.width:.1f}" '
        f'height="{frame.height:.1f}" rx="12" fill="{_FRAME_FILL}" stroke="{_FRAME}" '
        'stroke-dasharray="5 4"/>'
    )


def _draw_frame_label(frame: Frame) -> str:
    # An outline keeps the label legible if a wire crosses it.
    outline = f'<text paint-order="stroke" stroke="{_FRAME_FILL}" stroke-width="5" '
    y = frame.top + (frame.height - 8 if frame.label_below else 19)
    return _draw_text(frame.left + 14, y, frame.label, 12, anchor="start", colour=_FAINT).replace(
        "<text ", outline, 1
    )


def _draw_shape(shape: Shape) -> Iterator[str]:
    """Yield a device's rectangle and text; several NICs look like a stack."""
    fill, outline = _LOOKS[shape.look]
    radius = 9 if shape.look == "gpu" else 6
    yield f'<g class="{shape.look}">'
    yield f"<title>{quote(', '.join(shape.ids))}</title>"
    if len(shape.ids) > 1 and shape.look == "nic":
        yield _draw_rect(shape.x + 4, shape.y + 4, shape, radius, fill, outline)
    yield _draw_rect(shape.x, shape.y, shape, radius, fill, outline)
    yield from _draw_writing(shape, outline)
    yield "</g>"


def _draw_rect(x: float, y: float, shape: Shape, radius: int, fill: str, outline: str) -> str:
    return (
        f'<rect x="{x - shape.width / 2:.1f}" y="{y - shape.height / 2:.1f}" '
        f'width="{shape.width:.1f}" height="{shape.height:.1f}" rx="{radius}" fill="{fill}" '
        f'stroke="{outline}" stroke-width="1.6"/>'
    )


def _draw_writing(shape: Shape, colour: str) -> Iterator[str]:
    """Yield a shape's text: a GPU's rank in large figures, other devices' names and subtitles."""
    title, subtitle = _fit(shape.title, shape.width, 13), _fit(shape.subtitle, shape.width, 10)
    if shape.look == "gpu" and shape.height < 44:
        size = 16 if shape.width >= SMALL_GPU_WIDTH else 14
        yield _draw_text(shape.x, shape.y + 6, shape.title, size, weight="bold")
    elif shape.look == "gpu":
        yield _draw_text(shape.x, shape.top + 15, subtitle, 10, colour=_FAINT)
        yield _draw_text(shape.x, shape.y + 18, shape.title, 21, weight="bold")
    elif not subtitle or (
        shape.height < 36 and len(title) + len(shape.subtitle) > shape.width / 8.5
    ):
        yield _draw_text(shape.x, shape.y + 5, title, 13, weight="600")
    elif shape.height < 36:
        yield _draw_text(shape.x, shape.y + 5, f"{shape.subtitle} · {title}", 12, colour=_INK)
    else:
        yield _draw_text(shape.x, shape.y - 1, title, 13, weight="600")
        yield _draw_text(shape.x, shape.y + 14, subtitle, 10, colour=_FAINT)


def _build_legend(style: _Style, classes: Counter[Cable]) -> Iterator[tuple[str, str]]:
    """Yield (line attributes, text) of each class of links, or of each kind if there are many."""
    order = sorted(classes, key=lambda c: (c.kind, -c.GBps, c.count, c.directed))
    if len(order) <= _MAX_LEGEND_ROWS:
        for c in order:
            yield style.format_stroke(c.kind, c.GBps), _format_legend_text(c, classes[c])
        return
    for kind, group in groupby(order, key=lambda c: c.kind):
        alike = list(group)
        yield (
            style.format_stroke(kind, alike[0].GBps),
            f"{sum(classes[c] for c in alike)} {TIMES} {alike[0].label}, "
            f"{format_rate(alike[-1].GBps)} to {format_rate(alike[0].GBps)} GB/s",
        )


def _format_legend_text(entry: Cable, number: int) -> str:
    lanes = (
        f" ({entry.count} {TIMES} {format_rate(entry.GBps / entry.count)})"
        if entry.count > 1 and entry.counted
        else ""
    )
    return (
        f"{number} {TIMES} {entry.label}, {format_rate(entry.GBps)} GB/s{lanes}"
        f"{', one direction' if entry.directed else ''}"
    )


def _draw_legend(
    entries: list[tuple[str, str]], columns: int, top: float, column_width: float
) -> Iterator[str]:
    for i, (stroke, text) in enumerate(entries):
        x, y = _MARGIN + i % columns * column_width, top + i // columns * _LEGEND_ROW
        yield f'<path d="M{x:.1f} {y:.1f} h34" stroke-linecap="round" {stroke}/>'
        yield _draw_text(x + 46, y + 4.5, text, 13, anchor="start")


def _summarize(topology: Topology) -> str:
    sockets = count_sockets(topology)
    names = {
        "gpu": ("GPU", "GPUs"),
        "cpu": ("NUMA node", "NUMA nodes") if sockets is None else ("socket", "sockets"),
        "switch": ("switch", "switches"),
        "nic": ("NIC", "NICs"),
    }
    counts = Counter(d.kind for d in topology.devices)
    if sockets is not None:
        counts["cpu"] = sockets
    listed = (
        f"{counts[kind]} {one if counts[kind] == 1 else many}"
        for kind, (one, many) in names.items()
        if counts[kind]
    )
    return ", ".join(listed) + "; GB/s in one direction"


def _draw_text(
    x: float,
    y: float,
    text: str,
    size: int,
    anchor: str = "middle",
    colour: str = _INK,
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="{colour}">{quote(text)}</text>'
    )


def _fit(text: str, width: float, size: int) -> str:
    """Shorten a text in the middle so that it fits a shape's width."""
    return _shorten(text, max(3, int((width - 6) / (size * LETTER))))


def _shorten(text: str, length: int) -> str:
    """Shorten a text in the middle to at most `length` characters."""
    if len(text) <= length:
        return text
    tail = max(1, (length - 1) // 2)
    return f"{text[: length - 1 - tail]}…{text[-tail:]}"
