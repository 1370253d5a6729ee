"""The picture of machines with sockets, switches or several boxes: rows of devices, and bars for what joins them.

What hangs together without the network is a box. Inside, sockets stand above PCIe switches, these above GPUs and NICs,
and NVSwitches are bars beside the GPUs; boxes stand above and below the bar of the network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from ..graph import Device, Topology
from .cables import Cable, cables
from .shapes import (
    MANY_GPUS,
    NIC_HEIGHT,
    NIC_WIDTH,
    Frame,
    Picture,
    Shape,
    flat_picture,
    gpu_shape,
    gpu_size,
    wire_between,
)
from .socket_tree import bar_label, tiered_box

_GAP, _FRAME_PAD, _FRAME_HEAD = 40, 18, 24
_BAR_HEIGHT, _BAR_GAP = 34, 70
_ONE_ROW_OF_GPUS = 8
_ONE_ROW_OF_BOXES = 2
_ONE_ROW_OF_SINGLES = 8


def boxes_picture(topology: Topology) -> Picture:
    """Boxes and the bars between them."""
    joined = cables(topology)
    hubs = [d for d in topology.devices if d.kind == "switch" and d.family in (None, "network")]
    boxes = _components(topology, joined, {d.id for d in hubs})
    drawn = [_box(topology, box, joined) for box in boxes]
    if len(boxes) > 1 and any(len(box) > 1 for box in boxes):
        drawn = [_framed(p, f"box {i}") for i, p in enumerate(drawn)]
    tiered = any(d.kind in ("cpu", "nic") or d.family == "pcie" for d in topology.devices)
    placed = _around_bar(drawn, network_below=tiered, has_bar=bool(hubs), singles=all(len(b) == 1 for b in boxes))
    return _with_hubs(topology, placed, hubs, joined)


def _components(topology: Topology, joined: Iterable[Cable], without: set[str]) -> list[list[Device]]:
    """Devices that hang together without the devices in `without`, in device order."""
    near: dict[str, list[str]] = defaultdict(list)
    for cable in joined:
        if not {cable.a, cable.b} & without:
            near[cable.a].append(cable.b)
            near[cable.b].append(cable.a)
    home: dict[str, int] = {}
    boxes: list[list[Device]] = []
    for device in topology.devices:
        if device.id in without:
            continue
        if device.id not in home:
            queue = [device.id]
            home[device.id] = len(boxes)
            for ident in queue:
                fresh = [n for n in dict.fromkeys(near[ident]) if n not in home]
                home |= dict.fromkeys(fresh, len(boxes))
                queue += fresh
            boxes.append([])
        boxes[home[device.id]].append(device)
    return boxes


def _box(topology: Topology, devices: Sequence[Device], joined: tuple[Cable, ...]) -> Picture:
    """One box, its upper left corner at (0, 0); the network is above boxes without sockets and PCIe."""
    inside = [c for c in joined if {c.a, c.b} <= {d.id for d in devices}]
    if any(d.kind == "cpu" or d.family == "pcie" for d in devices):
        return tiered_box(topology, devices, inside).cornered()
    if any(d.kind == "switch" for d in devices) or len(devices) == 1:
        return _rows(topology, devices, inside).cornered()
    gpus = [d.id for d in devices if d.kind == "gpu"]
    nics = [d for d in devices if d.kind == "nic"]
    picture = flat_picture(topology, gpus, inside).cornered()
    shapes = {ident: s for s in picture.shapes for ident in s.ids}
    spacing = max(picture.width / max(len(nics), 1), 72)
    for i, nic in enumerate(nics):
        x, y = picture.width / 2 + spacing * (i - (len(nics) - 1) / 2), picture.height + 70
        shapes[nic.id] = Shape((nic.id,), "nic", nic.id, "NIC", x, y, NIC_WIDTH, NIC_HEIGHT)
    between = [c for c in inside if c.a not in gpus or c.b not in gpus]
    wires = (*picture.wires, *(wire_between(c, shapes[c.a], shapes[c.b]) for c in between))
    return Picture(tuple(shapes.values()), wires, ()).cornered()


def _rows(topology: Topology, devices: Sequence[Device], inside: Sequence[Cable]) -> Picture:
    """Rows of GPUs above and below the bars of their switches."""
    rank = {ident: i for i, ident in enumerate(topology.ranks)}
    width, height = gpu_size(topology)
    step_x, step_y = width + (14 if width > 50 else 6), height / 2 + _BAR_HEIGHT / 2 + (44 if width > 50 else 24)
    groups = _alike_switches([d for d in devices if d.kind == "switch"], inside)
    rows = _rows_of(groups, [d.id for d in devices if d.kind != "switch"], inside, small=width < 50)
    widest: float = max((len(row) for row in rows if isinstance(row, list)), default=1)
    aside = 0.5 if len(topology.ranks) > MANY_GPUS and len(rows) > 2 else 0.0  # what is behind shows in the gaps
    widest += aside
    shapes: dict[str, Shape] = {}
    y = 0.0
    for i, row in enumerate(rows):
        y += step_y if i else 0.0
        if isinstance(row, list):
            for k, ident in enumerate(row):
                x = step_x * (k + (widest - len(row)) / 2 + (aside / 2 if i else -aside / 2))
                if ident in rank:
                    shapes[ident] = gpu_shape(topology, ident, rank[ident], x, y)
                else:
                    shapes[ident] = Shape((ident,), "nic", ident, "NIC", x, y, NIC_WIDTH, NIC_HEIGHT)
            continue
        bar_width = (step_x * widest) / len(row) - (step_x - width)
        for k, group in enumerate(row):
            x = -step_x / 2 + (k + 0.5) * step_x * widest / len(row)
            bar = Shape(group, "nvswitch", bar_label("NVSwitch", group), "", x, y, bar_width, _BAR_HEIGHT)
            shapes |= dict.fromkeys(group, bar)
    return _joined(shapes, inside)


def _alike_switches(switches: Sequence[Device], inside: Sequence[Cable]) -> list[tuple[str, ...]]:
    """Switches with the same neighbours are drawn as one."""
    near: dict[str, set[str]] = {d.id: set() for d in switches}
    for c in inside:
        for one, other in ((c.a, c.b), (c.b, c.a)):
            if one in near:
                near[one].add(other)
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for ident, others in near.items():
        groups[frozenset(others) or frozenset({ident})].append(ident)
    return [tuple(group) for group in groups.values()]


def _rows_of(
    groups: list[tuple[str, ...]], leaves: list[str], inside: Sequence[Cable], small: bool
) -> list[list[str] | tuple[tuple[str, ...], ...]]:
    """Rows from top to bottom: lists of GPUs, and tuples of switch groups that share a row."""
    if not groups:
        return [leaves]
    near = [[leaf for leaf in leaves if any({leaf, s} == {c.a, c.b} for c in inside for s in g)] for g in groups]
    apart = sum(map(len, near)) == len(leaves) and len(set().union(*near)) == len(leaves)
    if len(groups) == 2 and apart and all(near):
        return [near[0], (groups[0],), (groups[1],), near[1]]
    most = _ONE_ROW_OF_GPUS // 2 if small else _ONE_ROW_OF_GPUS
    if len(leaves) <= most:
        return [leaves, tuple(groups)]
    half = (len(leaves) + 1) // 2
    return [leaves[:half], tuple(groups), leaves[half:]]


def _joined(shapes: dict[str, Shape], inside: Iterable[Cable]) -> Picture:
    """Shapes and the wires between them; cables between the same shapes are one wire."""
    bundles: dict[tuple[object, ...], tuple[Cable, Shape, Shape, int]] = {}
    for c in inside:
        a, b = shapes[c.a], shapes[c.b]
        key = (a.ids, b.ids, c.kind, c.GBps, c.count, c.one_way)
        first, _, _, n = bundles.get(key, (c, a, b, 0))
        bundles[key] = (first, a, b, n + 1)
    wires = [replace(wire_between(c, a, b), cables=n) for c, a, b, n in bundles.values()]
    return Picture(tuple(dict.fromkeys(shapes.values())), tuple(wires), ())


def _framed(picture: Picture, label: str) -> Picture:
    moved = picture.moved(_FRAME_PAD, _FRAME_HEAD + 8)
    frame = Frame(label, 0, 0, picture.width + 2 * _FRAME_PAD, picture.height + _FRAME_HEAD + _FRAME_PAD + 8)
    return Picture(moved.shapes, moved.wires, (*moved.frames, frame))


def _turned(picture: Picture) -> Picture:
    """Upside down, so that the side that faces the network does."""
    height = picture.height

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return point[0], height - point[1]

    wires = (
        replace(w, start=at(w.start), end=at(w.end), bend=None if w.bend is None else at(w.bend)) for w in picture.wires
    )
    shapes = tuple(replace(s, y=height - s.y) for s in picture.shapes)
    if picture.frames:  # the label stays on top
        shapes = tuple(replace(s, y=s.y + _FRAME_HEAD - _FRAME_PAD + 8) for s in shapes)
        shift = _FRAME_HEAD - _FRAME_PAD + 8
        moved = Picture((), tuple(wires), ()).moved(0, shift)
        return Picture(shapes, moved.wires, picture.frames)
    return Picture(shapes, tuple(wires), picture.frames)


def _around_bar(drawn: list[Picture], network_below: bool, has_bar: bool, singles: bool) -> Picture:
    """Boxes in one row, or in two on both sides of the bar."""
    one_row = _ONE_ROW_OF_SINGLES if singles else _ONE_ROW_OF_BOXES
    half = len(drawn) if len(drawn) <= one_row else (len(drawn) + 1) // 2
    gap = 14 if singles else _GAP
    rows = [drawn[:half], drawn[half:]]
    if network_below or len(drawn) > one_row:
        upper, lower = rows if len(drawn) > one_row else (drawn, [])
    else:
        upper, lower = [], drawn
    upper = upper if network_below else [_turned(p) for p in upper]
    lower = [_turned(p) for p in lower] if network_below else lower
    base = max((p.height for p in upper), default=0)
    room = 2 * _BAR_GAP + _BAR_HEIGHT if has_bar else _GAP
    parts: list[Picture] = []
    for row, is_upper in ((upper, True), (lower, False)):
        x = 0.0
        for picture in row:
            parts.append(picture.moved(x, base - picture.height if is_upper else base + room))
            x += picture.width + gap
    return Picture(
        tuple(s for p in parts for s in p.shapes),
        tuple(w for p in parts for w in p.wires),
        tuple(f for p in parts for f in p.frames),
    )


def _with_hubs(topology: Topology, boxes: Picture, hubs: Sequence[Device], joined: tuple[Cable, ...]) -> Picture:
    """The bars of the network between the rows of boxes (or beside the only row), side by side."""
    if not hubs:
        return boxes
    idents = {d.id for d in hubs}
    own = [c for c in joined if {c.a, c.b} & idents]
    groups = _alike_switches(hubs, own)
    bar_y = _bar_y(boxes)
    width = max(boxes.width, 160 * len(groups))
    shapes = {ident: s for s in boxes.shapes for ident in s.ids}
    for k, group in enumerate(groups):
        name = "network" if topology.by_id[group[0]].family == "network" else "switch"
        x = (k + 0.5) * width / len(groups)
        bar = Shape(group, "network", bar_label(name, group), "", x, bar_y, width / len(groups) - 20, _BAR_HEIGHT)
        shapes |= dict.fromkeys(group, bar)
    wires = _joined(shapes, own).wires
    return Picture(tuple(dict.fromkeys(shapes.values())), (*boxes.wires, *wires), boxes.frames)


def _bar_y(boxes: Picture) -> float:
    """The middle of the widest gap between rows, or of the room that was left beside the only row."""
    edges = [(f.top, f.top + f.height) for f in boxes.frames] or [(s.top, s.bottom) for s in boxes.shapes]
    reach: list[tuple[float, float]] = []
    for top, bottom in sorted(edges):
        if reach and top <= reach[-1][1]:
            reach[-1] = (reach[-1][0], max(bottom, reach[-1][1]))
        else:
            reach.append((top, bottom))
    if not reach:
        return 0.0
    gaps = [(below[0] - above[1], (above[1] + below[0]) / 2) for above, below in pairwise(reach)]
    widest = max(gaps, default=(0.0, 0.0))
    if widest[0] >= 2 * _BAR_GAP:
        return widest[1]
    offset = _BAR_GAP + _BAR_HEIGHT / 2
    return reach[0][0] - offset if reach[0][0] >= offset else reach[-1][1] + offset


def lay_out(topology: Topology) -> Picture:
    """The picture of a topology, with its upper left corner at (0, 0)."""
    if all(d.kind == "gpu" for d in topology.devices):
        return flat_picture(topology, topology.ranks, cables(topology)).cornered()
    return boxes_picture(topology).cornered()
